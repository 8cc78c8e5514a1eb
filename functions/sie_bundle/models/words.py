"""Words with their tokens: asked of a tokenizer once, and kept. A text's tokens are those of its words.

Owns what is kept, in two forms: by Python, and in a table by which compiled code (``engine/kernels/words.cpp``), where
there is any, reads whole texts without Python's lock. Which texts are of words that can be tokenized each by itself,
and how they are parted, is ``plain_text``'s.
"""

from __future__ import annotations

import ctypes
from collections.abc import Iterable, Sequence
from ctypes import c_char, c_int32, c_uint8, c_uint32, c_void_p
from struct import pack

import numpy as np
import tokenizers
from tokenizers import pre_tokenizers

from sie_bundle.engine import native
from sie_bundle.engine.native import Library, address
from sie_bundle.engine.row import Ids

KEPT_WORDS, KEPT_LETTERS = 32_768, 32
"""Words of a tokenizer that are kept, and letters of each at most: some 4 MB, and 2 in the table."""
ASKED_WORDS = 1_024
"""Words at most that the tokenizer is asked for at a time: what it answers takes a tenth of a kilobyte for each."""

FEW, BRIEF = 256, 8_192
"""Fewer characters Python reads as soon as it has called; so many are read in a moment, some 40 us; for more, Python's
lock is let go."""

BYTES, WORD_BYTES = 256, 64
LETTERS, TOKENS = 24, 8
"""Of a word that compiled code finds, at most."""
SPACE, MARK, BEGINS, STRANGE = 1, 2, 4, 8
"""These numbers, too, are as it has them."""


class Words:
    """Words of a tokenizer. For several threads at once."""

    def __init__(self, tokenizer: tokenizers.Tokenizer) -> None:
        self._tokenizer = tokenizers.Tokenizer(tokenizer.model)
        self._tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
        encoding = tokenizer.encode("a")
        ids = np.array(encoding.ids, np.int64)
        (own,) = np.nonzero(np.array(encoding.special_tokens_mask) == 0)
        self._before, self._after = ids[: own[0]].tobytes(), ids[own[-1] + 1 :].tobytes()
        self.misses = 0
        """Texts, of several threads, that had words which were not kept."""
        self._kept: dict[bytes, bytes] = {}
        """The ids of each word, as they lie in memory: those of a text are these, one behind the other."""
        self._compiled: Compiled | None = None

    def compile(self, library: Library, alphabet: Alphabet) -> None:
        """Keep words where compiled code finds them, too."""
        if self._compiled is None:
            alphabet.stand(self._before, self._after)
            self._compiled = Compiled(library, alphabet)
            self._compiled.add(dict(self._kept))

    @property
    def compiled(self) -> bool:
        """Whether compiled code finds them."""
        return self._compiled is not None

    def read(self, texts: Sequence[str], special: bool) -> list[Ids | None]:
        """[tokens] of each text that compiled code reads, for all its words are kept; None of others."""
        if self._compiled is None or (len(texts) == 1 and len(texts[0]) < FEW):
            return [None] * len(texts)
        return self._compiled.read(texts, special)

    def ids(self, text: bytes, special: bool) -> Ids:
        """[tokens] of a text whose words stand between spaces; with the ids around it if ``special``."""
        words = text.split()
        before, after = (self._before, self._after) if special else (b"", b"")
        try:
            ids = b"".join([before, *map(self._kept.__getitem__, words), after])
        except KeyError:
            ids = b"".join([before, *self._asked(words), after])
        return np.frombuffer(bytearray(ids), np.int64)  # of bytes, it could not be written to, as torch wants it

    def _asked(self, words: list[bytes]) -> Iterable[bytes]:
        """The ids of each word, some of which are new."""
        self.misses += 1
        kept = self._kept
        found = {word: kept.get(word) for word in words}
        new = [word for word, ids in found.items() if ids is None]
        made: dict[bytes, bytes] = {}
        for start in range(0, len(new), ASKED_WORDS):
            some = new[start : start + ASKED_WORDS]
            # As one text: each by itself takes twice as long. The fast way does not tell which word a token is of.
            (encoding,) = self._tokenizer.encode_batch([b" ".join(some).decode()], add_special_tokens=False)
            told, word_ids = packed(encoding.ids), np.array(encoding.word_ids, np.int64)
            places = (8 * np.searchsorted(word_ids, np.arange(len(some) + 1))).tolist()
            made |= {word: told[start:stop] for word, start, stop in zip(some, places, places[1:], strict=False)}
        self._keep({word: made[word] for word in new if len(word) <= KEPT_LETTERS})
        return [made[word] if (ids := found[word]) is None else ids for word in words]

    def _keep(self, made: dict[bytes, bytes]) -> None:
        if len(self._kept) + len(made) > KEPT_WORDS:
            self._kept = {}  # those that are met often are soon there again
            if self._compiled:
                self._compiled.forget()
        if len(made) <= KEPT_WORDS:
            if self._compiled:
                self._compiled.add({word: ids for word, ids in made.items() if word not in self._kept})
            self._kept.update(made)


