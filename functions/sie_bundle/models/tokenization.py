"""Tokenization: texts, pairs and windows to rows of token ids with the model's own ``tokenizer.json``. No torch here.

Owns truncation: the ids are cut here, not by settings baked into the file, so that "too long" can be told from "cut";
only the side is theirs. Prompts and templates are put together by the operations.
"""

from __future__ import annotations

import string
from collections.abc import Callable, Sequence
from functools import cached_property, partial
from itertools import chain
from pathlib import Path
from typing import Any, Literal, NamedTuple, Self

import numpy as np
import numpy.typing as npt
import tokenizers
from tokenizers import processors

from sie_bundle.engine.row import Ids, Row, row
from sie_bundle.models.plain_text import PlainText
from sie_bundle.models.spread import spread
from sie_bundle.models.words import packed
from sie_config.model.model_spec import ModelSpec
from sie_sdk.errors import InputTooLongError, InvalidInputError, ModelLoadFailedError

Overflow = Literal["truncate_text", "error"]
Side = Literal["auto", "left", "right"]
Parts = Sequence[str]
Name = Callable[[int], str]
"""What errors call the text of that number."""
ITEM: Name = "items[{}].text".format


class Windows(NamedTuple):
    """A text for token classification: its tokens, and overlapping rows that read all of them."""

    ids: Ids
    """[n]: the text's own tokens, without special ones."""
    spans: npt.NDArray[np.int64]
    """[n, 2]: the first character of each token, and the one behind its last."""
    rows: list[Row]
    """At least one, unless the text has no tokens."""
    bounds: list[tuple[int, int]]
    """For each row, which of the text's tokens it reads: the first, and the one behind the last."""
    opening: int
    """How many special tokens stand before them in every row."""


