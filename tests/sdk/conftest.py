"""What the SDK's suite shares: a scripted HTTP server and both kinds of client."""

from __future__ import annotations

import asyncio
import inspect
import sys
from collections.abc import Callable, Iterator
from types import FrameType
from typing import Any

import pytest

from sie_sdk import SIEAsyncClient, SIEClient
from tests.sdk.scripted_server import ScriptedServer


@pytest.fixture
def server() -> Iterator[ScriptedServer]:
    with ScriptedServer() as running:
        yield running


@pytest.fixture(params=[SIEClient, SIEAsyncClient], ids=["sync", "async"])
def finished(request: pytest.FixtureRequest) -> Iterator[Callable[[Any], Any]]:
    """``finished(client.encode(...))``: the result of either client, whether it is there or is to be awaited."""
    if request.param is SIEClient:
        yield lambda result: result
        return
    with asyncio.Runner() as runner:
        yield lambda result: runner.run(_awaited(result)) if inspect.isawaitable(result) else result


@pytest.fixture
def client(finished: Callable[[Any], Any], request: pytest.FixtureRequest, server: ScriptedServer) -> Iterator[Any]:
    """A client of the kind that ``finished`` is for."""
    made = request.node.callspec.params["finished"](server.url)
    yield made
    finished(made.close())


@pytest.fixture
def call(client: Any, finished: Callable[[Any], Any]) -> Callable[..., Any]:
    """``call("encode", ...)`` on a client of either kind, so that one test holds for both."""
    return lambda method, *args, **keywords: finished(getattr(client, method)(*args, **keywords))


def waiting_for_bytes() -> int:
    """How many threads wait for the bytes of a reply to a blocking client."""
    count = 0
    for top in sys._current_frames().values():
        frame: FrameType | None = top
        while frame is not None:
            code = frame.f_code
            if code.co_name == "read" and code.co_filename.endswith("httpcore/_backends/sync.py"):
                count += 1
                break
            frame = frame.f_back
    return count


async def _awaited(result: Any) -> Any:
    return await result
