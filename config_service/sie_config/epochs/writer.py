"""The writer: the one way into the catalogue. Any number of processes may run it; one at a time writes.

Owns the order of a write: the edit, its queues, and one batch that holds the entries, the mark and the event, and that
stands only while our lease does. So a writer that was asleep for longer than its lease changes nothing, and what is
told is what was stored. Not here: what people may ask for (``edits``), and how (``writes``).
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import logging
import uuid
from collections.abc import Awaitable, Callable, Mapping, Sequence

import msgspec

from sie_broker import clock
from sie_broker.contract import Bucket
from sie_broker.ending import cancelled
from sie_broker.lease import Lease
from sie_broker.records import Entry, Put
from sie_config.epochs import baseline, store
from sie_config.epochs.mirror import Mirror
from sie_config.epochs.state import State
from sie_config.epochs.store import Baseline, Event, Kind, Recorded, Stored
from sie_config.model.model_spec import ModelSpec
from sie_sdk.errors import (
    ConfigurationError,
    ConfigWriterBusyError,
    InvalidInputError,
    NotFoundError,
    QueueUnavailableError,
    SIEError,
)

log = logging.getLogger("sie.config.writer")

MOST_CHANGES = 900
"""Models that one write may change: a batch has a thousand messages."""
MOST_BYTES = 6 << 20
"""Of the event of a write, which is one message."""
SEEDED = 200
"""Models that one write of the baseline changes."""
ATTEMPTS = 8
"""How often a write is tried while others write, or the lease is renewed under it."""
IDLE_S = 1.0
"""How long whoever leads may write nothing while a write waits here, before this process leads instead."""
PATIENCE_S = 2.0
"""How long a write waits for that."""
AT_ONCE = 64
"""Events of the history that are asked for at a time."""
HISTORY_S = 365 * 24 * 3600
"""How long history reaches back."""
REQUEST_S = 24 * 3600
"""How long the answer to an Idempotency-Key is known."""

Edit = Callable[[State], Mapping[str, ModelSpec | None]]
"""What is wanted, by model, from the state as it stands; None: the model shall not be there. Pure, and run anew when
somebody else wrote meanwhile. Raises `SIEError` for what cannot be."""

Provision = Callable[[Sequence[ModelSpec]], Awaitable[None]]
"""Makes the queues of these models: before they are told to readers, so that no work finds none."""

Answer = Callable[[Event | None], tuple[int, bytes]]
"""The status and body that a write answers; of None: nothing had to change."""


class Request(msgspec.Struct, frozen=True):
    """A write's Idempotency-Key, the digest of what it asks, and what it will be answered."""

    key: str
    digest: str
    answer: Answer

    @property
    def at(self) -> str:
        """The key of the bucket under which the answer is kept."""
        return store.request_key(self.key)


