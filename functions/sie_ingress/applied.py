"""How far each ingress is with the catalogue: they tell each other, so that anyone can say what is served everywhere.

Owns the entries ``config.<ingress>`` of the lanes bucket, which end by themselves when their ingress does. What workers
have is in their heartbeats.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Callable

import msgspec

from sie_broker import clock
from sie_broker.contract import Bucket
from sie_broker.ending import cancelled
from sie_broker.subjects import token
from sie_config.epochs.mirror import Mirror
from sie_sdk.errors import QueueUnavailableError

log = logging.getLogger("sie.ingress.applied")

PREFIX = "config."
TELL_S = 5.0
BELIEVED_S = 15.0
"""How old what an ingress told may be; then it is gone."""


class Applied(msgspec.Struct, frozen=True):
    """The state of the catalogue at one ingress, at that time in seconds since the epoch of Unix."""

    ingress: str
    epoch: int
    digest: str
    at: float


_applied = msgspec.json.Decoder(Applied)


class AppliedEverywhere:
    """Tells of ``mirror`` under ``name``, and hears of the others. ``clock``: seconds since the epoch of Unix."""

    def __init__(self, bucket: Bucket, name: str, mirror: Mirror, clock: Callable[[], float] = clock.now) -> None:
        self._bucket = bucket
        self._name = name
        self._mirror = mirror
        self._clock = clock
        self._revision = 0
        self._told: dict[str, Applied] = {}
        self._news = asyncio.Event()
        mirror.listeners.append(lambda event: self._news.set())
        mirror.resets.append(self._news.set)

    def ingresses(self) -> list[Applied]:
        """Every ingress there is, by name."""
        since = self._clock() - BELIEVED_S
        self._told = {key: each for key, each in self._told.items() if each.at > since}
        return sorted(self._told.values(), key=lambda each: each.ingress)

    async def run(self) -> None:
        """Tell and hear until cancelled."""
        async with self._bucket.watch(self._hear, f"{PREFIX}>"):
            try:
                await self._read()
                while not cancelled():
                    self._news.clear()
                    await self._tell()
                    try:
                        async with asyncio.timeout(TELL_S):
                            await self._news.wait()
                    except TimeoutError:
                        pass
            finally:
                await self._leave()

    async def _read(self) -> None:
        try:
            for key, value in (await self._bucket.entries(PREFIX)).items():
                self._hear(key, value)
        except QueueUnavailableError as error:
            log.warning("the other ingresses were not read: %s", error)

    async def _tell(self) -> None:
        state, key = self._mirror.state, PREFIX + token(self._name)
        told = msgspec.json.encode(Applied(self._name, state.epoch, state.digest, self._clock()))
        try:
            revision = await self._bucket.replace(key, told, self._revision, int(BELIEVED_S))
            if revision is None:  # it ended, or an earlier write of ours went unheard
                entry = await self._bucket.read(key)
                revision = await self._bucket.replace(key, told, entry.revision, int(BELIEVED_S))
            self._revision = revision or 0
        except QueueUnavailableError as error:
            log.warning("epoch %d was not told: %s", state.epoch, error)

    async def _leave(self) -> None:
        key = PREFIX + token(self._name)
        with contextlib.suppress(QueueUnavailableError):  # else it ends by itself
            # Read first: what is told last may have been cut off before its revision was heard.
            await self._bucket.remove(key, (await self._bucket.read(key)).revision)

    def _hear(self, key: str, value: bytes | None) -> None:
        if value is None:
            self._told.pop(key, None)
            return
        try:
            self._told[key] = _applied.decode(value)
        except msgspec.DecodeError as fault:
            log.warning("skipped %s: %s", key, fault)
