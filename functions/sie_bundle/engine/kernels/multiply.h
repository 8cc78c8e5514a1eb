// A few rows times 32 columns of a weight (a panel): the innermost loops, with AMX's tiles or with vectors.
//
// A weight is packed once: panel after panel, each [inward / UNIT][32] units of 32 bits, a unit being one float32 or
// two bfloat16 of one column. Both sizes are whole 32s, the rest is zeros. Owns that layout and that of rows; how a
// whole weight is gone through is product.h's.
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
  int32_t halved;  // whether the weight's units are float16, which are made float32 here

  // Of a panel, from row `from` on.
  const char* panel(int number, int from = 0) const {
    return (const char*)weight + ((long)number * inward + from) * PANEL * (halved ? 2 : sizeof(Number));
  }
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

// Rows of numbers: how far it is from one to the next, from 32 columns to the next 32, and to row 16.
template <class Of>
struct RowsOf {
  Of* at;
  long row, step, below;

  Of* place(long row_number, long column) const {
    return at + row_number * row + column / PANEL * step + column % PANEL;
  }
  RowsOf from(long row_number, long column) const { return {place(row_number, column), row, step, below}; }
  // The place of a row and of a panel's first column, where rows may be in blocks.
  Of* block(long row_number, long column) const {
    return at + row_number / 16 * below + row_number % 16 * row + column / PANEL * step;
  }
};
using Rows = RowsOf<Number>;

// A row of numbers, and how far it is from 32 columns to the next 32.
struct Line {
  float* at;
  long step = PANEL;

#ifdef SIE_AMX
  float* place(long column) const { return at + column / PANEL * step + column % PANEL; }
#else
  float* place(long column) const { return at + column; }
#endif
};

template <class Of>
static inline RowsOf<Of> row_by_row(Of* at, long stride) {
  return {at, stride, PANEL, 16 * stride};
}

template <class Of>
static inline RowsOf<Of> in_blocks(Of* at, long width) {
#ifdef SIE_AMX
  return {at, PANEL, 16 * PANEL, 16 * width};
#else
  return row_by_row(at, width);
#endif
}

#ifdef SIE_AMX
// What was stored is in memory from here on: GCC's intrinsics for tiles do not say all that they read.
static inline void written() { asm volatile("" ::: "memory"); }

// Tiles of 16 rows of 64 bytes for the time of one call: what they were before is put back, for oneDNN remembers.
struct Tiles {
  alignas(64) uint8_t before[64];
  Tiles() {
    _tile_storeconfig(before);
    alignas(64) uint8_t wanted[64] = {1};
    for (int tile = 0; tile < 8; tile++) wanted[16 + 2 * tile] = 64, wanted[48 + tile] = 16;
    written();
    _tile_loadconfig(wanted);
  }
  ~Tiles() {
    if (before[0])
      _tile_loadconfig(before);
    else
      _tile_release();
  }
};
#endif

alignas(64) constexpr float ZEROS[PANEL] = {};

// What is done meanwhile where nothing is.
struct Nothing {
  void operator()(int, int) const {}
};

// 32 columns of a weight as blocks of rows are multiplied by them: units of 32 bits, or numbers of float16.
struct Panel {
  const void* at;
  bool halved = false;
  // What is multiplied next and fetched meanwhile: with AMX so many lines of 64 bytes for every 16 units, an even
  // number of them; elsewhere all of it beside the first block, or null.
  const char* next = nullptr;
  int lines = 0;

  // A block has been multiplied.
  void advance([[maybe_unused]] int units) {
#ifdef SIE_AMX
    next += 4 * lines * units;
#else
    next = nullptr;
#endif
  }
};

// What is multiplied behind a block: rows that lie as its own do, and the panel.
struct Ahead {
  const Number* rows;
  const void* panel;
};

#ifdef SIE_AMX
// 16 units of a block of rows and of a panel, in the tiles 4 to 7. Unless they are taken ONCE_MORE soon, rows come past
// the first-level cache, which the panel fills by half: it is to meet the next rows there.
template <bool ONCE_MORE = false>
static inline void take(const Number* rows, long row, long below, const uint32_t* units) {
  if (ONCE_MORE) {
    _tile_loadd(4, rows, 2 * row);
  } else {
    _tile_stream_loadd(4, rows, 2 * row);
  }
  _tile_loadd(6, units, 4 * PANEL);
  _tile_loadd(7, units + 16, 4 * PANEL);
  if (ONCE_MORE) {
    _tile_loadd(5, rows + below, 2 * row);
  } else {
    _tile_stream_loadd(5, rows + below, 2 * row);
  }
}

