"""The broker in one process: the same contract as NATS without a server. Shipped, and used by ``sie serve``.

Owns queues, receipts, inboxes and buckets in plain dictionaries of one event loop. Nothing survives the process.
"""

from __future__ import annotations

import asyncio
import itertools
import math
import sys
import time
from collections import Counter, defaultdict, deque
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager, contextmanager
from functools import partial
from typing import NamedTuple

import msgspec

from sie_broker import claim, deadletters, jobs, subjects
from sie_broker.contract import Delivery, Room
from sie_broker.events import envelope
from sie_broker.memory_deadletters import MemoryDeadLetters
from sie_broker.memory_listeners import Listeners
from sie_broker.memory_payloads import MemoryPayloads, no_room
from sie_broker.parcel import MemoryParcel, Parcel
from sie_broker.records import (
    MAX_DELIVERIES,
    MAX_REQUEUES,
    Entry,
    Lane,
    Put,
    Queue,
    Reply,
    Submission,
    Work,
    WorkerState,
)
from sie_sdk.errors import QueueFullError, QueueUnavailableError

DUPLICATE_WINDOW_S = 120.0
SWEEP_AT = 256
"""With as many values a bucket looks for those that have ended, and then at twice as many as are left."""
MAX_BYTES = 1 << 30
"""What waits in queues may take, and what is kept of jobs and their results."""
ROUND = 1000
"""What queueing work anew adds to its attempt, which then counts from one again."""


_Changed = Callable[[str, bytes | None], None]


class _Kept(NamedTuple):
    """A value of a bucket, and when it ends on the steady clock."""

    value: bytes
    revision: int
    until: float


class MemoryBucket:
    """A `Bucket` in a dictionary of ``max_bytes`` at most; values older than ``ttl_s`` are gone."""

    def __init__(self, ttl_s: float | None = None, max_bytes: int | None = None) -> None:
        self._ttl_s = math.inf if ttl_s is None else ttl_s
        self._max_bytes = sys.maxsize if max_bytes is None else max_bytes
        self._bytes = 0
        self._values: dict[str, _Kept] = {}
        self._sweep_at = SWEEP_AT
        self._revisions = itertools.count(1)
        self._watched: dict[str, list[_Changed]] = {}  # by key; each job that is waited for has one
        self._watched_under: dict[str, list[_Changed]] = {}  # by what keys begin with; a handful

    async def get(self, key: str) -> bytes | None:
        return (await self.read(key)).value

    async def put(self, key: str, value: bytes) -> None:
        self._keep(key, value, self._ttl_s)

    async def delete(self, key: str) -> None:
        self._delete(key)

    async def entries(self, under: str = "") -> dict[str, bytes]:
        self._sweep()
        return {key: kept.value for key, kept in self._values.items() if key.startswith(under)}

    async def read(self, key: str) -> Entry:
        kept = self._values.get(key)
        alive = kept is not None and time.monotonic() < kept.until
        return Entry(kept.value, kept.revision) if kept is not None and alive else Entry(None, 0)

    async def replace(self, key: str, value: bytes, revision: int, ttl_s: int | None = None) -> int | None:
        if (await self.read(key)).revision != revision:
            return None
        return self._keep(key, value, self._ttl_s if ttl_s is None else ttl_s)

    async def commit(self, puts: Sequence[Put], checks: Mapping[str, int]) -> list[int] | None:
        expected = dict(checks) | {put.key: put.revision for put in puts if put.revision is not None}
        if any([(await self.read(key)).revision != revision for key, revision in expected.items()]):
            return None
        return [self._commit(put) for put in puts]

    def _commit(self, put: Put) -> int:
        if put.value is not None:
            return self._keep(put.key, put.value, self._ttl_s if put.ttl_s is None else put.ttl_s)
        self._delete(put.key)
        return next(self._revisions)

    async def remove(self, key: str, revision: int) -> bool:
        if (await self.read(key)).revision != revision:
            return False
        await self.delete(key)
        return True

    @asynccontextmanager
    async def watch(self, changed: _Changed, key: str = ">") -> AsyncIterator[None]:
        watched = self._watched_under if key.endswith(">") else self._watched
        watchers = watched.setdefault(name := key.removesuffix(">"), [])
        watchers.append(changed)
        try:
            yield
        finally:
            watchers.remove(changed)
            if not watchers:
                del watched[name]

    def _delete(self, key: str) -> None:
        if (kept := self._values.pop(key, None)) is not None:
            self._bytes -= len(kept.value)
            self._tell(key, None)

    def _keep(self, key: str, value: bytes, ttl_s: float) -> int:
        if len(self._values) >= self._sweep_at or self._bytes + len(value) > self._max_bytes:
            self._sweep()  # each value is looked at a few times in its life, not at every put
            self._sweep_at = max(SWEEP_AT, 2 * len(self._values))
        before = self._values.get(key)
        more = len(value) - (0 if before is None else len(before.value))
        if self._bytes + more > self._max_bytes:
            raise no_room(len(value), "jobs and their results", self._max_bytes)
        revision = next(self._revisions)
        self._bytes += more
        self._values[key] = _Kept(value, revision, time.monotonic() + ttl_s)
        self._tell(key, value)
        return revision

    def _sweep(self) -> None:
        now = time.monotonic()
        self._values = {key: kept for key, kept in self._values.items() if now < kept.until}
        self._bytes = sum(len(kept.value) for kept in self._values.values())

    def _tell(self, key: str, value: bytes | None) -> None:
        told = [watchers for under, watchers in self._watched_under.items() if key.startswith(under)]
        for changed in [*self._watched.get(key, ()), *itertools.chain(*told)]:
            changed(key, value)


