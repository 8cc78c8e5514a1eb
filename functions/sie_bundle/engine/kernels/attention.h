// Attention of one head of one text: some queries at a time, over the keys that any of them sees.
//
// Owns the layout of a head's keys and values, what is added to scores, and their softmax. Nothing is shared between
// texts, so that none can spoil another.
#pragma once

#include "multiply.h"

struct Mask {
  int32_t causal;
  int32_t window;     // tokens to each side; -1: all
  const float* bias;  // [heads, side, side], or null
  int64_t side;
  const float* slopes;  // [heads], or null
};

constexpr float UNSEEN = -1e30f;

// Of a head at a time: as many as tiles have sums for beside the scores, or a block. Tiles sum the weights, too, as
// products with ones.
#ifdef SIE_AMX
constexpr int QUERIES = 16;
constexpr bool SUMMED_BY_TILES = true;
alignas(64) constexpr Number ONES[PANEL] = {ONE, ONE, ONE, ONE, ONE, ONE, ONE, ONE, ONE, ONE, ONE,
                                            ONE, ONE, ONE, ONE, ONE, ONE, ONE, ONE, ONE, ONE, ONE,
                                            ONE, ONE, ONE, ONE, ONE, ONE, ONE, ONE, ONE, ONE};
#else
constexpr int QUERIES = BLOCK;
constexpr bool SUMMED_BY_TILES = false;
#endif

// Room of one thread, for texts of up to so many tokens.
struct HeadRoom {
  uint32_t* keys;    // panels of 32 keys, [size / UNIT][32] units each
  uint32_t* values;  // panels of 32 dimensions, [keys / UNIT][32] units each; 32 keys in the order of their weights
  Number* weights;   // panels of 32 keys, [QUERIES][32] each

