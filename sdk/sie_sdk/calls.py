"""Every call of the clients, written once: generators that yield what to do and are sent what came back.

    caller ──next──> call ──Send──> transport ──Reply──> call ──Wait / Report──> ... ──return──> result

Owns paths, headers, and when to follow a job, try again or give up. Not here: sockets, clocks that tick, threads, event
loops (``transport``), the bytes of bodies (``wire``), the public methods (``client``).
A call yields effects and gets a :class:`Reply` for each ``Send``; a failed connection is thrown in at the ``Send``.
"""

from __future__ import annotations

import os
import random
import time
from collections.abc import Callable, Generator, Mapping, Sequence
from typing import Any, Protocol, TypeAlias, TypeVar
from urllib.parse import quote, urlsplit

import msgspec

from sie_sdk import wire
from sie_sdk.errors import (
    CancelledByCallerError,
    ConnectionFailedError,
    DeadlineExceededError,
    InvalidInputError,
    ProvisioningError,
    SIEError,
    UnavailableError,
    UnexpectedReplyError,
)
from sie_sdk.types import (
    EncodeParams,
    EncodeRequest,
    EncodeResult,
    Item,
    ModelInfo,
    OutputDtype,
    OutputType,
    Progress,
)
from sie_sdk.version import __version__

T = TypeVar("T")

RETRY_AFTER_S = 1.0
"""The pause when a server names none."""

HOLD_S = 20
"""How long a server is asked to hold a look at a job; well below what proxies cut."""

HOLD_IF_CANCELLABLE_S = 1
"""The same for a call with ``cancel``: a held request cannot be woken, so it is kept short."""

GRACE_S = 10.0
"""How much longer than the asked hold a reply may take."""


class Cancel(Protocol):
    """A flag another thread may set; ``threading.Event`` is one."""

    def is_set(self) -> bool: ...

    def wait(self, timeout: float | None = None) -> object: ...


class Server(msgspec.Struct, frozen=True):
    """Where a client's calls go (scheme, host, any prefix; no final slash) and the headers that say who calls."""

    base_url: str
    headers: dict[str, str]


class Send(msgspec.Struct, frozen=True):
    """Effect: one HTTP request. ``path`` begins with ``/`` and is escaped; ``timeout_s`` bounds the reply's way."""

    method: str
    path: str
    headers: dict[str, str]
    body: bytes | None = None
    timeout_s: float = 150.0


class Wait(msgspec.Struct, frozen=True):
    """Effect: let ``seconds`` pass, or less if ``cancel`` is set meanwhile."""

    seconds: float
    cancel: Cancel | None = None


class Report(msgspec.Struct, frozen=True):
    """Effect: tell the caller's ``progress`` callback."""

    progress: Progress


class Reply(msgspec.Struct, frozen=True):
    """What came back for a ``Send``; header names are looked up in lower case."""

    status: int
    headers: Mapping[str, str]
    body: bytes

    @property
    def content_type(self) -> str | None:
        return self.headers.get("content-type")


Effect: TypeAlias = Send | Wait | Report
Call: TypeAlias = Generator[Effect, Any, T]


class Patience(msgspec.Struct, frozen=True):
    """How long one call tries and who may stop it; ``timeout_s`` bounds one HTTP request, ``deadline_s`` them all."""

    wait_for_capacity: bool = True
    deadline_s: float = 300.0
    timeout_s: float = 150.0
    cancel: Cancel | None = None
    now: Callable[[], float] = time.monotonic


# -- the calls ---------------------------------------------------------------------------------------------------------


