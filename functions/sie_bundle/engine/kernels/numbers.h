// Vectors of float32, and the numbers that products are made of: bfloat16 where the CPU multiplies it, else float32.
//
// Owns what differs between instruction sets outside products: how numbers are read, written and rounded, and the
// functions of them. Everything else is written in GCC's vector extension, which is the same for all of them.
#pragma once

#include <immintrin.h>

#include <cstdint>
#include <cstring>

#ifdef __AVX512F__
constexpr int WIDTH = 16;
#else
constexpr int WIDTH = 8;
#endif
typedef float Vector __attribute__((vector_size(WIDTH * 4)));
typedef int32_t Whole __attribute__((vector_size(WIDTH * 4)));
// The number of each lane.
#ifdef __AVX512F__
constexpr Whole LANE = {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15};
#else
constexpr Whole LANE = {0, 1, 2, 3, 4, 5, 6, 7};
#endif
typedef float Anywhere __attribute__((vector_size(WIDTH * 4), aligned(4), may_alias));

static inline Vector load(const float* from) { return *(const Anywhere*)from; }
static inline void store(float* to, Vector x) { *(Anywhere*)to = x; }
static inline Vector all(float x) { return x - Vector{}; }
#ifdef __AVX512F__
// Of two of which one is no number they are the second: what may be none stands there.
static inline Vector greater(Vector a, Vector b) { return (Vector)_mm512_max_ps((__m512)a, (__m512)b); }
static inline Vector lesser(Vector a, Vector b) { return (Vector)_mm512_min_ps((__m512)a, (__m512)b); }
static inline float total(Vector x) { return _mm512_reduce_add_ps((__m512)x); }
static inline float largest(Vector x) { return _mm512_reduce_max_ps((__m512)x); }
// What x is above the whole number below it; and x times two to that number.
static inline Vector above_whole(Vector x) { return (Vector)_mm512_reduce_ps((__m512)x, 9); }
static inline Vector scaled(Vector x, Vector power) { return (Vector)_mm512_scalef_ps((__m512)x, (__m512)power); }
#else
static inline Vector greater(Vector a, Vector b) { return (Vector)_mm256_max_ps((__m256)a, (__m256)b); }
static inline Vector lesser(Vector a, Vector b) { return (Vector)_mm256_min_ps((__m256)a, (__m256)b); }
static inline float total(Vector x) {
  __m128 half = _mm_add_ps(_mm256_castps256_ps128((__m256)x), _mm256_extractf128_ps((__m256)x, 1));
  half = _mm_add_ps(half, _mm_movehl_ps(half, half));
  return _mm_cvtss_f32(_mm_add_ss(half, _mm_movehdup_ps(half)));
}
static inline float largest(Vector x) {
  __m128 half = _mm_max_ps(_mm256_castps256_ps128((__m256)x), _mm256_extractf128_ps((__m256)x, 1));
  half = _mm_max_ps(half, _mm_movehl_ps(half, half));
  return _mm_cvtss_f32(_mm_max_ss(half, _mm_movehdup_ps(half)));
}
static inline Vector above_whole(Vector x) { return x - (Vector)_mm256_floor_ps((__m256)x); }
static inline Vector scaled(Vector x, Vector power) {
  return x * (Vector)((__builtin_convertvector((Vector)_mm256_floor_ps((__m256)power), Whole) + 127) << 23);
}
#endif

// Lines of memory that are wanted soon, in the first-level cache or another. Whether they may be read is not asked.
template <_mm_hint CACHE = _MM_HINT_T0>
static inline void fetch(const void* from, long bytes) {
  for (long at = 0; at < bytes; at += 64) _mm_prefetch((const char*)from + at, CACHE);
}

// x where its lanes, of which the first is number `at`, are from `from` to before `to`; else `rest`.
static inline Vector within(Vector x, int at, int from, int to, float rest) {
  Whole lane = LANE + at;
  return lane >= from ? (lane < to ? x : all(rest)) : all(rest);
}

// What each of WIDTH vectors comes to, one to a lane: half of them at a time beside the other half.
template <class Of>
static inline Vector across(const Vector* from, Of of) {
  Vector rows[WIDTH];
  memcpy(rows, from, sizeof(rows));
  const Whole even = 2 * LANE;
#pragma GCC unroll 4
  for (int count = WIDTH; count > 1; count /= 2) {
#pragma GCC unroll 8
    for (int i = 0; i < count / 2; i++) {
      Vector a = rows[2 * i], b = rows[2 * i + 1];
      rows[i] = of(__builtin_shuffle(a, b, even), __builtin_shuffle(a, b, even + 1));
    }
  }
  return rows[0];
}

