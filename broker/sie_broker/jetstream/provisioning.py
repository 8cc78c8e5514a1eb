"""Makes a NATS server match what ``streams`` declares: creates what is absent, changes limits in place.

What cannot be changed in place is refused by name, and nothing that holds work is ever removed. The config service's
job alone.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Iterable
from typing import Any, TypeVar

import msgspec
from nats.aio.client import Client

from sie_broker import claim, subjects
from sie_broker.ending import end
from sie_broker.jetstream import streams
from sie_broker.jetstream.connection import translated
from sie_broker.jetstream.streams import Limits
from sie_broker.records import PRIORITIES, Lane, Queue
from sie_sdk.errors import ConfigurationError, QueueUnavailableError

log = logging.getLogger("sie.broker.provisioning")

STALE_S = 120.0
"""How long a model must be gone before its queues are: by then no ingress sends work for it any more."""
AT_ONCE = 64
"""How much is asked of the server at a time."""
ABSENT = (10014, 10059)
"""JetStream's error codes for "consumer not found" and "stream not found"."""
OTHERWISE = 10148
"""JetStream's error code for "consumer already exists", with another configuration than it is to be created with."""
BUSY = 503
NO_PEERS = 10005
"""JetStream's error code for "no suitable peers for placement": servers of the cluster are not there (yet)."""

Json = dict[str, Any]
T = TypeVar("T")


