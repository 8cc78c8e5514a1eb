// Attention of one head of one text: some queries at a time, over the keys that any of them sees.
//
// Owns the layout of a head's keys and values, what is added to scores, and their softmax. Nothing is shared between
// texts, so that none can spoil another.
#pragma once

#include "multiply.h"

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
  float* scores;     // panels of 32 keys, [QUERIES][32] each; weights take a panel's place, from its start

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

// Where the scores of a query are, from a panel's first key on.
static inline float* score_of(float* scores, int query, int key) { return scores + (key * QUERIES + query * PANEL); }

// Which keys each query sees, [from, to) of those whose scores there are; with `same` all of them [0, first).
struct Spans {
  int from[QUERIES], to[QUERIES], latest = 0, first = INT32_MAX;
  bool same = false;

  void add(int query, int start, int end) {
    from[query] = start, to[query] = end;
    latest = start > latest ? start : latest, first = end < first ? end : first;
  }

  // What is to be done with a panel of keys: `each(seen)`, where `seen(x, query, at, rest)` puts `rest` in the place of
  // keys that a query does not see. Mostly all see all of them, or all the same.
  template <class Each>
  void panel(int key, Each each) const {
    if (key >= latest && key + PANEL <= first) return each([](Vector x, int, int, float) { return x; });
    if (same) {
      Whole lane = LANE + key;
      return each([&](Vector x, int, int at, float rest) { return lane + at < first ? x : all(rest); });
    }
    each([&](Vector x, int query, int at, float rest) { return within(x, key + at, from[query], to[query], rest); });
  }
};

// So many queries go side by side, for the steps of one wait for each other.
constexpr int BESIDE = 4;

// The largest score of each of BESIDE queries, in WIDTH parts.
static inline void largest_of(float* scores, int first, int width, const Spans& spans, Vector* most) {
  Vector found[BESIDE];
  for (int i = 0; i < BESIDE; i++) found[i] = all(UNSEEN);
  for (int key = 0; key < width; key += PANEL) {
    spans.panel(key, [&](auto seen) {
#pragma GCC unroll 4
      for (int i = 0; i < BESIDE; i++) {
        const float* x = score_of(scores, first + i, key);
        for (int at = 0; at < PANEL; at += WIDTH) {
          found[i] = greater(found[i], seen(load(x + at), first + i, at, UNSEEN));
        }
      }
    });
  }
  for (int i = 0; i < BESIDE; i++) most[i] = found[i];
}

// Weights of BESIDE queries in place of their scores, and their sums, in WIDTH parts: of the weights as they are
// stored, so that a query which sees one key has that key's value, whatever the weight was cut to.
static inline void weights_of(float* scores, int first, int width, const Spans& spans, float scale, const float* tops,
                              Vector* sums) {
  Vector found[BESIDE] = {};
  for (int key = 0; key < width; key += PANEL) {
    spans.panel(key, [&](auto seen) {
#pragma GCC unroll 4
      for (int i = 0; i < BESIDE; i++) {
        float* x = score_of(scores, first + i, key);
        Number* to = (Number*)score_of(scores, 0, key) + (first + i) * PANEL;
        Vector weights[PANEL / WIDTH];
        for (int part = 0; part < PANEL / WIDTH; part++) {
          int at = part * WIDTH;
          weights[part] = shortened(seen(power_of_two(load(x + at) * scale - all(tops[i])), first + i, at, 0));
          found[i] += weights[part];
        }
        for (int part = 0; part < PANEL / WIDTH; part += 2) store(to + part * WIDTH, weights[part], weights[part + 1]);
      }
    });
  }
  for (int i = 0; i < BESIDE; i++) sums[i] = found[i];
}

// Where the sum of a query's weights is between one over this and this, neither they nor what they weigh have left what
// a float32 holds.
constexpr float LARGEST_SUM = 1e30f;

