"""What the SDK's suite shares: a scripted HTTP server, both kinds of client, and hypothesis without stopwatches."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from hypothesis import HealthCheck, settings

from sie_sdk import SIEAsyncClient, SIEClient
from tests.sdk.scripted_server import ScriptedServer

# A busy machine is not a failing test.
settings.register_profile("untimed", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("untimed")


@pytest.fixture
def server() -> Iterator[ScriptedServer]:
    with ScriptedServer() as running:
        yield running


@pytest.fixture(params=[SIEClient, SIEAsyncClient], ids=["sync", "async"])
def call(request: pytest.FixtureRequest, server: ScriptedServer) -> Iterator[Callable[..., Any]]:
    """``call("encode", ...)`` on a client of either kind, so that one test holds for both."""
    if request.param is SIEClient:
        with SIEClient(server.url) as client:
            yield lambda method, *args, **keywords: getattr(client, method)(*args, **keywords)
        return
    with asyncio.Runner() as runner:
        awaited = SIEAsyncClient(server.url)

        async def run(method: str, *args: Any, **keywords: Any) -> Any:
            return await getattr(awaited, method)(*args, **keywords)

        yield lambda method, *args, **keywords: runner.run(run(method, *args, **keywords))
        runner.run(awaited.close())
