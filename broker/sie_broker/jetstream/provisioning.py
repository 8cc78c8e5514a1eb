"""Makes a NATS server match what ``streams`` declares: creates what is absent, changes limits in place.

What cannot be changed in place is refused by name, and nothing that holds work is ever removed. The config service's
job alone.
"""

from __future__ import annotations

import logging
import time
from collections.abc import AsyncIterator, Iterable
from typing import Any

import msgspec
from nats.aio.client import Client

from sie_broker import claim, subjects
from sie_broker.jetstream import streams
from sie_broker.jetstream.connection import translated
from sie_broker.jetstream.streams import Limits
from sie_broker.records import PRIORITIES, Lane, Queue
from sie_sdk.errors import ConfigurationError, QueueUnavailableError

log = logging.getLogger("sie.broker.provisioning")

STALE_S = 120.0
"""How long a model must be gone before its queues are: by then no ingress sends work for it any more."""
ABSENT = (10014, 10059)
"""JetStream's error codes for "consumer not found" and "stream not found"."""
BUSY = 503
NO_PEERS = 10005
"""JetStream's error code for "no suitable peers for placement": servers of the cluster are not there (yet)."""

Json = dict[str, Any]


class Provisioner:
    """Provisions over ``nc`` as ``limits`` say."""

    def __init__(self, nc: Client, limits: Limits, stale_s: float = STALE_S) -> None:
        self._nc = nc
        self._limits = limits
        self._stale_s = stale_s
        self._stale_since: dict[tuple[str, str], float] = {}

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
        with translated():
            for bucket in streams.buckets(self._limits):
                await self._stream(bucket)
            await self._stream(streams.dead_stream(self._limits))
            for stream in streams.parcel_streams(self._limits):
                await self._stream(stream)
                await self._consumer(stream["name"], streams.parcel_consumer(stream))
            for store in claim.STREAMS:
                await self._stream(streams.payload_stream(store, self._limits))
            for pool in sorted({*wanted, "default"}):
                await self._stream(streams.work_stream(pool, self._limits))
            for pool, own in sorted(wanted.items()):
                await self._consumers(subjects.stream(pool), own)

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
            await self._ask(f"STREAM.UPDATE.{name}", there["config"] | declared)

    async def _consumers(self, stream: str, queues: list[Queue]) -> None:
        there = {consumer["name"]: consumer["config"] async for consumer in self._listed(stream)}
        for queue in queues:
            declared = streams.work_consumer(queue, self._limits)
            if streams.differences(declared, there.get(declared["name"], {})):
                await self._create(stream, there.get(declared["name"], {}) | declared)
        # Whose name is not one of ours is not ours to remove.
        stale = {name for name in there.keys() - {subjects.consumer(queue) for queue in queues} if name.count("~") == 3}
        now = time.monotonic()
        self._stale_since = {
            (of, name): since for (of, name), since in self._stale_since.items() if of != stream or name in stale
        }
        for name in sorted(stale):
            if now - self._stale_since.setdefault((stream, name), now) >= self._stale_s:
                await self._remove(stream, there[name])

    async def _consumer(self, stream: str, declared: Json) -> None:
        """A consumer that a stream has from its start to its end."""
        there = (await self._ask(f"CONSUMER.INFO.{stream}.{declared['name']}") or {}).get("config", {})
        if streams.differences(declared, there):
            await self._create(stream, there | declared)

    async def _create(self, stream: str, config: Json) -> None:
        subject = f"CONSUMER.CREATE.{stream}.{config['name']}.{config['filter_subject']}"
        await self._ask(subject, {"stream_name": stream, "config": config, "action": ""})

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

    async def _listed(self, stream: str) -> AsyncIterator[Json]:
        offset = 0
        while True:
            page = await self._ask(f"CONSUMER.LIST.{stream}", {"offset": offset}) or {}
            for consumer in page.get("consumers") or ():
                yield consumer
                offset += 1
            if not page.get("consumers") or offset >= page["total"]:
                return

    async def _ask(self, what: str, request: Json | None = None) -> Json | None:
        """The server's answer; None when there is no such stream or consumer."""
        body = b"" if request is None else msgspec.json.encode(request)
        answer: Json = msgspec.json.decode((await self._nc.request(f"$JS.API.{what}", body, timeout=5)).data)
        if (error := answer.get("error")) is None:
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