static inline void take(const Rows& a, const void* panel) { take(a.at, a.row, a.below, (const uint32_t*)panel); }

// Of two tiles of rows, or of the first one.
template <bool BOTH, bool ONCE_MORE, class Meanwhile>
static inline void multiply_tiles(const Rows& a, const Panel& panel, int units, Ahead ahead, float* c,
                                  Meanwhile meanwhile) {
  auto b = (const uint32_t*)panel.at;
  const Number* rows = a.at;
  const char* next = panel.next;
  long a_row = a.row, step = a.step, below = a.below;
  int lines = panel.lines, each = (BLOCK * 16 + units - 1) / units, row = 0;
  written();
  _tile_zero(0);
  _tile_zero(1);
  if (BOTH) {
    _tile_zero(2);
    _tile_zero(3);
  }
  for (int left = units; left > 0;) {
    _tile_dpbf16ps(0, 4, 6);
    _tile_dpbf16ps(1, 4, 7);
    if (BOTH) {
      _tile_dpbf16ps(2, 5, 6);
      _tile_dpbf16ps(3, 5, 7);
    }
    left -= 16, rows += step, b += 16 * PANEL;
    if (left == 0) rows = ahead.rows, b = (const uint32_t*)ahead.panel;
    // The next tiles are asked for before what is done meanwhile, which would fill the CPU's queues before them.
    take<ONCE_MORE>(rows, a_row, below, b);
    // Two of them without a loop, which is what there are mostly.
    _mm_prefetch(next, _MM_HINT_T1);
    _mm_prefetch(next + 64, _MM_HINT_T1);
    next += 128;
    for (int line = 2; line < lines; line += 2, next += 128) fetch<_MM_HINT_T1>(next, 128);
    if (row < BLOCK) {
      int until = row + each < BLOCK ? row + each : BLOCK;
      meanwhile(row, until);
      row = until;
    }
  }
  if (BOTH) {
    _tile_stored(2, c + 16 * PANEL, 4 * PANEL);
    _tile_stored(3, c + 16 * PANEL + 16, 4 * PANEL);
  }
  _tile_stored(0, c, 4 * PANEL);
  _tile_stored(1, c + 16, 4 * PANEL);
  written();
}

// c [32 or 16][32] of a [rows][units] and one panel, of which the first units have been taken; those that come `ahead`
// are taken at last. That is before results are stored: a load whose address is in its last 12 bits that of a store
// before it waits for that, and the next products wait for the load. Rows behind the last are computed, too.
// Multiplying goes on by itself: `meanwhile(from, to)` is called for BLOCK rows of whatever else is to be done, some at
// a time.
template <bool ONCE_MORE = false, class Meanwhile>
static inline void multiply(const Rows& a, int rows, const Panel& panel, int units, Ahead ahead, float* c,
                            Meanwhile meanwhile) {
  rows > 16 ? multiply_tiles<true, ONCE_MORE>(a, panel, units, ahead, c, meanwhile)
            : multiply_tiles<false, ONCE_MORE>(a, panel, units, ahead, c, meanwhile);
}

static inline void multiply(const Rows& a, int rows, const uint32_t* b, int units, float* c) {
  // Nothing comes behind it: what is fetched and taken at last is there already.
  take<true>(a.at, a.row, a.below, b);
  multiply<true>(a, rows, Panel{b, false, (const char*)b}, units, {a.at, b}, c, Nothing{});
}
#else
struct Tiles {};

static inline Vector added(Vector sum, Vector a, Vector b) {
#ifdef SIE_BFLOAT16
  return (Vector)_mm512_dpbf16_ps((__m512)sum, (__m512bh)a, (__m512bh)b);
#elif defined(__AVX512F__)
  return sum + a * b;
#else
  // With as few registers GCC gives some of these another form, which overwrites a factor, and copies and spills.
  asm("vfmadd231ps %2, %1, %0" : "+x"(sum) : "x"(a), "x"(b));
  return sum;
#endif
}

// Units at a time, without a step of the loop between them. With 256 bits a unit is 12 multiplications and 17 other
// instructions, and 10 others here: a core that is shared with another thread takes but half as many of all. With 512
// bits, of which there are twice as many registers, a pass takes 3 % less.
constexpr int AT_ONCE = WIDTH == 16 ? 8 : 16;

// A part of what is multiplied next, of which so many bytes are fetched with every AT_ONCE units; none: nothing is.
struct Fetched {
  const char* at = nullptr;
  int each = 0;

