// Plain texts whose words are all known, from ASCII to token ids in one call without Python and its lock.
//
// Owns the table of words and how a text is read by it. Which texts are plain, what becomes of a letter and what the
// tokens of a word are is told by models/words.py, whose structures these are, field by field. It is the same for
// every CPU.
#include <cstdint>
#include <cstring>

constexpr int LETTERS = 24, TOKENS = 8;  // of a word, at most; it is one line of the cache

struct Word {
  char text[LETTERS];  // with zeros behind it
  int32_t ids[TOKENS];
  int32_t tokens, unused;
};
static_assert(sizeof(Word) == 64, "a line");

// One thread adds words at a time, and any read meanwhile: what a slot names is whole by then. None is ever taken out.
struct Table {
  Word* words;
  uint32_t* slots;  // [size]: 0, or the number of a word, counted from 1
  uint32_t size;    // a power of two, above `most`
  uint32_t most, count;
};

// What a byte is in a text, beside a letter: between words; a word of its own; the first of a name, which no plain text
// has in it; nothing that a plain text has.
enum Kind : uint8_t { SPACE = 1, MARK = 2, BEGINS = 4, STRANGE = 8 };

// What there is to know of a tokenizer.
struct Alphabet {
  char left[256];      // what its normalizer makes of each byte
  uint8_t kinds[256];  // of `Kind`, added
  const char* names;   // in lower case, one behind the other
  const int32_t* name_ends;
  const int64_t* around;  // the ids before a text, and those behind it
  int32_t name_count, before, after;
};

// Words of a text that are looked up together, so that what is not in the cache is waited for once.
constexpr int TOGETHER = 32;

struct Read {
  char text[TOGETHER][LETTERS];
  uint32_t hash[TOGETHER], number[TOGETHER];
  int count = 0;
};

static inline uint64_t letters_at(const char* text, int part) {
  uint64_t letters;
  memcpy(&letters, text + 8 * part, 8);
  return letters;
}

static inline uint32_t hash_of(const char* text) {
  uint64_t hash = 0;
  for (int part = 0; part < LETTERS / 8; part++)
    hash = (hash ^ letters_at(text, part)) * 0x9E3779B97F4A7C15, hash ^= hash >> 29;
  return uint32_t(hash >> 16);
}

static inline bool same(const char* a, const char* b) {
  uint64_t other = 0;
  for (int part = 0; part < LETTERS / 8; part++) other |= letters_at(a, part) ^ letters_at(b, part);
  return !other;
}

static inline uint32_t named(const Table& of, uint32_t at) {
  return __atomic_load_n(&of.slots[at & (of.size - 1)], __ATOMIC_ACQUIRE);
}

// The word, or null.
static inline const Word* found(const Table& of, const Read& read, int i) {
  uint32_t number = read.number[i];
  for (uint32_t at = read.hash[i]; number; number = named(of, ++at)) {
    if (same(of.words[number - 1].text, read.text[i])) return &of.words[number - 1];
  }
  return nullptr;
}

// The ids of all words read, behind those that are there; null: one is not known.
static int64_t* looked_up(const Table& of, Read& read, int64_t* ids) {
  for (int i = 0; i < read.count; i++) {
    read.number[i] = named(of, read.hash[i]);
    if (read.number[i]) __builtin_prefetch(&of.words[read.number[i] - 1]);
  }
  for (int i = 0; i < read.count; i++) {
    const Word* word = found(of, read, i);
    if (!word) return nullptr;
    for (int token = 0; token < word->tokens; token++) *ids++ = word->ids[token];
  }
  read.count = 0;
  return ids;
}

static inline char lower(char letter) { return letter >= 'A' && letter <= 'Z' ? char(letter + 32) : letter; }

static bool names_something(const Alphabet& of, const char* text, const char* end) {
  int first = 0;
  for (int i = 0; i < of.name_count; first = of.name_ends[i++]) {
    int size = of.name_ends[i] - first, same = 0;
    while (same < size && text + same < end && lower(of.left[uint8_t(text[same])]) == of.names[first + same]) same++;
    if (same == size) return true;
  }
  return false;
}

// One text's ids, with those around it if `special`; null: it is not plain, or has a word that is not known.
static int64_t* read_text(const Table& table, const Alphabet& of, const char* text, const char* end, bool special,
                          int64_t* ids) {
  Read read;
  int letters = 0;
  memset(read.text[0], 0, LETTERS);
  const auto ended = [&] {  // the word in the last place; false: it is not known
    if (!letters) return true;
    uint32_t hash = hash_of(read.text[read.count]);
    __builtin_prefetch(&table.slots[hash & (table.size - 1)]);
    read.hash[read.count++] = hash;
    if (read.count == TOGETHER && !(ids = looked_up(table, read, ids))) return false;
    memset(read.text[read.count], 0, LETTERS);
    letters = 0;
    return true;
  };
  for (int i = 0; special && i < of.before; i++) *ids++ = of.around[i];
  for (; text < end; text++) {
    const uint8_t kind = of.kinds[uint8_t(*text)];
    if (kind && ((kind & STRANGE) || ((kind & BEGINS) && names_something(of, text, end)) ||
                 ((kind & (SPACE | MARK)) && !ended())))
      return nullptr;
    if (kind & SPACE) continue;
    if (letters == LETTERS) return nullptr;
    read.text[read.count][letters++] = of.left[uint8_t(*text)];
    if ((kind & MARK) && !ended()) return nullptr;
  }
  if (!ended() || !(ids = looked_up(table, read, ids))) return nullptr;
  for (int i = 0; special && i < of.after; i++) *ids++ = of.around[of.before + i];
  return ids;
}

extern "C" {

// Reads texts of ASCII that stand one behind the other. In `sizes` [texts] are the characters of each, and then its
// tokens, or -1 where it is not plain or has a word that is not known. Behind them are the tokens of the others.
void read_texts(const Table* table, const Alphabet* of, const char* text, int64_t* sizes, int32_t texts,
                int32_t special) {
  int64_t* ids = sizes + texts;
  for (int i = 0; i < texts; i++) {
    const char* end = text + sizes[i];
    int64_t* behind = read_text(*table, *of, text, end, special, ids);
    sizes[i] = behind ? behind - ids : -1;
    if (behind) ids = behind;
    text = end;
  }
}

// Adds a word that is not there, if there is room for one of its size.
void add_word(Table* to, const char* text, int32_t letters, const int64_t* ids, int32_t tokens) {
  if (letters > LETTERS || tokens > TOKENS || tokens > letters || to->count == to->most) return;
  Word& word = to->words[to->count];
  memcpy(word.text, text, letters);  // behind it are zeros
  for (int i = 0; i < tokens; i++) word.ids[i] = int32_t(ids[i]);
  word.tokens = tokens;
  uint32_t at = hash_of(word.text);
  while (named(*to, at)) at++;
  __atomic_store_n(&to->slots[at & (to->size - 1)], ++to->count, __ATOMIC_RELEASE);
}
}
