"""Replies just handed out, for callers whose connection broke before they read theirs and who ask again; and those for
which there was no memory.

Owns those replies and the stored payloads of the large ones (``sie_broker.claim``): whoever takes a warm reply drops
its payload, and here that is when the reply is forgotten. Results of jobs are not here: they live as long as their job.
"""

from __future__ import annotations

import asyncio
import time
from collections import Counter, OrderedDict
from collections.abc import Callable, Coroutine, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import NamedTuple, TypeVar

from sie_broker import claim, jobs
from sie_broker.contract import Payloads
from sie_broker.records import Reply
from sie_sdk.errors import CancelledByCallerError, IdempotencyMismatchError, UnavailableError

T = TypeVar("T")

RECENT_S = 120.0
RECENT_BYTES = 32 * 1024 * 1024
ENTRY_BYTES = 600
"""What each takes beside its data: 470 to 560 measured."""
STORED_WEIGHT = 16
"""A byte in the payload store is as good as a sixteenth of one in memory: 512 MiB may wait there for repeats."""


class _Recent(NamedTuple):
    at: float
    digest: bytes
    reply: Reply
    cost: int


class RecentReplies:
    """Replies by the id of their work. One event loop only."""

    def __init__(self, payloads: Payloads) -> None:
        self._payloads = payloads
        self._replies: OrderedDict[str, _Recent] = OrderedDict()
        self._cost = 0
        self._in_use: Counter[str] = Counter()
        self._digests: dict[str, bytes] = {}
        """Of what is in use."""
        self._drops: set[asyncio.Task[None]] = set()

    def put(self, digest: bytes, reply: Reply) -> None:
        """Remember a reply for `RECENT_S`, within `RECENT_BYTES` in all, and own its payload."""
        if (known := self._replies.get(reply.id)) is not None and known.reply is reply:
            return  # two callers waited for it
        if reply.kept and reply.dataref is not None:
            return  # a repeat finds it as the result of its job, which owns its payload
        self.forget(reply.id)
        size = claim.size(reply)
        cost = ENTRY_BYTES + (size if reply.dataref is None else size // STORED_WEIGHT)
        self._replies[reply.id] = _Recent(time.monotonic(), digest, reply, cost)
        self._cost += cost
        self._forget_older()
        if reply.dataref is not None:
            asyncio.get_running_loop().call_later(RECENT_S, self._forget_older)

    @contextmanager
    def using(self, digests: Mapping[str, bytes]) -> Iterator[None]:
        """While the context is open, these ids stand for these requests, and their replies are not forgotten for want
        of room.

        Raises:
            IdempotencyMismatchError: an id is in use for a different request, or was a moment ago.
        """
        for work_id, digest in digests.items():
            self.get(work_id, digest)
            same_request(self._digests.get(work_id, digest), digest)
        self._digests |= digests
        self._in_use.update([*digests])
        try:
            yield
        finally:
            for work_id in digests:
                self._in_use[work_id] -= 1
                if not self._in_use[work_id]:
                    del self._in_use[work_id], self._digests[work_id]

    def get(self, work_id: str, digest: bytes) -> Reply | None:
        """The reply to that id, if it is still remembered.

        Raises:
            IdempotencyMismatchError: the id was used for a different request.
        """
        if (recent := self._replies.get(work_id)) is None:
            return None
        same_request(recent.digest, digest)
        return recent.reply

    def take(self, take: Callable[[int], None], replies: Sequence[Reply], digests: Mapping[str, bytes]) -> None:
        """Have memory for an answer that is made of these; without any they are remembered for the request's repeat.

        Raises:
            UnavailableError: ``take`` has none.
        """
        try:
            take(sum(map(claim.size, replies)))
        except UnavailableError:
            for reply in replies:
                if not jobs.may_pass(reply):
                    self.put(digests[reply.id], reply)
            raise

    async def of_parts(self, parts: Mapping[str, Coroutine[None, None, T]]) -> list[T]:
        """What the parts of a request come to, by their ids. None is remembered where its caller has hung up.

        Raises:
            CancelledByCallerError: it has.
            SIEError: what the first part raises that fails.
        """
        placing = [*map(asyncio.ensure_future, parts.values())]
        try:
            return await asyncio.gather(*placing)
        except CancelledByCallerError:
            await asyncio.wait(placing)  # for all of them
            for work_id in parts:  # some were answered before
                self.forget(work_id)
            raise

    def forget(self, work_id: str) -> None:
        """Let go of one reply and drop its payload."""
        if (reply := self.release(work_id)) is not None and reply.dataref is not None:
            drop = asyncio.get_running_loop().create_task(self._payloads.drop(reply.dataref))
            self._drops.add(drop)
            drop.add_done_callback(self._drops.discard)

    def release(self, work_id: str) -> Reply | None:
        """Let go of one reply, whose payload is somebody else's from here on."""
        if (recent := self._replies.pop(work_id, None)) is None:
            return None
        self._cost -= recent.cost
        return recent.reply

    def _forget_older(self) -> None:
        now, cost, gone = time.monotonic(), self._cost, []
        for work_id, recent in self._replies.items():
            if cost <= RECENT_BYTES and now - recent.at < RECENT_S:
                break
            if work_id not in self._in_use:
                gone.append(work_id)
                cost -= recent.cost
        for work_id in gone:
            self.forget(work_id)


def same_request(known: bytes, digest: bytes) -> None:
    """Refuse a key that came back with another request.

    Raises:
        IdempotencyMismatchError: the digests differ.
    """
    if known != digest:
        raise IdempotencyMismatchError(
            "This Idempotency-Key was used for a different request.",
            field="Idempotency-Key",
            hint="Use a new key for a new request.",
        )
