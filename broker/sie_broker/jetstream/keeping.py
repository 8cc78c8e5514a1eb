"""Replies that came to our inbox and nobody waits for: they are kept as their jobs' results, and then confirmed.

Owns doing so beside the inbox, which goes on: while the jobs bucket has no leader, each takes seconds to fail, and
callers wait for those behind it. Who waits is the broker's to know.
"""

from __future__ import annotations

import asyncio
import logging

from sie_broker import jobs
from sie_broker.contract import Bucket
from sie_broker.ending import end
from sie_broker.jetstream.mailbox import Confirmations
from sie_broker.records import Reply
from sie_sdk.errors import SIEError

log = logging.getLogger("sie.broker")

AT_ONCE = 64
"""So many replies are kept at a time; with more the inbox waits, for each may be as large as a message."""


class Keeping:
    """Keeps replies in the jobs bucket. One event loop only."""

    def __init__(self, bucket: Bucket, confirmations: Confirmations) -> None:
        self._bucket = bucket
        self._confirmations = confirmations
        self._tasks: set[asyncio.Task[None]] = set()

    async def begin(self, reply: Reply, question: str) -> None:
        """Keep the reply, and then answer the ``question`` whether it is taken; returns at once."""
        while len(self._tasks) >= AT_ONCE:
            await asyncio.wait(self._tasks, return_when=asyncio.FIRST_COMPLETED)
        task = asyncio.create_task(self._keep(reply, question))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def close(self) -> None:
        """Leave what is not kept yet to its worker, who was not told that it is taken."""
        await end(*self._tasks)

    async def _keep(self, reply: Reply, question: str) -> None:
        try:
            await jobs.keep(self._bucket, reply)
        except SIEError as error:
            log.warning("reply %s was not taken, its worker will keep it: %s", reply.id, error)
            return
        self._confirmations.confirm(question)
