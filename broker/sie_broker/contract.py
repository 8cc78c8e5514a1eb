"""The broker's contract: what the in-memory broker and the NATS broker both do.

Owns the verbs; what travels and what is kept stands in ``records``. Knows no model and no transport. One suite,
``tests/congruence``, runs on both implementations.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable, Collection, Iterable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, AbstractContextManager
from typing import Literal, Protocol

from sie_broker.parcel import Parcel
from sie_broker.records import DeadLetter, Entry, Lane, Put, Queue, Reply, Submission, Work, WorkerState


class Delivery(Protocol):
    """A unit of work in a worker's hands. Reply first, then ack; its lease is kept alive until a verb ends it."""

    @property
    def work(self) -> Work: ...
    @property
    def attempt(self) -> int:
        """1 the first time; more means an earlier worker was lost with it."""
        ...

    @property
    def sequence(self) -> int:
        """As in its `Submission`."""
        ...

    async def reply(self, reply: Reply) -> None:
        """Hand the answer to whoever waits; when nobody does, keep it as the job's result. May be tried again.

        Raises:
            QueueFullError: no room for it now; a shorter one may find some, except at a sink.
            PayloadTooLargeError: it never can be a message.
        """
        ...

    async def ack(self) -> None:
        """It is done; this and `term` drop what ``work.dataref`` refers to."""
        ...

    async def nak(self, delay: float = 0.0) -> None:
        """Give it back, to be delivered again after ``delay`` seconds; the last time it becomes a dead letter."""
        ...

    @property
    def requeues(self) -> int:
        """How often it was queued anew by `requeue`; then ``attempt`` counts from 1 again."""
        ...

    async def requeue(self) -> bool:
        """Queue it anew, with all its deliveries before it: it was given out in vain. False: not again, or no room."""
        ...

    async def term(self, reason: str) -> None:
        """Never deliver it again: the input is at fault."""
        ...


Store = Literal["work", "result", "dead"]
"""Whose data a payload is: work's, an answer's, or a dead letter's."""


class Payloads(Protocol):
    """Where data waits that is too large for a message; what for, whose and how long stands in ``claim``."""

    async def store(self, store: Store, owner: str, data: bytes) -> str:
        """Keep ``data`` of the work ``owner`` until it is dropped or expires; returns its reference.

        Raises:
            QueueFullError: no room for it.
        """
        ...

    async def load(self, dataref: str) -> bytes:
        """What was stored under the reference.

        Raises:
            InvalidInputError: it is no reference.
            PayloadLostError: it was dropped, has expired, or came back damaged.
        """
        ...

    async def drop(self, dataref: str) -> None:
        """Let go of it now. Never fails: what cannot be dropped stays until it expires."""
        ...


class Room(Protocol):
    """How much more is taken in hand; a worker's is shared by all its pulls."""

    @property
    def free(self) -> int: ...
    async def wait(self) -> None:
        """Return when ``free`` is above zero."""
        ...

    async def reserve(self, most: int) -> int:
        """Set places aside for what will be asked for, as soon as one is left; how many, ``most`` at most."""
        ...

    def release(self, count: int) -> None: ...


class Bucket(Protocol):
    """A small durable key-value store; values live for the bucket's lifetime."""

    async def get(self, key: str) -> bytes | None: ...
    async def put(self, key: str, value: bytes) -> None: ...
    async def delete(self, key: str) -> None: ...
    async def entries(self, under: str = "") -> dict[str, bytes]:
        """All keys with their values; of those that begin with ``under`` alone: whole parts, the last dot too."""
        ...

    async def read(self, key: str) -> Entry: ...
    async def replace(self, key: str, value: bytes, revision: int, ttl_s: int | None = None) -> int | None:
        """Write if ``revision`` is still the key's last, for ``ttl_s`` seconds if given; each write starts them anew.

        Returns the new revision, higher than every earlier one; None when somebody else wrote meanwhile.
        """
        ...

    async def remove(self, key: str, revision: int) -> bool:
        """Delete if ``revision`` is still the key's last; whether it was."""
        ...

    async def commit(self, puts: Sequence[Put], checks: Mapping[str, int]) -> list[int] | None:
        """Write all of ``puts`` or nothing; at most 1,000, each key once. A time to live is for written values only.

        ``checks``: revisions that further keys must still have; each needs a put without a ``revision`` of its own.
        Returns the new revisions, in order; None when a revision was not what it had to be. The bucket must be one that
        allows it (the config bucket).

        Raises:
            QueueUnavailableError: nobody knows whether it was written; what stands there says it, a moment later.
        """
        ...

    def watch(self, changed: Callable[[str, bytes | None], None], key: str = ">") -> AbstractAsyncContextManager[None]:
        """Call ``changed(key, value)`` for each later change (None = deleted) while the context is open.

        Not a log: after a broken connection changes may be missing, so readers also re-read. A `replace`, `remove`
        or `commit` that is refused is told too. ``key``: one key, or all that begin with what stands before ``>``:
        whole parts, the last dot too.
        """
        ...


