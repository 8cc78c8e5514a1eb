"""One client's life: where it goes, who may share it, what ends its calls, and its own end."""

from __future__ import annotations

import asyncio
import contextlib
import gzip
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from sie_sdk import (
    CancelledByCallerError,
    ConfigurationError,
    ConnectionFailedError,
    DeadlineExceededError,
    JobStatus,
    Progress,
    SIEAsyncClient,
    SIEClient,
    UnexpectedReplyError,
    transport,
)
from sie_sdk.connections import Connections
from tests.conftest import eventually
from tests.sdk.conftest import waiting_for_bytes
from tests.sdk.scripted_server import Answer, Asked, ScriptedServer, Silent, accepted, computed, vectors

Caller = Callable[..., Any]


def test_the_environment_says_where_and_who(server: ScriptedServer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SIE_BASE_URL", f"{server.url}/prefix/")
    monkeypatch.setenv("SIE_API_KEY", "secret")
    server.script = [vectors()]
    with SIEClient() as client:
        assert client.base_url == f"{server.url}/prefix"
        client.encode("m", "a")
    assert server.asked[0].path == "/prefix/v1/encode/m"
    assert server.asked[0].headers["authorization"] == "Bearer secret"


def test_a_url_without_a_scheme_is_refused_at_once() -> None:
    with pytest.raises(ConfigurationError, match="Write http://localhost:8080"):
        SIEClient("localhost:8080")


def test_nobody_listening_is_a_connection_error() -> None:
    with SIEClient("http://127.0.0.1:1") as client, pytest.raises(ConnectionFailedError, match="sie up") as caught:
        client.encode("m", "a", wait_for_capacity=False)
    assert caught.value.request_id


def test_a_client_shows_where_it_goes_and_not_its_key() -> None:
    assert repr(SIEClient("http://here:1/", api_key="secret")) == "SIEClient('http://here:1')"


def test_a_closed_client_says_so(server: ScriptedServer) -> None:
    client = SIEClient(server.url)
    client.close()
    with pytest.raises(ConfigurationError, match="closed"):
        client.list_models()


def test_a_client_of_the_callers_own_stays_open(server: ScriptedServer) -> None:
    import httpx

    server.script = [vectors()]
    with httpx.Client() as own:
        with SIEClient(server.url, http_client=own) as client:
            client.encode("m", "a")
        assert not own.is_closed


@pytest.mark.parametrize("kind", [SIEClient, SIEAsyncClient])
@pytest.mark.parametrize("cancel", [None, threading.Event()], ids=["no cancel", "cancel"])
@pytest.mark.parametrize("items", ["a", ["a"] * 600], ids=["one", "many"])
async def test_closing_a_client_ends_the_calls_that_wait_for_their_replies(
    kind: type[Any], cancel: threading.Event | None, items: Any, server: ScriptedServer
) -> None:
    silent, count = Silent(), 1 if items == "a" else 3
    server.computes = silent
    client = kind(server.url)
    if kind is SIEClient:
        call = asyncio.create_task(asyncio.to_thread(client.encode, "m", items, cancel=cancel))
    else:
        call = asyncio.create_task(client.encode("m", items, cancel=cancel))
    try:
        await eventually(lambda: len(server.asked) == count)
        await eventually(lambda: waiting_for_bytes() == (count if kind is SIEClient else 0))
        if (closing := client.close()) is not None:
            await closing
        async with asyncio.timeout(30):
            with pytest.raises(ConfigurationError, match="This client is closed"):
                await call
        await eventually(lambda: not [one for one in threading.enumerate() if one.name.startswith("sie-")])
    finally:
        silent.left.set()
    assert len(server.asked) == count, "none is sent again"


def test_closing_a_client_leaves_what_is_under_way_to_an_http_client_of_the_callers_own(server: ScriptedServer) -> None:
    import httpx

    server.computes = silent = Silent()
    with ThreadPoolExecutor(1) as threads, httpx.Client() as own:
        client = SIEClient(server.url, http_client=own)
        call = threads.submit(client.encode, "m", "a")
        assert silent.came.wait(30)
        client.close()
        silent.left.set()
        assert call.result(30).dense is not None


def test_threads_may_share_a_client(server: ScriptedServer) -> None:
    server.computes = computed
    sizes: list[int] = []
    with SIEClient(server.url, max_connections=4) as client:

        def work() -> None:
            result = client.encode("m", "1")
            assert result.dense is not None
            sizes.append(result.dense.size)

        threads = [threading.Thread(target=work) for _ in range(16)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert sizes == [2] * 16


def test_of_threads_that_race_to_the_first_call_one_opens_the_connections(
    server: ScriptedServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    server.script = [vectors() for _ in range(8)]
    made: list[Connections] = []
    ready, make = threading.Barrier(8), Connections.__init__

    def counted(self: Connections, *limits: Any) -> None:
        made.append(self)
        make(self, *limits)

    monkeypatch.setattr(Connections, "__init__", counted)
    with SIEClient(server.url) as client, ThreadPoolExecutor(8) as threads:

        def call() -> Any:
            ready.wait(30)
            return client.encode("m", "a")

        calls = [threads.submit(call) for _ in range(8)]
        assert all(call.result(30).dense is not None for call in calls)
    assert len(made) == 1


FORK = """
import os, sys
from sie_sdk import SIEClient
client = SIEClient(sys.argv[1])
client.encode("m", "a")
child = os.fork()
client.encode("m", "a")
if child:
    sys.exit(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
"""


def test_a_forked_child_opens_connections_of_its_own(server: ScriptedServer) -> None:
    server.script = [vectors() for _ in range(3)]
    subprocess.run([sys.executable, "-c", FORK, server.url], check=True, timeout=60)
    assert len(server.asked) == 3


def test_cancel_wakes_a_waiting_call(server: ScriptedServer, call: Caller) -> None:
    server.script = [accepted(JobStatus("j1"), Retry_After="100")]
    cancel = threading.Event()
    with pytest.raises(CancelledByCallerError, match="job j1"):
        call("encode", "m", "a", cancel=cancel, progress=lambda _: cancel.set())


@pytest.mark.parametrize("items", ["a", ["a"] * 600])
def test_cancel_ends_a_call_whose_request_is_not_answered(call_of_silent: Caller, items: Any) -> None:
    cancel = threading.Event()
    timer = threading.Timer(0.1, cancel.set)
    timer.start()
    began = time.monotonic()
    with pytest.raises(CancelledByCallerError):
        call_of_silent("encode", "m", items, cancel=cancel)
    assert time.monotonic() - began < 5.0, "the request itself may take 150 s"
    timer.join()


@pytest.fixture
def call_of_silent(request: pytest.FixtureRequest, finished: Caller) -> Iterator[Caller]:
    """``call`` of a server that accepts connections and says nothing."""
    with socket.create_server(("127.0.0.1", 0)) as silent:
        made = request.node.callspec.params["finished"](f"http://127.0.0.1:{silent.getsockname()[1]}")
        yield lambda method, *args, **keywords: finished(getattr(made, method)(*args, **keywords))
        finished(made.close())


def test_a_server_that_says_nothing_of_a_job_is_given_up_at_the_deadline(server: ScriptedServer, call: Caller) -> None:
    left, began = threading.Event(), time.monotonic()

    def falls_silent(asked: Asked) -> Answer:
        if asked.method == "GET":
            left.wait(30)
        return accepted(JobStatus("j1"))

    server.computes = falls_silent
    with pytest.raises(DeadlineExceededError, match=r"did not answer in time.* stays queued as job j1") as caught:
        call("encode", "m", "a", deadline_s=0.5)
    assert (caught.value.field, caught.value.details["job"]) == ("deadline_s", "j1")
    assert time.monotonic() - began < 5.0, "a look may take 10 s more than its hold"
    left.set()


def test_a_reply_that_comes_in_drops_ends_at_the_deadline(finished: Caller, request: pytest.FixtureRequest) -> None:
    drops, ended = 0, threading.Event()

    def drip(listening: socket.socket) -> None:
        nonlocal drops
        near, _ = listening.accept()
        with near, contextlib.suppress(OSError):
            near.recv(65536)
            near.sendall(b"HTTP/1.1 200 OK\r\nContent-Type: application/msgpack\r\nContent-Length: 1000\r\n\r\n")
            while drops < 1000 and not ended.wait(0.02):
                near.sendall(b"x")
                drops += 1

    with socket.create_server(("127.0.0.1", 0)) as listening, ThreadPoolExecutor(1) as threads:
        dripping = threads.submit(drip, listening)
        client = request.node.callspec.params["finished"](f"http://127.0.0.1:{listening.getsockname()[1]}")
        try:
            with pytest.raises(DeadlineExceededError, match="did not answer in time"):
                finished(client.encode("m", "a", deadline_s=0.5))
            finished(client.close())
            dripping.result(60)
        finally:
            ended.set()
    assert drops < 1000


def test_a_reply_that_unpacks_to_more_than_any_is_not_read_to_its_end(
    server: ScriptedServer, call: Caller, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(transport, "MAX_REPLY_BYTES", 1 << 20)
    packed = gzip.compress(bytes(8 << 20))
    server.script = [Answer(200, packed, {"Content-Type": "application/msgpack", "Content-Encoding": "gzip"})]
    with pytest.raises(UnexpectedReplyError, match="larger than 1048576 bytes") as caught:
        call("encode", "m", "a")
    assert (caught.value.limit, caught.value.details) == (1 << 20, {"http_status": 200})
    assert caught.value.request_id


def test_an_exception_of_the_progress_callback_ends_the_call(server: ScriptedServer, call: Caller) -> None:
    server.script = [accepted(JobStatus("j1"), Retry_After="100")]

    def stop(_: Progress) -> None:
        raise KeyError("enough")

    with pytest.raises(KeyError, match="enough"):
        call("encode", "m", "a", progress=stop)


LOOPS = """
import asyncio, sys
from sie_sdk import SIEAsyncClient
client = SIEAsyncClient(sys.argv[1])
async def work():
    return len(await client.encode("m", ["1"] * 600)) + len(await client.encode("m", ["1"]))
assert [asyncio.run(work()) for _ in range(3)] == [601] * 3
assert len(client._lines) == 1, "those of loops that have ended are let go"
asyncio.run(client.close())
"""


def test_each_event_loop_has_connections_of_its_own(server: ScriptedServer) -> None:
    server.computes = computed
    subprocess.run([sys.executable, "-c", LOOPS, server.url], check=True, timeout=60)


async def test_cancelling_the_task_ends_an_awaited_call(server: ScriptedServer) -> None:
    server.script = [accepted(JobStatus("j1"), Retry_After="100")]
    async with SIEAsyncClient(server.url) as awaited:
        waiting = asyncio.Event()
        call = awaited.encode("m", "a", progress=lambda _: waiting.set())
        task = asyncio.create_task(call)
        await waiting.wait()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task


def test_the_machines_that_a_client_asks_for_are_told_with_every_request(server: ScriptedServer) -> None:
    server.script = [vectors(), vectors()]
    with SIEClient(server.url, machine_profile="l4") as client:
        client.encode("m", "hello")
    with SIEClient(server.url) as client:
        client.encode("m", "hello")
    assert [each.headers.get("x-sie-machine-profile") for each in server.asked] == ["l4", None]
