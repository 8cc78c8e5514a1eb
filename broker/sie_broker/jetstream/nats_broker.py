"""The `Broker` on NATS JetStream: publish and await, deliver and acknowledge, wake and count.

Owns the connection and the reply inbox. Work in hand is in ``hands``, streams are declared in ``streams``, names in
``subjects``, bytes in ``envelope``.
"""

from __future__ import annotations

import asyncio
import logging
from collections import defaultdict
from collections.abc import AsyncGenerator, Callable, Collection, Iterable, Iterator, Mapping
from contextlib import AbstractAsyncContextManager, aclosing, contextmanager, suppress
from functools import partial

import msgspec
import nats.errors
import nats.js.errors
from nats.aio.client import Client
from nats.aio.msg import Msg

from sie_broker import claim, clock, jobs, subjects
from sie_broker.contract import Delivery, Room
from sie_broker.duties import Duties
from sie_broker.events import envelope
from sie_broker.jetstream import connection, server_clock, streams
from sie_broker.jetstream.bucket import NatsBucket
from sie_broker.jetstream.connection import receipt, translated
from sie_broker.jetstream.deadletter_stream import NatsDeadLetters, bury_malformed, remove
from sie_broker.jetstream.exhausted import Burial
from sie_broker.jetstream.hands import Hands
from sie_broker.jetstream.hints import listening
from sie_broker.jetstream.keeping import Keeping
from sie_broker.jetstream.mailbox import Confirmations, Mailbox, is_unanswered
from sie_broker.jetstream.parcels import parcels
from sie_broker.jetstream.payloads import NatsPayloads
from sie_broker.jetstream.provisioning import Provisioner
from sie_broker.jetstream.pull import Link, pull
from sie_broker.jetstream.streams import Limits
from sie_broker.parcel import Parcel
from sie_broker.records import Lane, Queue, Reply, Submission, Work, WorkerState
from sie_sdk.errors import QueueFullError, QueueUnavailableError

log = logging.getLogger("sie.broker")

PEERS_S = 0.3
"""How much longer another worker may need until it is connected again: they try every 0.2 s."""
PUBLISHED_S = 2.0
"""How long JetStream may take to say that it has some work."""
PUBLISHING = 256
"""How many works may be on their way to JetStream at once. The clock of the others starts when they are sent: the last
of a burst of thousands would else be given up for no other reason than those before it."""
REPLY_TAKEN_S = 2.0
"""How long a worker waits for the inbox's owner to say that it has the reply, before it keeps the reply itself."""


class _State(msgspec.Struct, frozen=True):
    subjects: dict[str, int] | None = None


class _StreamInfo(msgspec.Struct):
    """JetStream's answer to a question for a stream; without one there is no state."""

    state: _State = _State()


_waiting = msgspec.json.Decoder(_StreamInfo)


