"""The texts of the comparison, and the four workloads made of them: built from a seed, the same on every machine.

Words are drawn from the tokenizer's own vocabulary with the frequencies of a natural text (Zipf); one in eight is a
compound that the tokenizer splits. Owns lengths and request shapes; how requests travel is ``load``.
"""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

import numpy as np
from tokenizers import Tokenizer

SEED = 20_261_121
SPECIAL = 2
"""[CLS] and [SEP]."""


class Text(NamedTuple):
    """A text and its length in tokens, special tokens included."""

    text: str
    tokens: int


class Workload(NamedTuple):
    """``clients`` ask at once, each for the next of ``requests`` as soon as it has its answer."""

    name: str
    clients: int
    requests: list[list[Text]]

    @property
    def tokens_per_text(self) -> float:
        """The mean."""
        return float(np.mean([text.tokens for request in self.requests for text in request]))


class Words:
    """A source of texts of given lengths."""

    def __init__(self, tokenizer_file: Path, seed: int = SEED) -> None:
        self._tokenizer = Tokenizer.from_file(str(tokenizer_file))
        self._tokenizer.no_padding()
        self._tokenizer.no_truncation()
        self._random = np.random.default_rng(seed)
        vocabulary = sorted(self._tokenizer.get_vocab().items(), key=lambda entry: entry[1])
        # By id, which in this family is by frequency.
        self._words = [word for word, _ in vocabulary if word.isascii() and word.isalpha() and len(word) > 2]
        zipf = 1 / np.arange(1, len(self._words) + 1)
        self._cumulative = np.cumsum(zipf / zipf.sum())

    def text(self, tokens: int) -> Text:
        """A text of exactly ``tokens`` tokens."""
        words: list[str] = []
        left = tokens - SPECIAL
        while left > 0:
            word = self._word()
            size = len(self._tokenizer.encode(word, add_special_tokens=False).ids)
            if size <= left:
                words.append(word)
                left -= size
        text = " ".join(words).capitalize()
        assert len(self._tokenizer.encode(text).ids) == tokens
        return Text(text, tokens)

    def short(self) -> Text:
        """A query: 8 to 16 tokens."""
        return self.text(int(self._random.integers(8, 17)))

    def document(self) -> Text:
        """A passage of 20 to 256 tokens, as many between 20 and 40 as between 100 and 200 (log-uniform)."""
        return self.text(round(np.exp(self._random.uniform(np.log(20), np.log(256)))))

    def _word(self) -> str:
        drawn, other, split = self._random.random(3)
        return self._draw(drawn) + self._draw(other) if split < 1 / 8 else self._draw(drawn)

    def _draw(self, uniform: float) -> str:
        return self._words[min(int(np.searchsorted(self._cumulative, uniform)), len(self._words) - 1)]


def workloads(tokenizer_file: Path) -> list[Workload]:
    """The four; no text occurs twice, so that no cache helps anybody within a pass over the requests."""
    words = Words(tokenizer_file)
    shorts = [[words.short()] for _ in range(512)]
    documents = [[words.document() for _ in range(32)] for _ in range(16)]
    long = [words.text(256) for _ in range(64)]
    mixed = [[long[i // 5 % 64]] if i % 5 == 4 else [words.short()] for i in range(320)]
    return [
        Workload("single", 1, shorts),
        Workload("short", 32, shorts),
        Workload("documents", 4, documents),
        Workload("mixed", 32, mixed),
    ]
