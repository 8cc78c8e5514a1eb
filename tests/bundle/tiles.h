// AMX's tiles computed by ordinary instructions, after Intel's manual (volume 2: TILELOADD, TDPBF16PS, TILESTORED).
//
// For tests on a CPU that has none: included ahead of the kernels, it takes the place of GCC's intrinsics. Owns what
// they compute and which tiles were set up; how fast tiles are it says nothing about.
#pragma once

#include <immintrin.h>

#include <cstdint>
#include <cstdlib>
#include <cstring>

namespace emulated {

struct Configuration {
  uint8_t palette, first_row, reserved[14];
  uint16_t bytes[16];  // of a row of each tile
  uint8_t rows[16];
};
static_assert(sizeof(Configuration) == 64, "");

inline thread_local Configuration configuration = {};
inline thread_local uint32_t tiles[8][16][16];

// A tile that nobody has set up is a fault, as it is on a CPU that has them.
static inline uint32_t (*tile(int number))[16] {
  if (configuration.palette != 1 || configuration.rows[number] != 16 || configuration.bytes[number] != 64) abort();
  return tiles[number];
}

static inline void configure(const void* from) {
  memcpy(&configuration, from, 64);
  memset(tiles, 0, sizeof(tiles));
}

static inline void zero(int to) { memset(tile(to), 0, sizeof(tiles[0])); }

static inline void load(int to, const void* from, long stride) {
  for (int row = 0; row < 16; row++) memcpy(tile(to)[row], (const char*)from + row * stride, 64);
}

static inline void store(int from, void* to, long stride) {
  for (int row = 0; row < 16; row++) memcpy((char*)to + row * stride, tile(from)[row], 64);
}

// Of a pair of bfloat16 in 32 bits, the one in the lower half and the one in the upper half.
static inline float lower(uint32_t pair) {
  float number;
  pair <<= 16;
  memcpy(&number, &pair, 4);
  return number;
}
static inline float upper(uint32_t pair) { return lower(pair >> 16); }

static inline void multiply(int sums, int left, int right) {
  uint32_t (*a)[16] = tile(left), (*b)[16] = tile(right);
  auto c = (float (*)[16])tile(sums);
  for (int row = 0; row < 16; row++) {
    for (int unit = 0; unit < 16; unit++) {
      for (int column = 0; column < 16; column++) {
        c[row][column] += lower(a[row][unit]) * lower(b[unit][column]);
        c[row][column] += upper(a[row][unit]) * upper(b[unit][column]);
      }
    }
  }
}

}  // namespace emulated

#undef _tile_zero
#undef _tile_loadd
#undef _tile_stream_loadd
#undef _tile_stored
#undef _tile_dpbf16ps
#define _tile_loadconfig(from) emulated::configure(from)
#define _tile_storeconfig(to) memcpy(to, &emulated::configuration, 64)
#define _tile_release() (emulated::configuration = {})
#define _tile_zero(tile) emulated::zero(tile)
#define _tile_loadd(tile, from, stride) emulated::load(tile, from, stride)
#define _tile_stream_loadd(tile, from, stride) emulated::load(tile, from, stride)
#define _tile_stored(tile, to, stride) emulated::store(tile, to, stride)
#define _tile_dpbf16ps(sums, left, right) emulated::multiply(sums, left, right)
