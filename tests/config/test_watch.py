"""``GET /v1/configs/watch``: server-sent events over a real server, and what a watcher that comes back is sent."""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import NamedTuple

import httpx
import msgspec
from starlette.applications import Starlette

from sie_broker import process
from sie_broker.contract import Broker
from sie_config.api.auth import Access
from sie_config.api.watch import BEHIND, Watch
from sie_config.epochs import changed_event, store
from sie_config.epochs.mirror import Mirror
from sie_config.epochs.writer import Writer
from sie_config.registry import Registry
from tests.config.test_writer import put
from tests.config.writing import writing
from tests.conftest import eventually
from tests.ingress.conftest import SPEC

OTHER = msgspec.structs.replace(SPEC, id="org/other")


class Told(NamedTuple):
    kind: str
    id: str
    data: dict[str, object]


class Watcher:
    """A client that reads the stream and keeps what it is told."""

    def __init__(self) -> None:
        self.told: list[Told] = []
        self.connected = False
        self.ended = False
        self._text = ""

    @asynccontextmanager
    async def on(self, url: str, last: str = "") -> AsyncIterator[Watcher]:
        headers = {"last-event-id": last} if last else {}
        async with httpx.AsyncClient(timeout=30) as http, http.stream("GET", url, headers=headers) as response:
            assert response.headers["content-type"].startswith("text/event-stream")
            reading = asyncio.create_task(self._read(response))
            await eventually(lambda: self.connected)
            yield self
            reading.cancel()
            await asyncio.gather(reading, return_exceptions=True)

    async def _read(self, response: httpx.Response) -> None:
        async for text in response.aiter_text():
            self.connected = True
            self._text += text
            *whole, self._text = self._text.split("\n\n")
            for block in whole:
                fields = dict(re.findall(r"(?m)^(event|id|data): (.*)$", block))
                if fields:
                    self.told.append(Told(fields["event"], fields["id"], msgspec.json.decode(fields["data"])))
        self.ended = True


def watching(mirror: Mirror) -> Watch:
    watch = Watch(lambda: mirror.state, Access())
    watch.follow(mirror)
    return watch


@asynccontextmanager
async def watched(broker: Broker) -> AsyncIterator[tuple[Writer, Watch, str]]:
    async with writing(broker, SPEC) as writer:
        watch = watching(writer._mirror)
        async with process.serving(Starlette(routes=watch.routes()), "127.0.0.1", 0, drain_s=1) as port:
            yield writer, watch, f"http://127.0.0.1:{port}/v1/configs/watch"
            watch.leave()


async def test_a_watcher_is_told_of_each_write_as_it_is_made(broker: Broker) -> None:
    async with watched(broker) as (writer, _, url), Watcher().on(url) as watcher:
        await put(writer, OTHER)
        await put(writer, gone=(OTHER.id,))
        await eventually(lambda: len(watcher.told) == 2)
    assert [(each.kind, each.id) for each in watcher.told] == [("config.changed", "2"), ("config.changed", "3")]
    event = watcher.told[0].data
    assert event["type"] == changed_event.TYPE and event["id"] == "2"


async def test_a_watcher_that_comes_back_is_told_what_it_missed(broker: Broker) -> None:
    async with watched(broker) as (writer, _, url):
        for length in (5, 6, 7):
            await put(writer, msgspec.structs.replace(SPEC, max_sequence_length=length))
        async with Watcher().on(url, last="2") as watcher:
            await eventually(lambda: [each.id for each in watcher.told] == ["3", "4"])
        async with Watcher().on(url, last="4") as watcher:
            await put(writer, OTHER)
            await eventually(lambda: [each.id for each in watcher.told] == ["5"])
        # What was before this process began is remembered by nobody: it reads the export.
        async with Watcher().on(url, last="0") as watcher:
            await eventually(lambda: [each.kind for each in watcher.told] == ["config.reset"])
            assert watcher.told[0].id == "5"


async def test_what_is_written_while_a_watcher_is_sent_what_it_missed_comes_after_that(broker: Broker) -> None:
    async with writing(broker, SPEC) as writer:
        watch = watching(writer._mirror)
        await put(writer, OTHER)
        stream = watch._stream(1)
        sent = [await anext(stream)]  # the greeting, to a client that takes its time
        await put(writer, gone=(OTHER.id,))
        sent += [await anext(stream), await anext(stream)]
        assert [re.findall(rb"(?m)^id: (.*)$", each) for each in sent] == [[], [b"2"], [b"3"]]
        await stream.aclose()  # type: ignore[attr-defined]
        assert not watch._watchers


async def test_a_last_event_id_that_is_none_is_refused_by_name(broker: Broker) -> None:
    async with watched(broker) as (_, watch, _):
        from starlette.requests import Request

        from sie_sdk.errors import InvalidInputError

        request = Request({"type": "http", "headers": [(b"last-event-id", b"x")]})
        try:
            await watch.serve(request)
        except InvalidInputError as error:
            assert error.field == "Last-Event-ID"
        else:
            raise AssertionError


async def test_a_watcher_that_is_too_slow_is_let_go_and_keeps_nobody_waiting(broker: Broker) -> None:
    async with writing(broker, SPEC) as writer:
        watch = watching(writer._mirror)
        slow = watch._stream(None)
        await anext(slow)  # the greeting; from now on it reads nothing
        waiting = asyncio.ensure_future(anext(slow))
        await asyncio.sleep(0)
        await put(writer, OTHER)
        assert b"config.changed" in await waiting
        event = store.Event(9, 0.0, "", "put", ())
        for _ in range(BEHIND + 1):
            watch.heard(event)
        assert not watch._watchers
        rest = [message async for message in slow]
        assert rest == []


async def test_a_stream_ends_when_the_server_leaves(broker: Broker) -> None:
    async with watched(broker) as (_, watch, url), Watcher().on(url) as watcher:
        watch.leave()
        await eventually(lambda: watcher.ended)


async def test_who_missed_writes_says_so_to_its_watchers(broker: Broker) -> None:
    async with writing(broker, SPEC) as writer:
        mirror = Mirror(broker.config, Registry())
        await mirror.snapshot()
        watch = watching(mirror)
        stream = watch._stream(None)
        await anext(stream)
        waiting = asyncio.ensure_future(anext(stream))
        await asyncio.sleep(0)
        await put(writer, OTHER)
        await broker.config.delete(store.event_key(2))
        await mirror.look()
        assert await waiting == b'event: config.reset\nid: 2\ndata: {"epoch":2}\n\n'
        await stream.aclose()  # type: ignore[attr-defined]
