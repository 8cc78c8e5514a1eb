// A pass of a batch through all layers of an encoder, as one call without Python: the CPU's way through `layer.passed`.
//
// Owns the order of the steps, which is that module's, and the room between them. A layer is attention, then everything
// that is computed token by token, some rows at a time, so that what one step leaves is in the cache when the next
// comes. States stay float32; what is multiplied is of the type `Number`. Structures are those of fused.py, field by
// field.
#include <algorithm>

#include "attention.h"
#include "embedding.h"
#include "pooling.h"
#include "product.h"

struct Layer {
  Product qkv, output, up, gate, down;  // a gate of no rows is none
  Norm q_norm, k_norm, attention_norm, between_norm, output_norm;
  int32_t rotary;  // which of the batch's; -1: none
  int32_t mask;    // which of the batch's
};

// The rotation of each place, [places][size] each.
struct Rotary {
  const float* cosines;
  const float* sines;
};

struct Pass {
  float* states;  // [tokens][hidden], out, and in where no table has words
  char* room;
  const Embedding* embedding;
  const Norm* final_norm;
  const int64_t* ids;        // [tokens]
  const int64_t* positions;  // [tokens]
  const int64_t* types;      // [tokens] or null: all are of the first
  const Layer* layers;
  const Rotary* rotaries;
  const Mask* masks;
  const int32_t* cu_seqlens;  // [texts + 1]
  const int32_t* seen;        // [texts]: so many tokens of each, from its first, are attended to
  int32_t count, pre_norm, tokens, texts, longest, hidden, heads, key_heads, size, threads;

  int start(int text) const { return cu_seqlens[text] - cu_seqlens[0]; }
  // Where a token's state is given back.
  Line given(long row) const { return {states + row * hidden}; }
};

// Rows between two attentions at a time, and columns of their inner states: of a small model they fit the second-level
// cache with both, or nearly. Of a large one they do not, but its weights, which are read once for all of them, are
// more by far.
#ifdef SIE_AMX
constexpr int ROWS = 20 * BLOCK;
constexpr int INNER = 16 * PANEL;  // a panel of them in the first-level cache
#else
constexpr int ROWS = 16 * BLOCK;
constexpr int INNER = 12 * PANEL;
#endif

// As many panels for each thread.
static inline int inner_of(const Pass& of) {
  int inner = (INNER / PANEL + of.threads - 1) / of.threads * of.threads * PANEL;
  return std::min(inner, of.layers[0].down.inward);
}

// Whether queries, keys and values are made for one head after the other, which attends at once: what is made never
// leaves the second-level cache. Not of one block, whose panels the CPU fetches ahead in their order; not where rows do
// not stay there meanwhile; nor where a head is no whole panels, or its norm not its own.
static inline bool by_head(const Pass& of) {
  const Norm& norm = of.layers[0].q_norm;
  return of.tokens > BLOCK && of.tokens <= ROWS && of.size % PANEL == 0 && (!norm.exists || norm.size == of.size);
}

// Where everything between two steps is kept. Behind the last token there is room for as many as are computed at a
// time.
struct Room {
  float* states;   // [tokens][hidden], in blocks
  Number* normed;  // likewise
  Number* qkv;     // [tokens][out of qkv], in panels of all tokens where heads are whole ones; else row by row
  Number* seen;    // [tokens][in of output], in blocks: what attention gives
  Number* inner;   // [ROWS][inner columns at a time], in blocks
  float* before;   // as states, where a layer's input is added a second time
  char* own;       // of each thread; by head, with its queries, keys and values behind it
  long hidden, own_bytes, heads_bytes, bytes;

