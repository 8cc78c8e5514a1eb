"""The dead letters on NATS: one stream for all pools, one message each, under the id of its work.

Owns the `DeadLetters` verbs on it, and how a message that is no work event comes there. What a dead letter is stands in
``deadletters``, the stream in ``streams``.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable
from urllib.parse import unquote

import msgspec
import nats.errors
import nats.js.errors
from nats.aio.client import Client
from nats.aio.msg import Msg
from nats.js import JetStreamContext
from nats.js.api import AckPolicy, ConsumerConfig

from sie_broker import clock, deadletters, jobs, subjects
from sie_broker.contract import Bucket, DeadLetters, Payloads
from sie_broker.events import envelope
from sie_broker.jetstream import client
from sie_broker.jetstream.connection import translated
from sie_broker.jetstream.streams import DEAD
from sie_broker.records import DeadLetter, Reply
from sie_sdk.errors import PayloadLostError, PayloadTooLargeError, QueueFullError, QueueUnavailableError

log = logging.getLogger("sie.broker")

_HEADER_BYTES = 64_000
"""A little less than JetStream takes."""
_PAGE = 256
_COUNT_S = 1.0
_IDLE_S = 10.0
"""After so long the server forgets who read the list."""


async def remove(js: JetStreamContext, stream: str, sequence: int) -> None:
    """Delete one message; somebody else may have been faster.

    Raises:
        QueueUnavailableError: the broker does not answer.
    """
    with translated():
        try:
            await js.delete_msg(stream, sequence)
        except nats.js.errors.APIError:
            # The server refuses what is not there any more like what it cannot do.
            try:
                await js.get_msg(stream, sequence)
            except nats.js.errors.NotFoundError:
                return
            raise


def reduced(letter: DeadLetter, max_payload: int) -> DeadLetter:
    """A letter that is too large for a message with what we add to it, without what makes it so: it came from others,
    who may fill a message to its limits."""
    if client.size_of(deadletters.to_message(letter), b"") > _HEADER_BYTES:
        letter = msgspec.structs.replace(letter, headers={}, fault=f"{letter.fault} (Its headers are not kept.)")
    if len(letter.data) > max_payload - _HEADER_BYTES:
        letter = msgspec.structs.replace(letter, data=b"", fault=f"{letter.fault} (Its data are not kept.)")
    return letter


class NatsDeadLetters:
    """The `DeadLetters` of a NATS server; ``answer(reply_to, reply)`` reaches a caller or keeps the reply."""

    def __init__(
        self, nc: Client, bucket: Bucket, payloads: Payloads, answer: Callable[[str | None, Reply], Awaitable[None]]
    ) -> None:
        self._nc = nc
        self._js = nc.jetstream(timeout=5)
        self._jobs = bucket
        self._payloads = payloads
        self._answer = answer

    async def bury(self, letter: DeadLetter, sequence: int) -> None:
        """Keep ``letter`` and tell its caller; the work itself is then still in its queue, at ``sequence``.

        Twice is as good as once: the subject names the place in the queue, and holds one message.
        """
        subject = subjects.dead(letter.id, sequence)
        kept = await jobs.result_revision(self._jobs, letter.id)
        if not await self._is_kept(subject):
            await self._keep(subject, letter)
        if (reply := deadletters.refusal(letter)) is not None:
            inbox = letter.headers.get("ce-replyto")
            if inbox is not None and len(inbox) <= envelope.LONGEST_REPLY_TO:
                await self._answer(unquote(inbox), reply)
            # Last, for it says that the work was answered. Whoever took it: who repeats the request is told the same,
            # unless the letter has been replayed meanwhile.
            await jobs.keep_first(self._jobs, reply, kept)

    async def _keep(self, subject: str, letter: DeadLetter) -> None:
        try:
            letter = await deadletters.with_payload(self._payloads, letter)
        except PayloadLostError as lost:
            if await self._is_kept(subject):  # by somebody else just now, who has let go of the original
                return
            letter = msgspec.structs.replace(letter, fault=str(lost))
        try:
            await self._store(subject, letter)
        except PayloadTooLargeError:
            await self._store(subject, reduced(letter, self._nc.max_payload))

    async def _store(self, subject: str, letter: DeadLetter) -> None:
        with translated():
            await self._js.publish(subject, letter.data, headers=deadletters.to_message(letter))

    async def entries(self) -> list[DeadLetter]:
        found = []
        with translated():
            config = ConsumerConfig(
                ack_policy=AckPolicy.NONE, headers_only=True, inactive_threshold=_IDLE_S, mem_storage=True
            )
            try:
                pull = await self._js.pull_subscribe(f"{subjects.DEAD}.>", stream=DEAD, config=config)
            except nats.js.errors.NotFoundError:  # nobody provisioned this server yet
                return []
            waiting = (await pull.consumer_info()).num_pending or 0
            while waiting > 0:
                messages = await pull.fetch(min(waiting, _PAGE), timeout=5)
                found += [deadletters.from_message(message.headers or {}, b"") for message in messages]
                waiting -= len(messages)
            await pull.unsubscribe()
        return sorted(found, key=lambda letter: letter.at)

    async def count(self) -> int:
        """A broker that does not answer within a second is away: who asks may be asked itself every few seconds."""
        with translated():
            try:
                return (await self._nc.jetstream(timeout=_COUNT_S).stream_info(DEAD)).state.messages
            except nats.js.errors.NotFoundError:  # nobody provisioned this server yet
                return 0

    async def get(self, letter_id: str) -> DeadLetter:
        return await deadletters.opened(self._payloads, (await self._find(letter_id))[1])

    async def replay(self, letter_id: str) -> None:
        sequence, letter = await self._find(letter_id)
        await self._check_queue(letter)
        work = deadletters.work_of(letter)
        queued = None if work is None else await deadletters.reopen(self._jobs, work)
        # An id of its own: the duplicate window may still know the work's.
        headers = deadletters.replayed(letter.headers) | {"Nats-Msg-Id": f"replay {sequence}"}
        with translated():
            await self._js.publish(letter.subject, letter.data, headers=headers)
            if subjects.is_work(letter.subject):
                await self._nc.publish(subjects.wake(subjects.lane_of(letter.subject)), b"")
        if queued is not None:
            await queued()
        await remove(self._js, DEAD, sequence)

    async def drop(self, letter_id: str) -> None:
        sequence, letter = await self._find(letter_id)
        await remove(self._js, DEAD, sequence)
        if (payload := deadletters.kept_payload(letter)) is not None:
            await self._payloads.drop(payload)

    async def _is_kept(self, subject: str) -> bool:
        with translated():
            try:
                await self._js.get_msg(DEAD, seq=1, subject=subject, next=True)
            except nats.js.errors.NotFoundError:
                return False
        return True

    async def _check_queue(self, letter: DeadLetter) -> None:
        """Work without a consumer would wait for nobody until it is too old. For all else there always is one."""
        if not subjects.is_work(letter.subject):
            return
        with translated():
            try:
                queue = subjects.queue_of_work(letter.subject)
                await self._js.consumer_info(subjects.stream(queue.lane.pool), subjects.consumer(queue))
            except (ValueError, nats.js.errors.NotFoundError):
                raise QueueUnavailableError(
                    f"Nobody works on {letter.subject} any more.",
                    hint="Serve its model again, or drop the dead letter.",
                ) from None

    async def _find(self, letter_id: str) -> tuple[int, DeadLetter]:
        with translated():
            try:
                found = await self._js.get_msg(
                    DEAD, seq=1, subject=subjects.dead_letters(letter_id), next=True, direct=True
                )
            except nats.js.errors.NotFoundError:
                raise deadletters.unknown(letter_id) from None
        return found.seq or 0, deadletters.from_message(found.headers or {}, found.data or b"")


async def bury_malformed(dead: DeadLetters, message: Msg) -> None:
    """Make a dead letter of a work event that is none; while that cannot be, it waits for its next delivery."""
    found = message.metadata
    letter = deadletters.letter_of(
        message.subject,
        message.headers or {},
        message.data,
        place=deadletters.Place(found.stream, found.sequence.stream, found.num_delivered or 1),
        accepted=found.timestamp.timestamp(),
        now=clock.now(),
    )
    try:
        await dead.bury(letter, found.sequence.stream)
        await message.term()  # its payload, if it refers to one, is not known to be its own, and expires
    except (QueueUnavailableError, QueueFullError, nats.errors.Error) as error:
        log.warning("dead letter %s waits for its next delivery: %s", letter.id, error)
