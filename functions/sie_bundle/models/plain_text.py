"""Plain texts, which are tokenized without the tokenizer's normalizer: in a third of the time.

Owns which texts those are: of ASCII, without control characters and without a token's name in them. All that BERT's
normalizer does to one is to lower its letters, but it does so by making the text anew, character by character with the
place of each, once for every step. And all that its pre-tokenizer does is to split at spaces and around marks, but it
looks each character up among Unicode's. The tokens are the same.
"""

from __future__ import annotations

import json
import string
from collections.abc import Callable, Sequence
from typing import Self

import tokenizers
from tokenizers import pre_tokenizers

CHARACTERS = 8
"""Of a text, for each token that it may have at most, are read first: a token of English has four or five."""

UNSEEN = b"\0"
"""Stands for every control character."""

MARKS = {ord(mark): (mark.encode(), f" {mark} ".encode()) for mark in string.punctuation}
"""Each of them is a word of its own."""
UNMARKED = bytes(code for code in range(128) if code not in MARKS)

Encode = Callable[[list[str]], list[tokenizers.Encoding]]


class PlainText:
    """A tokenizer of plain texts; it shares the vocabulary of that which it was made of."""

    def __init__(self, tokenizer: tokenizers.Tokenizer, *, lower: bool) -> None:
        self._tokenizer = tokenizers.Tokenizer(tokenizer.model)
        self._tokenizer.pre_tokenizer = tokenizer.pre_tokenizer
        self._tokenizer.post_processor = tokenizer.post_processor
        self._lower = lower
        # Tokens with a name of their own are looked for before a text is normalized, or after it.
        names = {token.content for token in tokenizer.get_added_tokens_decoder().values()}
        names |= {tokenizer.normalizer.normalize_str(name) for name in names}
        self._names = {name.lower().encode() for name in names if name}
        self._firsts = {name[:1] for name in self._names}
        seen = bytes(range(128)).lower() if lower else bytes(range(128))
        spaced = (b" " if code in b"\t\n\r" else seen[code : code + 1] for code in range(128))
        self._as_left = b"".join(one if one.decode().isprintable() else UNSEEN for one in spaced) + bytes(128)
        """Each character of ASCII as the normalizer would leave it, by its code."""
        # Words are told by spaces and tokenized each by itself: what stands behind a space changes nothing before it.
        self._apart = isinstance(tokenizer.pre_tokenizer, pre_tokenizers.BertPreTokenizer)
        if self._apart:
            self._tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
        self._by_word = self._apart and isinstance(tokenizer.model, tokenizers.models.WordPiece)
        self._by_word = self._by_word and not any(name.split() != [name] for name in self._names)

    @classmethod
    def of(cls, tokenizer: tokenizers.Tokenizer) -> Self | None:
        """Made of a tokenizer as it is now; None: its normalizer is not BERT's."""
        if not isinstance(tokenizer.normalizer, tokenizers.normalizers.BertNormalizer):
            return None
        settings = json.loads(tokenizer.normalizer.__getstate__())
        return cls(tokenizer, lower=settings["lowercase"]) if settings["clean_text"] else None

    def beginning(self, text: str, tokens: int) -> str:
        """So much of a text that more than so many tokens are probably in it, which are the first of the whole text's.

        The text itself, where it is not much longer, or that is not certain.
        """
        if not self._by_word or len(text) <= 2 * CHARACTERS * tokens or not text.isascii():
            return text
        cut = text.rfind(" ", 0, CHARACTERS * tokens)
        return text[:cut] if cut > 0 else text

    def encode(self, texts: Sequence[str], special: bool, others: Encode) -> list[tokenizers.Encoding]:
        """One encoding per text, with the tokens that stand around it if ``special``; ``others`` encodes the others."""
        plain = [self._plain(text) for text in texts]
        own = [text for text in plain if text is not None]
        made = iter(self._tokenizer.encode_batch_fast(own, add_special_tokens=special))
        if None not in plain:
            return list(made)
        rest = iter(others([text for text, as_plain in zip(texts, plain, strict=True) if as_plain is None]))
        return [next(rest) if text is None else next(made) for text in plain]

    def _plain(self, text: str) -> str | None:
        """The text as the normalizer would leave it; None: it is not plain."""
        if not text.isascii():
            return None
        left = text.encode().translate(self._as_left)
        if UNSEEN in left:
            return None
        lowered = left if self._lower else left.lower()
        for first in self._firsts:
            if first in lowered and any(name in lowered for name in self._names):
                return None
        if self._apart:
            for mark in {*left.translate(None, UNMARKED)}:
                left = left.replace(*MARKS[mark])
        return left.decode()