class NatsBroker:
    """`Broker` over the NATS server at ``url``; ``name`` identifies this process and its inbox.

    ``limits`` matter only to who provisions; ``stop`` is set when a part of it fails.
    """

    def __init__(self, url: str, name: str, limits: Limits | None = None, stop: asyncio.Event | None = None) -> None:
        self.url = url
        self.name = name
        self._limits = limits or Limits()
        self._waiting: defaultdict[str, list[asyncio.Future[Reply]]] = defaultdict(list)
        self.duties = Duties(stop or asyncio.Event())
        self._link = Link()
        self._back: asyncio.Task[None] | None = None
        self.on_back: list[Callable[[], None]] = []
        """Called when the connection is back after it was lost."""
        self._hints: set[asyncio.Task[None]] = set()  # kept so that none is collected while it runs
        self._publishing = asyncio.Semaphore(PUBLISHING)
        self._connected = False
        self._stray = ""

    async def connect(self) -> None:
        """Connect and listen on the inbox. What fails leaves nothing behind, and may be tried again.

        Raises:
            QueueUnavailableError: no server answers.
        """
        closed = asyncio.Event()
        nc = await connection.connect(self.url, self.name, self._link.lost, self._reconnected, closed.set)
        self._make(nc)
        try:
            with translated():
                await clock.SHARED.hear(partial(server_clock.ask, nc))
                await self._mailbox.open()
                await nc.subscribe(subjects.reply(self.name, "").removesuffix(".") + ".*", cb=self._on_reply)
        except BaseException:
            await self._leave()
            raise
        self.duties.begin(connection.fail_when(closed))  # ended before we close it ourselves
        self.duties.begin(clock.SHARED.follow(partial(server_clock.ask, nc)))

    def _make(self, nc: Client) -> None:
        """All that speaks over one connection. At once: when it is lost and back, they are there."""
        self.nc = nc
        self._js = nc.jetstream(timeout=2)
        self.payloads = NatsPayloads(nc)
        self.jobs = NatsBucket(nc, streams.JOBS, large=jobs.RESULTS)
        self.presence = NatsBucket(nc, streams.PRESENCE)
        self.config = NatsBucket(nc, streams.CONFIG)
        self.lanes = NatsBucket(nc, streams.LANES, streams.MARKER_S)
        self.leases = NatsBucket(nc, streams.LEASES)
        self.pools = NatsBucket(nc, streams.POOLS, streams.MARKER_S)
        self.sinks = NatsBucket(nc, streams.SINKS)
        self._provisioner = Provisioner(nc, self._limits)
        self.dead = NatsDeadLetters(nc, self.jobs, self.payloads, self.deliver_reply)
        self._mailbox = Mailbox(nc, nc.new_inbox())
        self._confirmations = Confirmations(nc)
        self._keeping = Keeping(self.jobs, self._confirmations)
        self.hands = Hands(nc, self.payloads, self.jobs, self.deliver_reply, self.duties)
        self._link.troubled = self.hands.server_lost
        self._link.up.set()
        self._connected = True

    def _reconnected(self) -> None:
        for back in self.on_back:
            back()
        if self._back is not None:
            self._back.cancel()  # lost once more before all was done
        self._back = self.duties.begin(self._go_on())

    async def _go_on(self) -> None:
        """After the connection was lost: pull again, once the workers had time to tell each other what they have."""
        for _ in range(2):  # those who are back a little later hear the second one
            await self.hands.peers.tell()
            await asyncio.sleep(PEERS_S)
        self._link.back()
        await self._look_for_kept()

    async def _look_for_kept(self) -> None:
        """Replies that came while nobody heard our inbox were kept as results; those who wait get them from there."""
        for work_id in list(self._waiting):
            while work_id in self._waiting:
                try:
                    reply = await jobs.result(self.jobs, work_id)
                except QueueUnavailableError:
                    await asyncio.sleep(0.5)  # a cluster elects its leaders first
                    continue
                if reply is not None:
                    self._hand_out(msgspec.structs.replace(reply, kept=True))
                break

    async def close(self) -> None:
        """Leave; work still in hand is given back to others. Raises what a part of it failed with, if one did."""
        if self._connected:
            await self._leave()
        self.duties.check()

    async def _leave(self) -> None:
        self._connected = False
        await self.duties.end()
        await self._keeping.close()
        await self.hands.close()
        with suppress(nats.errors.Error):
            await self.nc.flush(timeout=1)
        with suppress(OSError, RuntimeError):  # of the socket, when its server has gone away
            await self.nc.close()

    async def provision(self, queues: Iterable[tuple[Lane, str]]) -> None:
        await self._provisioner.ensure(queues)

    async def provision_also(self, queues: Iterable[tuple[Lane, str]]) -> None:
        await self._provisioner.ensure_also(queues)

    async def retire(self, pool: str) -> bool:
        return await self._provisioner.retire(pool)

    async def submit(self, work: Work, after: int = 0) -> Submission:
        with translated():
            return await claim.submit(self.payloads, work, partial(self._publish, after=after))

    async def _publish(self, work: Work, after: int) -> Submission:
        """As `claim.submit` has it: what has no answer ends with an error of nats-py's."""
        headers, body = envelope.from_work(work, source=f"/ingress/{self.name}")
        headers["Nats-Msg-Id"] = f"{work.id}@{after}" if after else work.id
        async with self._publishing:
            answer = await self._mailbox.ask(subjects.work(work.queue), body, headers, PUBLISHED_S)
        if is_unanswered(answer):
            raise QueueUnavailableError("There is no queue for this work.", retry_after=1.0)
        return receipt(answer.data)

    @contextmanager
    def expect(self, work_id: str) -> Iterator[tuple[str, asyncio.Future[Reply]]]:
        future: asyncio.Future[Reply] = asyncio.get_running_loop().create_future()
        self._waiting[work_id].append(future)
        try:
            yield subjects.reply(self.name, work_id), future
        finally:
            self._waiting[work_id].remove(future)
            if not self._waiting[work_id]:
                del self._waiting[work_id]

    async def _on_reply(self, message: Msg) -> None:
        """Hand a reply to all who wait for it; keep it as the job's result when nobody does; then say it is taken."""
        try:
            reply = envelope.to_reply(message.headers or {}, message.data)
        except ValueError as fault:
            log.warning("dropped a malformed reply on %s: %s", message.subject, fault)
            return
        if not message.reply:  # kept before it was sent
            self._hand_out(msgspec.structs.replace(reply, kept=True))
            return
        if self._hand_out(reply):
            self._confirmations.confirm(message.reply)
        else:
            await self._keeping.begin(reply, message.reply)

    def _hand_out(self, reply: Reply) -> bool:
        """Give the reply to all who wait for it; whether anybody did."""
        waiting = [future for future in self._waiting.get(reply.id, ()) if not future.done()]
        for future in waiting:
            future.set_result(reply)
        return bool(waiting)

    async def deliver_reply(self, reply_to: str | None, reply: Reply, work: Work | None = None) -> None:
        """Send the reply to an inbox; when its owner does not take it, keep it as the job's result.

        ``work``, if it is known, is then recorded as the job: a repeat that comes when the queue has forgotten the id
        finds the result by it.

        For a sink it is kept, and said to be due before: a worker that dies in between computes it again, and one that
        is told that it was kept need not ask whether that was said.
        """
        if reply_to is None or subjects.is_sink(reply_to):
            if reply_to is not None:
                await self._announce(reply_to, reply)
            await jobs.keep(self.jobs, reply)
        elif not await self._offer(reply_to, reply):
            await jobs.keep(self.jobs, reply)
            if work is not None and work.dataref is None:
                await jobs.accept_first(self.jobs, jobs.job_of(work))
            # Sent once more, unasked: an owner that lost its connection looks for what was kept as soon as it is back,
            # and one that is back already hears this.
            headers, body = envelope.from_reply(reply)
            with suppress(nats.errors.Error):
                await self.nc.publish(reply_to, body, headers=headers)

    async def _offer(self, inbox: str, reply: Reply) -> bool:
        """Whether the inbox's owner took the reply."""
        headers, body = envelope.from_reply(reply)
        try:
            return not is_unanswered(await self._mailbox.ask(inbox, body, headers, REPLY_TAKEN_S))
        except TimeoutError:
            return False
        except nats.errors.BadSubjectError:  # written by somebody else; it will not get better
            log.warning("%r is no inbox, reply %s is kept", inbox, reply.id)
            return False
        except nats.errors.Error as error:
            raise QueueUnavailableError("The broker does not take replies.", retry_after=1.0) from error

    async def _announce(self, sink: str, reply: Reply) -> None:
        try:
            with translated():
                await self._js.publish(sink, reply.id.encode(), headers={"Nats-Msg-Id": reply.id})
        except QueueFullError as full:
            raise QueueFullError("Too many results wait for their sinks.", retry_after=5.0) from full

    def due(self, room: Room) -> AsyncGenerator[Parcel, None]:
        return parcels(self.nc, streams.DUE, room, self._link)

    def arrivals(self, room: Room) -> AsyncGenerator[Parcel, None]:
        """Events that anybody put on ``sie.events.*``, until closed."""
        return parcels(self.nc, streams.EVENTS, room, self._link)

    async def publish(self, subject: str, headers: Mapping[str, str], body: bytes) -> None:
        with translated():
            # No flush: an acknowledgement that follows takes the same way behind it.
            await self.nc.publish(subject, body, headers=dict(headers))

    async def queued(self, lane: Lane, sequence: int) -> bool:
        return await self.work(lane, sequence) is not None

    async def work(self, lane: Lane, sequence: int) -> Work | None:
        stream = subjects.stream(lane.pool)
        with translated():
            try:
                found = await self._js.get_msg(stream, sequence)
            except nats.js.errors.NotFoundError:
                anew = await jobs.where_anew(self.jobs, stream, sequence)
                return await self.work(lane, anew) if anew else None
        return envelope.to_work(found.headers or {}, found.data or b"")

    async def pull(self, queue: Queue, room: Room, rank: Callable[[], int]) -> AsyncGenerator[Delivery, None]:
        stream, consumer = subjects.stream(queue.lane.pool), subjects.consumer(queue)
        await self.hands.pulling(stream, consumer)
        async with aclosing(pull(self.nc, stream, consumer, room, rank, self._link)) as messages:
            async for message in messages:
                if await self.hands.known(message):
                    continue
                try:
                    work = envelope.to_work(message.headers or {}, message.data)
                except ValueError as fault:
                    log.warning("a malformed work event on %s is a dead letter: %s", message.subject, fault)
                    await bury_malformed(self.dead, message)
                    continue
                yield self.hands.take(message, work)

    async def beat(self, state: WorkerState) -> None:
        await self.presence.put(state.worker, msgspec.msgpack.encode(state))
        with translated():
            await self.nc.publish(subjects.health(state.worker), msgspec.json.encode(state))

    async def bury(self) -> None:
        await Burial(self.nc, self.dead, self.jobs, self.payloads).run()

    def wake(self, lane: Lane) -> None:
        self._hint(subjects.wake(lane))  # the holder looks by itself every half second

    def want(self, queue: Queue) -> None:
        self._hint(subjects.wanted(queue))  # and workers every second

    def _hint(self, subject: str) -> None:
        """Publish nothing but the subject; who misses it learns the same in another way."""

        async def publish() -> None:
            with suppress(nats.errors.Error):
                await self.nc.publish(subject, b"")

        hint = asyncio.create_task(publish())
        self._hints.add(hint)
        hint.add_done_callback(self._hints.discard)

    def on_wake(self, woken: Callable[[Lane], None]) -> AbstractAsyncContextManager[None]:
        return listening(self.nc, f"{subjects.WAKE}.>", lambda subject: woken(subjects.lane_of(subject)))

    def on_wanted(self, lane: Lane, wanted: Callable[[Queue], None]) -> AbstractAsyncContextManager[None]:
        told = subjects.wanted_of_lane(lane)
        return listening(self.nc, told, lambda subject: wanted(subjects.queue_of_work(subject)))

    async def withdraw(self, work: Work, sequence: int) -> None:
        if (queued := await self.work(work.lane, sequence)) is None or queued.id != work.id:
            return
        stream = subjects.stream(work.lane.pool)
        while sequence:  # and where it was queued anew
            await remove(self._js, stream, sequence)
            sequence = await jobs.where_anew(self.jobs, stream, sequence)
        self._hint(subjects.withdrawn(work.queue, work.id))
        if (payload := claim.payload_of(queued)) is not None:
            await self.payloads.drop(payload)

    def on_withdrawn(self, queue: Queue, withdrawn: Callable[[str], None]) -> AbstractAsyncContextManager[None]:
        told = subjects.withdrawn_of_queue(queue)
        return listening(self.nc, told, lambda subject: withdrawn(subjects.work_of_withdrawn(subject)))

    async def waiting(self, lane: Lane) -> Collection[Queue]:
        asked = msgspec.json.encode({"subjects_filter": subjects.work_of_lane(lane)})
        with translated():
            answer = await self.nc.request(f"$JS.API.STREAM.INFO.{subjects.stream(lane.pool)}", asked, timeout=2)
        queues = []
        for subject in _waiting.decode(answer.data).state.subjects or ():
            with suppress(ValueError):  # not ours
                queues.append(subjects.queue_of_work(subject))
        return queues

    async def backlog(self) -> dict[Lane, int]:
        counts: dict[Lane, int] = {}
        with translated():
            listed = await self.nc.request("$JS.API.STREAM.NAMES", b'{"subject": "sie.work.>"}', timeout=2)
            for stream in msgspec.json.decode(listed.data).get("streams") or ():
                try:
                    info = await self._js.stream_info(stream, subjects_filter=f"{subjects.WORK}.>")
                except nats.js.errors.NotFoundError:
                    continue  # retired since the list was made
                for subject, waiting in (info.state.subjects or {}).items():
                    try:
                        lane = subjects.queue_of_work(subject).lane
                    except ValueError:
                        self._tell_stray(subject)
                        continue
                    counts[lane] = counts.get(lane, 0) + waiting
        return counts

    def _tell_stray(self, subject: str) -> None:
        if not self._stray:  # once: the backlog is read every half second
            self._stray = subject
            log.warning("%s is no work subject, and nobody pulls what waits there until it is too old", subject)