class Tokenizer:
    """A tokenizer that may be used from several threads at once: nothing in it changes after it was made."""

    def __init__(self, tokenizer: tokenizers.Tokenizer, end: str = "", side: Side = "auto") -> None:
        told = (tokenizer.truncation or {}).get("direction")
        self._from_left = (told if side == "auto" else side) == "left"
        # Many published files ask for padding to a fixed length, a remnant of training; packed rows need none.
        tokenizer.no_padding()
        tokenizer.no_truncation()
        if end:
            _close(tokenizer, end)
        self._tokenizer = tokenizer
        mask = tokenizer.encode("a").special_tokens_mask
        self._opening = next((n for n, special in enumerate(mask) if not special), 0)
        self._closing = next((n for n, special in enumerate(reversed(mask)) if not special), 0)
        self.plain = PlainText.of(tokenizer)
        """What tokenizes plain texts word by word; None: this tokenizer's are not (`PlainText.of`)."""

    @classmethod
    def load(cls, folder: Path, end: str = "", side: Side = "auto") -> Self:
        """Read ``tokenizer.json`` of a model's folder.

        Args:
            end: a token that every row ends with, whether the file says so or not.
            side: of a text that is too long, which loses tokens; "auto": the one that the file says, or the right.

        Raises:
            ModelLoadFailedError: it is missing or not a tokenizer, or has no such token.
        """
        try:
            return cls(tokenizers.Tokenizer.from_file(str(folder / "tokenizer.json")), end, side)
        except (ModelLoadFailedError, KeyboardInterrupt):
            raise
        except BaseException as error:  # the Rust side raises plain Exception, and panics with what is none
            raise ModelLoadFailedError(
                f"{folder / 'tokenizer.json'} is not a tokenizer: {error}.", reason="corrupt"
            ) from error

    @property
    def vocabulary(self) -> int:
        """How many token ids there are, added tokens included."""
        return int(self._tokenizer.get_vocab_size(with_added_tokens=True))

    def confine(self, size: int) -> bool:
        """Make no id of ``size`` or above; False: it cannot be kept from that.

        Special tokens up there belong to a sibling of the model, one that reads images say. If there are any, special
        tokens in a text are text from now on; call it before the first one.
        """
        beyond = {number for number in self.tokens().values() if number >= size}
        if beyond:
            self._tokenizer.encode_special_tokens = True
        return beyond <= self.special

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

    @cached_property
    def token_lengths(self) -> npt.NDArray[np.int64]:
        """[vocabulary]: how many characters each token has as it stands in the vocabulary, any prefix included."""
        tokens = self.tokens()
        lengths = np.zeros(max(tokens.values(), default=-1) + 1, dtype=np.int64)
        lengths[list(tokens.values())] = [len(token) for token in tokens]
        return lengths

    @cached_property
    def punctuation(self) -> npt.NDArray[np.bool_]:
        """[vocabulary]: whether a token is one of ASCII's punctuation characters alone."""
        table = np.zeros(len(self.token_lengths), dtype=np.bool_)
        for token, number in self.tokens().items():
            table[number] = len(token) == 1 and token in string.punctuation
        return table

    @property
    def subword_prefix(self) -> str:
        """What a token inside a word begins with, ``##`` for BERT; empty: tokens do not tell."""
        return getattr(self._tokenizer.model, "continuing_subword_prefix", None) or ""

    @property
    def unknown(self) -> int | None:
        """The id of the token that stands for what the vocabulary has not; None: there is none."""
        names = [getattr(self._tokenizer.model, "unk_token", None), "<unk>", "[UNK]"]
        numbers = (self._tokenizer.token_to_id(name) for name in names if name)
        return next((number for number in numbers if number is not None), None)

    def rows(
        self, texts: Sequence[str], max_length: int, overflow: Overflow = "truncate_text", name: Name = ITEM
    ) -> list[Row]:
        """One row per text, at most ``max_length`` tokens each.

        Raises:
            InputTooLongError: a text has more tokens and ``overflow`` is "error"; it is called by its ``name``.
            InvalidInputError: a text is not valid Unicode, or has no tokens at all.
        """
        made, read = [], texts
        if self.plain and overflow == "truncate_text" and not self._from_left:  # else its end is what counts
            read = [self.plain.beginning(text, max_length) for text in texts]
        for i, ids in enumerate(self._ids(read, name=name)):
            if len(ids) <= max_length and read[i] is not texts[i]:  # then more of it counts
                (ids,) = self._ids(texts[i : i + 1], name=name)
            if not len(ids):
                raise _empty(name(i))
            if len(ids) > max_length:
                if overflow == "error":
                    raise _too_long(len(ids), max_length, name(i))
                head = self._opening if self._from_left else max_length - self._closing
                head = min(max(0, head), max_length)
                ids = np.concatenate([ids[:head], ids[len(ids) - (max_length - head) :]])
            made.append(row(ids))
        return made

    def _cut(self, ids: Ids, length: int) -> Ids:
        """As many of a text's own tokens, without the special ones."""
        return ids[max(0, len(ids) - length) :] if self._from_left else ids[:length]

    def pairs(
        self, query: str, documents: Sequence[str], max_length: int, overflow: Overflow = "truncate_text"
    ) -> list[Row]:
        """One row per document with the query before it; the longer of the two is cut first, token by token.

        The query is tokenized once, however many documents there are.

        Raises:
            InputTooLongError: a pair has more tokens and ``overflow`` is "error"; names ``items[i].text``.
            InvalidInputError: a text is not valid Unicode, or there are no tokens at all, nor any around them.
        """
        frame = self._frame
        (one,) = self._ids([query], special=False, name="query.text".format)
        made = []
        for i, other in enumerate(self._ids(documents, special=False)):
            if not (length := frame.length + len(one) + len(other)):
                raise _empty(f"items[{i}].text")
            if length > max_length and overflow == "error":
                raise _too_long(length, max_length, f"items[{i}].text")
            first, second = _cut_pair(len(one), len(other), max(0, max_length - frame.length))
            made.append(frame.row(self._cut(one, first), self._cut(other, second)))
        return made

    def framed(
        self, prefix: str, texts: Sequence[Parts], suffix: str, max_length: int, overflow: Overflow = "truncate_text"
    ) -> list[Row]:
        """One row per text between two others, which are never cut. Each of a text's parts is tokenized by itself.

        Raises:
            InvalidInputError: they leave no room for a text; names ``options.max_seq_length``. And as `rows`.
        """
        before, after = (self._tokenizer.encode(part, add_special_tokens=False).ids for part in (prefix, suffix))
        around = len(before) + len(after)
        if around >= max_length:
            told, least = (
                f"Around every text stand {around} tokens, which leaves no room for one in {max_length}.",
                around + 1,
            )
            raise InvalidInputError(told, field="options.max_seq_length", limit=least, hint=f"Give at least {least}.")
        inner = self._joined(texts, max_length - around, overflow)
        return [row(np.concatenate([before, own.ids, after]).astype(np.int64)) for own in inner]

    def _joined(self, texts: Sequence[Parts], max_length: int, overflow: Overflow) -> list[Row]:
        """`rows` of texts in as many parts each; without special tokens where they are several."""
        if len(texts[0]) == 1:
            return self.rows([text for (text,) in texts], max_length, overflow)
        each = iter(self._ids([*chain.from_iterable(texts)], special=False, name=lambda i: ITEM(i // len(texts[0]))))
        made = []
        for i, parts in enumerate(texts):
            ids = np.concatenate([next(each) for _ in parts])
            if len(ids) > max_length and overflow == "error":
                raise _too_long(len(ids), max_length, ITEM(i))
            made.append(row(self._cut(ids, max_length)))
        return made

    def hypotheses(
        self, texts: Sequence[str], hypotheses: Sequence[str], max_length: int, overflow: Overflow = "truncate_text"
    ) -> list[Row]:
        """One row for each text with each hypothesis behind it, the first text's rows first. Only texts are cut.

        Raises:
            InputTooLongError: as `rows`; also a hypothesis that leaves no room for a text, by ``params.labels[i]``.
            InvalidInputError: a text or a hypothesis is not valid Unicode, or both have no tokens, nor any around them.
        """
        frame = self._frame
        others = self._ids(hypotheses, special=False, name="params.labels[{}]".format)
        rooms = [max_length - frame.length - len(other) for other in others]
        for i, room in enumerate(rooms):
            if room < 1:
                raise _too_long(max_length - room + 1, max_length, f"params.labels[{i}]")
        made = []
        for i, ids in enumerate(self._ids(texts, special=False)):
            if len(ids) > min(rooms) and overflow == "error":
                raise _too_long(len(ids) + max_length - min(rooms), max_length, f"items[{i}].text")
            if not frame.length + len(ids) + min(map(len, others)):
                raise _empty(f"items[{i}].text")
            for other, room in zip(others, rooms, strict=True):
                made.append(frame.row(self._cut(ids, room), other))
        return made

    def windows(self, texts: Sequence[str], max_length: int, overlap: int, name: Name = ITEM) -> list[Windows]:
        """Each text in rows of at most ``max_length`` tokens.

        Neighbouring rows share ``overlap`` tokens, but half of what a row holds at most.

        Raises:
            InvalidInputError: a text is not valid Unicode.
        """
        room = max(1, max_length - self._opening - self._closing)
        step = room - min(overlap, room // 2)
        made = []
        for encoding in self._encodings(texts, name=name):
            ids = np.array(encoding.ids, dtype=np.int64)
            head, tail = self._opening, len(ids) - self._closing
            size = max(0, tail - head)
            starts = range(0, max(1, size - room + step), step) if size else range(0)
            bounds = [(start, min(start + room, size)) for start in starts]
            rows = [row(np.r_[ids[:head], ids[head + start : head + stop], ids[tail:]]) for start, stop in bounds]
            spans = np.array(encoding.offsets[head : head + size], dtype=np.int64).reshape(size, 2)
            made.append(Windows(ids[head : head + size], spans, rows, bounds, head))
        return made

    @cached_property
    def _frame(self) -> _Frame:
        """What stands around a pair, read off one."""
        encoding = self._tokenizer.encode("a", "a")
        ids, sides = np.array(encoding.ids, dtype=np.int64), encoding.sequence_ids
        types = encoding.type_ids
        a, b = sides.index(0), sides.index(1)
        behind_a, behind_b = a + sides.count(0), b + sides.count(1)
        typed = any(types)
        untyped = types.index(1) - behind_a if typed else 0
        return _Frame(ids[:a], ids[behind_a:b], ids[behind_b:], typed, untyped)

    def _ids(self, texts: Sequence[str], *, special: bool = True, name: Name = ITEM) -> list[Ids]:
        """The token ids of each text, with the special ones around it or without."""

        def encode(texts: Sequence[str]) -> list[Ids]:
            made = self._tokenizer.encode_batch_fast(list(texts), add_special_tokens=special)
            return [np.frombuffer(bytearray(packed(encoding.ids)), np.int64) for encoding in made]

        others = partial(spread, encode)
        try:
            return self.plain.encode(texts, special, others) if self.plain else others(texts)
        except TypeError:
            _check_unicode(texts, name)
            raise

    def _encodings(
        self, texts: Sequence[str | Sequence[str]], *, special: bool = True, words: bool = False, name: Name = ITEM
    ) -> list[tokenizers.Encoding]:
        """Each text's ids with the places that they stand for."""

        def encode(texts: Sequence[Any]) -> list[tokenizers.Encoding]:
            return self._tokenizer.encode_batch(list(texts), is_pretokenized=words, add_special_tokens=special)

        try:
            return spread(encode, texts)
        except TypeError:
            _check_unicode(texts, name)
            raise


def _check_unicode(texts: Sequence[str | Sequence[str]], name: Name) -> None:
    """Tell which text has unpaired surrogates: Python's strings can hold them, UTF-8 cannot."""
    for i, text in enumerate(texts):
        if any("\ud800" <= letter <= "\udfff" for letter in "".join(text)):
            raise InvalidInputError("The text is not valid Unicode.", field=name(i)) from None


def end_token(spec: ModelSpec) -> str:
    """The token that the rows of this model end with, where its ``tokenizer.json`` does not say so; empty: none."""
    return spec.tasks.dense.end_token if spec.tasks.dense else ""


def _close(tokenizer: tokenizers.Tokenizer, end: str) -> None:
    """Have every row end with this token; the special tokens in front stay.

    Publishers say so in tokenizer_config.json (``add_eos_token``), which changed the meaning of tokenizer.json in their
    library, and no longer does.
    """
    if (number := tokenizer.token_to_id(end)) is None:
        raise ModelLoadFailedError(f"The tokenizer has no token {end!r}, which the spec's end_token names.")
    encoding = tokenizer.encode("a")
    if encoding.ids[-1:] == [number]:
        return
    special = encoding.special_tokens_mask
    opening = encoding.tokens[: special.index(0) if 0 in special else len(special)]
    one = [*opening, "$A", end]
    ids = dict(zip(opening, encoding.ids, strict=False)) | {end: number}
    closing = processors.TemplateProcessing(
        single=one, pair=[*one, *(part.replace("$A", "$B") for part in one)], special_tokens=list(ids.items())
    )
    # A processor that adds no tokens does something else, with offsets.
    kept = [] if opening or tokenizer.post_processor is None else [tokenizer.post_processor]
    tokenizer.post_processor = processors.Sequence([*kept, closing])


class _Frame(NamedTuple):
    """The special tokens of a pair."""

    before: Ids
    between: Ids
    after: Ids
    typed: bool
    """Whether the second text has a token type of its own."""
    untyped: int
    """How many of ``between`` are still of the first type."""

    @property
    def length(self) -> int:
        return len(self.before) + len(self.between) + len(self.after)

    def row(self, first: Ids, second: Ids) -> Row:
        """The row of two texts' tokens."""
        joined = np.concatenate([self.before, first, self.between, second, self.after])
        begins = len(self.before) + len(first) + self.untyped
        return Row(joined, begins if self.typed else len(joined), len(joined))


def _cut_pair(first: int, second: int, room: int) -> tuple[int, int]:
    """How many tokens of two texts of so many stay where there is room for some: the longer loses first."""
    if first + second <= room:
        return first, second
    short, long = sorted((first, second))
    long = max(short, room - short)
    if short + long > room:
        short, long = room // 2, room - room // 2
    return (short, long) if first <= second else (long, short)


def _empty(field: str) -> InvalidInputError:
    return InvalidInputError("The text has no tokens.", field=field)


def _too_long(length: int, max_length: int, field: str) -> InputTooLongError:
    told, hint = f"The text has {length} tokens; the model reads {max_length}.", 'send overflow_policy "truncate_text"'
    return InputTooLongError(told, field=field, limit=max_length, hint=f"Shorten it, or {hint}.")