def encode(
    model: str,
    items: Sequence[Item | str],
    patience: Patience,
    *,
    output_types: Sequence[OutputType] | None = None,
    instruction: str | None = None,
    output_dtype: OutputDtype | None = None,
    is_query: bool | None = None,
    options: Mapping[str, Any] | None = None,
    idempotency_key: str | None = None,
) -> Call[list[EncodeResult]]:
    """``POST /v1/encode/{model}``: one result per item, in their order."""
    options = dict(options or {}) | ({} if is_query is None else {"is_query": is_query})
    params = EncodeParams(
        output_types=None if output_types is None else list(output_types),
        instruction=instruction,
        output_dtype=output_dtype,
        options=options or None,
    )
    request = EncodeRequest([_item(index, item) for index, item in enumerate(items)], params)
    headers = _headers(wire.MSGPACK) | {
        "Content-Type": wire.MSGPACK,
        # The same on every try, so that a request whose reply was lost is not computed twice.
        "Idempotency-Key": idempotency_key or fresh_key(),
    }
    send = Send("POST", _path("encode", model), headers, wire.request_body(request), patience.timeout_s)
    reply = yield from settle(send, patience)
    results = _read(reply, lambda body, _: wire.read_encode_result(body))
    if len(results) != len(request.items):
        raise UnexpectedReplyError(
            f"{len(results)} results came back for {len(request.items)} items.",
            request_id=reply.headers.get("x-request-id"),
        )
    return results


def first(call: Call[list[T]]) -> Call[T]:
    """The call for one item out of the call for a list of one."""
    return (yield from call)[0]


def list_models(patience: Patience) -> Call[list[ModelInfo]]:
    """``GET /v1/models``."""
    send = Send("GET", "/v1/models", _headers(wire.JSON), timeout_s=patience.timeout_s)
    return _read((yield from settle(send, patience)), wire.read_models)


def get_model(name: str, patience: Patience) -> Call[ModelInfo]:
    """``GET /v1/models/{name}``."""
    send = Send("GET", _path("models", name), _headers(wire.JSON), timeout_s=patience.timeout_s)
    return _read((yield from settle(send, patience)), wire.read_model)


def fresh_key() -> str:
    """32 hex digits that sort by time, laid out as a UUIDv7: 48 bits of milliseconds, then random ones."""
    noise = int.from_bytes(os.urandom(10))
    noise = noise & ~(0xF << 76) & ~(0x3 << 62) | 0x7 << 76 | 0x2 << 62
    return f"{time.time_ns() // 1_000_000 << 80 | noise:032x}"


def _headers(accept: str) -> dict[str, str]:
    # Never X-SIE-SDK-Version: a server takes it for a published client, which cannot read a 202.
    return {"Accept": accept, "User-Agent": f"sie-knative/{__version__}", "X-Request-ID": fresh_key()}


def _path(route: str, model: str) -> str:
    if not model:
        raise InvalidInputError("The model's name is empty.", field="model", hint="client.list_models() lists them.")
    # Slashes and colons are part of a model's name; servers take the rest of the path as it is.
    return f"/v1/{route}/" + quote(model, safe="/:@!$&'()*+,;=~")


def _item(index: int, item: Item | str) -> Item:
    if isinstance(item, str):
        return Item(text=item)
    if isinstance(item, Item):
        return item
    raise InvalidInputError(
        f"items[{index}] is a {type(item).__name__}.", field=f"items[{index}]", hint="Pass a str or Item(text=...)."
    )


def _read(reply: Reply, reader: Callable[[bytes, str | None], T]) -> T:
    try:
        return reader(reply.body, reply.content_type)
    except UnexpectedReplyError as error:
        error.request_id = reply.headers.get("x-request-id")
        error.details["http_status"] = reply.status
        raise


# -- from the first request to the last reply --------------------------------------------------------------------------


def settle(request: Send, patience: Patience) -> Call[Reply]:
    """Send ``request`` until it has a final reply: follow the job of a 202, try again on 503, 429 and no connection.

    Raises:
        SIEError: the server's final error, or with ``wait_for_capacity=False`` its first "not now".
        DeadlineExceededError: ``deadline_s`` passed; a queued job stays queued and is named.
        CancelledByCallerError: ``cancel`` was set; likewise.
        UnexpectedReplyError: a reply does not follow the protocol.
    """
    return _Errand(request, patience).run()


