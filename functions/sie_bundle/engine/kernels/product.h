// Products of a few rows with a weight, 32 of its columns (a panel) at a time, and what is done to them on the way.
//
// A weight is packed once: panel after panel, each [inward / UNIT][32] units of 32 bits, a unit being one float32 or
// two bfloat16 of one column. Both sizes are whole 32s, the rest is zeros. Owns that layout and the loops over it;
// which products there are is pass.cpp's.
#pragma once

#include "numbers.h"

constexpr int PANEL = 32;  // columns of a weight at a time
// Rows of what it is multiplied with: two tiles, or several times as many as there are registers for.
#ifdef SIE_AMX
constexpr int BLOCK = 32;
#else
constexpr int BLOCK = 36;
#endif

static inline long whole(long number) { return (number + PANEL - 1) / PANEL * PANEL; }

struct Product {
  const void* weight;
  const float* bias;        // [outward], or null
  int32_t inward, outward;  // whole 32s
  int32_t activation;
  int32_t halved;  // whether the weight's units are float16, made float32 panel by panel
};

// Where a number stands of rows that products take; `width`: whole 32s. With AMX they lie in blocks, 16 rows of 32
// numbers each, so that a tile is 16 lines of 64 bytes in a row; elsewhere row by row.
static inline long place(long row, long column, [[maybe_unused]] long width) {
#ifdef SIE_AMX
  return row / 16 * 16 * width + column / PANEL * 16 * PANEL + row % 16 * PANEL + column % PANEL;
#else
  return row * width + column;
#endif
}

// The left side of a product: how far it is from one row to the next, from 32 numbers to the next 32, and to row 16.
struct Left {
  const Number* at;
  long row, step, below;
};

static inline Left row_by_row(const Number* at, long stride) { return {at, stride, PANEL, 16 * stride}; }

static inline Left in_blocks(const Number* at, long width) {
#ifdef SIE_AMX
  return {at, PANEL, 16 * PANEL, 16 * width};
#else
  return row_by_row(at, width);
#endif
}

#ifdef SIE_AMX
// Tiles of 16 rows of 64 bytes for the time of one call: what they were before is put back, for oneDNN remembers.
struct Tiles {
  alignas(64) uint8_t before[64];
  Tiles() {
    _tile_storeconfig(before);
    alignas(64) uint8_t wanted[64] = {1};
    for (int tile = 0; tile < 8; tile++) wanted[16 + 2 * tile] = 64, wanted[48 + tile] = 16;
    _tile_loadconfig(wanted);
  }
  ~Tiles() {
    if (before[0])
      _tile_loadconfig(before);
    else
      _tile_release();
  }
};

// c [32 or 16][32] of a [rows][units] and one panel. Rows behind the last are computed, too. Multiplying goes on by
// itself: `meanwhile(from, to)` is called for BLOCK rows of whatever else is to be done, some at a time, and of what is
// multiplied next so many lines of 64 bytes are fetched for every 16 units.
template <class Meanwhile>
static inline void multiply(const Left& a, int rows, const uint32_t* b, int units, float* c, long c_stride,
                            Meanwhile meanwhile, const uint32_t* next = nullptr, int lines = 0) {
  int each = (BLOCK * 16 + units - 1) / units, row = 0;
  const Number *above = a.at, *below = a.at + a.below;
  auto beside = [&] {
    for (int line = 0; line < lines; line++, next += 16) _mm_prefetch((const char*)next, _MM_HINT_T1);
    if (row < BLOCK) meanwhile(row, row + each < BLOCK ? row + each : BLOCK);
    row += each;
  };
  _tile_zero(0);
  _tile_zero(1);
  if (rows > 16) {
    _tile_zero(2);
    _tile_zero(3);
    for (int unit = 0; unit < units; unit += 16, above += a.step, below += a.step) {
      _tile_loadd(4, above, 2 * a.row);
      _tile_loadd(6, b + unit * PANEL, 128);
      _tile_loadd(7, b + unit * PANEL + 16, 128);
      _tile_loadd(5, below, 2 * a.row);
      _tile_dpbf16ps(0, 4, 6);
      _tile_dpbf16ps(1, 4, 7);
      _tile_dpbf16ps(2, 5, 6);
      _tile_dpbf16ps(3, 5, 7);
      beside();
    }
    _tile_stored(2, c + 16 * c_stride, 4 * c_stride);
    _tile_stored(3, c + 16 * c_stride + 16, 4 * c_stride);
  } else {
    for (int unit = 0; unit < units; unit += 16, above += a.step) {
      _tile_loadd(4, above, 2 * a.row);
      _tile_loadd(6, b + unit * PANEL, 128);
      _tile_loadd(7, b + unit * PANEL + 16, 128);
      _tile_dpbf16ps(0, 4, 6);
      _tile_dpbf16ps(1, 4, 7);
      beside();
    }
  }
  _tile_stored(0, c, 4 * c_stride);
  _tile_stored(1, c + 16, 4 * c_stride);
}
#else
struct Tiles {};

static inline Vector added(Vector sum, Vector a, Vector b) {
#ifdef SIE_BFLOAT16
  return (Vector)_mm512_dpbf16_ps((__m512)sum, (__m512bh)a, (__m512bh)b);
#else
  return sum + a * b;
#endif
}

