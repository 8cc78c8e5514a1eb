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

// Room of one thread, for texts of up to so many tokens.
struct HeadRoom {
  uint32_t* keys;    // panels of 32 keys, [size / UNIT][32] units each
  uint32_t* values;  // panels of 32 dimensions, [keys / UNIT][32] units each
  float* scores;     // [BLOCK][tokens]; weights take the place of a row's, from its start

  static long bytes(long tokens, long size) {
    tokens = whole(tokens), size = whole(size);
    return 2 * (tokens * size * sizeof(Number) + 64) + BLOCK * tokens * 4 + 64;
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
  constexpr int EACH = PANEL / UNIT;
  int units = whole(size) / UNIT, own = (size + UNIT - 1) / UNIT;
  for (int first = 0; first < tokens; first += PANEL, to += units * PANEL) {
    int some = tokens - first < PANEL ? tokens - first : PANEL;
    if (some < PANEL || own < units) memset(to, 0, units * PANEL * 4);
    for (int key = 0; key < some; key++) {
      for (int group = 0; group < own; group += EACH) {
        const Number* row = from.place(first + key, group * UNIT);
        for (int unit = 0; unit < EACH && group + unit < own; unit++)
          memcpy(to + (group + unit) * PANEL + key, row + unit * UNIT, 4);
      }
      if (UNIT == 2 && size % 2) to[(own - 1) * PANEL + key] &= 0xffff;
    }
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

// What the queries q of a head, one for each of a text's tokens, see of the keys and values in the room, of which the
// first `seen` are seen: into the head's columns of `out`, blocks of that width, from row `start` on.
static void attend(const Rows& q, const HeadRoom& room, int tokens, int seen, int size, const Sight& sight, int head,
                   Number* out, long out_width, long start) {
  alignas(64) float c[BLOCK * PANEL];
  float shares[BLOCK + WIDTH], scale = 1.0f / __builtin_sqrtf(size);
  Span spans[BLOCK];
  int units = whole(size) / UNIT, all_units = whole(seen) / UNIT, window = sight.window < 0 ? tokens : sight.window;
  bool added = sight.bias || sight.slopes;
  for (int first = 0; first < tokens; first += BLOCK) {
    int some = tokens - first < BLOCK ? tokens - first : BLOCK, last = first + some - 1;
    int low = first > window ? (first - window) / PANEL * PANEL : 0;
    int high = sight.causal ? last + 1 : last + window + 1;
    high = whole(high < seen ? high : seen);
    low = low < high ? low : high - PANEL;
    long width = high - low;
    for (int key = low; key < high; key += PANEL) {
      const uint32_t* keys = room.keys + (long)(key / PANEL) * units * PANEL;
      multiply(q.from(first, 0), some, keys, units, room.scores + key - low, width);
    }
    for (int row = 0; row < some; row++) {
      int token = first + row, from = token > window ? token - window : 0;
      int to = sight.causal ? token + 1 : token + window + 1;
      to = to < seen ? to : seen, to = to > low ? to : low, from = from < to ? from : to,
      from = from > low ? from : low;
      spans[row] = {from - low, to - low};
      if (added) {
        const float* bias = sight.bias ? sight.bias + (head * sight.side + token) * sight.side : nullptr;
        float* scores = room.scores + row * width + from - low;
        biased(scores, from, to, token, scale, bias, sight.slopes ? sight.slopes[head] : 0);
      }
    }
    softmax(room.scores, some, width, spans, added ? 1 : scale, shares);
    for (int column = 0; column < size; column += PANEL) {
      const uint32_t* values = room.values + (long)(column / PANEL) * all_units * PANEL + low / UNIT * PANEL;
      multiply(row_by_row((Number*)room.scores, width * UNIT), some, values, width / UNIT, c, PANEL);
      for (int row = 0; row < some; row++) {
        const float* x = c + row * PANEL;
        Vector share = all(shares[row]);
        long token = start + first + row, from = (long)head * size + column;
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
}