// The first lane of each of WIDTH vectors.
static inline Vector first_lanes(const Vector* rows) {
  Vector firsts;
  for (int i = 0; i < WIDTH; i++) firsts[i] = rows[i][0];
  return firsts;
}

// WIDTH vectors become their columns: a perfect shuffle of all of them, as often as their number can be halved.
static inline void transpose(Vector* rows) {
  constexpr int HALF = WIDTH / 2;
  const Whole low = LANE / 2 + LANE % 2 * WIDTH;
#pragma GCC unroll 4
  for (int count = WIDTH; count > 1; count /= 2) {
    Vector next[WIDTH];
#pragma GCC unroll 8
    for (int i = 0; i < HALF; i++) {
      next[2 * i] = __builtin_shuffle(rows[i], rows[i + HALF], low);
      next[2 * i + 1] = __builtin_shuffle(rows[i], rows[i + HALF], low + HALF);
    }
#pragma GCC unroll 16
    for (int i = 0; i < WIDTH; i++) rows[i] = next[i];
  }
}

#ifdef SIE_BFLOAT16
typedef uint16_t Number;
constexpr Number ONE = 0x3f80;
static inline Vector load(const Number* from) {
  return (Vector)_mm512_slli_epi32(_mm512_cvtepu16_epi32(_mm256_loadu_si256((const __m256i*)from)), 16);
}
static inline void store(Number* to, Vector x) {
  _mm256_storeu_si256((__m256i*)to, (__m256i)_mm512_cvtneps_pbh((__m512)x));
}
static inline void store(Number* to, Vector left, Vector right) {
  _mm512_storeu_si512(to, (__m512i)_mm512_cvtne2ps_pbh((__m512)right, (__m512)left));
}
#else
typedef float Number;
#endif

// WIDTH units of a weight as they are computed with: those of 32 bits as they are, numbers of float16 as float32.
static inline Vector widened(const float* from) { return load(from); }
static inline Vector widened(const uint16_t* from) {
#ifdef __AVX512F__
  return (Vector)_mm512_cvtph_ps(_mm256_loadu_si256((const __m256i*)from));
#else
  return (Vector)_mm256_cvtph_ps(_mm_loadu_si128((const __m128i*)from));
#endif
}

static inline void store(float* to, Vector left, Vector right) { store(to, left), store(to + WIDTH, right); }

// Numbers too small for a whole exponent are zeros for the time of one call: computing with them takes a hundred times
// as long, and attention has them wherever a key is far from a query.
struct Flushed {
  unsigned before = _mm_getcsr();
  Flushed() { _mm_setcsr(before | _MM_FLUSH_ZERO_ON | _MM_DENORMALS_ZERO_ON); }
  ~Flushed() { _mm_setcsr(before); }
};

constexpr int UNIT = 4 / sizeof(Number);  // numbers in 32 bits, which is what products step over

constexpr float LOG2_E = 1.44269504f;

#ifdef SIE_BFLOAT16
constexpr float POWERS[] = {7.802452e-02f, 2.2606716e-01f, 6.9583354e-01f, 9.9992522e-01f};
#else
constexpr float POWERS[] = {2.170225547e-04f, 1.243968782e-03f, 9.678840997e-03f, 5.548334198e-02f,
                            2.402298363e-01f, 6.931469838e-01f, 1.000000002e+00f};
#endif

// 2 to the x, down to nothing, and for 127 and more at least 2 to the 127 or infinite: the whole part of x by the
// exponent, the rest by a polynomial that was fitted to it, to the last bits of a float32 or, where weights become
// bfloat16, to 8e-5.
static inline Vector power_of_two(Vector x) {
#ifndef __AVX512F__
  x = greater(all(-127.0f), lesser(all(127.0f), x));  // the former's scale is none at all
#endif
  Vector rest = above_whole(x);
  Vector y = rest * POWERS[0] + POWERS[1];
  for (unsigned i = 2; i < sizeof(POWERS) / sizeof(*POWERS); i++) y = y * rest + POWERS[i];
  return scaled(y, x);
}

// Powers that are stored are those of x in so many steps.
#ifdef SIE_BFLOAT16
// What bits of 2 to the x are less than x in 256ths, and another 256, by the first five bits behind the point: those of
// 2 to the whole part are above a line. With half of what is cut off then.
alignas(64) constexpr uint16_t POWER_BITS[] = {257, 259, 261, 263, 265, 267, 269, 270, 272, 273, 274,
                                               275, 276, 277, 277, 277, 278, 278, 277, 277, 276, 276,
                                               275, 274, 272, 271, 269, 267, 265, 263, 260, 257};
