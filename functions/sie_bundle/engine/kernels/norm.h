// What is done to a state as a whole: normalisation, by mean and variance or by the root mean square alone, and sums.
#pragma once

#include "multiply.h"

struct Norm {
  const float* weight;
  const float* bias;  // or null
  float eps;
  int32_t rms;
  int32_t size;
  int32_t exists;
};

static inline float variance_around(Line x, float mean, int size) {
  Vector squares = {};
  for (int at = 0; at < size; at += WIDTH) {
    Vector apart = within(load(x.place(at)) - all(mean), at, 0, size, 0);
    squares += apart * apart;
  }
  return total(squares) / size;
}

// x [columns] normed, to `kept` and as numbers to that row of `to`, in blocks; either may be null. Without a norm: as
// it is. Behind the norm's own size there are zeros, before and after.
static inline void normed_row(Line x, const Norm& norm, int columns, Line kept, Number* to, long row) {
  Vector shift = {}, scale = {};
  if (norm.exists) {
    // Two sums of each: an addition does not wait for the one before.
    Vector sums[2] = {}, squares[2] = {};
    for (int at = 0; at < columns; at += 2 * WIDTH) {
      for (int half = 0; half < 2; half++) {
        Vector number = load(x.place(at + half * WIDTH));
        sums[half] += number, squares[half] += number * number;
      }
    }
    float mean = norm.rms ? 0 : total(sums[0] + sums[1]) / norm.size;
    float variance = total(squares[0] + squares[1]) / norm.size - mean * mean;
    // Of numbers far from nothing this is a small rest of large ones, so they are looked at once more.
    if (mean * mean > variance) variance = variance_around(x, mean, norm.size);
    shift = all(mean), scale = all(1.0f / __builtin_sqrtf(variance + norm.eps));
  }
  auto made = [&](int at) {
    Vector y = load(x.place(at));
    if (norm.exists) y = (y - shift) * scale * load(norm.weight + at);
    return norm.bias ? y + load(norm.bias + at) : y;
  };
  for (int at = 0; at < columns; at += 2 * WIDTH) {
    Vector left = made(at), right = made(at + WIDTH);
    if (kept.at) store(kept.place(at), left, right);
    if (to) store(to + place(row, at, columns), left, right);
  }
}