class _Errand:
    """The state of one :func:`settle`: when it began, the job it follows and what it last heard."""

    def __init__(self, request: Send, patience: Patience) -> None:
        self.request = request
        self.patience = patience
        self.started = self.sent = patience.now()
        self.job: str | None = None
        self.location = ""
        self.heard = "the first reply"

    def run(self) -> Call[Reply]:
        while True:
            self._stop_if_cancelled()
            try:
                reply: Reply = yield self._next_request()
            except ConnectionFailedError as error:
                error.request_id = self.request.headers["X-Request-ID"]
                yield from self._pause_after(error, "unreachable")
                continue
            if reply.status == 202:
                yield from self._follow(reply)
            elif 200 <= reply.status < 300:
                yield self._report("done")
                return reply
            else:
                refusal = wire.read_error(reply.status, reply.headers, reply.body)
                if not isinstance(refusal, UnavailableError):
                    raise refusal
                yield from self._pause_after(refusal, "retrying")

    def _next_request(self) -> Send:
        remaining = self._remaining()
        if remaining <= 0:
            raise self._too_late()
        self.sent = self.patience.now()
        if self.job is None:
            return msgspec.structs.replace(self.request, timeout_s=min(self.request.timeout_s, remaining))
        longest = HOLD_S if self.patience.cancel is None else HOLD_IF_CANCELLABLE_S
        hold = int(min(longest, remaining))
        headers = {
            name: value
            for name, value in self.request.headers.items()
            if name not in ("Content-Type", "Idempotency-Key")
        }
        if hold:
            headers["Prefer"] = f"wait={hold}"
        return Send("GET", self.location, headers, timeout_s=hold + GRACE_S)

    def _follow(self, reply: Reply) -> Call[None]:
        job = _read(reply, wire.read_job)
        pause = wire.parse_retry_after(reply.headers.get("retry-after")) or job.retry_after_s or RETRY_AFTER_S
        # Only the path of Location is used: the API key goes to no other host, and base_url may have a prefix.
        location = urlsplit(reply.headers.get("location", "")).path or f"/v1/jobs/{quote(job.id, safe='')}"
        if not self.patience.wait_for_capacity:
            raise ProvisioningError(
                job.message or "No worker is up yet; the work is queued.",
                hint="Pass wait_for_capacity=True to wait for the result.",
                retry_after=pause,
                request_id=reply.headers.get("x-request-id"),
                job=job.id,
                location=location,
            )
        accepted_now = self.job is None
        self.job, self.location = job.id, location
        self.heard = f"job {job.id} ({job.message or job.state})"
        if "preference-applied" in reply.headers:
            # The server held the request, which was the waiting; the floor is for one that only says so.
            pause = min(pause, RETRY_AFTER_S) - (self.patience.now() - self.sent)
        yield self._report(job.state, pause if pause > 0 else None, job.message)
        # The first look comes at once and asks to be held: an answer that is early is not waited past.
        if pause > 0 and not accepted_now:
            yield self._wait(pause)

    def _pause_after(self, error: SIEError, state: str) -> Call[None]:
        self.heard = error.message
        if self._remaining() <= 0:
            raise self._too_late() from error
        if not self.patience.wait_for_capacity:
            raise error
        # Jitter, so that the callers a restart turned away do not all come back together.
        pause = (error.retry_after or RETRY_AFTER_S) * random.uniform(1.0, 1.1)
        yield self._report(state, pause, error.message)
        yield self._wait(pause)

    def _wait(self, seconds: float) -> Wait:
        return Wait(max(0.0, min(seconds, self._remaining())), self.patience.cancel)

    def _report(self, state: str, retry_after_s: float | None = None, message: str | None = None) -> Report:
        return Report(Progress(state, self.job, self.patience.now() - self.started, retry_after_s, message))

    def _remaining(self) -> float:
        return self.started + self.patience.deadline_s - self.patience.now()

    def _stop_if_cancelled(self) -> None:
        if self.patience.cancel is not None and self.patience.cancel.is_set():
            raise CancelledByCallerError(f"The call was cancelled.{self._stays_queued()}", **self._about())

    def _too_late(self) -> DeadlineExceededError:
        deadline = self.patience.deadline_s
        return DeadlineExceededError(
            f"No result within the deadline of {deadline:g} s; the last news was: {self.heard}.{self._stays_queued()}",
            limit=deadline,
            hint=f"Pass a larger deadline_s than {deadline:g}.",
            **self._about(),
        )

    def _stays_queued(self) -> str:
        return f" The work stays queued as job {self.job}." if self.job else ""

    def _about(self) -> dict[str, Any]:
        request_id = {"request_id": self.request.headers["X-Request-ID"]}
        return request_id | ({"job": self.job, "location": self.location} if self.job else {})
