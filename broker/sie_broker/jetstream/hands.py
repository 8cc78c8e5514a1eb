"""Work in the hands of this process: its deliveries, their leases, and what was settled lately.

Owns renewing the leases, and what a crash of the server or a standstill of this process makes of them: a message that
comes once more while it is in hand or after it was settled is not worked on again, and what waited here while the
process stood still for longer than a lease is somebody else's by now. Pulling is ``pull``'s, replying the broker's.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Iterator
from contextlib import suppress
from typing import NamedTuple

import nats.errors
import nats.js.errors
from nats.aio.client import Client
from nats.aio.msg import Msg

from sie_broker import claim, clock, deadletters, jobs
from sie_broker.contract import Bucket, Payloads
from sie_broker.duties import Duties
from sie_broker.jetstream.connection import translated
from sie_broker.jetstream.peers import Peers, Place, place
from sie_broker.jetstream.streams import NANO
from sie_broker.records import MAX_REQUEUES, Reply, Work
from sie_sdk.errors import QueueFullError, QueueUnavailableError

log = logging.getLogger("sie.broker.hands")

LEASE_KNOWN_S = 60.0
"""How long a worker goes by the lease it read, before it reads again."""
SHORTEST_LEASE_S = 1.0
REMEMBERED = 4096
"""How many settled messages are known again: as many as the server lets one queue have in flight."""
PULSE_S = 0.25
SETTLED_S = 5.0
"""How long a worker waits for the server to say that work is settled, where its payload is dropped after it."""

FORGOTTEN_S = 10.0
"""How long before its loss was noticed a server may have been gone: two heartbeats of a pull."""


class _Settled(NamedTuple):
    verb: bytes
    at: float


DeliverReply = Callable[[str | None, Reply, Work | None], Awaitable[None]]


class NatsDelivery:
    """A `Delivery` from JetStream. Its lease is renewed by `Hands` until a verb ends it."""

    def __init__(self, hands: Hands, message: Msg, work: Work) -> None:
        self._hands = hands
        self._message = message
        self.lease = message.reply
        """Where the verbs go: a newer lease's, when the work came again."""
        self.place = place(message)
        self.sequence = self.place.sequence
        self.work = work
        self.attempt = message.metadata.num_delivered or 1
        self.requeues = deadletters.requeues(message.headers or {})
        self._checked_in: tuple[Reply, Reply] | None = None

    async def reply(self, reply: Reply) -> None:
        # Stored once, however often it is sent.
        if self._checked_in is None or self._checked_in[0] is not reply:
            self._checked_in = reply, await claim.check_in(self._hands.payloads, reply)
        await self._hands.deliver_reply(self.work.reply_to, self._checked_in[1], self.work)

    async def ack(self) -> None:
        await self._end(b"+ACK")

    async def nak(self, delay: float = 0.0) -> None:
        options = f' {{"delay": {int(delay * NANO)}}}' if delay else ""
        await self._hands.give_back(self.place, self.lease, f"-NAK{options}".encode())

    async def requeue(self) -> bool:
        if self.requeues >= MAX_REQUEUES:
            return False
        # An id of its own, for the duplicate window knows the work's; but the same one if this is tried again.
        own = {deadletters.REQUEUED: str(self.requeues + 1), "Nats-Msg-Id": f"{self.work.id} {self.sequence}"}
        headers = deadletters.event_headers(self._message.headers or {}) | own
        try:
            anew = await self._hands.publish(self._message.subject, self._message.data, headers)
        except QueueFullError:
            return False
        with suppress(QueueFullError, QueueUnavailableError):  # then it counts as answered, and is computed twice
            await jobs.queued_anew(self._hands.jobs, self.place.stream, self.sequence, anew)
        await self._hands.settle(self.place, self.lease, b"+ACK")
        return True

    async def term(self, reason: str) -> None:
        await self._end(f"+TERM {reason}".encode())

    async def _end(self, verb: bytes) -> None:
        """The last of it: its payload goes too, but only once the server says that the work will not come back."""
        payload = claim.payload_of(self.work)
        await self._hands.settle(self.place, self.lease, verb, surely=payload is not None)
        if payload is not None:
            await self._hands.payloads.drop(payload)


class Pulse:
    """Notices that this process stood still: it was stopped, its machine slept, or its event loop did not turn.

    ``now``: seconds of `clock.steady`.
    """

    def __init__(self, now: float) -> None:
        self._beat = now
        self._still_s = 0.0

    def beat(self, now: float) -> None:
        """To be called every `PULSE_S`."""
        self._still_s, self._beat = now - self._beat, now

    def stood_still(self, now: float) -> float:
        """For how long, to this moment or to the last beat: what is read now may have waited here for all of it."""
        return max(self._still_s, now - self._beat)


