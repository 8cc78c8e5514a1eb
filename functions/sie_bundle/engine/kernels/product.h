// Products of rows with all panels of a weight, and what is done to them on the way.
//
// Owns which panels a thread takes, what is fetched meanwhile, and where results go; which products there are is
// pass.cpp's, how a panel is multiplied `multiply.h`'s.
#pragma once

#include <omp.h>

#include "multiply.h"

// A panel's rows [from, from + inward) of a weight for so many rows, of which `next` is multiplied next. Float16 become
// float32 on the way of a few blocks; for more they do so here once, in `room`.
static inline Panel panel_of(const Product& of, int number, int from, int inward, int rows, const char* next,
                             float* room) {
  Panel panel = {of.panel(number, from), of.halved != 0, next};
#ifdef SIE_AMX
  // All of the next panel is there behind these rows; but a single block waits for its own only, which the CPU fetches
  // ahead by itself.
  int blocks = (rows + BLOCK - 1) / BLOCK;
  panel.lines = blocks > 1 ? (PANEL + blocks - 1) / blocks : 0;
#else
  if (of.halved && rows > 3 * BLOCK) {
    auto halves = (const uint16_t*)panel.at, following = (const uint16_t*)next;
    for (long i = 0; i < (long)inward * PANEL; i += WIDTH) {
      fetch<_MM_HINT_T1>(following + i, 2 * WIDTH);
      store(room + i, widened(halves + i));
    }
    panel = {room};
  }
#endif
  return panel;
}

// The product for columns [from, from + outward) alone.
static inline Product columns(const Product& of, int from, int outward) {
  Product some = of;
  some.weight = of.panel(from / PANEL);
  if (of.bias) some.bias = of.bias + from;
  some.outward = outward;
  return some;
}

// Which of so many panels a thread takes of those of the region this is called in.
struct Share {
  int from, to;
  Share(int from, int to) : from(from), to(to) {}
  Share(int panels) {
    int threads = omp_get_num_threads(), thread = omp_get_thread_num();
    from = (long)panels * thread / threads, to = (long)panels * (thread + 1) / threads;
  }
};

// The first panel of a weight that this thread multiplies with, from row `from` on.
static inline const char* first_panel(const Product& of, int from = 0) {
  return of.panel(Share(of.outward / PANEL).from, from);
}

// Multiply a [rows][inward], in blocks, by some panels, and store the result, activated, as `take` says: `take(column)`
// gives what is called for each row of 32 columns from that one on, as `(place, left, right)`, with two vectors that
// lie side by side in `to`. Panels are those that `which(0)` and so on say, one behind the other; of them those of
// `share`. `then`: the panel that is multiplied with next.
template <int ACTIVATION, class Which, class Take>
static void multiplied(Number* a, int rows, const Product& of, Share share, Which which, const char* then, float* room,
                       Rows to, Take take) {
  alignas(64) float made[2][BLOCK * PANEL];
  // What is done to a block is done while the next one is multiplied.
  struct {
    const float* made;
    Number* to;
    int rows, column;
  } before = {made[1], to.at, 0, 0};
  long row_step = to.row, below = to.below - 16 * to.row;
  auto finish = [&](int from, int until) {
    auto [c, place, some, column] = before;
    until = until < some ? until : some;
    for (int at = 0; at < PANEL; at += 2 * WIDTH) {
      auto each = take(column + at);
      const float* x = c + at;
      Number* y = place + at;
      for (int row = from; row < until; row++) {
        Number* here = y + row * row_step + (row < 16 ? 0 : below);
        each(here, activated<ACTIVATION>(load(x + row * PANEL)), activated<ACTIVATION>(load(x + row * PANEL + WIDTH)));
      }
    }
  };
  int units = of.inward / UNIT, now = 0;
  for (int i = share.from; i < share.to; i++) {
    const char* next = i + 1 < share.to ? of.panel(which(i + 1)) : then;
    Panel panel = panel_of(of, which(i), 0, of.inward, rows, next, room);
    Start bias = of.bias ? Start{of.bias + which(i) * PANEL, 0} : Start{};
    for (int first = 0; first < rows; first += BLOCK, now = 1 - now, panel.advance(units)) {
      int some = rows - first < BLOCK ? rows - first : BLOCK;
      Rows left = in_blocks(a + (long)first * of.inward, of.inward);
      multiply(left, some, panel, units, bias, made[now], PANEL, finish);
      before = {made[now], to.block(first, i * PANEL), some, i * PANEL};
    }
  }
  finish(0, BLOCK);
}

// By all panels of a weight, which the threads of the region share; they go on when all are through.
template <class Take>
static void multiplied(Number* a, int rows, const Product& of, const char* then, float* room, Rows to, Take take) {
  Share share(of.outward / PANEL);
  auto each = [](int panel) { return panel; };
  auto by = [&](auto activation) {
    multiplied<decltype(activation)::value>(a, rows, of, share, each, then, room, to, take);
  };
  switch (of.activation) {
    case GELU:
      by(Is<GELU>{});
      break;
    case GELU_TANH:
      by(Is<GELU_TANH>{});
      break;
    case RELU:
      by(Is<RELU>{});
      break;
    case SILU:
      by(Is<SILU>{});
      break;
    case TANH:
      by(Is<TANH>{});
      break;
    default:
      by(Is<NONE>{});
  }
#pragma omp barrier
}

static inline void copy_panel(const float* from, long from_stride, float* to, long to_stride, int rows) {
  for (; rows > 0; rows--, from += from_stride, to += to_stride) memcpy(to, from, PANEL * 4);
}

// Multiply a [rows][inward], in blocks, with rows [from, from + inward) of a weight, and add the result to x [rows]
// [columns of the weight]; the bias is added by whoever reads x next. Otherwise as `multiplied`.
static void multiplied_onto(float* x, Number* a, int rows, const Product& of, int from, int inward, const char* then,
                            float* room) {
  alignas(64) float rest[BLOCK * PANEL];
  int units = inward / UNIT;
  long stride = of.outward;
  Share share(of.outward / PANEL);
  for (int i = share.from; i < share.to; i++) {
    const char* next = i + 1 < share.to ? of.panel(i + 1, from) : then;
    Panel panel = panel_of(of, i, from, inward, rows, next, room);
    float* to = x + i * PANEL;
    for (int first = 0; first < rows; first += BLOCK, panel.advance(units)) {
      Rows left = in_blocks(a + (long)first * inward, inward);
      float* at = to + first * stride;
      if (rows - first >= BLOCK) {
        // What the next block is added to is there when its turn comes.
        const float* after = first + BLOCK < rows ? at + BLOCK * stride : to + PANEL;
        multiply(left, BLOCK, panel, units, {at, stride}, at, stride, [=](int from, int until) {
          for (int row = from; row < until; row++) fetch(after + row * stride, PANEL * sizeof(float));
        });
        continue;
      }
      // Of fewer rows tiles would take more than there are.
      copy_panel(at, stride, rest, PANEL, rows - first);
      multiply(left, rows - first, panel, units, {rest, PANEL}, rest, PANEL, Nothing{});
      copy_panel(rest, PANEL, at, stride, rows - first);
    }
  }
#pragma omp barrier
}