class _Waiting:
    """One queue: the sequences that wait, and how often each was delivered. Some may have been withdrawn meanwhile."""

    def __init__(self) -> None:
        self.waiting: deque[tuple[int, int]] = deque()
        self.changed = asyncio.Event()

    def put(self, sequence: int, attempt: int, *, first: bool = False) -> None:
        (self.waiting.appendleft if first else self.waiting.append)((sequence, attempt))
        self.changed.set()


class MemoryDelivery:
    """A `Delivery` of the in-memory broker."""

    def __init__(self, broker: MemoryBroker, queue: _Waiting, sequence: int, work: Work, attempt: int) -> None:
        self._broker = broker
        self._queue = queue
        self.sequence = sequence
        self.work = work
        # A round for each time it was queued anew.
        self.requeues, self.attempt = divmod(attempt, ROUND)
        self._attempt = attempt

    async def reply(self, reply: Reply) -> None:
        await self._broker.deliver_reply(self.work.reply_to, await claim.check_in(self._broker.payloads, reply))

    async def ack(self) -> None:
        self._broker.settle(self.sequence)

    async def nak(self, delay: float = 0.0) -> None:
        if self.attempt >= MAX_DELIVERIES:
            await self._broker.give_up(self.sequence, self.work, self.attempt)
            return
        back = (self.sequence, self._attempt + 1)
        asyncio.get_running_loop().call_later(delay, lambda: self._queue.put(*back, first=True))

    async def requeue(self) -> bool:
        if self.requeues >= MAX_REQUEUES:
            return False
        self._queue.put(self.sequence, (self.requeues + 1) * ROUND + 1)
        return True

    async def term(self, reason: str) -> None:
        self._broker.settle(self.sequence)


