// Attention of one head of one text: some queries at a time, over the keys that any of them sees.
//
// Owns the layout of a head's keys and values, what is added to scores, and their softmax. Nothing is shared between
// texts, so that none can spoil another.
#pragma once

#include "product.h"

struct Sight {
  int32_t causal;
  int32_t window;     // tokens to each side; -1: all
  const float* bias;  // [heads, side, side], or null
  int64_t side;
  const float* slopes;  // [heads], or null
};

constexpr float UNSEEN = -1e30f;

// Of a head at a time, so that their scores stay in the first-level cache beside keys and values.
#ifdef SIE_AMX
constexpr int QUERIES = 16;
#else
constexpr int QUERIES = BLOCK;
#endif

// Room of one thread, for texts of up to so many tokens.
struct HeadRoom {
  uint32_t* keys;    // panels of 32 keys, [size / UNIT][32] units each
  uint32_t* values;  // panels of 32 dimensions, [keys / UNIT][32] units each
  float* scores;     // [QUERIES][tokens]; weights take the place of a row's, from its start

  static long bytes(long tokens, long size) {
    tokens = whole(tokens), size = whole(size);
    return 2 * (tokens * size * sizeof(Number) + 64) + QUERIES * tokens * 4;
  }
  HeadRoom(char* room, long tokens, long size) {
    tokens = whole(tokens), size = whole(size);
    keys = (uint32_t*)room, room += tokens * size * sizeof(Number) + 64;
    values = (uint32_t*)room, room += tokens * size * sizeof(Number) + 64;
    scores = (float*)room;
  }
};

// Rows of numbers become columns of units: key after key, [tokens][size] to panels. Behind the last there are zeros.
static inline void pack_keys(const Rows& from, int tokens, int size, uint32_t* to) {
  int units = whole(size) / UNIT, own = (size + UNIT - 1) / UNIT;
  for (int first = 0; first < whole(tokens); first += WIDTH) {
    uint32_t* panel = to + first / PANEL * units * PANEL + first % PANEL;
    for (int unit = 0; unit < units; unit += WIDTH) {
      Vector rows[WIDTH] = {};
      for (int key = 0; key < WIDTH && first + key < tokens; key++) {
        Vector row = load((const float*)from.place(first + key, unit * UNIT));
        rows[key] = unit + WIDTH > own ? within(row, unit, 0, own, 0) : row;
      }
      transpose(rows);
      for (int i = 0; i < WIDTH; i++) store((float*)panel + (unit + i) * PANEL, rows[i]);
    }
    for (int key = 0; UNIT == 2 && size % 2 && key < WIDTH; key++) panel[(own - 1) * PANEL + key] &= 0xffff;
  }
}

// Units of consecutive keys: [tokens][size] to panels of 32 dimensions.
static inline void pack_values(const Rows& from, int tokens, int size, uint32_t* to) {
  long stride = from.row;
  int units = whole(tokens) / UNIT;
  for (int first = 0; first < size; first += PANEL, to += units * PANEL) {
    int some = size - first < PANEL ? size - first : PANEL;
    for (int unit = 0; unit < units; unit++) {
      uint32_t* row = to + unit * PANEL;
      const Number* a = from.place(unit * UNIT, first);
#ifdef SIE_BFLOAT16
      if (some == PANEL && 2 * unit + 1 < tokens) {
        for (int half = 0; half < PANEL; half += 16) {
          __m512i low = _mm512_cvtepu16_epi32(_mm256_loadu_si256((const __m256i*)(a + half)));
          __m512i high = _mm512_cvtepu16_epi32(_mm256_loadu_si256((const __m256i*)(a + stride + half)));
          _mm512_storeu_si512(row + half, _mm512_or_si512(low, _mm512_slli_epi32(high, 16)));
        }
        continue;
      }
#endif
      memset(row, 0, PANEL * 4);
      for (int part = 0; part < UNIT && unit * UNIT + part < tokens; part++) {
        for (int i = 0; i < some; i++) ((Number*)row)[i * UNIT + part] = a[part * stride + i];
      }
    }
  }
}

// Which keys a query sees: [from, to) of those whose scores there are.
struct Span {
  int from, to;
};

