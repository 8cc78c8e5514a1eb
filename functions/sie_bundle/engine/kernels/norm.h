// Normalisation of a state, by mean and variance or by the root mean square alone.
#pragma once

#include "product.h"

struct Norm {
  const float* weight;
  const float* bias;  // or null
  float eps;
  int32_t rms;
  int32_t size;
  int32_t exists;
};

// x [columns] normed, to `kept` and as numbers to that row of `to`, in blocks; either may be null. Without a norm: as
// it is. Behind the norm's own size there are zeros, before and after.
static inline void normed_row(const float* x, const Norm& norm, int columns, float* kept, Number* to, long row) {
  Vector shift = {}, scale = {};
  if (norm.exists) {
    // Two sums of each: an addition does not wait for the one before.
    Vector sums[2] = {}, squares[2] = {};
    for (int at = 0; !norm.rms && at < columns; at += 2 * WIDTH) {
      sums[0] += load(x + at), sums[1] += load(x + at + WIDTH);
    }
    shift = all(total(sums[0] + sums[1]) / norm.size);
    for (int at = 0; at < columns; at += 2 * WIDTH) {
      for (int half = 0; half < 2; half++) {
        Vector apart = load(x + at + half * WIDTH) - shift;
        if (at + 2 * WIDTH > norm.size) apart = within(apart, at + half * WIDTH, 0, norm.size, 0);
        squares[half] += apart * apart;
      }
    }
    scale = all(1.0f / __builtin_sqrtf(total(squares[0] + squares[1]) / norm.size + norm.eps));
  }
  auto made = [&](int at) {
    Vector y = load(x + at);
    if (norm.exists) y = (y - shift) * scale * load(norm.weight + at);
    return norm.bias ? y + load(norm.bias + at) : y;
  };
  for (int at = 0; at < columns; at += 2 * WIDTH) {
    Vector left = made(at), right = made(at + WIDTH);
    if (kept) store(kept + at, left, right);
    if (to) store(to + place(row, at, columns), left, right);
  }
}