class DeadLetters(Protocol):
    """The dead letters. Raises `NotFoundError` for an id that none has."""

    async def bury(self, letter: DeadLetter, sequence: int) -> None:
        """Keep ``letter``, which was at ``sequence`` in its queue's stream, and tell its caller if it was work."""
        ...

    async def entries(self) -> list[DeadLetter]:
        """All of them, oldest first, without their data."""
        ...

    async def count(self) -> int: ...
    async def get(self, letter_id: str) -> DeadLetter: ...
    async def replay(self, letter_id: str) -> None:
        """Queue it again as the same work, without its deadline; the error kept as its job's result is forgotten.

        A result is tried at its sink again.
        """
        ...

    async def drop(self, letter_id: str) -> None: ...


class Broker(Protocol):
    """Everything that moves or keeps work. Raises `QueueFullError` and `QueueUnavailableError`, no transport's own."""

    @property
    def payloads(self) -> Payloads: ...
    @property
    def jobs(self) -> Bucket: ...
    @property
    def presence(self) -> Bucket: ...
    @property
    def config(self) -> Bucket: ...
    @property
    def lanes(self) -> Bucket: ...
    @property
    def pools(self) -> Bucket: ...
    @property
    def leases(self) -> Bucket: ...
    @property
    def sinks(self) -> Bucket:
        """Where the results of jobs go (``sie_broker.events.sinks``)."""
        ...

    @property
    def dead(self) -> DeadLetters: ...

    async def connect(self) -> None: ...
    async def close(self) -> None: ...

    async def provision(self, queues: Iterable[tuple[Lane, str]]) -> None:
        """Create or update the queues of these (lane, model) pairs, one a priority; the config service's job alone.

        In their pools these are all: those of other models go, once nothing has waited in them for a while.
        """
        ...

    async def provision_also(self, queues: Iterable[tuple[Lane, str]]) -> None:
        """Create the queues of these, too, in pools that are not retired: it costs a request for each queue.

        The config service's job alone.
        """
        ...

    async def retire(self, pool: str) -> bool:
        """Let the queues of ``pool`` take no more work; once nothing waits in them, remove them and return True.

        Until then what waits is still delivered. `provision` opens them again. The config service's job alone.
        """
        ...

    async def submit(self, work: Work, after: int = 0) -> Submission:
        """Make ``work`` durable, its data too; when this returns it is not lost.

        ``after``: the revision of the job's result that this is to replace (`jobs.failed`); or, below zero, the
        sequence whose answer was lost. The same id is accepted once for each.

        Raises:
            PayloadTooLargeError: what it says beside its data is more than a message may have.
        """
        ...

    def expect(self, work_id: str) -> AbstractContextManager[tuple[str, asyncio.Future[Reply]]]:
        """The inbox to put in ``reply_to`` and the future of the reply, while the context is open."""
        ...

    async def queued(self, lane: Lane, sequence: int) -> bool:
        """Whether the work with this receipt still waits or is being computed."""
        ...

    async def work(self, lane: Lane, sequence: int) -> Work | None:
        """The work with this receipt as it travels, as long as it is `queued`."""
        ...

    def pull(self, queue: Queue, room: Room, rank: Callable[[], int]) -> AsyncGenerator[Delivery, None]:
        """Deliver what waits in ``queue`` until closed, as ``room`` allows.

        ``rank`` 0 to 9: a worker that holds the model pulls with 0 and is served before one that does not.
        """
        ...

    async def deliver_reply(self, reply_to: str | None, reply: Reply) -> None:
        """Bring an answer to where it is awaited (`Work.reply_to`); keep it as the job's result if nobody takes it."""
        ...

    def due(self, room: Room) -> AsyncGenerator[Parcel, None]:
        """Results for sinks, until closed: each as often as its work was answered, perhaps just before it is kept."""
        ...

    async def publish(self, subject: str, headers: Mapping[str, str], body: bytes) -> None:
        """Tell whoever listens on a subject that is not ours.

        Raises:
            PayloadTooLargeError: it is no message.
        """
        ...

    def wake(self, lane: Lane) -> None:
        """Tell the demand holder that there is work, without waiting for its next look."""
        ...

    def on_wake(self, woken: Callable[[Lane], None]) -> AbstractAsyncContextManager[None]: ...

    def want(self, queue: Queue) -> None:
        """Tell the workers of a lane of work in a queue that perhaps none of them pulls; it may be lost."""
        ...

    def on_wanted(self, lane: Lane, wanted: Callable[[Queue], None]) -> AbstractAsyncContextManager[None]:
        """Call ``wanted`` for each `want` of a queue of the lane, while the context is open."""
        ...

    async def withdraw(self, work: Work, sequence: int) -> None:
        """Nobody wants the answer to this work with that receipt any more, nor will: it is queued no more.

        Workers that pull its queue are told, which may be lost: then whoever has it in hand finishes it.
        """
        ...

    def on_withdrawn(self, queue: Queue, withdrawn: Callable[[str], None]) -> AbstractAsyncContextManager[None]:
        """Call ``withdrawn`` with the id of each work of ``queue`` that is withdrawn, while the context is open.

        It may come before the work does: what was on its way then is delivered all the same.
        """
        ...

    async def waiting(self, lane: Lane) -> Collection[Queue]:
        """The lane's queues with work that is not yet acknowledged."""
        ...

    async def beat(self, state: WorkerState) -> None:
        """Tell everybody how a worker is: in ``presence``, and outside tools as JSON on ``sie.health.<worker>``."""
        ...

    async def bury(self) -> None:
        """Make dead letters of work that used up its deliveries, until cancelled; at least one process does."""
        ...

    async def backlog(self) -> dict[Lane, int]:
        """Work not yet acknowledged, per lane."""
        ...