  Room(const Pass& of) {
    char* at = of.room;
    long rows = of.tokens + BLOCK;
    int in = 0;
    bool between = false;
    auto take = [&](long bytes) {
      char* taken = at;
      at += (bytes + 63) / 64 * 64;
      return taken;
    };
    const Layer& first = of.layers[0];
    for (int i = 0; i < of.count; i++) {
      const Layer& layer = of.layers[i];
      in = std::max({in, layer.qkv.inward, layer.output.inward, layer.up.inward, layer.down.inward});
      between |= layer.between_norm.exists;
    }
    hidden = of.hidden;
#ifdef SIE_AMX
    states = (float*)take(rows * hidden * 4);
#else
    states = of.states;
#endif
    normed = (Number*)take(rows * hidden * sizeof(Number));
    qkv = (Number*)take(by_head(of) ? 0 : rows * first.qkv.outward * sizeof(Number));
    seen = (Number*)take(rows * first.output.inward * sizeof(Number));
    inner = (Number*)take(std::min(rows, (long)ROWS + BLOCK) * inner_of(of) * sizeof(Number));
    before = (float*)take(between ? rows * hidden * 4 : 0);
    own_bytes = (std::max((long)in * PANEL * 4, HeadRoom::bytes(of.longest, of.size)) + 63) / 64 * 64;
    heads_bytes = by_head(of) ? rows * (of.heads / of.key_heads + 2) * of.size * sizeof(Number) : 0;
    own = take((own_bytes + heads_bytes) * of.threads);
    bytes = at - of.room + 64;
  }
  Line line(float* of, long row) const {
    auto all = in_blocks(of, hidden);
    return {all.block(row, 0), all.step};
  }
  Line state(long row) const { return line(states, row); }
  char* of_thread() const { return own + omp_get_thread_num() * (own_bytes + heads_bytes); }
};

// Queries or keys of one token, heads of that size, normed, rotated by its place and scaled; room for three times as
// many numbers.
static inline void placed(const Rows& row, int heads, int size, const Norm& norm, const float* cosines,
                          const float* sines, float scale, float* room) {
  int wide = norm.exists ? norm.size : size, columns = whole(wide), half = size / 2;
  float* __restrict x = room, * __restrict rotated = room + columns;
  Number* made = (Number*)(room + 2 * columns);
  for (int from = 0; from < heads * size; from += wide) {
    for (int at = 0; at < columns; at += WIDTH) store(x + at, within(load(row.place(0, from + at)), at, 0, wide, 0));
    if (norm.exists) normed_row({x}, norm, columns, {x}, nullptr, 0);
    for (int head = 0; cosines && head < wide; head += size) {
      for (int i = 0; i < half; i++) rotated[head + i] = x[head + i] * cosines[i] + x[head + i + half] * sines[i];
      for (int i = half; i < size; i++) rotated[head + i] = x[head + i] * cosines[i] + x[head + i - half] * sines[i];
    }
    for (int at = 0; at < columns; at += WIDTH) store(made + at, load((cosines ? rotated : x) + at) * scale);
    for (int at = 0; at < wide; at += PANEL) {
      memcpy(row.place(0, from + at), made + at, (wide - at < PANEL ? wide - at : PANEL) * sizeof(Number));
    }
  }
}

// Some tokens' queries or keys of some heads, normed, rotated and scaled.
static inline void placed(const Pass& of, const Layer& layer, const Norm& norm, const Rows& rows, int heads, int token,
                          int tokens, float scale, char* own) {
  if (!norm.exists && layer.rotary < 0) return;
  for (int i = 0; i < tokens; i++) {
    long at = layer.rotary < 0 ? 0 : of.positions[token + i] * of.size;
    const float* cosines = layer.rotary < 0 ? nullptr : of.rotaries[layer.rotary].cosines + at;
    const float* sines = layer.rotary < 0 ? nullptr : of.rotaries[layer.rotary].sines + at;
    placed(rows.from(i, 0), heads, of.size, norm, cosines, sines, scale, (float*)own);
  }
}

// What queries are multiplied by where products of them are stored: up to that column; else behind their norm.
struct Scaled {
  int queries;
  float by, behind_norm;

  Scaled(const Pass& of, const Layer& layer, int heads) {
    bool normed = layer.q_norm.exists;
    queries = normed ? 0 : heads * of.size, by = query_scale(of.size), behind_norm = normed ? by : 1;
  }
  Vector at(int column) const { return within(all(by), column, 0, queries, 1); }
  auto operator()(int column) const {
    Vector by_left = at(column), by_right = at(column + WIDTH);
    return [=](Number* to, Vector left, Vector right) { store(to, left * by_left, right * by_right); };
  }
};

