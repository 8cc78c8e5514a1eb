"""The mirror: keeps a process's `State` and `Registry` equal to the config bucket.

A snapshot first, then every write in order of its epoch, as the outbox has them. What a watch tells is only a hint: it
is told before a write is committed, and of writes that are refused. A look at the mark every few seconds finds what was
missed while a connection was broken; where writes are missing or the digests differ, the whole is read again.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Mapping

import msgspec

from sie_broker.contract import Bucket
from sie_broker.ending import cancelled
from sie_broker.subjects import name_of
from sie_config.deployment import placement
from sie_config.epochs import store
from sie_config.epochs.state import State
from sie_config.epochs.store import Event, Mark
from sie_config.model.model_spec import ModelSpec
from sie_config.registry import Registry
from sie_sdk.errors import QueueUnavailableError

log = logging.getLogger("sie.config.mirror")

LOOK_S = 5.0
"""How often the mark is looked at."""
PATIENCE_S = (0.001, 0.003, 0.01, 0.03, 0.1, 0.3, 1.0)
"""The pauses in which a write that a hint told of is looked for; one that is not there by then was refused."""
REREAD_S = 60.0
"""How often the whole is read again, while what we have is not what the mark says."""
FAR = 64
"""So many writes behind, a whole snapshot is less work."""


class Mirror:
    """Keeps ``registry`` and ``state`` as the bucket has them; ``changed()`` is called after each change.

    What is deployed is read there, too, unless the registry was made with that: the config service knows it by itself.
    """

    def __init__(
        self,
        bucket: Bucket,
        registry: Registry,
        changed: Callable[[], None] = lambda: None,
        baseline: Mapping[str, ModelSpec] | None = None,
    ) -> None:
        self._bucket = bucket
        self._registry = registry
        self.changed = changed
        self._baseline = baseline or {}
        self._knows = registry.deployment is not None
        self._hinted = 0
        self.writing = 0
        """The epoch that this process is about to write itself, which no hint need tell it of."""
        self._news = asyncio.Event()
        self._missed = False
        self._reading = asyncio.Lock()
        self._read_at = -REREAD_S
        self.state = State(baseline=self._baseline)
        self.listeners: list[Callable[[Event], None]] = []
        """Called with each write that was taken in, in order."""
        self.resets: list[Callable[[], None]] = []
        """Called when all was read anew, whatever the writes between were."""

    async def snapshot(self) -> None:
        """Read the whole bucket.

        Raises:
            QueueUnavailableError: the broker does not answer, or no catalogue was ever written.
        """
        async with self._reading:
            await self._snapshot()

    async def first(self) -> None:
        """Return once there is a catalogue: on a fresh cluster the config service may start after everybody else."""
        told = False
        while not cancelled():
            try:
                await self.snapshot()
                why = "nobody has written one"
            except QueueUnavailableError as error:
                why = str(error)
            if self.state.epoch:
                return
            if not told:
                log.info("waiting for the first catalogue: %s", why)
            told = True
            await asyncio.sleep(0.1)

    async def follow(self) -> None:
        """Keep up until cancelled."""
        deployed = self._bucket.watch(self._deployed, placement.KEY)
        async with self._bucket.watch(self._hint, f"{store.OUTBOX}>"), deployed:
            while not cancelled():
                try:
                    await self.look()
                except QueueUnavailableError as error:
                    log.warning("config was not looked at, the last known catalogue stays: %s", error)
                await self._wait(LOOK_S)

    async def look(self) -> None:
        """Make sure of the state: that its epoch and its digest are those of the mark.

        Raises:
            QueueUnavailableError: the broker does not answer.
        """
        async with self._reading:
            await self._deploy()
            had = self.state.epoch
            mark = await self._mark()
            if had and not mark.epoch and not self._knows:
                # Who follows serves on: the config service, which knows what there is to serve, writes it anew.
                log.warning("the catalogue is gone from the broker; epoch %d is served until it is there again", had)
                return
            if mark.epoch - had < FAR:
                await self._catch_up(mark.epoch)
            # Behind us: the bucket was lost, or put back from a copy.
            if mark.epoch < had or self.state.epoch < mark.epoch or self._differs(mark):
                log.info("reading the whole catalogue: epoch %d here, %d there", self.state.epoch, mark.epoch)
                await self._snapshot()

    def look_soon(self) -> None:
        """The connection was lost for a while: what was told meanwhile is looked for now."""
        self._missed = True
        self._news.set()

    def apply(self, event: Event) -> None:
        """Take in the next write; one that was taken in already is passed over."""
        if event.epoch != self.state.epoch + 1:
            return
        self.state.apply(event)
        for change in event.changes:
            stored = self.state.get(change.model)
            if stored is None or stored.spec is None:
                self._registry.remove(change.model)
            else:
                self._registry.put(stored.spec)
        for listener in self.listeners:
            listener(event)
        self.changed()

    def _differs(self, mark: Mark) -> bool:
        """Whether we went another way; not said all the time, for there may be what we cannot read."""
        same = self.state.epoch != mark.epoch or self.state.mark == mark
        return not same and time.monotonic() - self._read_at > REREAD_S

    def _hint(self, key: str, value: bytes | None) -> None:
        """Somebody writes, perhaps in vain."""
        epoch = key.removeprefix(store.OUTBOX)
        if value is not None and epoch.isdigit() and int(epoch) != self.writing:
            self._hinted = max(self._hinted, int(epoch))
            self._news.set()

    async def _wait(self, seconds: float) -> None:
        """Take in what hints tell of, for that long."""
        clock = asyncio.get_running_loop().time
        end = clock() + seconds
        pauses: list[float] = []
        while not cancelled() and (left := end - clock()) > 0:
            expecting = bool(pauses)
            pause = pauses.pop(0) if expecting else left
            if await self._told(min(pause, left)):
                if self._missed:
                    self._missed = False
                    return
                pauses = [*PATIENCE_S]
                if not expecting:
                    continue  # it is hardly there yet
            try:
                async with self._reading:
                    await self._catch_up(self._hinted)
            except QueueUnavailableError as error:
                log.warning("a change was not read yet: %s", error)
            if self.state.epoch >= self._hinted:
                pauses = []

    async def _told(self, within_s: float) -> bool:
        try:
            async with asyncio.timeout(within_s):
                await self._news.wait()
        except TimeoutError:
            return False
        self._news.clear()
        return True

    async def _mark(self) -> Mark:
        value = await self._bucket.get(store.EPOCH)
        return Mark(0, "") if value is None else store.read_mark(value)

    async def _deploy(self) -> None:
        if not self._knows:
            self._deployed(placement.KEY, await self._bucket.get(placement.KEY))

    def _deployed(self, key: str, value: bytes | None) -> None:
        """Take in what is deployed; that is put, and never refused, so what a watch tells of it stands."""
        if self._knows or value is None:
            return
        before = self._registry.deployment
        try:
            self._registry.deploy(placement.decode(value))
        except msgspec.DecodeError as fault:
            log.warning("what is deployed cannot be read, models stay where they are: %s", fault)
        if self._registry.deployment != before:
            self.changed()

    async def _catch_up(self, until: int) -> None:
        """Apply the writes that follow up to that epoch, as far as they stand there."""
        while self.state.epoch < until and not cancelled():
            value = await self._bucket.get(store.event_key(self.state.epoch + 1))
            if value is None:
                return
            try:
                event = store.read_event(value)
            except msgspec.DecodeError as fault:
                log.warning("epoch %d cannot be read: %s", self.state.epoch + 1, fault)
                return
            self.apply(event)

    async def _snapshot(self) -> None:
        self._read_at = time.monotonic()
        mark = await self._mark()
        await self._deploy()
        entries = await self._bucket.entries(store.MODELS)
        found = {name_of(key.removeprefix(store.MODELS)): store.read_stored(key, each) for key, each in entries.items()}
        stored = [(model, each) for model, each in found.items() if each is not None]
        self.state = State(stored, mark.epoch, self._baseline, (model for model, each in found.items() if each is None))
        self._registry.replace(self.state.specs())
        for reset in self.resets:
            reset()
        # What was written while we read; entries may be of then already.
        await self._catch_up(max([self._hinted, *(each.epoch for _, each in stored)]))
        self.changed()
