"""What a call asks of the world, as data: requests to send, pauses, news for the caller. One contract for all drivers.

    caller ──next──> call ──Send──> driver ──Reply──> call ──Wait / Report / Together──> ... ──return──> result

Owns the records that pass between a call (a generator that yields effects and is sent what came back) and its driver.
A failed connection is thrown in at the ``Send``. Not here: which effects (``calls``, ``settle``), performing them
(``drivers``).
"""

from __future__ import annotations

import time
from collections.abc import AsyncIterable, Callable, Generator, Iterable, Mapping
from typing import Any, Protocol, TypeAlias, TypeVar

import msgspec

from sie_sdk import arguments
from sie_sdk.errors import InvalidInputError
from sie_sdk.types import Priority, Progress

T = TypeVar("T")


class Cancel(Protocol):
    """A flag another thread may set; ``threading.Event`` is one."""

    def is_set(self) -> bool: ...

    def wait(self, timeout: float | None = None) -> object: ...


class Server(msgspec.Struct, frozen=True):
    """Where a client's calls go (scheme, host, any prefix; no final slash) and the headers that say who calls."""

    base_url: str
    headers: dict[str, str]

    @property
    def shown(self) -> str:
        """Its address for people to read."""
        return arguments.shown(self.base_url)


class Send(msgspec.Struct, frozen=True):
    """Effect: one HTTP request. ``path`` begins with ``/`` and is escaped; ``timeout_s``: until a reply comes, goes on.

    What comes back is its :class:`Reply`, or None if ``cancel`` was set before there was one. ``patience_s``: how long
    it may take in all, and wait for a connection before, of those that are shared with other calls; None: as long as
    bytes come, and ``timeout_s`` for a connection. ``texts``: headers that hold any text, for a server that reads them
    as UTF-8; all others are ASCII.
    """

    method: str
    path: str
    headers: dict[str, str]
    body: bytes | None = None
    timeout_s: float = 150.0
    cancel: Cancel | None = None
    patience_s: float | None = None
    texts: dict[str, str] = {}


class Wait(msgspec.Struct, frozen=True):
    """Effect: let ``seconds`` pass, or less if ``cancel`` is set meanwhile."""

    seconds: float
    cancel: Cancel | None = None


class Report(msgspec.Struct, frozen=True):
    """Effect: tell the caller's ``progress`` callback."""

    progress: Progress


class Together(msgspec.Struct, frozen=True):
    """Effect: run ``calls``, at most ``width`` at a time; what comes back is the list of their results, in their order.

    The first to fail ends the others, and its error is thrown in. ``heard`` makes of what one of them reports what the
    caller is told. Calls that come by ``async for`` are for the awaiting driver alone.
    """

    calls: Iterable[Call[Any]] | AsyncIterable[Call[Any]]
    width: int
    heard: Callable[[Progress], Progress]


class Reply(msgspec.Struct, frozen=True):
    """What came back for a ``Send``; header names are looked up in lower case. ``asked_as``: the request's own id."""

    status: int
    headers: Mapping[str, str]
    body: bytes
    asked_as: str | None = None

    @property
    def request_id(self) -> str | None:
        """The id the server knows the request by, else the one it was sent with."""
        return self.headers.get("x-request-id") or self.asked_as

    @property
    def content_type(self) -> str | None:
        return self.headers.get("content-type")


Effect: TypeAlias = Send | Wait | Report | Together
Call: TypeAlias = Generator[Effect, Any, T]


class Terms(msgspec.Struct, frozen=True):
    """How the server shall treat one call's work, told in headers; None leaves it to the server."""

    idempotency_key: str | None = None
    priority: Priority | None = None
    expire_s: float | None = None
    pool: str | None = None

    def headers(self) -> dict[str, str]:
        """As they are sent."""
        told = {
            "Idempotency-Key": self.idempotency_key,
            "X-SIE-Priority": self.priority,
            "X-SIE-Expires-In": None if self.expire_s is None else f"{self.expire_s:g}",
            "X-SIE-Pool": self.pool,
        }
        return {name: value for name, value in told.items() if value is not None}


class Patience(msgspec.Struct, frozen=True):
    """How long one call tries and who may stop it; ``timeout_s`` bounds one HTTP request, ``deadline_s`` them all.

    ``started``: when the call it is part of began, by ``now``; None: when it begins itself. ``bound``: the caller's
    argument that ``deadline_s`` is.
    """

    wait_for_capacity: bool = True
    deadline_s: float = 300.0
    timeout_s: float = 150.0
    cancel: Cancel | None = None
    now: Callable[[], float] = time.monotonic
    started: float | None = None
    bound: str = "deadline_s"

    def __post_init__(self) -> None:
        arguments.seconds(self.bound, self.deadline_s, InvalidInputError)