class Alphabet(ctypes.Structure):
    """What texts are read by, as compiled code has it; see there."""

    _fields_ = (
        ("left", c_char * BYTES),
        ("kinds", c_uint8 * BYTES),
        *((name, c_void_p) for name in ("names", "name_ends", "around")),
        *((name, c_int32) for name in ("name_count", "before", "after")),
    )

    def __init__(self, left: bytes, marks: Iterable[int], names: Iterable[bytes]) -> None:
        """``left``: what each byte becomes, 0 if no plain text has it. ``marks``: which are words of their own.
        ``names``, in lower case, that no plain text has in it."""
        each = [name for name in names if name]
        begin = {name[0] for name in each}
        self._names = np.frombuffer(bytearray(b"".join(each) + b"\0"), np.uint8)
        self._ends = np.cumsum([0, *map(len, each)]).astype(np.int32)
        super().__init__(
            names=address(self._names), name_ends=address(self._ends) + self._ends.itemsize, name_count=len(each)
        )
        ctypes.memmove(ctypes.addressof(self), left, BYTES)  # with zeros in it, which end a field of characters
        for byte, one in enumerate(left):
            kinds = (SPACE * (one == ord(" ")), MARK * (one in marks), BEGINS * (ord(chr(one).lower()) in begin))
            self.kinds[byte] = sum(kinds) if one else STRANGE

    def stand(self, before: bytes, after: bytes) -> None:
        """Between these ids, as they lie in memory, stands a text."""
        self._around = np.frombuffer(bytearray(before + after + bytes(8)), np.int64)
        self.around, self.before, self.after = address(self._around), len(before) // 8, len(after) // 8


class _Table(ctypes.Structure):
    """``most`` words at most, and no word yet; 64 bytes for each, and 8 or 16 to find it."""

    _fields_ = (("words", c_void_p), ("slots", c_void_p), *((name, c_uint32) for name in ("size", "most", "count")))

    def __init__(self, most: int) -> None:
        size = 1 << (2 * most - 1).bit_length()
        # Pages are taken when something is written to them. A word is one line of the cache.
        self._words, self._slots = np.zeros((most + 1) * WORD_BYTES, np.uint8), np.zeros(size, np.uint32)
        words = -(-address(self._words) // WORD_BYTES) * WORD_BYTES
        super().__init__(words=words, slots=address(self._slots), size=size, most=most)


class Compiled:
    """The words that are kept, in a table, and texts read by it."""

    def __init__(self, library: Library, alphabet: Alphabet) -> None:
        texts = (c_void_p, c_void_p, ctypes.c_char_p, c_void_p, c_int32, c_int32)
        word = (c_void_p, ctypes.c_char_p, c_int32, ctypes.c_char_p, c_int32)
        self._brief, self._longer = (
            native.function(library, "read_texts", None, *texts, brief=brief) for brief in (True, False)
        )
        self._add = native.function(library, "add_word", None, *word, brief=True)
        self._alphabet = alphabet
        self._table = _Table(KEPT_WORDS)

    def read(self, texts: Sequence[str], special: bool) -> list[Ids | None]:
        """See `Words.read`."""
        if not texts:
            return []
        if not (whole := "".join(texts)).isascii():
            texts = [text if text.isascii() else "\0" for text in texts]  # which no plain text is
            whole = "".join(texts)
        table = self._table  # kept alive, where it is forgotten meanwhile
        around = self._alphabet.before + self._alphabet.after if special else 0
        room = np.empty(len(whole) + len(texts) * (1 + around), np.int64)
        room[: len(texts)] = [*map(len, texts)]
        run = self._brief if len(whole) <= BRIEF else self._longer
        at, of = ctypes.addressof(table), ctypes.addressof(self._alphabet)
        run(at, of, whole.encode(), address(room), len(texts), special)
        sizes = room[: len(texts)].tolist()
        # A copy, for there was room for a token of each character, and rows wait for their pass with what they are of.
        ids = room[len(texts) : len(texts) + sum(size for size in sizes if size > 0)].copy()
        made: list[Ids | None] = []
        first = 0
        for size in sizes:
            made.append(None if size < 0 else ids[first : first + size])
            first += max(0, size)
        return made

    def add(self, words: dict[bytes, bytes]) -> None:
        """Keep words that are not kept, with their ids as they lie in memory; those that are too long are left out."""
        table = self._table
        for word, ids in words.items():
            self._add(ctypes.addressof(table), word, len(word), ids, len(ids) // 8)

    def forget(self) -> None:
        """Keep none of those that were."""
        self._table = _Table(KEPT_WORDS)


def packed(ids: Sequence[int]) -> bytes:
    """Numbers as int64 in memory: read twice as fast as numpy reads them."""
    return pack(f"{len(ids)}q", *ids)