template <int ROWS>
static inline void multiply_rows(const Number* a, long stride, const uint32_t* b, int units, float* c, long c_stride) {
  for (int column = 0; column < PANEL; column += 2 * WIDTH) {
    Vector sums[ROWS][2] = {};
    for (int unit = 0; unit < units; unit++) {
      Vector left = load((const float*)b + unit * PANEL + column);
      Vector right = load((const float*)b + unit * PANEL + column + WIDTH);
#pragma GCC unroll 12
      for (int row = 0; row < ROWS; row++) {
        float number;
        memcpy(&number, a + row * stride + unit * UNIT, 4);
        sums[row][0] = added(sums[row][0], all(number), left);
        sums[row][1] = added(sums[row][1], all(number), right);
      }
    }
    for (int row = 0; row < ROWS; row++) {
      store(c + row * c_stride + column, sums[row][0]);
      store(c + row * c_stride + column + WIDTH, sums[row][1]);
    }
  }
}

// c [rows][32] of a [rows][units] and one panel; so many rows at a time as there are registers for. `meanwhile(from,
// to)` is called once, for BLOCK rows: only tiles multiply beside other work.
template <class Meanwhile>
static inline void multiply(const Left& a, int rows, const uint32_t* b, int units, float* c, long c_stride,
                            Meanwhile meanwhile, const uint32_t* = nullptr, int = 0) {
  constexpr int MOST = WIDTH == 16 ? 12 : 6;
  const Number* at = a.at;
  auto some = [&](auto multiply_some, int count) {
    multiply_some(at, a.row, b, units, c, c_stride);
    rows -= count, at += count * a.row, c += count * c_stride;
  };
  meanwhile(0, BLOCK);
  while (rows >= MOST) some(multiply_rows<MOST>, MOST);
  if (rows >= 8) some(multiply_rows<8>, 8);
  if (rows >= 4) some(multiply_rows<4>, 4);
  if (rows >= 2) some(multiply_rows<2>, 2);
  if (rows) some(multiply_rows<1>, 1);
}
#endif

static inline void multiply(const Left& a, int rows, const uint32_t* b, int units, float* c, long c_stride) {
  multiply(a, rows, b, units, c, c_stride, [](int, int) {});
}

// One panel of a weight, as products take it; `room` for it where it is made first.
static inline const uint32_t* panel_of(const Product& of, int panel, [[maybe_unused]] uint32_t* room) {
  long units = (long)of.inward / UNIT * PANEL;
#ifndef SIE_BFLOAT16
  if (of.halved) {
    const uint16_t* from = (const uint16_t*)of.weight + panel * units;
    for (long unit = 0; unit < units; unit += 8) {
      _mm256_storeu_ps((float*)room + unit, _mm256_cvtph_ps(_mm_loadu_si128((const __m128i*)(from + unit))));
    }
    return room;
  }
#endif
  return (const uint32_t*)of.weight + panel * units;
}

// Multiply a [rows][inward], in blocks, and give the result, activated, two vectors that lie side by side at a time, to
// `take(row, column, left, right)`. The panels are shared among the threads of the region this is called in, which go
// on when all are through. `then`: the product that comes next.
template <int ACTIVATION, class Take>
static void multiplied(const Number* a, int rows, const Product& of, const Product& then, uint32_t* room, Take take) {
  alignas(64) float made[2][BLOCK * PANEL];
  // What is done to a block is done while the next one is multiplied.
  int now = 0, first_before = 0, some_before = 0, column_before = 0;
  auto finish = [&](int from, int to) {
    const float* c = made[1 - now];
    to = to < some_before ? to : some_before;
    for (int at = 0; at < PANEL; at += 2 * WIDTH) {
      const float* bias = of.bias + column_before + at;
      Vector left = of.bias ? load(bias) : Vector{}, right = of.bias ? load(bias + WIDTH) : Vector{};
      for (int row = from; row < to; row++) {
        const float* x = c + row * PANEL + at;
        take(first_before + row, column_before + at, activated<ACTIVATION>(load(x) + left),
             activated<ACTIVATION>(load(x + WIDTH) + right));
      }
    }
  };
  int units = of.inward / UNIT, blocks = (rows + BLOCK - 1) / BLOCK, lines = (PANEL + blocks - 1) / blocks;
#pragma omp for schedule(static) nowait
  for (int panel = 0; panel < of.outward / PANEL; panel++) {
    const uint32_t *weight = panel_of(of, panel, room), *next = weight + units * PANEL;
    if (panel == of.outward / PANEL - 1) next = (const uint32_t*)then.weight;
    for (int first = 0; first < rows; first += BLOCK, now = 1 - now, next += lines * units) {
      int some = rows - first < BLOCK ? rows - first : BLOCK;
      Left left = in_blocks(a + (long)first * of.inward, of.inward);
      multiply(left, some, weight, units, made[now], PANEL, finish, next, lines);
      first_before = first, some_before = some, column_before = panel * PANEL;
    }
  }
  finish(0, BLOCK);
#pragma omp barrier
}

template <class Take>
static void multiplied(const Number* a, int rows, const Product& of, const Product& then, uint32_t* room, Take take) {
  switch (of.activation) {
    case GELU:
      return multiplied<GELU>(a, rows, of, then, room, take);
    case GELU_TANH:
      return multiplied<GELU_TANH>(a, rows, of, then, room, take);
    case RELU:
      return multiplied<RELU>(a, rows, of, then, room, take);
    case SILU:
      return multiplied<SILU>(a, rows, of, then, room, take);
    case TANH:
      return multiplied<TANH>(a, rows, of, then, room, take);
    default:
      return multiplied<NONE>(a, rows, of, then, room, take);
  }
}