  static long bytes(long tokens, long size) {
    tokens = whole(tokens), size = whole(size);
    // Behind the last weights tiles read, and do not use, those of as many queries again.
    return (2 * (tokens * size + 64) + QUERIES * (tokens + PANEL)) * sizeof(Number);
  }
  HeadRoom(char* room, long tokens, long size) {
    tokens = whole(tokens), size = whole(size);
    keys = (uint32_t*)room, room += (tokens * size + 64) * sizeof(Number);
    values = (uint32_t*)room, room += (tokens * size + 64) * sizeof(Number);
    weights = (Number*)room;
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
      uint32_t* row = to + place_of_unit(unit) * PANEL;
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

constexpr int EVERY = (QUERIES + WIDTH - 1) / WIDTH * WIDTH;  // queries, in whole vectors

// Far below each score, and far above what is not seen.
constexpr float NOWHERE = -1e25f;

// Where the sum of a query's weights is between one over this and this, neither they nor what they weigh have left what
// a float32 holds.
constexpr float LARGEST_SUM = 1e30f;

// What queries are multiplied by before, so that a score is an exponent of two.
static inline float query_scale(int size) { return POWER_STEP * LOG2_E / __builtin_sqrtf(size); }

// Weights of some queries, from their scores: two to the power of them. For scores that are too far from nothing, of
// what they are above a top of each query: looking for the largest of them takes a sixth of the time.
struct Softmax {
  Spans spans;
  bool shifted = false;   // whether there are tops
  float shifts[QUERIES];  // of each query, what is added to its scores: less its top
  Vector sums[EVERY];     // of each query's weights, in WIDTH parts; or by tiles, so many times the same

  void shift(int row, float by) { shifted = true, shifts[row] = by; }

  // Weights [QUERIES][32] of a panel of keys, from `key` on, and their sums: of the weights as they are stored, so that
  // a query which sees one key has that key's value, whatever the weight was cut to.
  void weigh(int key, const float* scores, Number* weights) {
    shifted ? weigh<true>(key, scores, weights) : weigh<false>(key, scores, weights);
  }

  template <bool SHIFTED>
  void weigh(int key, const float* scores, Number* weights) {
    Vector* sum = sums;
    const float* shift = shifts;
    // Some queries side by side, for the steps of one wait for each other. By copies, for stores of weights might
    // change anything else.
    spans.panel(key, [=](auto seen) {
#pragma GCC unroll 4
      for (int row = 0; row < QUERIES; row++) {
        Vector by = all(SHIFTED ? shift[row] : 0);
        auto score = [&](int at) {
          Vector x = seen(load(scores + row * PANEL + at), row, at, UNSEEN);
          return SHIFTED ? x + by : x;
        };
        for (int at = 0; at < PANEL; at += 2 * WIDTH) {
          Vector made = store_powers(weights + row * PANEL + at, score(at), score(at + WIDTH));
          if (!SUMMED_BY_TILES) sum[row] = plus_powers(sum[row], made);
        }
      }
    });
  }

  // What to multiply sums by that are weighted so, for the first `rows` queries. False: scores were too far.
  bool share(int rows, float* shares) const {
    Vector far = {};
    for (int first = 0; first < rows; first += WIDTH) {
      auto plus = [](Vector a, Vector b) { return a + b; };
      Vector sum = SUMMED_BY_TILES ? first_lanes(sums + first) : across(sums + first, plus);
      store(shares + first, sum > 0.0f ? 1.0f / sum : Vector{});  // none of a query that sees nothing
      Whole near = (sum < LARGEST_SUM) & (sum > 1.0f / LARGEST_SUM);
      far = greater(far, within(near ? Vector{} : all(1), first, 0, rows, 0));
    }
    return largest(far) == 0;
  }
};

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
  const Mask& mask;
  int tokens, seen, size, number;
  Number* out;  // in blocks of that width: into the head's columns from row `start` on
  long out_width, start;

  // Queries [first, first + rows) and all keys that any of them sees, [low, low + width).
  struct Block {
    int first, rows, low, width;
  };

  int window() const { return mask.window < 0 ? tokens : mask.window; }
  bool added() const { return mask.bias || mask.slopes; }

  Block block(int first) const {
    int rows = tokens - first < QUERIES ? tokens - first : QUERIES, last = first + rows - 1;
    int low = first > window() ? (first - window()) / PANEL * PANEL : 0;
    int high = mask.causal ? last + 1 : last + window() + 1;
    high = whole(high < seen ? high : seen);
    low = low < high ? low : high - PANEL;
    return {first, rows, low, high - low};
  }

  Spans spans(const Block& of) const {
    Spans made;
    made.same = !mask.causal && mask.window < 0;
    if (made.same) made.first = seen;
    for (int row = 0; row < of.rows && (added() || !made.same); row++) {
      int token = of.first + row, from = token > window() ? token - window() : 0;
      int to = mask.causal ? token + 1 : token + window() + 1;
      to = to < seen ? to : seen, to = to > of.low ? to : of.low;
      from = from < to ? from : to, from = from > of.low ? from : of.low;
      made.add(row, from - of.low, to - of.low);
    }
    for (int row = of.rows; row < QUERIES; row++) made.from[row] = made.to[row] = 0;  // nobody's
    return made;
  }

  // Units of a panel of the block's keys, and of their values in 32 columns from `column` on.
  const uint32_t* keys(const Block& of, int key) const {
    return room.keys + (long)(of.low + key) / PANEL * whole(size) / UNIT * PANEL;
  }
  const uint32_t* values(const Block& of, int key, int column) const {
    return room.values + ((long)column / PANEL * whole(seen) + of.low + key) / UNIT * PANEL;
  }

  // Scores [QUERIES][32] of a panel of the block's keys, from `key` on.
  void score(const Block& of, const Spans& spans, int key, float* scores) const {
    multiply(queries.from(of.first, 0), of.rows, keys(of, key), whole(size) / UNIT, scores);
    if (added()) add(of, spans, key, scores);
  }

  // What is to be is added to scores.
  void add(const Block& of, const Spans& spans, int key, float* scores) const {
    for (int row = 0; row < of.rows; row++) {
      int token = of.first + row, from = spans.from[row], to = spans.to[row];
      Added to_score{mask.bias ? mask.bias + (number * mask.side + token) * mask.side : nullptr,
                     mask.slopes ? mask.slopes[number] : 0, token};
      for (int at = from > key ? from : key; at < to && at < key + PANEL; at++) {
        scores[row * PANEL + at - key] += POWER_STEP * LOG2_E * to_score(of.low + at);
      }
    }
  }

  // The largest of each query's scores is its top. The last one's.
  float find_tops(const Block& of, Softmax& by) const {
    alignas(64) float scores[QUERIES * PANEL], tops[EVERY];
    Vector most[EVERY];
    for (Vector& each : most) each = all(UNSEEN);
    for (int key = 0; key < of.width; key += PANEL) {
      score(of, by.spans, key, scores);
      by.spans.panel(key, [&](auto seen) {
        for (int row = 0; row < of.rows; row++) {
          for (int at = 0; at < PANEL; at += WIDTH) {
            most[row] = greater(most[row], seen(load(scores + row * PANEL + at), row, at, UNSEEN));
          }
        }
      });
    }
    for (int row = 0; row < EVERY; row += WIDTH) store(tops + row, greater(across(most + row, greater), all(NOWHERE)));
    for (int row = 0; row < QUERIES; row++) by.shift(row, -tops[row]);
    return tops[of.rows - 1];
  }

#ifdef SIE_AMX
  // In NARROW heads, of up to 32 numbers, the tiles 0 and 1 have scores, 2 and 3 sums of values, and 4 those of
  // weights; else 0 has scores, 1 sums of weights, and 2 to 5 sums of values, of the first 64.
  template <bool NARROW>
  void score_tiles(const Block& of, const Spans& spans, int key, float* scores) const {
    const uint32_t* b = keys(of, key);
    if (NARROW) {
      _tile_zero(0);
      _tile_zero(1);
      _tile_loadd(5, queries.place(of.first, 0), 2 * queries.row);
      _tile_loadd(6, b, 4 * PANEL);
      _tile_loadd(7, b + 16, 4 * PANEL);
      _tile_dpbf16ps(0, 5, 6);
      _tile_dpbf16ps(1, 5, 7);
      _tile_stored(0, scores, 4 * PANEL);
      _tile_stored(1, scores + 16, 4 * PANEL);
    } else {
      for (int half = 0; half < PANEL; half += 16) {
        _tile_zero(0);
        for (int column = 0; column < size; column += PANEL) {
          _tile_loadd(6, queries.place(of.first, column), 2 * queries.row);
          _tile_loadd(7, b + column * 16 + half, 4 * PANEL);
          _tile_dpbf16ps(0, 6, 7);
        }
        _tile_stored(0, scores + half, 4 * PANEL);
      }
    }
    if (added()) add(of, spans, key, scores);
  }

  // Values of a panel of keys, by their weights.
  template <bool NARROW>
  void sum_tiles(const Block& of, int key, const Number* weights) const {
    const uint32_t* b = values(of, key, 0);
    written();
    if (NARROW) {
      _tile_loadd(5, weights, 2 * PANEL);
      _tile_loadd(6, b, 4 * PANEL);
      _tile_loadd(7, b + 16, 4 * PANEL);
      _tile_dpbf16ps(2, 5, 6);
      _tile_dpbf16ps(3, 5, 7);
      _tile_loadd(6, ONES, 0);
      _tile_dpbf16ps(4, 5, 6);
    } else {
      _tile_loadd(6, weights, 2 * PANEL);
      _tile_loadd(7, b, 4 * PANEL);
      _tile_dpbf16ps(2, 6, 7);
      _tile_loadd(7, b + 16, 4 * PANEL);
      _tile_dpbf16ps(3, 6, 7);
      b = values(of, key, PANEL);
      _tile_loadd(7, b, 4 * PANEL);
      _tile_dpbf16ps(4, 6, 7);
      _tile_loadd(7, b + 16, 4 * PANEL);
      _tile_dpbf16ps(5, 6, 7);
      _tile_loadd(7, ONES, 0);
      _tile_dpbf16ps(1, 6, 7);
    }
    written();
  }

  // Weights of all keys, and the first columns of the sums of values by them. Panel by panel (Dao et al.,
  // FlashAttention, 2022), so that tiles go on beside softmax: with the scores of the next keys, and with the values of
  // those before.
  template <bool NARROW>
  int weigh(const Block& of, Softmax& by, float* sums) const {
    alignas(64) float scores[2][QUERIES * PANEL];
    // Of all keys only where there are more columns; else two panels take turns, which stay in the first-level cache.
    auto weights = [&](int key) { return room.weights + (size > 2 * PANEL ? key : key % (2 * PANEL)) * QUERIES; };
    written();
    _tile_zero(2);
    _tile_zero(3);
    _tile_zero(4);
    if (!NARROW) {
      _tile_zero(1);
      _tile_zero(5);
    }
    score_tiles<NARROW>(of, by.spans, 0, scores[0]);
    for (int key = 0, now = 0; key < of.width; key += PANEL, now = 1 - now) {
      if (key + PANEL < of.width) score_tiles<NARROW>(of, by.spans, key + PANEL, scores[1 - now]);
      by.weigh(key, scores[now], weights(key));
      if (key) sum_tiles<NARROW>(of, key - PANEL, weights(key - PANEL));
    }
    sum_tiles<NARROW>(of, of.width - PANEL, weights(of.width - PANEL));
    _tile_stored(2, sums, 4 * PANEL);
    _tile_stored(3, sums + 16, 4 * PANEL);
    if (NARROW) {
      _tile_stored(4, by.sums, 64);
      return PANEL;
    }
    _tile_stored(1, by.sums, 64);
    _tile_stored(4, sums + QUERIES * PANEL, 4 * PANEL);
    _tile_stored(5, sums + QUERIES * PANEL + 16, 4 * PANEL);
    return 2 * PANEL;
  }
#endif

  // The same, and how many columns there are of the sums.
  int weigh(const Block& of, Softmax& by, float* sums) const {
#ifdef SIE_AMX
    return size <= PANEL ? weigh<true>(of, by, sums) : weigh<false>(of, by, sums);
#else
    for (Vector& each : by.sums) each = Vector{};
    for (int key = 0; key < of.width; key += PANEL) {
      score(of, by.spans, key, sums);
      by.weigh(key, sums, room.weights + key * QUERIES);
    }
    return 0;
#endif
  }

  // 32 columns of what a block's queries see: sums [QUERIES][32], by the share of each one's weights.
  void give(const Block& of, int column, const float* sums, const float* shares) const {
    long token = start + of.first, from = (long)number * size + column;
    int columns = size - column < PANEL ? size - column : PANEL;
    for (int row = 0; row < of.rows; row++, token++, sums += PANEL) {
      Vector share = all(shares[row]);
      auto store_all = [&](Number* to) {
        for (int at = 0; at < PANEL; at += 2 * WIDTH) {
          store(to + at, load(sums + at) * share, load(sums + at + WIDTH) * share);
        }
      };
      if (columns == PANEL && from % PANEL == 0) {
        store_all(out + place(token, from, out_width));
        continue;
      }
      Number made[PANEL];
      store_all(made);
      for (int i = 0; i < columns; i++) out[place(token, from + i, out_width)] = made[i];
    }
  }

  void attend() const {
    alignas(64) float sums[2 * QUERIES * PANEL], shares[EVERY];
    Softmax by;
    for (int first = 0; first < tokens; first += QUERIES) {
      Block of = block(first);
      by.spans = spans(of);
      int made = weigh(of, by, sums);
      if (!by.share(of.rows, shares)) {
        float top = find_tops(of, by);
        made = weigh(of, by, sums);
        by.share(of.rows, shares);
        for (int row = 0; row < QUERIES; row++) by.shift(row, -top);  // others of the head will not be far from it
      }
      for (int column = 0; column < made && column < size; column += PANEL) {
        give(of, column, sums + column * QUERIES, shares);
      }
      Rows weighing = {room.weights, PANEL, QUERIES * PANEL, 16 * PANEL};
      for (int column = made; column < size; column += PANEL) {
        multiply(weighing, of.rows, values(of, 0, column), of.width / UNIT, sums);
        give(of, column, sums, shares);
      }
    }
  }
};