class Hands:
    """What one process has in hand of the streams ``nc`` reaches. One event loop only."""

    def __init__(
        self, nc: Client, payloads: Payloads, bucket: Bucket, deliver_reply: DeliverReply, duties: Duties
    ) -> None:
        self.held: dict[Place, NatsDelivery] = {}
        self.payloads = payloads
        self.jobs = bucket
        self.deliver_reply = deliver_reply
        self._nc = nc
        self._settled: OrderedDict[Place, _Settled] = OrderedDict()
        self.peers = Peers(nc, self._own, self._came_again)
        self._lease_s: float | None = None
        self._pulls = asyncio.Event()
        self._pulled: dict[tuple[str, str], None] = {}
        """Stream and name of each consumer that was pulled from, the last one at the end."""
        self._pulse = Pulse(clock.steady())
        duties.begin(self._renew())
        duties.begin(self._beat())

    async def pulling(self, stream: str, consumer: str) -> None:
        """Work will come from this consumer; all have the same lease."""
        self._pulled.pop((stream, consumer), None)
        self._pulled[stream, consumer] = None
        if not self._pulls.is_set():
            self._pulls.set()
            with translated():
                await self.peers.open()

    async def server_lost(self) -> None:
        """A server seems to be lost: the other workers are told what is here, for it may be given to them."""
        await self.peers.tell_lately()

    def take(self, message: Msg, work: Work) -> NatsDelivery:
        """A delivery that is now in hand."""
        delivery = NatsDelivery(self, message, work)
        self.held[delivery.place] = delivery
        return delivery

    async def known(self, message: Msg) -> bool:
        """Whether nothing is to be done for a message that has arrived; what its lease needs, is."""
        where = place(message)
        if where in self.held or where in self._settled:
            await self._came_again(where, message.reply)
            return True
        if await self.peers.pass_on(where, message.reply):
            return True
        if self._lease_s is not None and self._pulse.stood_still(clock.steady()) > self._lease_s:
            log.warning("stood still for longer than a lease: %s of %s is left to others", where.sequence, where.stream)
            return True
        return False

    async def settle(self, where: Place, reply: str, verb: bytes, *, surely: bool = False) -> None:
        """End a delivery for ever; ``surely``: return when the server has said so."""
        self._settled[where] = _Settled(verb, time.monotonic())
        if len(self._settled) > REMEMBERED:
            self._settled.popitem(last=False)
        self.held.pop(where, None)
        with translated():
            if surely:
                await self._nc.request(reply, verb, timeout=SETTLED_S)
            else:
                # Published raw: nats-py's nak takes whole seconds and its term no reason.
                await self._nc.publish(reply, verb)

    async def give_back(self, where: Place, reply: str, verb: bytes) -> None:
        """Let go of a delivery, for others to take."""
        self.held.pop(where, None)
        with translated():
            await self._nc.publish(reply, verb)

    async def publish(self, subject: str, data: bytes, headers: dict[str, str]) -> int:
        """Make a message durable; returns its sequence.

        Raises:
            QueueFullError: no room for it.
        """
        with translated():
            return (await self._nc.jetstream(timeout=5).publish(subject, data, headers=headers)).seq

    async def close(self) -> None:
        """Give everything back, once the duties have ended."""
        with suppress(QueueUnavailableError):
            await asyncio.gather(*(delivery.nak() for delivery in list(self.held.values())))

    def _own(self) -> Iterator[Place]:
        """All in hand, then what was settled so lately that the server may not have heard of it; the newest first."""
        yield from self.held
        since = time.monotonic() - max(self._lease_s or 0.0, FORGOTTEN_S)
        for where, settled in reversed(self._settled.items()):
            if settled.at < since:
                break
            yield where

    async def _came_again(self, where: Place, lease: str) -> None:
        """A delivery of what is in hand, was settled, or was once here: the server forgot, or never heard of it."""
        if (held := self.held.get(where)) is not None:
            held.lease = lease
            return
        settled = self._settled.get(where)
        with suppress(nats.errors.Error):  # reconnecting; it will come once more
            await self._nc.publish(lease, settled.verb if settled is not None else b"-NAK")

    async def _beat(self) -> None:
        while True:
            self._pulse.beat(clock.steady())
            await asyncio.sleep(PULSE_S)

    async def _renew(self) -> None:
        """Say "in progress" for all work in hand: a timer of its own, so a long forward cannot cost a lease."""
        await self._pulls.wait()
        known_until = 0.0
        while True:
            if time.monotonic() >= known_until:
                self._lease_s = await self._read_lease()
                known_until = time.monotonic() + LEASE_KNOWN_S
            await asyncio.sleep((self._lease_s or SHORTEST_LEASE_S) / 3)
            for delivery in list(self.held.values()):
                with suppress(nats.errors.Error):  # reconnecting; the next round renews
                    await self._nc.publish(delivery.lease, b"+WPI")

    async def _read_lease(self) -> float | None:
        """The lease as the config service set it; what was known before when it cannot be read.

        Of the consumer that was pulled from last: the models of others may have left, and the consumers with them.
        """
        with suppress(nats.errors.Error, nats.js.errors.Error, TimeoutError):
            while self._pulled:
                stream, consumer = last = next(reversed(self._pulled))
                try:
                    info = await self._nc.jetstream(timeout=2).consumer_info(stream, consumer)
                except nats.js.errors.NotFoundError:
                    self._pulled.pop(last, None)
                    continue
                return info.config.ack_wait or self._lease_s
        return self._lease_s