// From scores of some queries, [rows][width], to weights, in place, and what to multiply sums by that are weighted so.
// A row's steps wait for each other, so each step is done for WIDTH rows before the next one.
static inline void softmax(float* scores, int rows, int width, const Span* spans, float scale, float* shares) {
  scale *= LOG2_E;
  for (int first = 0; first < rows; first += WIDTH) {
    int some = rows - first < WIDTH ? rows - first : WIDTH;
    Vector of_rows[WIDTH] = {};
    float tops[WIDTH];
    for (int row = 0; row < some; row++) {
      const float* x = scores + (first + row) * width;
      Span span = spans[first + row];
      Vector most = all(UNSEEN);
      for (int at = span.from / WIDTH * WIDTH; at < span.to; at += WIDTH) {
        bool whole = at >= span.from && at + WIDTH <= span.to;
        most = greater(most, whole ? load(x + at) : within(load(x + at), at, span.from, span.to, UNSEEN));
      }
      of_rows[row] = most;
    }
    store(tops, across(of_rows, greater) * scale);
    for (int row = 0; row < some; row++) {
      float* x = scores + (first + row) * width;
      Span span = spans[first + row];
      Vector sum = {}, top = all(tops[row]);
      auto weight = [&](int at) { return power_of_two(load(x + at) * scale - top); };
      auto edge = [&](int at) {
        return at < span.to && at + WIDTH > span.from ? within(weight(at), at, span.from, span.to, 0) : Vector{};
      };
      for (int at = 0; at < width; at += 2 * WIDTH) {
        bool whole = at >= span.from && at + 2 * WIDTH <= span.to;
        Vector left = whole ? weight(at) : edge(at), right = whole ? weight(at + WIDTH) : edge(at + WIDTH);
        sum += left + right;
        store((Number*)x + at, left, right);
      }
      of_rows[row] = sum;
    }
    Vector sums = across(of_rows, [](Vector a, Vector b) { return a + b; });
    store(shares + first, sums > 0.0f ? 1.0f / sums : Vector{});  // none of a query that sees nothing
  }
}

// What is added to scores of a query, [from, to), at `place`, which are scaled then.
static inline void biased(float* scores, int from, int to, int place, float scale, const float* bias, float slope) {
  for (int key = from; key < to; key++, scores++) {
    int distance = key > place ? key - place : place - key;
    *scores = *scores * scale + (bias ? bias[key] : 0) + slope * distance;
  }
}

// Attention of one head of one text.
struct Head {
  Rows queries;  // one for each of the text's tokens, of which keys and values of the first `seen` are in the room
  const HeadRoom& room;
  const Sight& sight;
  int tokens, seen, size, number;
  Number* out;  // in blocks of that width: into the head's columns from row `start` on
  long out_width, start;

  // Queries [first, first + rows) and all keys that any of them sees, [low, low + width).
  struct Block {
    int first, rows, low, width;
  };

  int window() const { return sight.window < 0 ? tokens : sight.window; }

  Block block(int first) const {
    int rows = tokens - first < QUERIES ? tokens - first : QUERIES, last = first + rows - 1;
    int low = first > window() ? (first - window()) / PANEL * PANEL : 0;
    int high = sight.causal ? last + 1 : last + window() + 1;
    high = whole(high < seen ? high : seen);
    low = low < high ? low : high - PANEL;
    return {first, rows, low, high - low};
  }

  void score(const Block& of, float* scores) const {
    int units = whole(size) / UNIT;
    for (int key = 0; key < of.width; key += PANEL) {
      const uint32_t* keys = room.keys + (long)(of.low + key) / PANEL * units * PANEL;
      multiply(queries.from(of.first, 0), of.rows, keys, units, scores + key, of.width);
    }
  }

  // Scores become weights, for what `softmax` gives.
  void weigh(const Block& of, float* scores, float* shares) const {
    Span spans[QUERIES];
    float scale = 1.0f / __builtin_sqrtf(size);
    bool added = sight.bias || sight.slopes;
    for (int row = 0; row < of.rows; row++) {
      int token = of.first + row, from = token > window() ? token - window() : 0;
      int to = sight.causal ? token + 1 : token + window() + 1;
      to = to < seen ? to : seen, to = to > of.low ? to : of.low;
      from = from < to ? from : to, from = from > of.low ? from : of.low;
      spans[row] = {from - of.low, to - of.low};
      if (added) {
        const float* bias = sight.bias ? sight.bias + (number * sight.side + token) * sight.side : nullptr;
        float slope = sight.slopes ? sight.slopes[number] : 0;
        biased(scores + row * of.width + from - of.low, from, to, token, scale, bias, slope);
      }
    }
    softmax(scores, of.rows, of.width, spans, added ? 1 : scale, shares);
  }

  void gather(const Block& of, float* weights, const float* shares) const {
    alignas(64) float c[QUERIES * PANEL];
    for (int column = 0; column < size; column += PANEL) {
      const uint32_t* values = room.values + ((long)column / PANEL * whole(seen) + of.low) / UNIT * PANEL;
      multiply(row_by_row((Number*)weights, of.width * UNIT), of.rows, values, of.width / UNIT, c, PANEL);
      for (int row = 0; row < of.rows; row++) {
        const float* x = c + row * PANEL;
        Vector share = all(shares[row]);
        long token = start + of.first + row, from = (long)number * size + column;
        Number made[PANEL], *to = out + place(token, from, out_width);
        bool together = size - column >= PANEL && from % PANEL == 0;
        for (int at = 0; at < PANEL; at += 2 * WIDTH) {
          store((together ? to : made) + at, load(x + at) * share, load(x + at + WIDTH) * share);
        }
        for (int i = 0; !together && i < PANEL && i < size - column; i++)
          out[place(token, from + i, out_width)] = made[i];
      }
    }
  }

  void attend() const {
    float shares[QUERIES + WIDTH];
    for (int first = 0; first < tokens; first += QUERIES) {
      Block of = block(first);
      score(of, room.scores);
      weigh(of, room.scores, shares);
      gather(of, room.scores, shares);
    }
  }
};
