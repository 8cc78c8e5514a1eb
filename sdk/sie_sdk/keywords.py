"""The keywords of the clients' methods as types, each said once; the method of their name documents them.

Owns the names and types that a type checker holds calls to. A call waits for its result, a job does not, and that is
all they differ in.
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Iterable, Mapping, Sequence
from typing import Any, TypeAlias, TypedDict, TypeVar

from sie_sdk.effects import Cancel
from sie_sdk.types import Item, OutputDtype, OutputType, Priority, Progress

T = TypeVar("T")
One: TypeAlias = Item | str
Many: TypeAlias = Iterable[Item | str]
Async: TypeAlias = Coroutine[Any, Any, T]


class SubmitKeywords(TypedDict, total=False):
    """Of all work, whether somebody waits for it or not; ``encode`` documents them."""

    instruction: str | None
    options: Mapping[str, Any] | None
    deadline_s: float
    progress: Callable[[Progress], object] | None
    cancel: Cancel | None
    idempotency_key: str | None
    priority: Priority | None
    expire_s: float | None
    pool: str | None


class CallKeywords(SubmitKeywords, total=False):
    """Of every call that waits for its result."""

    wait_for_capacity: bool
    concurrency: int


class EncodeParameters(TypedDict, total=False):
    """What ``encode`` alone takes."""

    output_types: Sequence[OutputType] | None
    output_dtype: OutputDtype | None
    is_query: bool | None


class ExtractParameters(TypedDict, total=False):
    """What ``extract`` alone takes."""

    labels: Sequence[str] | None
    output_schema: Mapping[str, Any] | None


class EncodeKeywords(CallKeywords, EncodeParameters, total=False):
    """Of ``encode``."""


class ExtractKeywords(CallKeywords, ExtractParameters, total=False):
    """Of ``extract``."""


class SubmitEncode(SubmitKeywords, EncodeParameters, total=False):
    """Of ``submit("encode", ...)``."""


class SubmitExtract(SubmitKeywords, ExtractParameters, total=False):
    """Of ``submit("extract", ...)``."""
