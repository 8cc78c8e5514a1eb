"""Questions whose answers come to one subscription, each known by its number, and confirmations that share a message.

nats-py's own request costs a timer task and a token each; on the way of every request that is a third of our time.
Owns the numbers and who waits for which. What is asked, and what an answer means, is ``nats_broker``'s.
"""

from __future__ import annotations

import asyncio
import itertools
import math
from collections import defaultdict
from contextlib import suppress

import nats.errors
from nats.aio.client import Client
from nats.aio.msg import Msg

NO_RESPONDERS = "503"
"""The status of the server's own answer to a message that nobody is subscribed to (NATS ADR-22)."""
ALL = "all"
"""The last token of an answer to several questions: its payload has their numbers, separated by spaces."""
AWAY_S = 0.1
"""A timer that comes later than this says that the event loop was away itself, and not that nobody answered."""


class Mailbox:
    """Asks on ``nc``; answers come to ``<prefix>.<number>``. One event loop only."""

    def __init__(self, nc: Client, prefix: str) -> None:
        self._nc = nc
        self._prefix = prefix
        self._numbers = itertools.count(1)
        self._asked: dict[str, asyncio.Future[Msg]] = {}

    async def open(self) -> None:
        """Listen."""
        await self._nc.subscribe(f"{self._prefix}.*", cb=self._arrived)

    async def ask(self, subject: str, body: bytes, headers: dict[str, str] | None, timeout: float) -> Msg:
        """Publish, and return the first answer; one without a responder has the status `NO_RESPONDERS`.

        Raises:
            TimeoutError: no answer within ``timeout`` seconds.
            nats.errors.Error: the message cannot be sent.
        """
        number = str(next(self._numbers))
        loop = asyncio.get_running_loop()
        answer: asyncio.Future[Msg] = loop.create_future()
        self._asked[number] = answer
        timer = loop.call_later(timeout, _too_late, answer, loop.time() + timeout)
        try:
            await self._nc.publish(subject, body, reply=f"{self._prefix}.{number}", headers=headers)
            return await answer
        finally:
            timer.cancel()
            del self._asked[number]

    async def _arrived(self, message: Msg) -> None:
        last = message.subject.rpartition(".")[2]
        for number in message.data.decode().split() if last == ALL else (last,):
            answer = self._asked.get(number)
            if answer is not None and not answer.done():
                answer.set_result(message)


class Confirmations:
    """Says "taken" to askers with a `Mailbox`: what is confirmed in one turn of the event loop shares a message."""

    def __init__(self, nc: Client) -> None:
        self._nc = nc
        self._pending: defaultdict[str, list[str]] = defaultdict(list)
        self._sending: asyncio.Task[None] | None = None

    def confirm(self, reply: str) -> None:
        """Answer the question whose answer goes to ``reply``."""
        prefix, _, number = reply.rpartition(".")
        self._pending[prefix].append(number)
        if self._sending is None or self._sending.done():
            self._sending = asyncio.create_task(self._send())

    async def _send(self) -> None:
        while self._pending:
            prefix, numbers = self._pending.popitem()
            with suppress(nats.errors.Error):  # not told, the asker takes it for lost and keeps the reply itself
                await self._nc.publish(f"{prefix}.{ALL}", " ".join(numbers).encode())


def is_unanswered(message: Msg) -> bool:
    """Whether an answer says that nobody is there to answer."""
    return message.headers is not None and message.headers.get("Status") == NO_RESPONDERS


def _too_late(answer: asyncio.Future[Msg], due: float) -> None:
    """Give the question up; a loop that was away looks first at what came meanwhile, for timers run before that.

    Once: a loop that is away again and again has looked by then.
    """
    loop = asyncio.get_running_loop()
    if loop.time() - due > AWAY_S:
        loop.call_later(AWAY_S, _too_late, answer, math.inf)
    elif not answer.done():
        answer.set_exception(TimeoutError())
