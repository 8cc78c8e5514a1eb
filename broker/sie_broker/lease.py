"""A lease: one holder at a time of a name, for as long as it keeps saying so. It rests on a bucket's compare-and-swap.

Owns taking, renewing, releasing and losing it. A holder that cannot renew is without it, by its own steady clock,
before anybody else can have it. Not here: what the holder does with it. A server's clock that jumps ahead can end a
lease under its holder, who learns it at the next renewal: what must never be done twice is fenced with `Lease.token`.
"""

from __future__ import annotations

import asyncio
import logging
import time
import uuid
from collections.abc import Awaitable, Callable
from enum import Enum

from sie_broker.contract import Bucket
from sie_broker.ending import cancelled, end
from sie_broker.records import Entry
from sie_sdk.errors import QueueUnavailableError

log = logging.getLogger("sie.broker.lease")

TTL_S = 10
RENEW_S = 3.0
AGAIN_S = 0.2
"""The pause after a renewal, or a take-over that is due, failed."""


class Outcome(Enum):
    """What came of one attempt to take or renew."""

    OURS = "ours"
    OTHERS = "others"
    UNKNOWN = "unknown"
    """The bucket did not answer, or somebody wrote between our look and our write."""


class Lease:
    """The lease ``name`` in ``bucket``.

    Args:
        holder: who we are. A holder that comes back under the same name takes its lease back at once: what held it
            before is dead. Two living holders must not share one. Empty: a name of its own.
        ttl_s: how long after its last renewal the lease is free.
        margin_s: how long before that its holder stops acting, with time for what it then has to close.
        patience_s: how long after that a holder may still act while nobody answers it. For what had better go on than
            stop while the broker is away, and does no harm when it is done twice; ``token`` is 0 meanwhile.
    """

    def __init__(
        self,
        bucket: Bucket,
        name: str,
        holder: str = "",
        *,
        ttl_s: int = TTL_S,
        renew_s: float = RENEW_S,
        margin_s: float = 2.0,
        patience_s: float = 0.0,
    ) -> None:
        self._bucket = bucket
        self._name = name
        self._holder = holder
        self._value = f"{holder}/{uuid.uuid4().hex[:12]}".encode()
        self._ttl_s = ttl_s
        self._renew_s = renew_s
        self._margin_s = margin_s
        self._patience_s = patience_s
        self._token = 0
        self._until = 0.0
        """Until when we act, if we cannot renew: less than what the server grants."""
        self._first = True
        self._other: Entry | None = None
        self._other_heard = 0.0
        self._told_since = False
        self._blind_at: float | None = None
        self._heard = asyncio.Event()
        self._claimed = False

    def claim(self) -> None:
        """Have it, whoever holds it: our next attempt comes at once and takes it.

        The other learns of it at its next renewal, so this is only for what is fenced with `token`.
        """
        if not self.token:
            self._claimed = True
            self._heard.set()

    @property
    def token(self) -> int:
        """The fencing token while the lease is surely ours, else 0.

        It is the revision of the lease's key: a later holder's is higher, and a renewal raises it too. A write to the
        same bucket that names it as the key's last revision fails once the lease is somebody else's.
        """
        return self._token if time.monotonic() < self._until else 0

    async def lead(self, act: Callable[[], Awaitable[None]]) -> None:
        """Run ``act`` whenever the lease is ours, and until ``act`` returns; cancel it when the lease is lost.

        Cancelled itself, it ends ``act``, waits for that, and releases the lease. Raises what ``act`` raises.
        """
        async with self._bucket.watch(self._told, self._name):
            try:
                while not cancelled():
                    outcome = await self._take()
                    if outcome is Outcome.OURS:
                        if await self._act(act):
                            return
                    else:
                        await self._rest(outcome)
            finally:
                await self._release()

    async def _act(self, act: Callable[[], Awaitable[None]]) -> bool:
        """Renew while ``act`` runs. True: it returned; False: the lease was lost, and ``act`` has been ended."""
        acting = asyncio.ensure_future(act())
        try:
            pause = self._renew_s
            while not cancelled():
                await asyncio.wait({acting}, timeout=min(pause, self._left_s()))
                if acting.done():
                    await acting
                    return True
                outcome = await self._renew()
                if outcome is Outcome.OTHERS:
                    log.warning("%s: another took it", self._name)
                    return False
                if self._left_s() <= 0:
                    log.warning("%s: not renewed in time", self._name)
                    return False
                pause = self._renew_s if outcome is Outcome.OURS else AGAIN_S
            return False
        finally:
            await end(acting)

    def _left_s(self) -> float:
        return max(0.0, self._until + self._patience_s - time.monotonic())

    async def _renew(self) -> Outcome:
        try:
            async with asyncio.timeout(self._left_s()):
                return await self._take()
        except TimeoutError:
            return Outcome.UNKNOWN

    async def _take(self) -> Outcome:
        """Write our name where nobody's stands, or ours. Read first: an earlier write of ours may have gone unheard."""
        try:
            entry = await self._bucket.read(self._name)
            now = time.monotonic()
            if entry.value is not None and not self._is_ours(entry.value) and not self._claimed:
                self._stand_by(entry, now)
                return Outcome.OTHERS
            if entry.value is None and self._predecessor_may_be_blind(now):
                return Outcome.UNKNOWN
            revision = await self._bucket.replace(self._name, self._value, entry.revision, self._ttl_s)
        except QueueUnavailableError:
            self._blind_at = time.monotonic()
            return Outcome.UNKNOWN
        if revision is None:
            return Outcome.UNKNOWN
        # Counted from before the write: the server counts from when it came.
        self._token, self._until = revision, now + self._ttl_s - self._margin_s
        self._first, self._other, self._blind_at, self._claimed = False, None, None, False
        return Outcome.OURS

    def _stand_by(self, entry: Entry, now: float) -> None:
        if self._other is None or entry.value != self._other.value:
            log.info("%s: standing by for %s", self._name, (entry.value or b"").decode(errors="replace"))
        if entry != self._other:
            if not self._told_since:  # a renewal that the watch missed
                self._other_heard = now
            self._other = entry
        self._until = 0.0
        self._first = self._told_since = False

    def _is_ours(self, value: bytes) -> bool:
        before = value.decode(errors="replace").rpartition("/")[0]
        return value == self._value or (self._first and before == self._holder != "")

    def _predecessor_may_be_blind(self, now: float) -> bool:
        """Whether the lease may have run out only because the broker was away, for its holder as for us.

        Such a holder, if it has patience, still acts. It comes back within moments and goes first.
        """
        standing_by = self._patience_s > 0 and self._other is not None
        return standing_by and self._blind_at is not None and now - self._blind_at < self._renew_s

    async def _rest(self, outcome: Outcome) -> None:
        """Wait until another attempt makes sense: a change, the end of the other's lease, or a renewal's time."""
        due_s = self._other_heard + self._ttl_s - time.monotonic()
        soon = outcome is Outcome.UNKNOWN or self._claimed
        pause = AGAIN_S if soon else min(self._renew_s, max(AGAIN_S, due_s))
        self._heard.clear()
        try:
            async with asyncio.timeout(pause):
                await self._heard.wait()
        except TimeoutError:
            pass

    def _told(self, key: str, value: bytes | None) -> None:
        """Somebody renewed, or released. Only a hint: refused attempts are told too."""
        if value is None:
            self._heard.set()
        elif self._other is not None and value == self._other.value:
            self._other_heard, self._told_since = time.monotonic(), True

    async def _release(self) -> None:
        """Give it up, if it is ours; whoever stands by takes it at once."""
        self._until = 0.0
        try:
            entry = await self._bucket.read(self._name)
            if entry.value == self._value:
                await self._bucket.remove(self._name, entry.revision)
        except QueueUnavailableError as error:
            log.warning("%s: not released, it ends in %d s: %s", self._name, self._ttl_s, error)
