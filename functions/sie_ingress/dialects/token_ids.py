"""Token ids that come instead of a text, turned back into it: OpenAI's clients may tokenize before they ask.

Owns OpenAI's vocabularies, which stand in files beside this module (``vocabularies``, 0.4 and 0.8 MB), and what is no
token of theirs. A vocabulary is read at its first use: 30 ms, 10 MB. Tokenizing for a model is the bundle's.
"""

from __future__ import annotations

import lzma
from collections.abc import Sequence
from functools import cache
from itertools import accumulate, pairwise
from pathlib import Path
from typing import NamedTuple

from sie_sdk.errors import InvalidInputError

OFF = "off"
_FOLDER = Path(__file__).parent / "vocabularies"


class _Table(NamedTuple):
    size: int
    """Tokens in the file, whose ids begin with 0."""
    special: dict[int, bytes]


_TABLES = {
    "cl100k_base": _Table(
        100256,
        {
            100257: b"<|endoftext|>",
            100258: b"<|fim_prefix|>",
            100259: b"<|fim_middle|>",
            100260: b"<|fim_suffix|>",
            100276: b"<|endofprompt|>",
        },
    ),
    "o200k_base": _Table(199998, {199999: b"<|endoftext|>", 200018: b"<|endofprompt|>"}),
}


class Vocabulary:
    """What each id of one vocabulary stands for. ``tokens``: by id; None where there is none."""

    def __init__(self, name: str, tokens: Sequence[bytes | None]) -> None:
        self._name = name
        self._tokens = tokens

    def tokens(self, ids: Sequence[int], field: str) -> list[bytes]:
        """What each of ``ids`` stands for; nothing is copied.

        Raises:
            InvalidInputError: there is no such token; names its place in ``field``.
        """
        try:
            if min(ids, default=0) >= 0 and None not in (found := [self._tokens[number] for number in ids]):
                return found  # type: ignore[return-value]  # by the look
        except IndexError:
            pass
        place = next(place for place, number in enumerate(ids) if not self._has(number))
        raise InvalidInputError(
            f"{field}[{place}] is {str(ids[place])[:20]}, which is no token of {self._name}.",
            field=f"{field}[{place}]",
            limit=len(self._tokens) - 1,
            hint=f"Send texts, or tokens of {self._name}.",
        )

    def _has(self, number: int) -> bool:
        return 0 <= number < len(self._tokens) and self._tokens[number] is not None


def joined(tokens: Sequence[bytes]) -> str:
    """The text of these tokens; bytes that are no UTF-8 (a character was cut) become U+FFFD."""
    return b"".join(tokens).decode(errors="replace")


@cache
def vocabulary(name: str) -> Vocabulary:
    """``cl100k_base`` or ``o200k_base``, read from its file once."""
    size, special = _TABLES[name]
    packed = lzma.decompress((_FOLDER / f"{name}.xz").read_bytes())
    ends = list(accumulate(packed[:size], initial=size))
    tokens: list[bytes | None] = [packed[start:end] for start, end in pairwise(ends)]
    tokens += [special.get(number) for number in range(size, max(special) + 1)]
    return Vocabulary(name, tokens)
