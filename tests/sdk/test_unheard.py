"""What the log hears of a server that is not there, where nobody listens to the call."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

import pytest

from sie_sdk import ConnectionFailedError, DeadlineExceededError, Progress
from sie_sdk.chunks import ITEMS
from tests.sdk.scripted_server import ScriptedServer, computed

Caller = Callable[..., Any]
MANY = ["1"] * (3 * ITEMS)


@pytest.fixture
def nowhere(finished: Caller, request: pytest.FixtureRequest) -> Any:
    """A client of either kind whose server nobody has started."""
    return request.node.callspec.params["finished"]("http://127.0.0.1:1")


@pytest.fixture
def all_of(finished: Caller) -> Caller:
    async def awaited(stream: Any) -> list[Any]:
        return [each async for each in stream]

    return lambda stream: finished(awaited(stream)) if hasattr(stream, "__aiter__") else [*stream]


@pytest.mark.parametrize(
    "ask",
    [
        lambda client, all_of, finished: finished(client.encode("m", "a", deadline_s=0.2)),
        lambda client, all_of, finished: finished(client.encode("m", MANY, deadline_s=0.2)),
        lambda client, all_of, finished: all_of(client.encode_stream("m", MANY, deadline_s=0.2)),
        lambda client, all_of, finished: finished(client.submit("encode", "m", "a", deadline_s=0.2)),
        lambda client, all_of, finished: finished(client.extract("m", "a", labels=["b"], deadline_s=0.2)),
    ],
    ids=["one", "many", "stream", "job", "extract"],
)
def test_a_call_that_waits_for_a_server_that_is_not_there_warns_once_and_says_at_the_end_what_to_check(
    nowhere: Any, all_of: Caller, finished: Caller, caplog: pytest.LogCaptureFixture, ask: Caller
) -> None:
    with caplog.at_level(logging.WARNING), pytest.raises(DeadlineExceededError) as caught:
        ask(nowhere, all_of, finished)
    (said,) = [record for record in caplog.records if record.name.startswith("sie.sdk")]
    assert said.levelno == logging.WARNING
    assert "Could not reach http://127.0.0.1:1" in said.getMessage() and "deadline_s" in said.getMessage()
    assert caught.value.hint == "Check that the server runs there (`sie up` starts one on this machine)."


def test_a_call_with_a_listener_tells_that_alone(
    nowhere: Any, finished: Caller, caplog: pytest.LogCaptureFixture
) -> None:
    told: list[Progress] = []
    with pytest.raises(DeadlineExceededError):
        finished(nowhere.encode("m", "a", deadline_s=0.2, progress=told.append))
    assert [one.state for one in told] == ["unreachable"]
    assert not caplog.records


def test_a_call_that_does_not_wait_raises_and_logs_nothing(
    nowhere: Any, finished: Caller, caplog: pytest.LogCaptureFixture
) -> None:
    with pytest.raises(ConnectionFailedError):
        finished(nowhere.encode("m", "a", wait_for_capacity=False))
    assert not caplog.records


def test_a_server_that_answers_is_nothing_to_log(
    server: ScriptedServer, client: Any, finished: Caller, caplog: pytest.LogCaptureFixture
) -> None:
    server.computes = computed
    assert len(finished(client.encode("m", MANY))) == len(MANY)
    assert not [record for record in caplog.records if record.name.startswith("sie.sdk")]