// From scores of some queries to weights, in place, and what to multiply sums by that are weighted so. TOPPED they are
// relative to the largest score of each query, as softmax is mostly computed; looking for it takes a sixth of the time.
// Without it they are the same up to a factor, or false is returned: scores were too far from nothing.
template <bool TOPPED>
static inline bool softmax(float* scores, int rows, int width, const Spans& spans, float scale, float* shares) {
  scale *= LOG2_E;
  Vector farthest = {};
  for (int first = 0; first < rows; first += WIDTH) {
    int some = rows - first < WIDTH ? rows - first : WIDTH;
    Vector of_rows[WIDTH] = {};
    float tops[WIDTH] = {};
    if (TOPPED) {
      for (int row = 0; row < some; row += BESIDE) largest_of(scores, first + row, width, spans, of_rows + row);
      store(tops, across(of_rows, greater) * scale);
    }
    for (int row = 0; row < some; row += BESIDE) {
      weights_of(scores, first + row, width, spans, scale, tops + row, of_rows + row);
    }
    Vector sums = across(of_rows, [](Vector a, Vector b) { return a + b; }), share = 1.0f / sums;
    store(shares + first, sums > 0.0f ? share : Vector{});  // none of a query that sees nothing
    farthest = greater(farthest, within(greater(sums, share), 0, 0, some, 0));
  }
  return TOPPED || largest(farthest) < LARGEST_SUM;
}

// What is added to the score of a query and key.
struct Added {
  const float* bias;  // of the query, by key; or null
  float slope;
  int place;  // the query's

  float operator()(int key) const {
    int distance = key > place ? key - place : place - key;
    return (bias ? bias[key] : 0) + slope * distance;
  }
};

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
      multiply(queries.from(of.first, 0), of.rows, keys, units, score_of(scores, 0, key), PANEL);
    }
  }

  // Scores become weights, for what `softmax` gives.
  template <bool TOPPED>
  bool weigh(const Block& of, float* scores, float* shares) const {
    Spans spans;
    float scale = 1.0f / __builtin_sqrtf(size);
    bool added = sight.bias || sight.slopes;
    spans.same = !sight.causal && sight.window < 0;
    if (spans.same) spans.first = seen;
    for (int row = 0; row < of.rows && (added || !spans.same); row++) {
      int token = of.first + row, from = token > window() ? token - window() : 0;
      int to = sight.causal ? token + 1 : token + window() + 1;
      to = to < seen ? to : seen, to = to > of.low ? to : of.low;
      from = from < to ? from : to, from = from > of.low ? from : of.low;
      spans.add(row, from - of.low, to - of.low);
      if (!added) continue;
      Added to_score{sight.bias ? sight.bias + (number * sight.side + token) * sight.side : nullptr,
                     sight.slopes ? sight.slopes[number] : 0, token};
      for (int key = from - of.low; key < to - of.low; key++) {
        float* x = score_of(scores, row, key / PANEL * PANEL) + key % PANEL;
        *x = *x * scale + to_score(of.low + key);
      }
    }
    for (int row = of.rows; row < QUERIES; row++) spans.from[row] = spans.to[row] = 0;  // nobody's
    return softmax<TOPPED>(scores, of.rows, of.width, spans, added ? 1 : scale, shares);
  }

  void gather(const Block& of, float* scores, const float* shares) const {
    alignas(64) float c[QUERIES * PANEL];
    Rows weights = {(Number*)scores, PANEL, QUERIES * PANEL * UNIT, 16 * PANEL};
    for (int column = 0; column < size; column += PANEL) {
      const uint32_t* values = room.values + ((long)column / PANEL * whole(seen) + of.low) / UNIT * PANEL;
      multiply(weights, of.rows, values, of.width / UNIT, c, PANEL);
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
    bool far = false;  // whether the head has such scores, of which there are then more
    for (int first = 0; first < tokens; first += QUERIES) {
      Block of = block(first);
      score(of, room.scores);
      if (!far && !weigh<false>(of, room.scores, shares)) {
        far = true;
        score(of, room.scores);
      }
      if (far) weigh<true>(of, room.scores, shares);
      gather(of, room.scores, shares);
    }
  }
};