// Heads of one text that share keys attend. All rows begin with the text.
static void attended(const Pass& of, const Layer& layer, const Room& room, char* own, int text, int key_head,
                     const Rows& queries, const Rows& keys, const Rows& values) {
  int start = of.start(text), tokens = of.start(text + 1) - start, seen = of.seen[text];
  int each = of.heads / of.key_heads;
  HeadRoom head_room(own, of.longest, of.size);
  pack_keys(keys, seen, of.size, head_room.keys);
  pack_values(values, seen, of.size, head_room.values);
  for (int i = 0; i < each; i++) {
    Head{queries.from(0, i * of.size), head_room, of.masks[layer.mask], tokens, seen, of.size,
         key_head * each + i,          room.seen, layer.output.inward,  start}
        .attend();
  }
}

// Attention, of the normed states, for one head's keys after the other: what belongs to them is made, then it is used.
static void attended_by_head(const Pass& of, const Layer& layer, const Room& room, char* own) {
  int panels = of.size / PANEL, each = of.heads / of.key_heads, values = (each + 1) * of.size;
  Rows qkv = {(Number*)(own + room.own_bytes), PANEL, (long)(of.tokens + BLOCK) * PANEL, 16 * PANEL};
  Scaled scaled(of, layer, each);
#pragma omp for schedule(dynamic)
  for (int key_head = 0; key_head < of.key_heads; key_head++) {
    auto which = [=](int i) {
      if (i < each * panels) return key_head * each * panels + i;
      int behind = i - each * panels, keys_or_values = behind / panels;
      return (of.heads + keys_or_values * of.key_heads + key_head) * panels + behind % panels;
    };
    Share every(0, (each + 2) * panels);
    bool last = key_head + 1 == of.key_heads;
    const char* then = last ? first_panel(layer.output) : layer.qkv.panel((key_head + 1) * each * panels);
    multiplied<NONE>(room.normed, of.tokens, layer.qkv, 0, layer.qkv.inward, every, which, then, (float*)own, qkv,
                     scaled);
    Rows keys = qkv.from(0, each * of.size);
    placed(of, layer, layer.q_norm, qkv, each, 0, of.tokens, scaled.behind_norm, own);
    placed(of, layer, layer.k_norm, keys, 1, 0, of.tokens, 1, own);
    for (int text = 0; text < of.texts; text++) {
      int start = of.start(text);
      attended(of, layer, room, own, text, key_head, qkv.from(start, 0), keys.from(start, 0), qkv.from(start, values));
    }
  }
}

// Where queries, keys and values of all tokens are. A head's lie side by side, token after token, if they can.
static inline Rows queries_of(const Pass& of, const Layer& layer, const Room& room) {
  if (of.size % PANEL) return row_by_row(room.qkv, layer.qkv.outward);
  return {room.qkv, PANEL, (long)(of.tokens + BLOCK) * PANEL, 16 * PANEL};
}

// Queries, keys and values of some rows, from their normed states, for `attended_by_text`.
static void queried(const Pass& of, const Layer& layer, const Room& room, char* own, int first, int rows) {
  Rows qkv = queries_of(of, layer, room).from(first, 0);
  Scaled scaled(of, layer, of.heads);
  multiplied(room.normed + (long)first * of.hidden, rows, layer.qkv, first_panel(layer.output), (float*)own, qkv,
             scaled);
  if (!layer.q_norm.exists && layer.rotary < 0) return;
#pragma omp for schedule(static)
  for (int row = 0; row < rows; row++) {
    placed(of, layer, layer.q_norm, qkv.from(row, 0), of.heads, first + row, 1, scaled.behind_norm, own);
    placed(of, layer, layer.k_norm, qkv.from(row, of.heads * of.size), of.key_heads, first + row, 1, 1, own);
  }
}

