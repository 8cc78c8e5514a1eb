"""What the broker moves and keeps: work, replies, heartbeats, dead letters, and the names of where work waits.

Owns the records and nothing that is done with them: the verbs are ``contract``'s, the bytes ``envelope``'s.
"""

from __future__ import annotations

from typing import Literal, NamedTuple, get_args

import msgspec

from sie_sdk.types import Priority

MAX_DELIVERIES = 5
"""How often one work is given to a worker at most."""
MAX_REQUEUES = 4
"""How often it is queued anew with all its deliveries before it."""
PRIORITIES: tuple[Priority, ...] = get_args(Priority)
"""Each has queues and room of its own, so that bulk work keeps no interactive work waiting."""


class Lane(msgspec.Struct, frozen=True, order=True):
    """Where work waits and what scales as one: a bundle on a machine profile for a pool."""

    pool: str
    bundle: str
    profile: str

    def __str__(self) -> str:
        return f"{self.pool}/{self.bundle}/{self.profile}"


class Queue(NamedTuple):
    """Where one kind of work waits, in order: a model of a lane, in one priority class."""

    lane: Lane
    model: str
    priority: Priority = "interactive"


class Work(msgspec.Struct, frozen=True):
    """One unit of work: a CloudEvent ``dev.sie.<op>.v1`` whose data is the request body (msgpack)."""

    id: str
    op: str
    lane: Lane
    model: str
    data: bytes
    time: float
    """When the ingress accepted it; seconds since the epoch."""
    reply_to: str | None = None
    """An inbox somebody listens on, or None: the reply is kept as the result of job ``id``. Or a job's sink
    (`sie_broker.subjects.sink`): the reply is kept, and sent there."""
    deadline: float | None = None
    """Seconds since the epoch after which nobody wants the answer."""
    traceparent: str | None = None
    tracestate: str | None = None
    """What vendors keep in the trace; there is none without a ``traceparent``."""
    priority: Priority = "interactive"
    tenant: str = ""
    """On whose behalf, for limits; empty when nobody said."""
    cause: str | None = None
    """The id of the CloudEvent that asked for it, when one did; the result event names it."""
    dataref: str | None = None
    """Where the data is when it is too large to travel with the work (``claim``); ``data`` is empty then."""
    spec: str = ""
    """The etag of the model's spec that it was resolved with, by which it is computed; empty when nobody said."""

    @property
    def queue(self) -> Queue:
        """Where it waits."""
        return Queue(self.lane, self.model, self.priority)


class Reply(msgspec.Struct, frozen=True):
    """The answer to one `Work`: a CloudEvent ``dev.sie.result.v1``; its msgpack data is a result or an error object."""

    id: str
    data: bytes
    status: int = 200
    worker: str = ""
    cause: str | None = None
    """The ``cause`` of its work."""
    dataref: str | None = None
    """Where the data is when it is too large to travel with the reply (``claim``); ``data`` is empty then."""
    kept: bool = False
    """Its job has it as its result as well, which owns what ``dataref`` refers to."""


class Submission(msgspec.Struct, frozen=True):
    """The broker's receipt: the work is durable. ``duplicate``: the same id was already accepted a short while ago."""

    sequence: int
    duplicate: bool = False


class LoadFailure(msgspec.Struct, frozen=True):
    """Why a model did not load, told by the worker that tried; it tries again."""

    reason: str
    message: str
    attempts: int
    """In a row."""


class WorkerState(msgspec.Struct, frozen=True):
    """A worker's heartbeat. Readers treat ``at`` (seconds since the epoch) as the truth, not its arrival."""

    worker: str
    lane: Lane
    state: Literal["starting", "ready", "draining"]
    at: float
    models: tuple[str, ...] = ()
    in_flight: int = 0
    """Requests in hand."""
    completed: int = 0
    home: str = "default"
    """The pool it was started in; ``lane`` names the one it works for now."""
    forwards: int = 0
    """Texts computed since the start, so that a test can see that nothing is computed twice."""
    memory_bytes: int = 0
    startup: dict[str, float] = {}
    """Seconds from the start of the process to each milestone of its start-up."""
    busy_s: float = 0.0
    """Seconds with work in hand since the start."""
    full_s: float = 0.0
    """Of these, the seconds in which it took no more of some class of work: its hands were full."""
    bundle_config_hash: str = ""
    """Of the specs of its lane as it has them: equal where the catalogue is."""
    loading: tuple[str, ...] = ()
    """Models on their way in."""
    failed: dict[str, LoadFailure] = {}
    """Models that did not load when they were last tried; the latest few."""
    device: str = "cpu"
    """Where it computes, as torch names it."""
    device_bytes: int = 0
    """In use on its GPU; 0 on a CPU, where ``memory_bytes`` says it."""
    total_bytes: int = 0
    """The memory there is: the GPU's, or the machine's or control group's; 0 where the system does not say."""
    batches: int = 0
    """Forward passes that run now."""
    waiting_tokens: int = 0
    """Tokens that wait for them."""
    fault: str = ""
    """Why it could not start; it is on its way out."""


class Entry(NamedTuple):
    """What stands under a key: None when nothing does. ``revision`` is what `Bucket.replace` must name to change it."""

    value: bytes | None
    revision: int


class Put(NamedTuple):
    """One key of a `Bucket.commit`. ``value`` None: delete it. ``revision``: what must be its last; None: whatever."""

    key: str
    value: bytes | None
    revision: int | None = None
    ttl_s: int | None = None


class DeadLetter(msgspec.Struct, frozen=True):
    """Work that nobody is given again, or a result that no sink takes, with all it came with; kept for a week."""

    id: str
    """The work's own; ``<job>-result`` of a result; ``<stream>-<sequence>`` where none could be read."""
    reason: Literal["exhausted", "malformed", "undeliverable"]
    """No worker finished it, or it is no work event, or no sink took it: ``fault`` says why."""
    subject: str
    """Where it waited, and where a replay puts it."""
    headers: dict[str, str]
    at: float
    """When it was given up; this and ``accepted``, when it was queued, are seconds since the epoch."""
    accepted: float
    deliveries: int
    size: int
    """Bytes of ``data``."""
    fault: str = ""
    data: bytes = b""
    """Left out of a list."""
