"""A `Bucket` on a JetStream key-value store.

Reads are direct gets from any replica where ``streams`` says so, else from the leader. A watch is a plain subscription
to the bucket's subjects rather than an ordered consumer: those stay silent for up to 20 s after a server restart, a
subscription is back with the connection.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

import nats.js.errors
from nats.aio.client import Client
from nats.aio.msg import Msg
from nats.js.kv import KeyValue

from sie_broker.connection import translated


class NatsBucket:
    """The bucket ``name``; it must exist (see ``streams.ensure``) before the first use, not before the construction."""

    def __init__(self, nc: Client, name: str) -> None:
        self._nc = nc
        self._name = name
        self._kv: KeyValue | None = None

    async def _store(self) -> KeyValue:
        if self._kv is None:
            self._kv = await self._nc.jetstream(timeout=2).key_value(self._name)
        return self._kv

    async def get(self, key: str) -> bytes | None:
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
            await (await self._store()).purge(key)

    async def entries(self) -> dict[str, bytes]:
        found: dict[str, bytes] = {}
        with translated():
            watcher = await (await self._store()).watchall(ignore_deletes=True)
            try:
                async for entry in watcher:
                    if entry is None:  # the marker after the last stored value
                        break
                    if entry.value is not None:
                        found[entry.key] = entry.value
            finally:
                await watcher.stop()  # type: ignore[no-untyped-call]
        return found

    @asynccontextmanager
    async def watch(self, changed: Callable[[str, bytes | None], None], key: str = ">") -> AsyncIterator[None]:
        prefix = f"$KV.{self._name}."

        async def on_message(message: Msg) -> None:
            gone = bool(message.headers) and "KV-Operation" in (message.headers or {})
            changed(message.subject.removeprefix(prefix), None if gone else message.data)

        with translated():
            # No flush: the server takes a connection's commands in order, so whatever this process reads or writes
            # next comes after the subscription. (nats-py loses the connection when a flush is cancelled.)
            subscription = await self._nc.subscribe(prefix + key, cb=on_message)
        try:
            yield
        finally:
            if self._nc.is_connected:
                await subscription.unsubscribe()
