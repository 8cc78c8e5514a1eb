"""Results on their way to whoever a producer named: an http(s) URL or a NATS subject. At least once, in no order.

Owns the record of where a job's result goes and the dispatcher that sends it, until it is given up. Any number of
dispatchers may run. Which sinks are allowed stands in ``allow_list``, what their answers mean in ``sink_answers``, how
a result comes to be due in the brokers.

A receiver tells repeats by the event's source and id, which are the job's and stay the same.
"""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from functools import partial

import httpx
import msgspec
from cloudevents.core.v1.event import CloudEvent

from sie_broker import claim, clock, deadletters, jobs, merge, subjects
from sie_broker.contract import Broker, Bucket
from sie_broker.events import binding, envelope, exchange, sink_client, sink_room
from sie_broker.events.allow_list import NATS, AllowList, Target
from sie_broker.events.sink_answers import Answer, answer_of, pause_s
from sie_broker.events.sink_client import shown
from sie_broker.events.sink_room import SinkRoom, pieces
from sie_broker.jetstream.streams import MAX_PAYLOAD_BYTES
from sie_broker.parcel import Parcel, work_off
from sie_broker.records import DeadLetter, Reply
from sie_broker.subjects import token
from sie_sdk.errors import InvalidInputError, PayloadLostError, PayloadTooLargeError, SIEError
from sie_sdk.formats import JSON, MSGPACK, MediaType
from sie_sdk.refusals import error_body

log = logging.getLogger("sie.broker.sinks")

IN_HAND = 64
READING = 4
"""Of them so many fetch what is to be sent: up to 20 MiB each, if a request was split."""
PER_HOST = 16
"""At most so many of them at one host, so that one that hangs keeps the others' room free."""
KEPT_ALIVE = 20
"""Connections that wait for the next result. For each request httpcore (1.0.9) looks at each of these, and for each at
all: with 64 a POST took 11 ms of a core, and takes 3."""
ANSWER_S = 20.0
"""How long a sink may take to answer; less than whoever has a result in hand may take over it."""
TRIES = 12
GIVE_UP_S = 2400.0
"""A result is given up when its sink was asked so often or it is so old: it is kept for an hour."""
UNSEEN = 4
"""A try whose end nobody saw counts so often: what kills whoever sends it does so four times, and not for ever."""
MAX_BYTES: dict[MediaType, int] = {JSON: 16 << 20, MSGPACK: 64 << 20}
"""What is larger is not sent; the sink gets an error, and the job has the result. JSON is five times as large as what
it is made of, and takes twelve times as much on the way: 310 MiB with the process itself, which has 512."""


class Sink(msgspec.Struct, frozen=True):
    """Where the result of one job goes."""

    to: str
    media: MediaType
    """What its data becomes: the format in which the request came."""
    sizes: tuple[int, ...] = ()
    """Items of each part, when the request was split."""
    claimant: int = 0
    """The parcel by which all parts are sent, by its sequence, once they are all there."""
    traceparent: str | None = None


_sinks = msgspec.msgpack.Decoder(Sink)


async def keep(bucket: Bucket, job_id: str, sink: Sink) -> None:
    """Record the sink of a job, before its work is queued; the first record of a job stands."""
    await bucket.replace(token(job_id), msgspec.msgpack.encode(sink), 0)


def _tries(job: str) -> str:
    """Where it stands how often the job's sink was asked; nothing, before it refused."""
    return f"{token(job)}.tries"


def _late(parcel: Parcel) -> bool:
    """Whether it is so old that it is given up."""
    return clock.now() - parcel.at > GIVE_UP_S


def _turn_s(parcel: Parcel) -> float:
    """Seconds until it is looked at again whether it is this one's turn."""
    return pause_s(min(parcel.attempt, 4), None, clock.now())


def _host(target: Target) -> str:
    return httpx.URL(target.address).netloc.decode()


