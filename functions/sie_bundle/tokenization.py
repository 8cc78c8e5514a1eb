"""Tokenization: texts, pairs and windows to rows of token ids with the model's own ``tokenizer.json``. No torch here.

Owns truncation: the ids are cut here, not by settings baked into the file, so that "too long" can be told from "cut".
Prompts and templates are put together by the operations.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Literal, NamedTuple

import msgspec
import numpy as np
import numpy.typing as npt
import tokenizers

from sie_sdk.errors import InputTooLongError, InvalidInputError, ModelLoadFailedError

Ids = np.ndarray[tuple[int], np.dtype[np.int64]]
Overflow = Literal["truncate_text", "error"]


class Row(msgspec.Struct, frozen=True, eq=False, gc=False):
    """One row of the packed batch: a text, or a pair of texts, with its special tokens."""

    ids: Ids
    second: int
    """Where a pair's second text begins; the length, if there is none."""
    seen: int
    """So many tokens from the first are attended to; those behind, a query's augmentation, only look."""

    def __len__(self) -> int:
        return len(self.ids)


class Window(NamedTuple):
    """A stretch of a text for token classification: its row, and where each token stands in the text."""

    row: Row
    spans: npt.NDArray[np.int64]
    """[length, 2]: first character and the one behind the last; 0, 0 for special tokens."""
    words: npt.NDArray[np.int64]
    """[length]: the number of the word a token is part of; -1 for special tokens."""


def row(ids: Sequence[int] | Ids) -> Row:
    """A single text's row."""
    return Row(np.asarray(ids, dtype=np.int64), len(ids), len(ids))