  void fetch_some() {
    if (!each) return;
    fetch<_MM_HINT_T1>(at, each);
    at += each;
  }
};

// Where rows of products go: side by side, or so far from each other to be added, with a bias, to what is there.
struct Onto {
  const float* bias = nullptr;
  long stride = PANEL;
};

// Of ROWS rows.
template <int ROWS, class Unit>
static inline void multiply_rows(const Rows& a, const Unit* b, int units, float* c, Onto onto, Fetched ahead) {
  for (int column = 0; column < PANEL; column += 2 * WIDTH) {
    Vector sums[ROWS][2] = {};
    const Unit* unit = b + column;
    const Number* of_rows = a.at;
    for (int group = 0; group < units; group += PANEL / UNIT, of_rows += a.step) {
      for (int from = 0; from < PANEL; from += AT_ONCE * UNIT, unit += AT_ONCE * PANEL) {
        ahead.fetch_some();
#pragma GCC unroll 16
        for (int i = 0; i < AT_ONCE; i++) {
          Vector left = widened(unit + i * PANEL), right = widened(unit + i * PANEL + WIDTH);
#pragma GCC unroll 12
          for (int row = 0; row < ROWS; row++) {
            float number;
            memcpy(&number, of_rows + row * a.row + from + i * UNIT, 4);
            sums[row][0] = added(sums[row][0], all(number), left);
            sums[row][1] = added(sums[row][1], all(number), right);
          }
        }
      }
    }
    // Unrolled, too, for else GCC keeps the sums in memory.
#pragma GCC unroll 12
    for (int row = 0; row < ROWS; row++) {
#pragma GCC unroll 2
      for (int half = 0; half < 2; half++) {
        int at = column + half * WIDTH;
        float* to = c + row * onto.stride + at;
        // Last, for a large number takes less from one sum than from each of its parts.
        if (onto.bias) sums[row][half] += load(onto.bias + at) + load(to);
        store(to, sums[row][half]);
      }
    }
  }
}

// Of as many rows as there are, of up to ROWS. Not inlined, for it is long.
template <int ROWS, class Unit>
__attribute__((noinline)) static void multiply_some(const Rows& a, int rows, const Unit* b, int units, float* c,
                                                    Onto onto, Fetched ahead) {
  if constexpr (ROWS > 1) {
    if (rows < ROWS) return multiply_some<ROWS - 1>(a, rows, b, units, c, onto, ahead);
  }
  multiply_rows<ROWS>(a, b, units, c, onto, ahead);
}

// Of all rows, in as few parts as there are registers for, and as even ones: a part of one or two rows waits for its
// own sums.
template <class Unit>
static inline void multiply_parts(Rows a, int rows, const Unit* b, int units, float* c, Onto onto, const Unit* next) {
  constexpr int MOST = WIDTH == 16 ? 12 : 6, BESIDE = AT_ONCE * 2 * WIDTH * sizeof(Unit);
  // Memory gives less than a part takes: what is fetched beside the first alone keeps it waiting.
  int parts = (rows + MOST - 1) / MOST, fetching = parts > 3 ? 4 : parts > 1 ? 2 : 1;
  for (int part = 0; part < parts; part++) {
    Fetched ahead;
    if (next && part < fetching) ahead = {(const char*)(next + units * PANEL / fetching * part), BESIDE / fetching};
    int some = (rows + parts - part - 1) / (parts - part);
    multiply_some<MOST>(a, some, b, units, c, onto, ahead);
    rows -= some, a.at += some * a.row, c += some * onto.stride;
  }
}

static inline void multiply(const Rows& a, int rows, const Panel& panel, int units, float* c, Onto onto = {}) {
  if (UNIT == 1 && panel.halved)
    multiply_parts(a, rows, (const uint16_t*)panel.at, units, c, onto, (const uint16_t*)panel.next);
  else
    multiply_parts(a, rows, (const float*)panel.at, units, c, onto, (const float*)panel.next);
}

static inline void multiply(const Rows& a, int rows, const uint32_t* b, int units, float* c) {
  multiply(a, rows, Panel{b}, units, c);
}

// Only tiles multiply beside other work, and have something to take before.
static inline void take(const Rows&, const void*) {}

template <class Meanwhile>
static inline void multiply(const Rows& a, int rows, const Panel& panel, int units, Ahead, float* c,
                            Meanwhile meanwhile) {
  meanwhile(0, BLOCK);
  multiply(a, rows, panel, units, c);
}
#endif