class _RefusedError(Exception):
    """Nobody has taken it. ``again``: somebody may yet; ``tried``: somebody was asked, and said ``retry_after``."""

    def __init__(self, why: str, *, again: bool, tried: bool = True, retry_after: str | None = None) -> None:
        super().__init__(why)
        self.again = again
        self.tried = tried
        self.retry_after = retry_after


class Dispatcher:
    """Sends what is due until it is cancelled."""

    def __init__(self, broker: Broker, allowed: AllowList) -> None:
        self._broker = broker
        self._allowed = allowed
        self._room = SinkRoom()
        self._reading = asyncio.Semaphore(READING)
        self._at_host: Counter[str] = Counter()
        self._http = sink_client.client(
            verify=allowed.needs_tls,  # its context takes 20 ms and several MB
            timeout=ANSWER_S,
            limits=httpx.Limits(max_connections=IN_HAND, max_keepalive_connections=KEPT_ALIVE),
        )

    async def run(self) -> None:
        """Take what is due, and send it."""
        async with self._http:
            await work_off(self._broker.due, self._send, IN_HAND)

    async def _send(self, parcel: Parcel) -> None:
        job = subjects.job_of_sink(parcel.subject)
        if parcel.headers.get("ce-id"):  # a dead letter that is tried again
            letter = binding.from_nats(parcel.headers, parcel.data)
            dataref = exchange.extension(letter, "dataref")
            size = claim.parse(dataref).size if dataref else len(parcel.data)
            to, make = exchange.extension(letter, "replyto"), partial(self._again, letter, dataref)
        else:
            entry = await self._broker.sinks.read(token(job))
            if entry.value is None:  # sent before, by way of another part
                await parcel.ack()
                return
            sink = _sinks.decode(entry.value)
            async with self._reading:
                replies = await self._replies(parcel, job, sink)
                if replies is None:
                    return
                if sink.sizes and not await self._claim(parcel, job, sink, entry.revision):
                    await parcel.ack()
                    return
            size = sum(map(claim.size, replies))
            to, make = sink.to, partial(self._event, parcel, job, sink, replies)
        await self._in_turn(parcel, job, to, size, make)

    async def _in_turn(
        self, parcel: Parcel, job: str, to: str, size: int, make: Callable[[], Awaitable[CloudEvent]]
    ) -> None:
        """Make the event and send it, if there is room for it and its host is not busy; else it waits, not made yet."""
        host, late = self._asked(to), _late(parcel)
        if late and not self._room.has(host, size):
            await self._bury_as_it_came(parcel, job, f"{shown(to)}: it was not its turn in time")
            return
        if not self._room.has(host, size) or (self._at_host[host] >= PER_HOST and not late):
            log.info("%s: busy", shown(to))
            await parcel.nak(_turn_s(parcel))
            return
        with self._room.taken(host, size):
            tries = await self._begin(parcel, job, to)
            if tries is not None:
                await self._seen_to_its_end(parcel, job, to, make, tries)

    async def _seen_to_its_end(
        self, parcel: Parcel, job: str, to: str, make: Callable[[], Awaitable[CloudEvent]], tries: int
    ) -> None:
        try:
            await self._settle(parcel, job, to, await make(), tries)
        except (SIEError, asyncio.CancelledError):
            # An outage or our own end, which kills nobody: one try, at most.
            if parcel.attempt > 1:
                with suppress(SIEError, TimeoutError):
                    async with asyncio.timeout(1.0):
                        await self._broker.sinks.put(_tries(job), str(tries + 1).encode())
            raise

    async def _begin(self, parcel: Parcel, job: str, to: str) -> int | None:
        """How often the sink was asked before; None: often enough, and it is a dead letter.

        Of a parcel that was in hand before it is written first that this is a try, for what happens may kill us.
        """
        if parcel.attempt == 1:
            return 0
        tries = int(await self._broker.sinks.get(_tries(job)) or 0)
        if tries < TRIES:
            await self._broker.sinks.put(_tries(job), str(tries + UNSEEN).encode())
            return tries
        await self._bury_as_it_came(parcel, job, f"{shown(to)}: whoever sends it does not come to its end")
        return None

    async def _unclaim(self, job: str) -> None:
        """Let another parcel send the parts: what is sent again is one."""
        entry = await self._broker.sinks.read(token(job))
        if entry.value is not None and (sink := _sinks.decode(entry.value)).claimant:
            free = msgspec.msgpack.encode(msgspec.structs.replace(sink, claimant=0))
            await self._broker.sinks.replace(token(job), free, entry.revision)

    async def _event(self, parcel: Parcel, job: str, sink: Sink, replies: Sequence[Reply]) -> CloudEvent:
        most = MAX_BYTES[sink.media]
        if sink.to.startswith(NATS):
            most = min(most, MAX_PAYLOAD_BYTES)  # a message holds no more, in whatever format
        try:
            reply = await merge.whole(self._broker.payloads, job, replies, sink.sizes, most)
        except (PayloadTooLargeError, PayloadLostError) as error:
            if isinstance(error, PayloadTooLargeError):
                error.hint = f"Read it at /v1/jobs/{job}, or ask for fewer items at once."
            reply = Reply(id=job, data=error_body(error), status=error.status, cause=replies[0].cause)
        # On a thread: a megabyte of msgpack becomes JSON in a tenth of a second.
        return await asyncio.to_thread(
            exchange.result, reply, sink.media, f"/v1/jobs/{job}", parcel.at, sink.traceparent
        )

    async def _settle(self, parcel: Parcel, job: str, to: str, event: CloudEvent, tries: int) -> None:
        try:
            await self._deliver(to, event)
        except _RefusedError as refused:
            pause = await self._pause_s(parcel, job, refused, tries) if refused.again else None
            if pause is not None:
                log.info("%s: %s; again in %.1f s", shown(to), refused, pause)
                await parcel.nak(pause)
                return
            await self._give_up(parcel, job, to, event, str(refused))
        await parcel.ack()
        await self._broker.sinks.delete(token(job))
        if parcel.attempt > 1:
            await self._broker.sinks.delete(_tries(job))

    async def _pause_s(self, parcel: Parcel, job: str, refused: _RefusedError, tries: int) -> float | None:
        """Seconds until the next try; None: it was the last one.

        Tries are counted beside the sink: a parcel is in hand again for many reasons, most of which ask nobody.
        """
        tries += refused.tried
        if _late(parcel) or tries >= TRIES:
            return None
        await self._broker.sinks.put(_tries(job), str(tries).encode())
        return pause_s(tries, refused.retry_after, clock.now()) if refused.tried else _turn_s(parcel)

    async def _replies(self, parcel: Parcel, job: str, sink: Sink) -> list[Reply] | None:
        """The job's result, or those of its parts; without them all the parcel is settled.

        Of a split request the part whose result is kept last finds those of all others.
        """
        own = parcel.data.decode()
        parts = merge.ids(job, sink.sizes)
        found: dict[str, Reply] = {}
        for part in reversed(parts):  # what is computed last is looked for first
            reply = await jobs.result(self._broker.jobs, part)
            if reply is None:
                break
            found[part] = reply
        else:
            return [found[part] for part in parts]
        claimed = sink.claimant == parcel.sequence  # then all were there before
        if not claimed and (own in found or (own != part and await jobs.result(self._broker.jobs, own) is not None)):
            await parcel.ack()
        elif claimed or _late(parcel):
            await self._bury_as_it_came(parcel, job, f"{shown(sink.to)}: it was due, and is not kept any more")
        else:
            await parcel.nak(0.2 if parcel.attempt < 5 else 5.0)
        return None

    async def _claim(self, parcel: Parcel, job: str, sink: Sink, revision: int) -> bool:
        """Whether it is ours to send the parts: those that came last may be in several hands, each with all of them.

        Who has claimed them has its parcel again if it dies; others may have theirs again as well.
        """
        if sink.claimant:
            return sink.claimant == parcel.sequence
        claimed = msgspec.msgpack.encode(msgspec.structs.replace(sink, claimant=parcel.sequence))
        return await self._broker.sinks.replace(token(job), claimed, revision) is not None

    async def _deliver(self, to: str, event: CloudEvent) -> None:
        """Send one event.

        Raises:
            _RefusedError: nobody has taken it.
        """
        try:
            target = self._allowed.check(to)
        except InvalidInputError as refused:
            raise _RefusedError(refused.message, again=False) from None
        if target.kind == "nats":
            try:
                await self._broker.publish(target.address, *binding.to_nats(event))
            except PayloadTooLargeError as refused:
                raise _RefusedError(refused.message, again=False) from None
        else:
            await self._post(target, event)

    def _asked(self, to: str) -> str:
        """The host that is asked; empty: none is."""
        try:
            target = self._allowed.check(to)
        except InvalidInputError:
            return ""
        return _host(target) if target.kind == "http" else ""

    async def _post(self, target: Target, event: CloudEvent) -> None:
        host = _host(target)
        if self._at_host[host] >= PER_HOST:
            raise _RefusedError("busy", again=True, tried=False)
        headers, body = binding.to_http(event)
        headers["content-length"] = str(len(body))
        self._at_host[host] += 1
        try:
            async with asyncio.timeout(ANSWER_S):  # the client's own counts from byte to byte
                # Streamed, and its body not read: what a sink has to say is its status.
                async with self._http.stream("POST", target.address, headers=headers, content=pieces(body)) as response:
                    status, retry_after = response.status_code, response.headers.get("retry-after")
        except (httpx.HTTPError, TimeoutError, OSError) as error:
            raise _RefusedError(str(error) or type(error).__name__, again=True) from None
        finally:
            self._at_host[host] -= 1
            if not self._at_host[host]:
                del self._at_host[host]
        match answer_of(status):
            case Answer.AGAIN:
                raise _RefusedError(f"HTTP {status}", again=True, retry_after=retry_after)
            case Answer.NEVER:
                raise _RefusedError(f"HTTP {status}", again=False)

    async def _give_up(self, parcel: Parcel, job: str, to: str, event: CloudEvent, why: str) -> None:
        log.warning("the result of job %s is a dead letter: %s: %s", job, shown(to), why)
        headers, data = binding.to_nats(event)
        headers |= {"ce-replyto": envelope.escape(to)}
        size = len(data)
        if size > sink_room.LARGE_BYTES:
            headers["ce-dataref"] = envelope.escape(await self._broker.payloads.store("dead", job, data))
            data = b""
        await self._bury(parcel, job, headers, data, size, f"{shown(to)}: {why}")

    async def _bury_as_it_came(self, parcel: Parcel, job: str, why: str) -> None:
        """Give up what nobody has made the event of. The record of its sink stays for who sends it again."""
        log.error("the result of job %s is a dead letter: %s", job, why)
        own = deadletters.event_headers(parcel.headers)
        await self._bury(parcel, job, own, parcel.data, len(parcel.data), why)
        await self._unclaim(job)
        await parcel.ack()
        await self._broker.sinks.delete(_tries(job))

    async def _bury(self, parcel: Parcel, job: str, headers: dict[str, str], data: bytes, size: int, why: str) -> None:
        letter = DeadLetter(
            id=f"{job}-result",
            reason="undeliverable",
            subject=parcel.subject,
            headers=headers,
            at=clock.now(),
            accepted=parcel.at,
            deliveries=parcel.attempt,
            size=size,
            fault=why,
            data=data,
        )
        await self._broker.dead.bury(letter, parcel.sequence)

    async def _again(self, letter: CloudEvent, dataref: str) -> CloudEvent:
        """The event that `_give_up` made a dead letter of."""
        own = {name: value for name, value in letter.get_attributes().items() if name not in ("replyto", "dataref")}
        return CloudEvent(own, await self._broker.payloads.load(dataref) if dataref else letter.get_data())
