"""The relay: tells of every write, in order and at least once, whoever is to hear of it.

Owns how far each destination was told, which is kept beside the catalogue: a writer that dies between a write and its
telling leaves the rest to the next one, and so does one that no longer leads. A destination that does not take an
event holds up its own later ones and nobody else's.
Not here: the event (``changed_event``), readers of our own, which follow the outbox themselves (``mirror``).
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

import httpx
from cloudevents.core.v1.event import CloudEvent

from sie_broker import clock
from sie_broker.contract import Broker, Bucket
from sie_broker.ending import cancelled
from sie_broker.events import binding, sink_client
from sie_broker.events.sink_answers import Answer, answer_of, pause_s
from sie_broker.process import LAST_PORT
from sie_config.epochs import changed_event, store
from sie_config.epochs.store import Event
from sie_config.epochs.writer import Writer
from sie_sdk.errors import ConfigurationError, NotFoundError, SIEError

log = logging.getLogger("sie.config.relay")

TOLD = "told."
"""The keys that say up to which epoch a destination was told."""
SUBJECT = "sie.config.changed."
"""The subject of events on NATS: this and the kind of the write."""
ANSWER_S = 20.0
LOOK_S = 5.0
"""How often it is looked whether there is something to tell, beside being told."""
NOTE_S = 0.25
"""What was told within it may be told again after a crash."""
FRESH = 64
AGAIN_S = 1.0
"""The pause after the broker was away."""
MOST_TRIES = 100
"""Enough that the pause is the longest there is."""

Send = Callable[[Event, CloudEvent, int], Awaitable[float | None]]
"""Sends one event, at this attempt. None: it was taken, or never will be; else the pause before the next attempt."""


class Relay:
    """Tells one destination, by its name in ``bucket``, of the writes of ``writer`` while that leads."""

    def __init__(self, bucket: Bucket, writer: Writer, name: str, send: Send) -> None:
        self._bucket = bucket
        self._writer = writer
        self._key = TOLD + name
        self._send = send
        self._news = asyncio.Event()
        self._fresh: deque[Event] = deque(maxlen=FRESH)
        """The latest writes, which need not be read again."""

    def heard(self, event: Event) -> None:
        """There is something to tell."""
        self._fresh.append(event)
        self._news.set()

    async def run(self) -> None:
        """Tell until cancelled."""
        while not cancelled():
            self._news.clear()
            if self._writer.leading:
                try:
                    await self._tell()
                except SIEError as error:
                    log.warning("%s: %s", self._key, error)
                    await asyncio.sleep(AGAIN_S)
                    self._news.set()
            try:
                async with asyncio.timeout(LOOK_S):
                    await self._news.wait()
            except TimeoutError:
                pass

    async def _tell(self) -> None:
        mark = await self._bucket.read(self._key)
        noted = told = await self._told(int(mark.value or b"0"))
        revision: int | None = mark.revision
        noted_at = time.monotonic()
        try:
            while told < self._writer.state.epoch and self._writer.leading and not cancelled():
                if not await self._tell_of(told + 1):
                    break
                told += 1
                if time.monotonic() - noted_at > NOTE_S:  # not each time: it costs more than the telling
                    noted, noted_at = told, time.monotonic()
                    if (revision := await self._note(told, revision)) is None:
                        break
        finally:
            if noted < told:
                await self._note(told, revision)

    async def _told(self, mark: int) -> int:
        """Up to where the destination was told, of the epochs that there are now."""
        if mark <= self._writer.state.epoch:
            return mark
        # Another wrote and told of it, which we are about to hear; or the bucket was lost, and its epochs begin anew.
        value = await self._bucket.get(store.EPOCH)
        return mark if value is not None and mark <= store.read_mark(value).epoch else 0

    async def _note(self, told: int, revision: int | None) -> int | None:
        """None: another has noted something since; it leads, and its mark stands."""
        return None if revision is None else await self._bucket.replace(self._key, str(told).encode(), revision)

    async def _tell_of(self, epoch: int) -> bool:
        """Whether it is done with: told, or nothing that can be."""
        event = next((each for each in self._fresh if each.epoch == epoch), None)
        try:
            event = event or await self._writer.event(epoch)
        except NotFoundError as error:
            log.error("%s: never told: %s", self._key, error)
            return True
        if event is None:
            log.warning("%s: epoch %d is no longer kept, and was never told", self._key, epoch)
            return True
        return await self._taken(event)

    async def _taken(self, event: Event) -> bool:
        """Ask until it is taken. False: another leads meanwhile, and tells it."""
        told, attempt = changed_event.changed(event), 1
        while (pause := await self._send(event, told, attempt)) is not None:
            log.info("%s: epoch %d again in %.1f s", self._key, event.epoch, pause)
            if not await self._leads_on(pause):
                return False
            attempt = min(MOST_TRIES, attempt + 1)
        return True

    async def _leads_on(self, seconds: float) -> bool:
        """Whether the writer leads for so long; it is said at once when it does not any more."""
        try:
            async with asyncio.timeout(seconds):
                await self._writer.deposed.wait()
        except TimeoutError:
            return True
        return False


def on_nats(broker: Broker) -> Send:
    """To everybody who listens on ``sie.config.changed.>``."""

    async def send(event: Event, told: CloudEvent, attempt: int) -> float | None:
        await broker.publish(SUBJECT + event.kind, *binding.to_nats(told))
        return None

    return send


@asynccontextmanager
async def to_sink(url: str) -> AsyncIterator[Send]:
    """To an HTTP sink, a Knative broker for instance, by its delivery contract.

    Raises:
        ConfigurationError: that is no address of one.
    """
    _check(url)
    shown = sink_client.shown(url)
    async with sink_client.client(timeout=ANSWER_S) as http:

        async def send(event: Event, told: CloudEvent, attempt: int) -> float | None:
            headers, body = binding.to_http(told)
            try:
                async with asyncio.timeout(ANSWER_S):
                    response = await http.post(url, headers=headers, content=body)
            except (httpx.HTTPError, TimeoutError, OSError) as error:
                log.warning("%s: %s", shown, str(error) or type(error).__name__)
                return pause_s(attempt, None, clock.now())
            match answer_of(response.status_code):
                case Answer.AGAIN:
                    return pause_s(attempt, response.headers.get("retry-after"), clock.now())
                case Answer.NEVER:
                    log.error("%s refuses epoch %d: HTTP %d", shown, event.epoch, response.status_code)
            return None

        yield send


def _check(url: str) -> None:
    """Refuse what is no address of a sink, without a word of it."""
    try:
        parsed = httpx.URL(url)
    except httpx.InvalidURL:  # whose words may have a password in them
        raise _no_sink("it cannot be read") from None
    if parsed.scheme not in ("http", "https"):
        raise _no_sink("it does not begin with http:// or https://")
    if not parsed.host or "%" in parsed.host:
        raise _no_sink("it names no host")
    if parsed.port is not None and parsed.port > LAST_PORT:
        raise _no_sink(f"{parsed.port} is no port")


def _no_sink(why: str) -> ConfigurationError:
    return ConfigurationError(
        f"SIE_CONFIG_SINK is no address of a sink: {why}.",
        field="SIE_CONFIG_SINK",
        hint="It looks like http://host/path.",
    )
