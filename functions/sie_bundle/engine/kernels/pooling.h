// One vector of each text's states: its first or last one, or a mean of all, of length 1 if that is asked for.
#pragma once

#include "numbers.h"

enum Kind { CLS, MEAN, LAST, WEIGHTED_MEAN };

struct Pooling {
  const float* states;        // [tokens][size]
  const int32_t* cu_seqlens;  // [texts + 1], in the order of the states
  const int64_t* places;      // [texts]: which of them each vector is of
  float* vectors;             // [texts][size], out
  int32_t texts, size, kind, unit;
};

static inline void pooled(const Pooling& of, int text) {
  long first = of.cu_seqlens[of.places[text]], last = of.cu_seqlens[of.places[text] + 1];
  float weights = 0, *to = of.vectors + (long)text * of.size;
  memset(to, 0, of.size * sizeof(float));
  for (long token = of.kind == LAST ? last - 1 : first; token < (of.kind == CLS ? first + 1 : last); token++) {
    float weight = of.kind == WEIGHTED_MEAN ? token - first + 1 : 1;
    weights += weight;
    const float* x = of.states + token * of.size;
    for (int at = 0; at < of.size; at += WIDTH) store(to + at, load(to + at) + weight * load(x + at));
  }
  float scale = 1 / weights;
  if (of.unit) {
    Vector squares = {};
    for (int at = 0; at < of.size; at += WIDTH) squares += scale * load(to + at) * (scale * load(to + at));
    scale /= __builtin_fmaxf(__builtin_sqrtf(total(squares)), 1e-12f);
  }
  for (int at = 0; at < of.size; at += WIDTH) store(to + at, scale * load(to + at));
}