class Provisioner:
    """Provisions over ``nc`` as ``limits`` say."""

    def __init__(self, nc: Client, limits: Limits, stale_s: float = STALE_S) -> None:
        self._nc = nc
        self._limits = limits
        self._stale_s = stale_s
        self._stale_since: dict[tuple[str, str], float] = {}
        self._turn = asyncio.Lock()
        # The server looks for room before it sets it aside: of streams that it is asked for at once, all find it.
        self._room = asyncio.Lock()

    async def ensure(self, queues: Iterable[tuple[Lane, str]]) -> None:
        """Create or change buckets, streams and the consumers of these (lane, model) pairs, one a priority.

        In the pools that are named, consumers of other models go once nothing has waited for them for a while.

        Raises:
            ConfigurationError: something is there that cannot be changed in place, or the server refuses a limit.
            QueueUnavailableError: the server does not answer.
        """
        wanted: dict[str, list[Queue]] = {}
        for lane, model in sorted(set(queues)):
            wanted.setdefault(lane.pool, []).extend(Queue(lane, model, priority) for priority in PRIORITIES)
        parcels = list(streams.parcel_streams(self._limits))
        every = [
            *streams.buckets(self._limits),
            streams.dead_stream(self._limits),
            *parcels,
            *(streams.payload_stream(store, self._limits) for store in claim.STREAMS),
            *(streams.work_stream(pool, self._limits) for pool in sorted({*wanted, "default"})),
        ]
        async with self._turn:
            with translated():
                await _each(self._stream, every)
                await _each(self._parcel_consumer, parcels)
                for pool, own in sorted(wanted.items()):
                    await self._consumers(subjects.stream(pool), own)

    async def ensure_also(self, queues: Iterable[tuple[Lane, str]]) -> None:
        """Create or change the consumers of these, and look at nothing else: a request for each that is not there.

        Raises:
            ConfigurationError: the server refuses a limit.
            QueueUnavailableError: the server does not answer.
        """
        wanted = [Queue(lane, model, priority) for lane, model in sorted(set(queues)) for priority in PRIORITIES]
        async with self._turn:
            with translated():
                await _each(self._also, wanted)

    async def retire(self, pool: str) -> bool:
        """Close the pool's stream to new work; remove it if nothing waits in it. Returns whether it is gone.

        Closed first, so that nothing can arrive between the look and the removal. What waits is delivered from a
        closed stream as from an open one.

        Raises:
            QueueUnavailableError: the server does not answer.
        """
        name = subjects.stream(pool)
        with translated():
            if (there := await self._ask(f"STREAM.INFO.{name}")) is None:
                return True
            closed = there["config"] | {"subjects": [subjects.closed_subjects(pool)]}
            there = await self._ask(f"STREAM.UPDATE.{name}", closed)
            if there is not None and there["state"]["messages"]:
                return False
            await self._ask(f"STREAM.DELETE.{name}")
        return True

    async def _stream(self, declared: Json) -> None:
        name = declared["name"]
        there = await self._ask(f"STREAM.INFO.{name}")
        if there is None:
            async with self._room:
                await self._ask(f"STREAM.CREATE.{name}", declared)
            return
        changed = streams.differences(declared, there["config"])
        for field in streams.FIXED:
            if field in changed:
                raise ConfigurationError(
                    f"The stream {name} has {field} {there['config'].get(field)!r}, which cannot be changed in place.",
                    field=f"{name}.{field}",
                    limit=declared[field],
                    hint=f"Let it run empty, remove it with `nats stream rm {name}`, and start again.",
                )
        if changed:
            log.info("%s: %s", name, ", ".join(f"{field} is now {declared[field]}" for field in changed))
            async with self._room:
                await self._ask(f"STREAM.UPDATE.{name}", there["config"] | declared)

    async def _consumers(self, stream: str, queues: list[Queue]) -> None:
        there = await self._listed(stream)
        wanted = [streams.work_consumer(queue, self._limits) for queue in queues]

        async def create(declared: Json) -> None:
            await self._create(stream, there.get(declared["name"], {}) | declared)

        await _each(create, [each for each in wanted if streams.differences(each, there.get(each["name"], {}))])
        # Whose name is not one of ours is not ours to remove.
        stale = {name for name in there.keys() - {each["name"] for each in wanted} if name.count("~") == 3}
        now = time.monotonic()
        self._stale_since = {
            (of, name): since for (of, name), since in self._stale_since.items() if of != stream or name in stale
        }

        async def remove(name: str) -> None:
            if now - self._stale_since.setdefault((stream, name), now) >= self._stale_s:
                await self._remove(stream, there[name])

        await _each(remove, sorted(stale))

    async def _also(self, queue: Queue) -> None:
        stream, declared = subjects.stream(queue.lane.pool), streams.work_consumer(queue, self._limits)
        self._stale_since.pop((stream, declared["name"]), None)  # its time begins anew, if it goes again
        if await self._create(stream, declared, action="create") is None:
            await self._stream(streams.work_stream(queue.lane.pool, self._limits))
            await self._create(stream, declared)

    async def _parcel_consumer(self, stream: Json) -> None:
        """The one that its stream has from its start to its end."""
        declared = streams.parcel_consumer(stream)
        there = await self._there(stream["name"], declared["name"])
        if streams.differences(declared, there):
            await self._create(stream["name"], there | declared)

    async def _there(self, stream: str, consumer: str) -> Json:
        config: Json = (await self._ask(f"CONSUMER.INFO.{stream}.{consumer}") or {}).get("config", {})
        return config

    async def _create(self, stream: str, config: Json, action: str = "") -> Json | None:
        """Create or update a consumer. With the action ``create`` one that is there is looked at before it is changed:
        what an operator added to it stays. None: there is no such stream."""
        subject = f"CONSUMER.CREATE.{stream}.{config['name']}.{config['filter_subject']}"
        answer = await self._ask(subject, {"stream_name": stream, "config": config, "action": action}, (OTHERWISE,))
        if answer is not None and "error" in answer:
            return await self._create(stream, await self._there(stream, config["name"]) | config)
        return answer

    async def _remove(self, stream: str, config: Json) -> None:
        """Remove a consumer that nothing waits for; if something came meanwhile, it is back at once."""
        subject = config["filter_subject"]
        if await self._waiting(stream, subject):
            return
        await self._ask(f"CONSUMER.DELETE.{stream}.{config['name']}")
        if await self._waiting(stream, subject):
            await self._create(stream, config)
        else:
            log.info("%s is gone, its model is served no more", subject)
            self._stale_since.pop((stream, config["name"]), None)

    async def _waiting(self, stream: str, subject: str) -> int:
        there = await self._ask(f"STREAM.INFO.{stream}", {"subjects_filter": subject})
        return sum(((there or {}).get("state", {}).get("subjects") or {}).values())

    async def _listed(self, stream: str) -> dict[str, Json]:
        """The configuration of each consumer, by name."""
        found: dict[str, Json] = {}

        async def page(offset: int) -> Json:
            answer = await self._ask(f"CONSUMER.LIST.{stream}", {"offset": offset}) or {}
            found.update((consumer["name"], consumer["config"]) for consumer in answer.get("consumers") or ())
            return answer

        first = await page(0)
        if size := len(found):
            await _each(page, range(size, first["total"], size))
        return found

    async def _ask(self, what: str, request: Json | None = None, passed: tuple[int, ...] = ()) -> Json | None:
        """The server's answer; None when there is no such stream or consumer. ``passed``: errors that are returned."""
        body = b"" if request is None else msgspec.json.encode(request)
        answer: Json = msgspec.json.decode((await self._nc.request(f"$JS.API.{what}", body, timeout=5)).data)
        if (error := answer.get("error")) is None or error.get("err_code") in passed:
            return answer
        if error.get("err_code") in ABSENT:
            return None
        if error.get("code") == BUSY or error.get("err_code") == NO_PEERS:
            raise QueueUnavailableError(f"The broker is not able to: {error.get('description')}.", retry_after=5.0)
        name = what.split(".")[2]
        raise ConfigurationError(
            f"The broker refuses {what.partition('.' + name)[0]} of {name}: {error.get('description')}.",
            field=name,
            hint="docs/settings.md has the limits that can be set.",
        )


async def _each(run: Callable[[T], Awaitable[object]], over: Iterable[T]) -> None:
    """Run it over all, `AT_ONCE` at a time, until one fails; what one is refused keeps none of the others waiting.

    Raises:
        ConfigurationError: the first that was refused; the others are done.
    """
    left, refused = iter(over), list[ConfigurationError]()

    async def take() -> None:
        for each in left:
            try:
                await run(each)
            except ConfigurationError as error:
                refused.append(error)

    tasks = [asyncio.create_task(take()) for _ in range(AT_ONCE)]
    try:
        await asyncio.gather(*tasks)
    finally:
        await end(*tasks)
    if refused:
        raise refused[0]
