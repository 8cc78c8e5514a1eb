"""Plain texts, which are tokenized word by word from memory: in a sixth of the time the tokenizer itself takes.

Owns which texts those are: of ASCII, without control characters and without a token's name in them. All that BERT's
normalizer does to one is to lower its letters, and all that its pre-tokenizer does is to split at spaces and around
marks. Each word is tokenized by itself then, so what a word's tokens are is asked once (``words``). The tokens are the
same.
"""

from __future__ import annotations

import json
import string
from collections.abc import Callable, Sequence
from typing import Self

import tokenizers
from tokenizers import models, normalizers, pre_tokenizers

from sie_bundle.engine.native import Library
from sie_bundle.engine.row import Ids
from sie_bundle.models.spread import lot_by_lot
from sie_bundle.models.words import Alphabet, Words

CHARACTERS = 8
"""Of a text, for each token that it may have at most, are read first: a token of English has four or five."""

UNSEEN = b"\0"
"""Stands for every control character."""

MARKS = {ord(mark): (mark.encode(), f" {mark} ".encode()) for mark in string.punctuation}
"""Each of them is a word of its own."""
UNMARKED = bytes(code for code in range(128) if code not in MARKS)

NEW, LATELY = 0.25, 1_024
"""Up to this share of the last so many texts may have words that are new, for the next to be called quick."""

Encode = Callable[[Sequence[str]], list[Ids]]
"""The token ids of each text, with or without the special ones around it."""


class PlainText:
    """A tokenizer of plain texts; it shares the vocabulary of that which it was made of."""

    def __init__(self, tokenizer: tokenizers.Tokenizer, *, lower: bool) -> None:
        self._words = Words(tokenizer)
        self._lower = lower
        self._met, self._slow = 0, 0
        # Tokens with a name of their own are looked for before a text is normalized, or after it.
        names = {token.content for token in tokenizer.get_added_tokens_decoder().values()}
        names |= {tokenizer.normalizer.normalize_str(name) for name in names}
        self._names = {name.lower().encode() for name in names if name}
        self._firsts = {name[:1] for name in self._names}
        seen = bytes(range(128)).lower() if lower else bytes(range(128))
        spaced = (b" " if code in b"\t\n\r" else seen[code : code + 1] for code in range(128))
        self._as_left = b"".join(one if one.decode().isprintable() else UNSEEN for one in spaced) + bytes(128)
        """Each character of ASCII as the normalizer would leave it, by its code."""
        # What stands behind a space changes no token before it.
        self._apart = not any(name.split() != [name] for name in self._names)

    @classmethod
    def of(cls, tokenizer: tokenizers.Tokenizer) -> Self | None:
        """Made of a tokenizer as it is now; None: it is not BERT's."""
        parts = (tokenizer.normalizer, tokenizer.pre_tokenizer, tokenizer.model)
        bert = (normalizers.BertNormalizer, pre_tokenizers.BertPreTokenizer, models.WordPiece)
        if not all(map(isinstance, parts, bert)):
            return None
        settings = json.loads(tokenizer.normalizer.__getstate__())
        return cls(tokenizer, lower=settings["lowercase"]) if settings["clean_text"] else None

    def beginning(self, text: str, tokens: int) -> str:
        """So much of a text that more than so many tokens are probably in it, which are the first of the whole text's.

        The text itself, where it is not much longer, or that is not certain.
        """
        if not self._apart or len(text) <= 2 * CHARACTERS * tokens or not text.isascii():
            return text
        cut = text.rfind(" ", 0, CHARACTERS * tokens)
        return text[:cut] if cut > 0 else text

    def encode(self, texts: Sequence[str], special: bool, others: Encode) -> list[Ids]:
        """[tokens] of each text, with the ids around it if ``special``; ``others`` encodes what is not plain."""

        def each(texts: Sequence[str]) -> list[Ids | None]:
            read = zip(texts, self._words.read(texts, special), strict=True)
            return [self._by_words(text, special) if ids is None else ids for text, ids in read]

        misses = self._words.misses
        made = lot_by_lot(each, texts)
        other = [text for text, ids in zip(texts, made, strict=True) if ids is None]
        self._count(len(texts), len(other) + self._words.misses - misses)
        if other:
            rest = iter(others(other))
            return [next(rest) if ids is None else ids for ids in made]
        return [ids for ids in made if ids is not None]

    def compile(self, library: Library) -> None:
        """Let compiled code read the texts whose words are kept."""
        self._words.compile(library, Alphabet(self._as_left, MARKS, self._names))

    @property
    def compiled(self) -> bool:
        """Whether compiled code reads such texts."""
        return self._words.compiled

    @property
    def quick(self) -> bool:
        """Whether texts are mostly plain these days, and of words that are kept: some 0.1 us of a core per character.

        Where Python reads them, its lock is held all the while, so that threads would only take turns at it.
        """
        return self._slow < NEW * self._met

    def _count(self, texts: int, slow: int) -> None:
        """Note texts met, and how many of them took long; several threads may lose a few to each other."""
        if self._met >= LATELY:
            self._met, self._slow = self._met // 2, self._slow // 2
        self._met, self._slow = self._met + texts, self._slow + slow

    def _by_words(self, text: str, special: bool) -> Ids | None:
        """[tokens] of one text, read by Python; None: it is not plain."""
        return None if (left := self._plain(text)) is None else self._words.ids(left, special)

    def _plain(self, text: str) -> bytes | None:
        """The text as normalizer and pre-tokenizer would leave it, words between spaces; None: it is not plain."""
        if not text.isascii():
            return None
        left = text.encode().translate(self._as_left)
        if UNSEEN in left:
            return None
        lowered = left if self._lower else left.lower()
        for first in self._firsts:
            if first in lowered and any(name in lowered for name in self._names):
                return None
        for mark in {*left.translate(None, UNMARKED)}:
            left = left.replace(*MARKS[mark])
        return left