constexpr float POWER_STEP = 256;

// Store 2 to the x of both as bfloat16, and give what was stored. A pair of vectors lies in the order of place_of_unit.
// x as a whole number is its power's bits but for the table (after Schraudolph, A Fast, Compact Approximation of the
// Exponential Function, 1999): to 0.7 % of it, a third more on average than rounding takes. From 128 on all powers are
// the same, and from 2^23 on nothing; of what is no number it is nothing, too.
static inline Vector store_powers(Number* to, Vector left, Vector right) {
  __m512i whole = _mm512_packs_epi32(_mm512_cvtps_epi32((__m512)left), _mm512_cvtps_epi32((__m512)right));
  whole = _mm512_xor_si512(whole, _mm512_set1_epi16(-0x8000));  // from the lowest power on
  __m512i less = _mm512_permutexvar_epi16(_mm512_srli_epi16(whole, 3), *(const __m512i*)POWER_BITS);
  __m512i made = _mm512_srli_epi16(_mm512_subs_epu16(whole, less), 1);
  _mm512_storeu_si512(to, made);
  return (Vector)made;
}

// The sum, in pairs, and those that were stored.
static inline Vector plus_powers(Vector sum, Vector made) {
  return (Vector)_mm512_dpbf16_ps((__m512)sum, (__m512bh)made, (__m512bh)_mm512_set1_epi16(ONE));
}

// Where powers of the two numbers of a unit are, of 32 that are stored together: units of four numbers from the left
// vector and of four from the right one take turns.
static inline int place_of_unit(int unit) {
  int right = unit / 8 % 2, within = unit % 8;
  return unit / 16 * 16 + within / 2 * 4 + right * 2 + within % 2;
}
#else
constexpr float POWER_STEP = 1;

// Store 2 to the x of both, and give what both come to.
static inline Vector store_powers(Number* to, Vector left, Vector right) {
  left = power_of_two(left), right = power_of_two(right);
  store(to, left), store(to + WIDTH, right);
  return left + right;
}

static inline Vector plus_powers(Vector sum, Vector made) { return sum + made; }

static inline int place_of_unit(int unit) { return unit; }
#endif

static inline Vector exponential(Vector x) { return power_of_two(lesser(all(126.0f), x * LOG2_E)); }

static inline Vector sigmoid(Vector x) { return 1.0f / (1.0f + exponential(-x)); }

// x times the share of a normal distribution below x.
static inline Vector gelu(Vector x) {
#ifdef SIE_BFLOAT16
  // The share less a half is x times a polynomial of its square, which was fitted to 2e-4 up to 3.5, where it is a
  // half.
  Vector near = (Vector)_mm512_range_ps((__m512)x, (__m512)all(3.5f), 2), square = near * near;
  Vector y = square * -7.26405491e-07f + 3.56510227e-05f;
  y = y * square - 7.37483377e-04f;
  y = y * square + 8.58817993e-03f;
  y = y * square - 6.45551644e-02f;
  y = y * square + 3.98150286e-01f;
  return x * (near * y + 0.5f);
#else
  // By the error function of Abramowitz and Stegun, 7.1.26.
  Vector size = (Vector)((Whole)x & 0x7fffffff) * 0.70710678f;
  Vector t = 1.0f / (1.0f + 0.3275911f * size);
  Vector y = 1.061405429f * t - 1.453152027f;
  y = y * t + 1.421413741f;
  y = y * t - 0.284496736f;
  y = y * t + 0.254829592f;
  Vector beyond = 0.5f * x * y * t * exponential(-size * size);
  return x > 0.0f ? x - beyond : beyond;
#endif
}

enum Activation { NONE, GELU, GELU_TANH, RELU, SILU, TANH };

// An activation as a type, for code that is made for each.
template <int ACTIVATION>
struct Is {
  static constexpr int value = ACTIVATION;
};

template <int ACTIVATION>
static inline Vector activated(Vector x) {
  switch (ACTIVATION) {
    case GELU:
      return gelu(x);
    case GELU_TANH:
      return x * sigmoid(1.5957691216f * (x + 0.044715f * x * x * x));
    case RELU:
      return greater(all(0.0f), x);
    case SILU:
      return x * sigmoid(x);
    case TANH:
      return 2.0f * sigmoid(2.0f * x) - 1.0f;
    default:
      return x;
  }
}