static void attended_by_text(const Pass& of, const Layer& layer, const Room& room, char* own) {
  int keys = of.heads * of.size, values = keys + of.key_heads * of.size, each = of.heads / of.key_heads;
  Rows qkv = queries_of(of, layer, room);
#pragma omp for schedule(dynamic)
  for (int job = 0; job < of.texts * of.key_heads; job++) {
    int text = job / of.key_heads, key_head = job % of.key_heads, start = of.start(text), at = key_head * of.size;
    attended(of, layer, room, own, text, key_head, qkv.from(start, at * each), qkv.from(start, keys + at),
             qkv.from(start, values + at));
  }
}

// States of some rows behind a layer, of what attention saw; `next`: the layer that takes them, if any.
static void fed(const Pass& of, const Layer& layer, const Layer* next, const Room& room, char* thread_room, int first,
                int rows) {
  auto own = (float*)thread_room;
  long hidden = of.hidden;
  float* states = room.states + first * hidden;
  Number *normed = room.normed + first * hidden, *inner = room.inner;
  // `last`: nothing is multiplied with them any more, and who called wants them.
  auto norm_all = [&](const Norm& norm, bool keep, bool last = false) {
#pragma omp for schedule(static)
    for (int row = 0; row < rows; row++) {
      Line x = room.state(first + row), ahead = room.state(first + row + 2);
      for (int at = 0; at < hidden; at += PANEL) fetch(ahead.place(at), PANEL * sizeof(float));
      Line kept = !keep ? Line{nullptr} : last ? of.given(first + row) : x;
      normed_row(x, norm, hidden, kept, last ? nullptr : normed, row);
    }
  };
  if (layer.between_norm.exists) {
#pragma omp for schedule(static)
    for (int row = first; row < first + rows; row++) {
      normed_row(room.state(row), Norm{}, hidden, room.line(room.before, row), nullptr, 0);
    }
  }
  Number* seen = room.seen + (long)first * layer.output.inward;
  multiplied_onto(states, seen, rows, layer.output, 0, layer.output.inward, first_panel(layer.up), own);
  norm_all(of.pre_norm ? layer.output_norm : layer.attention_norm, !of.pre_norm);
  if (layer.between_norm.exists) {
#pragma omp for schedule(static)
    for (int row = first; row < first + rows; row++) {
      Line x = room.state(row), kept = room.line(room.before, row);
      for (int at = 0; at < hidden; at += WIDTH) store(x.place(at), load(x.place(at)) + load(kept.place(at)));
    }
    norm_all(layer.between_norm, true);
  }
  for (int from = 0, all = layer.down.inward; from < all; from += inner_of(of)) {
    int width = std::min(all - from, inner_of(of));
    Product up = columns(layer.up, from, width), gate = columns(layer.gate, from, width);
    const char* down = first_panel(layer.down, from);
    Rows to = in_blocks(inner, width);
    multiplied(normed, rows, up, layer.gate.outward ? first_panel(gate) : down, own, to,
               [](int) { return [](Number* to, Vector left, Vector right) { store(to, left, right); }; });
    if (layer.gate.outward) {
      multiplied(normed, rows, gate, down, own, to, [](int) {
        return [](Number* to, Vector left, Vector right) { store(to, load(to) * left, load(to + WIDTH) * right); };
      });
    }
    const char* then = first_panel(next ? next->qkv : layer.qkv);
    if (from + width < all) {
      int left = std::min(all - from - width, inner_of(of));
      then = first_panel(columns(layer.up, from + width, left));
    }
    multiplied_onto(states, inner, rows, layer.down, from, width, then, own);
  }
  if (!of.pre_norm) {
    norm_all(layer.output_norm, true, !next);
  } else if (next) {
    norm_all(next->attention_norm, false);
  }
  if (next && !by_head(of)) queried(of, *next, room, thread_room, first, rows);
}

