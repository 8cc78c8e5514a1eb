"""What a dialect is: how its requests are read, what they ask for in our words, how answers and errors are said.

Owns the contract between the dialects, which are pure, and ``speaking``, which serves them, and the reading of JSON
that they share. Not here: any dialect.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, NamedTuple, TypeAlias, TypeVar

import msgspec

from sie_config.model.model_spec import ModelSpec
from sie_sdk import bulk, complaints, wire
from sie_sdk.errors import (
    InputTooLongError,
    InvalidInputError,
    PayloadTooLargeError,
    SIEError,
    UnsupportedMediaTypeError,
)
from sie_sdk.types import Operation

T = TypeVar("T")
Headers: TypeAlias = Mapping[str, str]
"""By name in lower case."""
MOST_VALUES = wire.DEFAULT_LIMITS.max_other_bytes // 2
"""The most texts, lists, maps and commas in one body: behind each value but the last of a list or map stands one."""


Write: TypeAlias = Callable[[bytes, str], bytes]
"""The body of an answer, JSON, from the worker's reply and the request's own id."""


class Question(NamedTuple):
    """What a request asks for, in our words."""

    operation: Operation
    request: wire.Request
    write: Write
    """Takes long for a large reply."""


class Asking(NamedTuple):
    """A request of a dialect, read, before its model is known."""

    model: str | None
    """As the caller named it, if it did."""
    can: Callable[[ModelSpec], bool]
    """Whether a model does what is asked: where none is named, one that can may be taken."""
    ask: Callable[[ModelSpec], Question]
    """Raises `InvalidInputError` for what this model cannot do."""
    slow: bool = False
    """Asking takes more than a few milliseconds."""


class Refusal(NamedTuple):
    """An error as a dialect says it; the body is JSON."""

    status: int
    body: bytes


class Spoken(NamedTuple):
    """One route of a dialect."""

    path: str
    """May hold ``{model:path}``, which then names the model."""
    read: Callable[[bytes, Headers, wire.Limits], Asking]
    """Raises `InvalidInputError` for a body that is no request."""
    refuse: Callable[[SIEError], Refusal]


def read_json(body: bytes, headers: Headers, form: msgspec.json.Decoder[T], example: str) -> T:
    """The body of a request.

    Raises:
        UnsupportedMediaTypeError: it says that it is no JSON.
        PayloadTooLargeError: it holds more than any request needs, and would take many times its size.
        InvalidInputError: it is none, or a field has a wrong type; names the field.
    """
    media = headers.get("content-type", wire.JSON).partition(";")[0].strip().lower()
    if media not in (wire.JSON, ""):
        raise UnsupportedMediaTypeError(
            f"Bodies of type {media[:80]} are not read here.", field="Content-Type", hint=f"Send {wire.JSON}."
        )
    if bulk.crowded(body, (b"{", b"[", b","), MOST_VALUES):
        raise PayloadTooLargeError(
            f"The body holds over {MOST_VALUES} texts, lists, maps and commas.",
            field="body",
            limit=MOST_VALUES,
            hint="Send fewer fields beside the texts, or fewer texts at once.",
        )
    try:
        return form.decode(body)
    except msgspec.ValidationError as error:
        raise complaints.wrong_field(error, example) from None
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise complaints.malformed(error, body, "JSON", example) from None


def check_texts(texts: Sequence[str], field: str, limits: wire.Limits, most: int) -> None:
    """Refuse no texts, more than ``most``, and a text over the limit; empty ones are not looked at."""
    if not texts:
        raise empty(field, f"{field} cannot be empty")
    if len(texts) > most:
        raise InvalidInputError(
            f"{field} has {len(texts)} entries.", field=field, limit=most, hint=f"Send at most {most} per request."
        )
    for place, text in enumerate(texts):
        check_text(text, f"{field}[{place}]", limits)


def check_text(text: str, field: str, limits: wire.Limits) -> None:
    """Refuse a text over the limit."""
    # A character is at most 4 bytes of UTF-8; only texts near the limit are worth encoding.
    if len(text) * 4 > limits.max_text_bytes and (size := len(text.encode())) > limits.max_text_bytes:
        raise InputTooLongError(
            f"{field} has {size} bytes.",
            field=field,
            limit=limits.max_text_bytes,
            hint=f"Split it into texts of at most {limits.max_text_bytes} bytes.",
        )


def empty(field: str, message: str) -> InvalidInputError:
    """The error for something that must not be empty, as dialects say it."""
    return InvalidInputError(f"{message}.", field=field, hint="Send at least one character or entry.", reason="empty")


def overflow(truncate: bool | None) -> dict[str, Any]:
    """The option for texts that are too long: cut them, refuse them, or as the model's profile has it."""
    return {} if truncate is None else {"overflow_policy": "truncate_text" if truncate else "error"}


CUT: Final = 'send overflow_policy "truncate_text"'
"""How a worker says in a hint that a text may be cut."""


def renamed(error: SIEError, items: str, cut: str) -> SIEError:
    """The error with our names of fields as the dialect's.

    Args:
        error: may be changed.
        items: what the dialect calls the items.
        cut: what of the dialect has texts cut that are too long.
    """
    if error.hint:
        error.hint = error.hint.replace(CUT, f"send {cut}")
    if (field := error.field) is None:
        return error
    own = re.sub(r"^items(\[\d+\])?(\.text)?$", rf"{items}\1", field)
    own = {"query.text": "query", "route": "model", "params.output_types": "model"}.get(own, own)
    own = re.sub(r"^(params\.)?(options\.)?", "", own)
    error.field, error.message = own, error.message.replace(field, own)
    return error


def one_of(word: str, allowed: Mapping[str, T], field: str) -> T:
    """What a word of the dialect stands for, in whatever case.

    Raises:
        InvalidInputError: it is none of the words; lists them.
    """
    if (known := word.strip().lower()) not in allowed:
        names = ", ".join(allowed)
        raise InvalidInputError(
            f"{field}: {word[:80]!r} is not known.", field=field, limit=names, hint=f"One of: {names}."
        )
    return allowed[known]
