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
  // All of the next panel is there behind these rows, two lines at a time; but a single block waits for its own only,
  // which the CPU fetches ahead by itself.
  int blocks = (rows + BLOCK - 1) / BLOCK;
  panel.lines = blocks > 1 ? (PANEL / 2 + blocks - 1) / blocks * 2 : 2;
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

// Multiply a [rows][inward], in blocks, by rows [from, from + inward) of some panels, and store the result, with the
// bias if those are the first, activated, as `put` says: `put(column)` gives what is called for each row of 32 columns
// from that one on, as `(place, left, right)`, with two vectors that lie side by side in `to`. Panels are those that
// `which(0)` and so on say, one behind the other; of them those of `share`. `then`: the panel that is multiplied with
// next.
template <int ACTIVATION, class Out, class Which, class Put>
static void multiplied(Number* a, int rows, const Product& of, int from, int inward, Share share, Which which,
                       const char* then, float* room, RowsOf<Out> to, Put put) {
  if (share.from == share.to) return;
  alignas(64) float made[2][BLOCK * PANEL];
  // What is done to a block is done while the next one is multiplied.
  struct {
    const float *made, *bias;
    Out* to;
    int rows, column;
  } before = {made[1], ZEROS, to.at, 0, 0};
  // By copies: what is looked up for every row keeps tiles waiting.
  auto finishing = [&] {
    auto [c, bias, place, some, column] = before;
    return [=, row_step = to.row, below = to.below - 16 * to.row](int first, int until) {
      until = until < some ? until : some;
      for (int at = 0; at < PANEL; at += 2 * WIDTH) {
        auto each = put(column + at);
        Vector more_left = load(bias + at), more_right = load(bias + at + WIDTH);
        for (int row = first; row < until; row++) {
          const float* x = c + row * PANEL + at;
          Vector left = activated<ACTIVATION>(load(x) + more_left);
          each(place + row * row_step + (row < 16 ? 0 : below) + at, left,
               activated<ACTIVATION>(load(x + WIDTH) + more_right));
        }
      }
    };
  };
  int units = inward / UNIT, now = 0;
  Rows all = in_blocks(a, inward);
  take(all, of.panel(which(share.from), from));
  for (int i = share.from; i < share.to; i++) {
    const char* next = i + 1 < share.to ? of.panel(which(i + 1), from) : then;
    Panel panel = panel_of(of, which(i), from, inward, rows, next, room);
    const float* bias = of.bias && from == 0 ? of.bias + which(i) * PANEL : ZEROS;
    for (int first = 0; first < rows; first += BLOCK, now = 1 - now, panel.advance(units)) {
      int some = rows - first < BLOCK ? rows - first : BLOCK;
      bool last = first + BLOCK >= rows;
      Rows left = all;
      left.at = all.block(first, 0);
      Ahead ahead = {all.block(last ? 0 : first + BLOCK, 0), last ? next : panel.at};
      multiply(left, some, panel, units, ahead, made[now], finishing());
      before = {made[now], bias, to.block(first, i * PANEL), some, i * PANEL};
    }
  }
  finishing()(0, BLOCK);
}

static inline int in_order(int panel) { return panel; }

// By all panels of a weight, which the threads of the region share; they go on when all are through.
template <class Put>
static void multiplied(Number* a, int rows, const Product& of, const char* then, float* room, Rows to, Put put) {
  auto by = [&](auto activation) {
    multiplied<decltype(activation)::value>(a, rows, of, 0, of.inward, Share(of.outward / PANEL), in_order, then, room,
                                            to, put);
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

// Multiply a [rows][inward], in blocks, with rows [from, from + inward) of a weight, and add the result to x [rows]
// [columns of the weight], in blocks. Otherwise as `multiplied`.
static void multiplied_onto(float* x, Number* a, int rows, const Product& of, int from, int inward, const char* then,
                            float* room) {
  Share share(of.outward / PANEL);
#ifdef SIE_AMX
  // Tiles could begin with x, but would wait for each block of it: the one before has just been stored at an address
  // that looks the same.
  multiplied<NONE>(a, rows, of, from, inward, share, in_order, then, room, in_blocks(x, of.outward), [](int) {
    return [](float* to, Vector left, Vector right) { store(to, load(to) + left, load(to + WIDTH) + right); };
  });
#else
  for (int i = share.from; i < share.to; i++) {
    Panel panel = panel_of(of, i, from, inward, rows, i + 1 < share.to ? of.panel(i + 1, from) : then, room);
    const float* bias = of.bias && from == 0 ? of.bias + i * PANEL : ZEROS;
    multiply(in_blocks(a, inward), rows, panel, inward / UNIT, x + i * PANEL, {bias, of.outward});
  }
#endif
#pragma omp barrier
}
