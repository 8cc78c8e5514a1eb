"""A `Bucket` on a JetStream key-value store.

One key is read from any replica where ``streams`` says so, else from the leader; all of them from the leader. A watch
is a plain subscription to the bucket's subjects rather than an ordered consumer: those stay silent for up to 20 s after
a server restart, a subscription is back with the connection.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager, nullcontext

import nats.js.errors
from nats.aio.client import Client
from nats.aio.msg import Msg
from nats.aio.subscription import Subscription
from nats.js import JetStreamContext
from nats.js.api import Header
from nats.js.kv import KV_MARKER_REASON, KV_OP, KV_PURGE, MSG_ROLLUP_SUBJECT, KeyValue

from sie_broker.jetstream import atomic
from sie_broker.jetstream.atomic import OUTDATED
from sie_broker.jetstream.connection import translated, unsubscribe
from sie_broker.records import Entry, Put

AT_ONCE = 64
"""How many keys are asked for at a time."""
LARGE_AT_ONCE = 8
"""The same of large values: the server cuts a connection to which more than 64 MiB are on the way."""


class NatsBucket:
    """The bucket ``name``; it must exist (see ``streams.ensure``) before the first use, not before the construction.

    What marks a key as deleted stays as long as a value would, but at most ``marker_s``. ``large``: how the keys begin
    whose values may be large, of which few are read at a time; small ones pass them.
    """

    def __init__(self, nc: Client, name: str, marker_s: int | None = None, large: str | None = None) -> None:
        self._marker_s = marker_s
        self._large = large
        self._large_turns = asyncio.Semaphore(LARGE_AT_ONCE)
        self._nc = nc
        self._name = name
        self._prefix = f"$KV.{name}."
        self._kv: KeyValue | None = None
        self._watched: dict[str, _Watched] = {}
        self._watching = asyncio.Lock()

    async def _store(self) -> KeyValue:
        if self._kv is None:
            self._kv = await self._nc.jetstream(timeout=2).key_value(self._name)
        return self._kv

    def _turn(self, key: str) -> AbstractAsyncContextManager[object]:
        return self._large_turns if self._large and key.startswith(self._large) else nullcontext()

    async def get(self, key: str) -> bytes | None:
        async with self._turn(key):
            with translated():
                try:
                    return (await (await self._store()).get(key)).value
                except (nats.js.errors.KeyNotFoundError, nats.js.errors.NotFoundError):
                    return None

    async def put(self, key: str, value: bytes) -> None:
        with translated():
            await (await self._store()).put(key, value)

    async def delete(self, key: str) -> None:
        with translated():
            await (await self._store()).purge(key, msg_ttl=self._marker_s)

    async def read(self, key: str) -> Entry:
        async with self._turn(key):
            with translated():
                try:
                    entry = await (await self._store()).get(key)
                except nats.js.errors.KeyNotFoundError as absent:
                    # What was deleted leaves a marker, and a marker has a revision.
                    return Entry(None, (absent.entry and absent.entry.revision) or 0)
        return Entry(entry.value, entry.revision or 0)

    async def replace(self, key: str, value: bytes, revision: int, ttl_s: int | None = None) -> int | None:
        # Published here because nats-py's update drops the time to live.
        return await self._write_if_last(key, value, revision, {}, ttl_s)

    async def commit(self, puts: Sequence[Put], checks: Mapping[str, int]) -> list[int] | None:
        last = await atomic.publish(self._nc, self._prefix, puts, checks)
        return None if last is None else [*range(last - len(puts) + 1, last + 1)]

    async def remove(self, key: str, revision: int) -> bool:
        marker = {KV_OP: KV_PURGE, Header.ROLLUP: MSG_ROLLUP_SUBJECT}
        return await self._write_if_last(key, b"", revision, marker, self._marker_s) is not None

    async def _write_if_last(
        self, key: str, value: bytes, revision: int, headers: dict[str, str], ttl_s: int | None = None
    ) -> int | None:
        headers |= {Header.EXPECTED_LAST_SUBJECT_SEQUENCE: str(revision)}
        with translated():
            js = self._nc.jetstream(timeout=2)
            try:
                ack = await js.publish(self._prefix + key, value, headers=headers, msg_ttl=ttl_s)
            except nats.js.errors.APIError as refused:
                if refused.err_code in OUTDATED:
                    return None
                raise
        return ack.seq

    async def entries(self, under: str = "") -> dict[str, bytes]:
        found: dict[str, bytes] = {}
        with translated():
            js = self._nc.jetstream(timeout=2)
            # Key by key from the leader. nats-py reads all keys through a consumer, which the server may put on a
            # replica that lags: it would say that there is nothing, and who reads a catalogue so would serve none.
            info = await js.stream_info(f"KV_{self._name}", subjects_filter=f"{self._prefix}{under}>")
            room = asyncio.Semaphore(AT_ONCE)

            async def last(subject: str) -> None:
                async with room:
                    value = await self._last(js, subject)
                if value is not None:
                    found[subject.removeprefix(self._prefix)] = value

            await asyncio.gather(*map(last, info.state.subjects or {}))
        return found

    async def _last(self, js: JetStreamContext, subject: str) -> bytes | None:
        try:
            message = await js.get_last_msg(f"KV_{self._name}", subject)
        except nats.js.errors.NotFoundError:
            return None  # ended since
        gone = {KV_OP, KV_MARKER_REASON} & (message.headers or {}).keys()
        return None if gone else message.data or b""

    @asynccontextmanager
    async def watch(self, changed: Callable[[str, bytes | None], None], key: str = ">") -> AsyncIterator[None]:
        # One subscription for all who watch a key here. A result of a megabyte that a hundred wait for would else come
        # a hundred times, and the server cuts a connection that does not take as much at once.
        async with self._watching:
            if (watched := self._watched.get(key)) is None:
                watched = _Watched(self._prefix)
                with translated():
                    # No flush: the server takes a connection's commands in order, so whatever this process reads or
                    # writes next comes after the subscription. (A cancelled flush loses nats-py the connection.)
                    watched.subscription = await self._nc.subscribe(self._prefix + key, cb=watched.hear)
                self._watched[key] = watched
            watched.watchers.append(changed)
        try:
            yield
        finally:
            watched.watchers.remove(changed)
            if not watched.watchers:
                del self._watched[key]
                await unsubscribe(self._nc, watched.subscription)


class _Watched:
    """One subscription, and who is told of what it hears."""

    subscription: Subscription

    def __init__(self, prefix: str) -> None:
        self._prefix = prefix
        self.watchers: list[Callable[[str, bytes | None], None]] = []

    async def hear(self, message: Msg) -> None:
        gone = {KV_OP, KV_MARKER_REASON} & (message.headers or {}).keys()
        key, value = message.subject.removeprefix(self._prefix), None if gone else message.data
        for changed in tuple(self.watchers):
            changed(key, value)
