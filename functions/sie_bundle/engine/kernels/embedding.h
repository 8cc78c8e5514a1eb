// What the first layer takes of a token: the sum of its rows of some tables. Owns how those are read, which lie there
// as the checkpoint stores them.
#pragma once

#include "norm.h"

enum Stored { FLOAT32, BFLOAT16, FLOAT16 };

struct Table {
  const char* rows;  // [any][size]; null: there is none
  int32_t stored;
};

struct Embedding {
  Table words, positions, types;
  Norm norm;
  int32_t size, first_position;
};

static inline Vector widened(const char* from, int stored) {
#ifdef __AVX512F__
  if (stored == FLOAT32) return load((const float*)from);
  __m256i halves = _mm256_loadu_si256((const __m256i*)from);
  if (stored == FLOAT16) return (Vector)_mm512_cvtph_ps(halves);
  return (Vector)_mm512_slli_epi32(_mm512_cvtepu16_epi32(halves), 16);
#else
  if (stored == FLOAT32) return load((const float*)from);
  __m128i halves = _mm_loadu_si128((const __m128i*)from);
  if (stored == FLOAT16) return (Vector)_mm256_cvtph_ps(halves);
  return (Vector)_mm256_slli_epi32(_mm256_cvtepu16_epi32(halves), 16);
#endif
}

// Words come from anywhere in memory: those of a later token are asked for meanwhile.
constexpr int AHEAD = 4;
static inline void fetch_row(const Table& table, long row, int size) {
  long bytes = size * (table.stored == FLOAT32 ? 4 : 2);
  fetch(table.rows + row * bytes, bytes);
}

// A row added to x. Nothing is read behind it, where the file may end.
static inline void add_row(const Table& table, long row, int size, float* x) {
  if (!table.rows) return;
  int bytes = table.stored == FLOAT32 ? 4 : 2;
  const char* from = table.rows + row * size * bytes;
  int at = 0;
  for (; at + WIDTH <= size; at += WIDTH) store(x + at, load(x + at) + widened(from + at * bytes, table.stored));
  if (at == size) return;
  char rest[WIDTH * 4] = {};
  memcpy(rest, from + at * bytes, (size - at) * bytes);
  store(x + at, load(x + at) + widened(rest, table.stored));
}