// A token's state before the first layer, and as numbers, normed once more by `first_norm` if there is one.
static inline void embedded(const Pass& of, const Norm& first_norm, const Room& room, float* own, int token) {
  const Embedding& from = *of.embedding;
  Line x = of.given(token), kept = room.state(token);
  if (from.words.rows) {
    x = {own};
    if (token + AHEAD < of.tokens) fetch_row(from.words, of.ids[token + AHEAD], from.size);
    memset(own, 0, of.hidden * sizeof(float));
    add_row(from.words, of.ids[token], from.size, own);
    add_row(from.positions, of.positions[token] + from.first_position, from.size, own);
    add_row(from.types, of.types ? of.types[token] : 0, from.size, own);
  }
  Norm norm = from.words.rows ? from.norm : Norm{};
  normed_row(x, norm, of.hidden, kept, first_norm.exists ? nullptr : room.normed, token);
  if (first_norm.exists) normed_row(kept, first_norm, of.hidden, {nullptr}, room.normed, token);
}

// All layers of some texts, whose room is there.
static void passed(const Pass& of) {
  Room room(of);
  long width = of.layers[0].output.inward;
  if (width > of.heads * of.size) memset(room.seen, 0, (of.tokens + BLOCK) * width * sizeof(Number));
#pragma omp parallel num_threads(of.threads)
  {
    [[maybe_unused]] Tiles tiles;
    Flushed flushed;
    char* own = room.of_thread();
    Norm first_norm = of.pre_norm ? of.layers[0].attention_norm : Norm{};
#pragma omp for schedule(static)
    for (int row = 0; row < of.tokens; row++) embedded(of, first_norm, room, (float*)own, row);
    auto blocks = [&](auto each) {
      for (int first = 0; first < of.tokens; first += ROWS) each(first, std::min(of.tokens - first, ROWS));
    };
    if (!by_head(of)) blocks([&](int first, int rows) { queried(of, of.layers[0], room, own, first, rows); });
    for (int i = 0; i < of.count; i++) {
      by_head(of) ? attended_by_head(of, of.layers[i], room, own) : attended_by_text(of, of.layers[i], room, own);
      const Layer* next = i + 1 < of.count ? &of.layers[i + 1] : nullptr;
      blocks([&](int first, int rows) { fed(of, of.layers[i], next, room, own, first, rows); });
    }
    // Behind a norm that was the last they are where they are wanted already.
    if (of.final_norm->exists || of.pre_norm) {
#pragma omp for schedule(static)
      for (int row = 0; row < of.tokens; row++) {
        Line given = of.given(row);
        normed_row(of.pre_norm ? room.state(row) : given, *of.final_norm, of.hidden, given, nullptr, 0);
      }
    }
  }
}

// Texts from one on that go through all layers together: no more than rows do between two attentions, or a longer one;
// and about as many each time, for a few by themselves take a third longer each.
static Pass texts_from(const Pass& of, int first) {
  const int32_t* cu_seqlens = of.cu_seqlens + first;
  auto rows = [=](int texts) { return cu_seqlens[texts] - cu_seqlens[0]; };
  int texts = 1, left = of.texts - first, passes = (rows(left) + ROWS - 1) / ROWS, even = rows(left) / passes;
  while (texts < left && rows(texts + 1) <= ROWS && rows(texts) + rows(texts + 1) <= 2 * even) texts++;
  Pass some = of;
  long start = cu_seqlens[0] - of.cu_seqlens[0];
  some.texts = texts, some.tokens = rows(texts), some.cu_seqlens = cu_seqlens, some.seen += first;
  some.states += start * of.hidden, some.ids += start, some.positions += start;
  if (of.types) some.types += start;
  return some;
}

template <class Each>
static void by_texts(const Pass& of, Each each) {
  for (int text = 0; text < of.texts;) {
    Pass some = texts_from(of, text);
    each(some);
    text += some.texts;
  }
}

extern "C" int64_t room_bytes(const Pass* of) {
  long most = 0;
  by_texts(*of, [&](const Pass& some) { most = std::max(most, Room(some).bytes); });
  return most;
}

extern "C" void pass(const Pass* of) { by_texts(*of, passed); }

extern "C" void pool(const Pooling* of) {
  for (int text = 0; text < of->texts; text++) pooled(*of, text);
}
