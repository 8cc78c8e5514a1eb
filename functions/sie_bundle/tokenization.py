"""Tokenization: text to token ids with the model's own ``tokenizer.json``. No torch here, and no prompts.

Owns truncation: the ids are cut here, not by settings baked into the file, so that "too long" can be told from "cut".
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Literal

import numpy as np
import tokenizers

from sie_sdk.errors import InputTooLongError, InvalidInputError, ModelLoadFailedError

Row = np.ndarray[tuple[int], np.dtype[np.int64]]
"""The token ids of one text, special tokens included; shape [length]."""

Overflow = Literal["truncate_text", "error"]


class Tokenizer:
    """A tokenizer that may be used from several threads at once: nothing in it changes after it was made."""

    def __init__(self, tokenizer: tokenizers.Tokenizer) -> None:
        # Many published files ask for padding to a fixed length, a remnant of training; packed rows need none.
        tokenizer.no_padding()
        tokenizer.no_truncation()
        self._tokenizer = tokenizer
        self._closing = _closing_tokens(tokenizer)

    @classmethod
    def load(cls, folder: Path) -> Tokenizer:
        """Read ``tokenizer.json`` of a model's folder.

        Raises:
            ModelLoadFailedError: it is missing or not a tokenizer.
        """
        try:
            return cls(tokenizers.Tokenizer.from_file(str(folder / "tokenizer.json")))
        except Exception as error:  # the Rust side raises plain Exception
            raise ModelLoadFailedError(f"{folder / 'tokenizer.json'} is not a tokenizer: {error}.") from error

    @property
    def vocabulary(self) -> int:
        """How many token ids there are, added tokens included."""
        return int(self._tokenizer.get_vocab_size(with_added_tokens=True))

    def tokenize(self, texts: Sequence[str], max_length: int, overflow: Overflow = "truncate_text") -> list[Row]:
        """One row of ids per text, at most ``max_length`` tokens each.

        Raises:
            InputTooLongError: a text has more tokens and ``overflow`` is "error"; names ``items[i].text``.
            InvalidInputError: a text is not valid Unicode, or has no tokens at all.
        """
        return [self._fit(i, ids, max_length, overflow) for i, ids in enumerate(self._encode(texts))]

    def _encode(self, texts: Sequence[str]) -> list[list[int]]:
        try:
            return [encoding.ids for encoding in self._tokenizer.encode_batch_fast(list(texts))]
        except TypeError:
            # Unpaired surrogates: Python strings can hold them, UTF-8 cannot.
            for i, text in enumerate(texts):
                if not _is_unicode(text):
                    raise InvalidInputError("The text is not valid Unicode.", field=f"items[{i}].text") from None
            raise

    def _fit(self, i: int, ids: list[int], max_length: int, overflow: Overflow) -> Row:
        if not ids:
            raise InvalidInputError("The text has no tokens.", field=f"items[{i}].text")
        if len(ids) > max_length:
            if overflow == "error":
                raise InputTooLongError(
                    f"The text has {len(ids)} tokens; the model reads {max_length}.",
                    field=f"items[{i}].text",
                    limit=max_length,
                    hint='Shorten it, or send overflow_policy "truncate_text".',
                )
            ids = ids[: max_length - self._closing] + ids[len(ids) - self._closing :]
        return np.array(ids, dtype=np.int64)


def _closing_tokens(tokenizer: tokenizers.Tokenizer) -> int:
    """How many special tokens end every row ([SEP], for instance); a cut text keeps them."""
    mask = tokenizer.encode("a").special_tokens_mask
    return next((n for n, special in enumerate(reversed(mask)) if not special), 0)


def _is_unicode(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True
