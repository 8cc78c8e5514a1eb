"""Watching over real sockets: frames come, are made once for all, wait for nobody, and end when the server leaves."""

from __future__ import annotations

import asyncio
import json
import socket
from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import Any

import httpx
import msgspec
import pytest
from starlette.applications import Starlette
from websockets.asyncio.client import connect
from websockets.exceptions import ConnectionClosedOK, InvalidStatus

from sie_broker import process
from sie_config.registry import Registry
from sie_ingress import cluster, watch
from sie_ingress.cluster import Cluster
from sie_ingress.watch import Frames, Watch
from sie_ingress.worker_status import Status
from tests.conftest import eventually
from tests.ingress.conftest import SPEC, SPECS, Desk

REGISTRY = Registry(SPECS)


class Stage:
    """A server with the two routes alone, whose clock is the count of frames made."""

    def __init__(self, padding: int = 0) -> None:
        self.made = 0
        self.padding = "x" * padding
        self.watch = Watch(REGISTRY, self.seen, lambda: True)
        self.app = Starlette(routes=self.watch.routes())
        self.port = 0

    def seen(self) -> Cluster:
        self.made += 1
        told = cluster.seen(REGISTRY, [], [], 0.0, float(self.made))
        return msgspec.structs.replace(told, status=told.status + self.padding)

    def url(self, path: str = "/ws/status") -> str:
        return f"ws://127.0.0.1:{self.port}{path}"


@asynccontextmanager
async def staged(padding: int = 0) -> AsyncIterator[Stage]:
    stage = Stage(padding)
    async with process.serving(stage.app, "127.0.0.1", 0, drain_s=1, websockets=True) as port:
        stage.port = port
        yield stage


def serving(desk: Desk) -> AbstractAsyncContextManager[int]:
    return process.serving(desk.ingress, "127.0.0.1", 0, drain_s=1, websockets=True)


async def test_a_frame_of_the_cluster_is_what_health_says_and_comes_at_once(desk: Desk) -> None:
    async with serving(desk) as port:
        async with desk.worker(), connect(f"ws://127.0.0.1:{port}/ws/cluster-status") as socket:
            frame = json.loads(await socket.recv())
            told = msgspec.convert(frame, type=Cluster)
            health = msgspec.convert((await desk.client.get("/health")).json(), type=Cluster)
        assert told.timestamp <= health.timestamp
        same = {"timestamp": 0.0, "cluster": health.cluster}
        assert [worker.name for worker in told.workers] == [worker.name for worker in health.workers]
        assert msgspec.structs.replace(told, **same, workers=[]) == msgspec.structs.replace(health, **same, workers=[])


async def test_a_frame_of_a_worker_is_the_whole_server_as_one(desk: Desk) -> None:
    async with serving(desk) as port, desk.worker(), connect(f"ws://127.0.0.1:{port}/ws/status") as socket:
        first, second = [msgspec.json.decode(await socket.recv(), type=Status) for _ in range(2)]
    assert first.timestamp < second.timestamp
    assert (second.machine_profile, second.bundle) == ("cpu", "default")
    assert SPEC.id in [model.name for model in second.models]


async def test_a_frame_is_made_once_however_many_watch() -> None:
    async with staged() as stage:
        sockets = [await connect(stage.url()) for _ in range(20)]
        frames = await asyncio.gather(*(socket.recv() for socket in sockets))
        assert len(frames) == 20 and stage.made <= 3
        for socket in sockets:
            await socket.close()


def test_a_frame_serves_all_who_ask_until_it_is_as_old_as_it_may_get() -> None:
    times, made = iter((0.0, 0.5, 0.89, 0.95, 1.5, 1.94, 10.0)), 0

    def make() -> int:
        nonlocal made
        made += 1
        return made

    frames = Frames(make, 1.0, lambda: next(times))
    told = [frames.newest() for _ in range(7)]
    assert told == ["1", "1", "1", "2", "2", "3", "4"]


async def test_who_watches_no_longer_is_forgotten_and_nothing_is_made_for_nobody() -> None:
    async with staged() as stage:
        async with connect(stage.url()) as socket:
            await socket.recv()
            await socket.send("nobody listens to this")
            await socket.recv()
        await eventually(lambda: not stage.watch._watchers)
        made = stage.made
        async with connect(stage.url("/ws/cluster-status")) as socket:
            await socket.recv()
        assert stage.made == made + 1


async def test_who_does_not_read_keeps_nobody_waiting_is_sent_no_backlog_and_is_let_go(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(watch, "SEND_S", 0.5)
    monkeypatch.setattr(watch, "CLUSTER_S", 0.05)
    async with staged(padding=4_000_000) as stage:
        with await _handshake(stage.port):
            await eventually(lambda: len(stage.watch._watchers) == 1)
            async with connect(stage.url("/ws/cluster-status"), max_size=None) as eager:
                numbers = [json.loads(await eager.recv())["timestamp"] for _ in range(5)]
                assert numbers == sorted(set(numbers))
                await eventually(lambda: len(stage.watch._watchers) == 1)  # the lazy one has been let go


async def _handshake(port: int) -> socket.socket:
    """A watcher that asks, and then reads nothing."""
    lazy = socket.socket()
    lazy.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    lazy.connect(("127.0.0.1", port))
    lazy.sendall(
        b"GET /ws/cluster-status HTTP/1.1\r\nHost: x\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
        b"Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\nSec-WebSocket-Version: 13\r\n\r\n"
    )
    return lazy


async def test_watchers_are_told_that_the_server_goes_away_and_later_ones_are_refused() -> None:
    async with staged() as stage, connect(stage.url()) as socket:
        await socket.recv()
        await stage.watch.leave()
        with pytest.raises(ConnectionClosedOK) as closed:
            while True:
                await socket.recv()
        assert closed.value.rcvd is not None and closed.value.rcvd.code == watch.GOING_AWAY
        with pytest.raises(InvalidStatus):
            await connect(stage.url())


async def test_more_watchers_than_there_may_be_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(watch, "MOST", 1)
    async with staged() as stage, connect(stage.url()) as socket:
        await socket.recv()
        with pytest.raises(InvalidStatus) as refused:
            await connect(stage.url())
        assert refused.value.response.status_code == 403


@pytest.mark.parametrize("path", ["/", "/ws", "/ws/nothing", "/health", "/v1/encode/org/counting-model"])
async def test_a_socket_to_any_other_path_is_refused(desk: Desk, path: str) -> None:
    async with serving(desk) as port:
        with pytest.raises(InvalidStatus) as refused:
            await connect(f"ws://127.0.0.1:{port}{path}")
        assert refused.value.response.status_code == 403


async def test_a_plain_request_for_frames_finds_nothing_and_a_flood_of_words_ends_the_connection(desk: Desk) -> None:
    assert (await desk.client.get("/ws/status")).status_code == 404
    async with serving(desk) as port, connect(f"ws://127.0.0.1:{port}/ws/cluster-status") as socket:
        await socket.send("x" * 100_000)
        await socket.wait_closed()
        assert socket.close_code == 1009


async def test_requests_are_answered_on_the_connections_beside_as_ever(desk: Desk) -> None:
    async with serving(desk) as port:
        body: dict[str, Any] = {"items": [{"text": "abc"}]}
        async with desk.worker(), connect(f"ws://127.0.0.1:{port}/ws/status") as socket:
            async with httpx.AsyncClient(base_url=f"http://127.0.0.1:{port}") as client:
                answers = [await client.post(f"/v1/encode/{SPEC.id}", json=body) for _ in range(3)]
            await socket.recv()
    assert [answer.status_code for answer in answers] == [200] * 3