class Writer:
    """Writes the catalogue of ``bucket``, which ``mirror`` follows. ``clock``: seconds since the epoch of Unix."""

    def __init__(
        self,
        bucket: Bucket,
        mirror: Mirror,
        provision: Provision,
        holder: str = "",
        clock: Callable[[], float] = clock.now,
        lease: Lease | None = None,
    ) -> None:
        self._bucket = bucket
        self._mirror = mirror
        self._provision = provision
        self._clock = clock
        self._lease = lease or Lease(bucket, store.LEASE, holder)
        self._began = clock()
        self._leading = asyncio.Event()
        self.deposed = asyncio.Event()
        """Set while this process does not lead, for who waits in the middle of what only the leader does."""
        self.deposed.set()
        self._lost = asyncio.Event()
        self._newest = 0
        """The last epoch that was there while this process leads."""
        mirror.resets.append(self._reset)
        self._turn = asyncio.Lock()

    @property
    def state(self) -> State:
        """The catalogue as this process knows it."""
        return self._mirror.state

    @property
    def leading(self) -> bool:
        """Whether writes are taken here."""
        return self._leading.is_set()

    async def run(self) -> None:
        """Write whenever the lease is ours, until cancelled."""
        await self._lease.lead(self._lead)

    async def write(
        self,
        edit: Edit,
        *,
        actor: str,
        kind: Kind,
        note: str = "",
        request: Request | None = None,
        dry_run: bool = False,
    ) -> Event | Recorded | None:
        """Do what ``edit`` wants, all of it in one epoch. None: nothing has to change.

        ``dry_run``: the event as it would be, and nothing is written. ``request``: what was answered to its key, here
        or by another process, is returned instead, and nothing is done.

        Raises:
            ConfigWriterBusyError: another process writes, or the broker is away. What was asked may yet be done, if
                the broker went in the middle; asked again with the same Idempotency-Key it is done once.
            InvalidInputError: it changes more than one write may.
            SIEError: what ``edit`` raises.
        """
        if dry_run:
            return self._event(edit, actor, kind, note)
        await self._await_lead()
        if self._turn.locked():
            # Those that wait for their turn have their queues made meanwhile: that takes longer than the write.
            with contextlib.suppress(SIEError):  # which is said in its turn, if it is so then
                if (event := self._event(edit, actor, kind, note)) is not None:
                    await self._lay(event)
        async with self._turn:
            return await self._write(edit, actor, kind, note, request)

    async def _await_lead(self) -> None:
        # Who leads and gets no writes may be on its way out: for half a minute Knative sends it none, nor tells it.
        epoch = self.state.epoch
        if await self._leads_within(IDLE_S):
            return
        if self.state.epoch == epoch:
            self._lease.claim()
        if not await self._leads_within(PATIENCE_S):
            raise _busy("Another process writes the catalogue.")

    async def _leads_within(self, seconds: float) -> bool:
        try:
            async with asyncio.timeout(seconds):
                return await self._leading.wait()
        except TimeoutError:
            return False

    async def request(self, key: str) -> Recorded | None:
        """What this Idempotency-Key was answered.

        Raises:
            ConfigWriterBusyError: the broker is away.
        """
        value = await self._kept(store.request_key(key))
        try:
            return None if value is None else store.read_recorded(value)
        except QueueUnavailableError as error:
            raise _busy(error.message) from error

    async def history(self, before: int | None = None, limit: int = 50) -> list[Event]:
        """The writes before that epoch, the newest first; as far as they are kept.

        One that is missing is passed over; of so many as are read at a time, the history ends there.

        Raises:
            ConfigWriterBusyError: the broker is away.
        """
        newest = min(self.state.epoch, self.state.epoch if before is None else before - 1)
        found: list[Event] = []
        for at in range(newest, 0, -AT_ONCE):
            events = await asyncio.gather(*map(self._readable, range(at, max(0, at - AT_ONCE), -1)))
            found += (there := [event for event in events if event is not None])
            if not there or len(found) >= limit:
                break
        return found[:limit]

    async def _readable(self, epoch: int) -> Event | None:
        try:
            return await self.event(epoch)
        except NotFoundError as error:
            log.warning("left out of the history: %s", error)
            return None

    async def event(self, epoch: int) -> Event | None:
        """The write that made this epoch; None: there is none, or it is no longer kept.

        Raises:
            NotFoundError: what is kept of it cannot be read.
            ConfigWriterBusyError: the broker is away.
        """
        value = await self._kept(store.event_key(epoch))
        try:
            return None if value is None else store.read_event(value)
        except msgspec.DecodeError as error:
            raise _unread(epoch) from error

    async def at(self, epoch: int) -> dict[str, Stored]:
        """Every entry as it stood after that epoch, by the lower-case id of its model.

        Raises:
            NotFoundError: there was no such epoch, or the history does not reach back to it, or a write since then
                cannot be read.
            ConfigWriterBusyError: the broker is away.
        """
        now = self.state.epoch
        if not 0 < epoch <= now:
            raise NotFoundError(f"There is no epoch {epoch}.", field="epoch", limit=f"1 to {now}")
        stored: dict[str, Stored | None] = dict(self.state.stored)
        for newest in range(now, epoch, -AT_ONCE):
            epochs = range(newest, max(epoch, newest - AT_ONCE), -1)
            for at, event in zip(epochs, await asyncio.gather(*map(self.event, epochs)), strict=True):
                if event is None:
                    why = f"History does not reach back to epoch {epoch}."
                    raise NotFoundError(why, field="epoch", limit=f"from {at}")
                if event.unread:
                    raise _unread(at)
                stored |= {change.model.lower(): change.before for change in event.changes}
        return {model: each for model, each in stored.items() if each is not None}

    async def _kept(self, key: str) -> bytes | None:
        try:
            return await self._bucket.get(key)
        except QueueUnavailableError as error:
            raise _busy("The broker does not answer.") from error

    async def _lead(self) -> None:
        log.info("writing the catalogue from here")
        while not cancelled():
            try:
                await self._mirror.look()
                self._lost.clear()
                await self._seed()
            except (QueueUnavailableError, ConfigWriterBusyError, ConfigurationError) as error:
                log.warning("the catalogue is not ready to be written: %s", error)
                await asyncio.sleep(0.2)
                continue
            self._newest = self.state.epoch
            self._leading.set()
            self.deposed.clear()
            try:
                await self._lost.wait()
            finally:
                self._leading.clear()
                self.deposed.set()

    def _reset(self) -> None:
        """The mirror read all anew. Where writes of ours are gone, no other follows before the baseline is there."""
        if self.leading and self.state.epoch < self._newest:
            log.error("the catalogue was lost: epoch %d after %d; it is begun anew", self.state.epoch, self._newest)
            self._leading.clear()
            self._lost.set()

    async def _seed(self) -> None:
        async with self._turn:
            await self._provision(self.state.specs())
            own = Baseline(State.of(self.state.baseline.values()).digest, self._began)
            while (
                await baseline.counts(self._bucket, own)
                and await self._write(_seed, "sie-config", "seed", "", None) is not None
            ):
                pass

    def _event(self, edit: Edit, actor: str, kind: Kind, note: str) -> Event | None:
        changes = self.state.changes(edit(self.state))
        if len(changes) > MOST_CHANGES:
            raise InvalidInputError(
                f"The write changes {len(changes)} models.", field="models", limit=MOST_CHANGES, hint="Write in parts."
            )
        if not changes:
            return None
        return Event(self.state.epoch + 1, self._clock(), actor, kind, changes, note, uuid.uuid4().hex)

    async def _write(
        self, edit: Edit, actor: str, kind: Kind, note: str, request: Request | None
    ) -> Event | Recorded | None:
        for _ in range(ATTEMPTS):
            try:
                mark = await self._bucket.read(store.EPOCH)
                # Else another wrote: that nothing has to change, or cannot, is not said of what was before that.
                if (0 if mark.value is None else store.read_mark(mark.value).epoch) == self.state.epoch:
                    asked = Entry(None, 0) if request is None else await self._bucket.read(request.at)
                    if asked.value is not None:
                        return store.read_recorded(asked.value)
                    event = self._event(edit, actor, kind, note)
                    answered = None if request is None else self._answered(request, event, asked.revision)
                    if await (self._record(answered) if event is None else self._commit(event, mark, answered)):
                        return event
                await self._mirror.look()
            except QueueUnavailableError as error:
                raise _busy("The broker does not answer.") from error
            if self._lost.is_set() and kind != "seed":
                raise _busy("The catalogue was lost, and is begun anew.")
        raise _busy("Others write the catalogue at the same time.")

    def _answered(self, request: Request, event: Event | None, revision: int) -> Put:
        """What a request is answered, kept if nobody obeyed its key meanwhile."""
        epoch = self.state.epoch if event is None else event.epoch
        recorded = Recorded(request.digest, *request.answer(event), epoch)
        return Put(request.at, store.encode(recorded), revision, REQUEST_S)

    async def _record(self, answered: Put | None) -> bool:
        """Keep what a request was answered that had nothing to change: with its key it never changes anything."""
        if answered is None:
            return True
        key, value, revision, ttl_s = answered
        assert value is not None and revision is not None
        return await self._bucket.replace(key, value, revision, ttl_s) is not None

    async def _lay(self, event: Event) -> None:
        """Make the queues that its models need.

        Raises:
            ConfigWriterBusyError: the broker is away.
        """
        try:
            await self._provision([each.after.spec for each in event.changes if each.after and each.after.spec])
        except QueueUnavailableError as error:
            raise _busy("The broker does not answer.") from error

    async def _commit(self, event: Event, mark: Entry, answered: Put | None) -> bool:
        """Whether it stands there now; False: somebody else's write does, or the lease was renewed or lost."""
        await self._lay(event)
        if not (token := self._lease.token):
            return False
        written = store.encode(event)
        if len(written) > MOST_BYTES:
            raise InvalidInputError(
                "The write is too large.", field="models", limit=f"{MOST_BYTES} bytes", hint="Write in parts."
            )
        puts = [Put(store.EPOCH, store.encode(self.state.after(event)), mark.revision)]
        puts += [
            Put(store.model_key(each.model), None if each.after is None else store.encode(each.after))
            for each in event.changes
        ]
        if answered is not None:
            puts.append(answered)
        puts.append(Put(store.event_key(event.epoch), written, ttl_s=HISTORY_S))
        self._mirror.writing = event.epoch
        try:
            stands = await self._bucket.commit(puts, {store.LEASE: token}) is not None
        except QueueUnavailableError:
            stands = await self._stands(event)
        if stands:
            self._mirror.apply(event)
            self._newest = self.state.epoch
        return stands

    async def _stands(self, event: Event) -> bool:
        """Whether a write that was not answered was done.

        Raises:
            QueueUnavailableError: still no answer, or it is not there yet.
        """
        found = await self._readable(event.epoch)
        if found is None:
            raise QueueUnavailableError("The broker did not answer the write.", retry_after=1.0)
        return found.id == event.id


def _seed(state: State) -> Mapping[str, ModelSpec | None]:
    return dict(itertools.islice(state.seed().items(), SEEDED))


def _unread(epoch: int) -> NotFoundError:
    told = f"Epoch {epoch} holds changes of a newer version, which this one cannot read."
    return NotFoundError(told, field="epoch", hint="Ask once the newer version runs again.")


def _busy(why: str) -> ConfigWriterBusyError:
    return ConfigWriterBusyError(why, retry_after=1.0, hint="Ask again, with the same Idempotency-Key.")