class MemoryBroker:
    """The in-memory `Broker`. ``max_queued``: work kept at most in a queue; more is refused: the overload
    signal. ``max_bytes``: of the data of all that is queued, and of jobs and their results."""

    def __init__(self, max_queued: int = 100_000, max_bytes: int = MAX_BYTES) -> None:
        self.payloads = MemoryPayloads()
        self.jobs = MemoryBucket(ttl_s=3600, max_bytes=max_bytes)
        self.presence = MemoryBucket(ttl_s=10)
        self.config = MemoryBucket()
        self.lanes = MemoryBucket()
        self.leases = MemoryBucket()
        self.pools = MemoryBucket()
        self.sinks = MemoryBucket()
        self.dead = MemoryDeadLetters(self, self.submit_again, self.announce)
        self._max_queued = max_queued
        self._max_bytes = max_bytes
        self._bytes = 0
        self._sequences = itertools.count(1)
        self._open: dict[int, Work] = {}
        self._queued: Counter[Queue] = Counter()
        self._closed: set[str] = set()
        self._accepted: dict[str, tuple[int, float]] = {}
        self._queues: defaultdict[Queue, _Waiting] = defaultdict(_Waiting)
        self._waiting: defaultdict[str, list[asyncio.Future[Reply]]] = defaultdict(list)
        self._wakers = Listeners[Lane]()
        self._wanted: defaultdict[Lane, Listeners[Queue]] = defaultdict(Listeners)
        self._withdrawn: defaultdict[Queue, Listeners[str]] = defaultdict(Listeners)
        self._due: asyncio.Queue[MemoryParcel] = asyncio.Queue()

    async def connect(self) -> None:
        """Nothing to connect to."""

    async def close(self) -> None:
        """Nothing to close."""

    async def provision(self, queues: Iterable[tuple[Lane, str]]) -> None:
        """Queues appear on first use; those that were closed take work again."""
        self._closed -= {lane.pool for lane, _ in queues}

    async def provision_also(self, queues: Iterable[tuple[Lane, str]]) -> None:
        """As for `provision`: none has to be made."""

    async def retire(self, pool: str) -> bool:
        self._closed.add(pool)
        return not any(work.lane.pool == pool for work in self._open.values())

    async def submit(self, work: Work, after: int = 0) -> Submission:
        return await claim.submit(self.payloads, work, partial(self._publish, after=after))

    async def _publish(self, work: Work, after: int) -> Submission:
        known = f"{work.id}@{after}" if after else work.id
        now = time.monotonic()
        while self._accepted and now - next(iter(self._accepted.values()))[1] > DUPLICATE_WINDOW_S:
            del self._accepted[next(iter(self._accepted))]
        if known in self._accepted:
            return Submission(sequence=self._accepted[known][0], duplicate=True)
        if work.lane.pool in self._closed:
            raise QueueUnavailableError(f"The queues of pool {work.lane.pool} are closed.", retry_after=1.0)
        if self._queued[queue := work.queue] >= self._max_queued:
            raise QueueFullError("The queue is full.", limit=self._max_queued, retry_after=1.0)
        if self._bytes + len(work.data) > self._max_bytes:
            raise no_room(len(work.data), "queued work", self._max_bytes)
        sequence = next(self._sequences)
        self._bytes += len(work.data)
        self._accepted[known] = (sequence, now)
        self._open[sequence] = work
        self._queued[queue] += 1
        self._queues[queue].put(sequence, 1)
        return Submission(sequence=sequence)

    @contextmanager
    def expect(self, work_id: str) -> Iterator[tuple[str, asyncio.Future[Reply]]]:
        future: asyncio.Future[Reply] = asyncio.get_running_loop().create_future()
        self._waiting[work_id].append(future)
        try:
            yield "memory", future
        finally:
            self._waiting[work_id].remove(future)
            if not self._waiting[work_id]:
                del self._waiting[work_id]

    async def submit_again(self, work: Work) -> None:
        """Queue work whose id was accepted before."""
        self._accepted.pop(work.id, None)
        await self.submit(work)

    async def deliver_reply(self, reply_to: str | None, reply: Reply) -> None:
        """Give the reply to all who wait for it, or keep it as the job's result; announce it at a sink."""
        if reply_to is not None and subjects.is_sink(reply_to):
            self.announce(reply_to, {}, reply.id.encode())
        waiting = [future for future in self._waiting.get(reply.id, ()) if not future.done()]
        kept = reply_to is None or not waiting
        for future in waiting:
            future.set_result(msgspec.structs.replace(reply, kept=kept))
        if kept:
            await jobs.keep(self.jobs, reply)

    def settle(self, sequence: int) -> None:
        """The work is done with, and its payload."""
        work = self._open.get(sequence)
        self.forget(sequence)
        if work is not None and (payload := claim.payload_of(work)) is not None:
            self.payloads.held.pop(payload, None)

    async def give_up(self, sequence: int, work: Work, deliveries: int) -> None:
        """The work used up its deliveries: it becomes a dead letter, unless it was answered after all."""
        if await jobs.result(self.jobs, work.id) is None:
            headers, data = envelope.from_work(work, source="/memory")
            place = deadletters.Place("memory", sequence, deliveries)
            letter = deadletters.letter_of(
                subjects.work(work.queue), headers, data, place=place, accepted=work.time, now=time.time()
            )
            await self.dead.bury(letter, sequence)
            if (refusal := deadletters.refusal(letter)) is not None:
                await self.deliver_reply(work.reply_to, refusal)
                await jobs.keep(self.jobs, refusal)
            if (payload := deadletters.queued_payload(letter)) is not None:
                await self.payloads.drop(payload)
            self.forget(sequence)
        else:
            self.settle(sequence)

    async def beat(self, state: WorkerState) -> None:
        """Nobody outside of this process listens."""
        await self.presence.put(state.worker, msgspec.msgpack.encode(state))

    async def bury(self) -> None:
        """Work that used up its deliveries becomes a dead letter at once."""
        await asyncio.Event().wait()

    def forget(self, sequence: int) -> None:
        """The work is done with."""
        if (work := self._open.pop(sequence, None)) is not None:
            self._queued[work.queue] -= 1
            self._bytes -= len(work.data)

    async def queued(self, lane: Lane, sequence: int) -> bool:
        return sequence in self._open

    async def work(self, lane: Lane, sequence: int) -> Work | None:
        return self._open.get(sequence)

    async def pull(self, queue: Queue, room: Room, rank: Callable[[], int]) -> AsyncGenerator[Delivery, None]:
        line = self._queues[queue]
        while True:
            while not line.waiting:
                line.changed.clear()
                await line.changed.wait()
            await room.wait()
            if line.waiting:  # of several pulls another may have it
                sequence, attempt = line.waiting.popleft()
                if (work := self._open.get(sequence)) is not None:
                    yield MemoryDelivery(self, line, sequence, work, attempt)

    def announce(self, sink: str, headers: Mapping[str, str], data: bytes) -> None:
        """A result is due at a sink."""
        self._due.put_nowait(MemoryParcel(self._due, sink, headers, data))

    async def due(self, room: Room) -> AsyncGenerator[Parcel, None]:
        while True:
            await room.wait()
            yield await self._due.get()

    async def publish(self, subject: str, headers: Mapping[str, str], body: bytes) -> None:
        """Nobody but this process is here to listen."""

    def wake(self, lane: Lane) -> None:
        self._wakers.tell(lane)

    def on_wake(self, woken: Callable[[Lane], None]) -> AbstractAsyncContextManager[None]:
        return self._wakers.listening(woken)

    def want(self, queue: Queue) -> None:
        self._wanted[queue.lane].tell(queue)

    def on_wanted(self, lane: Lane, wanted: Callable[[Queue], None]) -> AbstractAsyncContextManager[None]:
        return self._wanted[lane].listening(wanted)

    async def withdraw(self, work: Work, sequence: int) -> None:
        if (queued := self._open.get(sequence)) is not None and queued.id == work.id:
            self.settle(sequence)
            self._withdrawn[work.queue].tell(work.id)

    def on_withdrawn(self, queue: Queue, withdrawn: Callable[[str], None]) -> AbstractAsyncContextManager[None]:
        return self._withdrawn[queue].listening(withdrawn)

    async def waiting(self, lane: Lane) -> Collection[Queue]:
        return [queue for queue, count in self._queued.items() if count and queue.lane == lane]

    async def backlog(self) -> dict[Lane, int]:
        return dict(Counter(work.lane for work in self._open.values()))