class Tokenizer:
    """A tokenizer that may be used from several threads at once: nothing in it changes after it was made."""

    def __init__(self, tokenizer: tokenizers.Tokenizer) -> None:
        # Many published files ask for padding to a fixed length, a remnant of training; packed rows need none.
        tokenizer.no_padding()
        tokenizer.no_truncation()
        self._tokenizer = tokenizer
        mask = tokenizer.encode("a").special_tokens_mask
        self._opening = next((n for n, special in enumerate(mask) if not special), 0)
        self._closing = next((n for n, special in enumerate(reversed(mask)) if not special), 0)

    @classmethod
    def load(cls, folder: Path) -> Tokenizer:
        """Read ``tokenizer.json`` of a model's folder.

        Raises:
            ModelLoadFailedError: it is missing or not a tokenizer.
        """
        try:
            return cls(tokenizers.Tokenizer.from_file(str(folder / "tokenizer.json")))
        except Exception as error:  # the Rust side raises plain Exception
            raise ModelLoadFailedError(
                f"{folder / 'tokenizer.json'} is not a tokenizer: {error}.", reason="corrupt"
            ) from error

    @property
    def vocabulary(self) -> int:
        """How many token ids there are, added tokens included."""
        return int(self._tokenizer.get_vocab_size(with_added_tokens=True))

    @property
    def special(self) -> frozenset[int]:
        """The ids of special tokens."""
        added = self._tokenizer.get_added_tokens_decoder()
        return frozenset(number for number, token in added.items() if token.special)

    def tokens(self) -> dict[str, int]:
        """Every token with its id."""
        return dict(self._tokenizer.get_vocab(with_added_tokens=True))

    def id(self, token: str) -> int:
        """The id of one token as it stands in the vocabulary.

        Raises:
            ModelLoadFailedError: there is no such token.
        """
        if (number := self._tokenizer.token_to_id(token)) is None:
            raise ModelLoadFailedError(f"The tokenizer has no token {token!r}.")
        return int(number)

    def rows(self, texts: Sequence[str], max_length: int, overflow: Overflow = "truncate_text") -> list[Row]:
        """One row per text, at most ``max_length`` tokens each.

        Raises:
            InputTooLongError: a text has more tokens and ``overflow`` is "error"; names ``items[i].text``.
            InvalidInputError: a text is not valid Unicode, or has no tokens at all.
        """
        made = []
        for i, encoding in enumerate(self._encode(texts)):
            ids = encoding.ids
            if not ids:
                raise InvalidInputError("The text has no tokens.", field=f"items[{i}].text")
            if len(ids) > max_length:
                if overflow == "error":
                    raise _too_long(len(ids), max_length, f"items[{i}].text")
                ids = ids[: max_length - self._closing] + ids[len(ids) - self._closing :]
            made.append(row(ids))
        return made

    def pairs(
        self, query: str, documents: Sequence[str], max_length: int, overflow: Overflow = "truncate_text"
    ) -> list[Row]:
        """One row per document with the query before it; the longer of the two is cut first, token by token.

        Raises:
            InputTooLongError, InvalidInputError: as `rows`; the document's field is named.
        """
        made = []
        for i, encoding in enumerate(self._encode([(query, document) for document in documents])):
            ids, sides = np.array(encoding.ids, dtype=np.int64), encoding.sequence_ids
            if len(ids) > max_length:
                if overflow == "error":
                    raise _too_long(len(ids), max_length, f"items[{i}].text")
                kept = _cut_pair(sides, max_length)
                ids, types = ids[kept], np.array(encoding.type_ids)[kept]
            else:
                types = np.array(encoding.type_ids)
            second = int(np.argmax(types)) if types.any() else len(ids)
            made.append(Row(ids, second, len(ids)))
        return made

    def framed(
        self, prefix: str, texts: Sequence[str], suffix: str, max_length: int, overflow: Overflow = "truncate_text"
    ) -> list[Row]:
        """One row per text between two others, which are never cut; errors as `rows`."""
        before, after = (self._tokenizer.encode(part, add_special_tokens=False).ids for part in (prefix, suffix))
        inner = self.rows(texts, max_length - len(before) - len(after), overflow)
        return [row(np.concatenate([before, own.ids, after]).astype(np.int64)) for own in inner]

    def windows(self, text: str, max_length: int, overlap: int) -> list[Window]:
        """A text in windows of at most ``max_length`` tokens, of which neighbours share ``overlap``.

        Raises:
            InvalidInputError: the text is not valid Unicode, or has no tokens at all.
        """
        (encoding,) = self._encode([text], fast=False)
        ids = np.array(encoding.ids, dtype=np.int64)
        if not len(ids):
            raise InvalidInputError("The text has no tokens.", field="items[0].text")
        spans = np.array(encoding.offsets, dtype=np.int64)
        words = np.array([-1 if word is None else word for word in encoding.word_ids], dtype=np.int64)
        head, tail = self._opening, len(ids) - self._closing
        room = max(1, max_length - self._opening - self._closing)
        step = max(1, room - overlap)
        made = []
        for start in range(head, max(tail, head + 1), step):
            stop = min(start + room, tail)
            picked = np.r_[0:head, start:stop, tail : len(ids)]
            made.append(Window(row(ids[picked]), spans[picked], words[picked]))
            if stop == tail:
                break
        return made

    def _encode(
        self, texts: Sequence[str] | Sequence[tuple[str, str]], *, fast: bool = True
    ) -> list[tokenizers.Encoding]:
        try:
            encode = self._tokenizer.encode_batch_fast if fast else self._tokenizer.encode_batch
            return encode(list(texts))
        except TypeError:
            # Unpaired surrogates: Python strings can hold them, UTF-8 cannot.
            for i, text in enumerate(texts):
                if not all(map(_is_unicode, [text] if isinstance(text, str) else text)):
                    raise InvalidInputError("The text is not valid Unicode.", field=f"items[{i}].text") from None
            raise


def _cut_pair(sides: list[int | None], max_length: int) -> npt.NDArray[np.int64]:
    """Which tokens of a pair stay: special ones, and of the two texts so many that the longer loses first."""
    side = np.array([-1 if s is None else s for s in sides])
    lengths = [int((side == 0).sum()), int((side == 1).sum())]
    room = max(0, max_length - int((side == -1).sum()))
    short, long = (0, 1) if lengths[0] <= lengths[1] else (1, 0)
    lengths[long] = max(lengths[short], room - lengths[short]) if lengths[short] <= room else lengths[short]
    if sum(lengths) > room:
        lengths[short], lengths[long] = room // 2, room - room // 2
    kept = [np.flatnonzero(side == -1), *(np.flatnonzero(side == s)[: lengths[s]] for s in (0, 1))]
    return np.sort(np.concatenate(kept))


def _too_long(length: int, max_length: int, field: str) -> InputTooLongError:
    return InputTooLongError(
        f"The text has {length} tokens; the model reads {max_length}.",
        field=field,
        limit=max_length,
        hint='Shorten it, or send overflow_policy "truncate_text".',
    )


def _is_unicode(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True
