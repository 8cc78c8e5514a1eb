"""Demand sessions against a real HTTP server: how many, what they say, and how they come back."""

from __future__ import annotations

import socket
import time
from collections.abc import AsyncIterator
from datetime import datetime

import httpx
import pytest

from sie_broker.demand.sessions import COLD_S, Ended, Sessions, check, is_unknown, pause_s
from sie_broker.demand.supply import Answer
from sie_broker.records import Lane
from sie_sdk.errors import ConfigurationError
from tests.broker.http_double import SessionServer
from tests.conftest import eventually

LANE = Lane(pool="default", bundle="minilm", profile="cpu")
OTHER = Lane(pool="eu west", bundle="minilm", profile="cpu")
PATH = "/{bundle}.{profile}.{pool}"


@pytest.fixture
async def server() -> AsyncIterator[SessionServer]:
    server = SessionServer()
    async with server.running():
        yield server


@pytest.fixture
async def sessions(server: SessionServer) -> AsyncIterator[Sessions]:
    async with Sessions(server.url + PATH, session_s=60) as sessions:
        yield sessions


async def test_exactly_the_asked_number_is_open(server: SessionServer, sessions: Sessions) -> None:
    for count in (1, 5, 3, 0, 1):
        sessions.hold(LANE, count)
        await eventually(lambda count=count: server.open == count)  # type: ignore[misc]
    assert server.most_open == 5


async def test_a_session_is_a_cloudevent_without_a_payload(server: SessionServer, sessions: Sessions) -> None:
    sessions.hold(LANE, 3)
    await eventually(lambda: server.open == 3)
    headers = server.headers[0]
    assert headers["ce-type"] == "dev.sie.work.available.v1"
    assert headers["ce-specversion"] == "1.0"
    assert headers["ce-source"] == "/broker/demand"
    assert headers["ce-subject"] == "default/minilm/cpu"
    assert headers["content-length"] == "0"
    assert headers["ce-holduntil"].endswith("Z")
    until = datetime.fromisoformat(headers["ce-holduntil"]).timestamp()
    assert 45 < until - time.time() < 73
    assert len({each["ce-id"] for each in server.headers}) == 3


async def test_each_lane_has_its_own_address(server: SessionServer, sessions: Sessions) -> None:
    sessions.hold(LANE, 1)
    sessions.hold(OTHER, 1)
    await eventually(lambda: server.open == 2)
    assert sorted(server.paths) == ["/minilm.cpu.default", "/minilm.cpu.eu%20west"]


async def test_a_session_that_ends_is_followed_by_the_next_without_overlap(server: SessionServer) -> None:
    async with Sessions(server.url + PATH, session_s=0.02) as sessions:
        sessions.hold(LANE, 1)
        for renewed in range(3):
            await eventually(lambda renewed=renewed: len(server.headers) > renewed)  # type: ignore[misc]
            server.end.set()
            await eventually(lambda: server.open == 0)
            server.end.clear()
        await eventually(lambda: len(server.headers) >= 4)
        assert server.most_open == 1


@pytest.mark.parametrize("status", [504, 503, 404])
async def test_a_session_comes_back_after_an_error(server: SessionServer, sessions: Sessions, status: int) -> None:
    server.answers = [status]
    sessions.hold(LANE, 1)
    await eventually(lambda: server.open == 1)
    assert len(server.headers) == 2


async def test_a_bundle_that_answers_at_once_is_not_called_in_a_circle(
    server: SessionServer, sessions: Sessions
) -> None:
    server.answers = [200, 200]
    started = time.monotonic()
    sessions.hold(LANE, 1)
    await eventually(lambda: server.open == 1)
    assert time.monotonic() - started > 0.4


async def test_sessions_open_as_soon_as_somebody_listens() -> None:
    server = SessionServer()
    async with server.running() as url:
        pass
    async with Sessions(url + PATH, session_s=60) as sessions:
        sessions.hold(LANE, 1)  # refused
        port = int(url.rsplit(":", 1)[1])
        async with server.running(port):
            await eventually(lambda: server.open == 1)


async def test_how_a_service_answers_is_known_until_a_worker_does(server: SessionServer, sessions: Sessions) -> None:
    server.answers = [404]
    sessions.hold(LANE, 1)
    await eventually(lambda: server.open == 1)
    assert (sessions.answer(LANE), sessions.answer(OTHER)) == (Answer("HTTP 404 {}", unknown=True), Answer())
    server.end.set()
    await eventually(lambda: sessions.answer(LANE) == Answer())


async def test_a_server_that_is_away_is_no_reason_to_think_that_there_is_none() -> None:
    async with Sessions("http://127.0.0.1:1/", session_s=60) as sessions:
        sessions.hold(LANE, 1)
        await eventually(lambda: sessions.answer(LANE).words != "")
        assert not sessions.answer(LANE).unknown


@pytest.mark.parametrize(
    ("reason", "unknown"), [(socket.EAI_NONAME, True), (socket.EAI_NODATA, True), (socket.EAI_AGAIN, False)]
)
def test_a_name_that_nobody_has_is_no_service(reason: int, unknown: bool) -> None:
    failed = httpx.ConnectError("No.")
    failed.__cause__ = httpx.ConnectError("No.")
    failed.__cause__.__context__ = socket.gaierror(reason, "Name or service not known")
    assert is_unknown(failed) == unknown


async def test_sessions_of_a_service_without_a_worker_are_short(server: SessionServer, sessions: Sessions) -> None:
    sessions.cold({LANE})
    sessions.hold(LANE, 1)
    sessions.hold(OTHER, 1)
    await eventually(lambda: server.open == 2)
    now = time.time()
    ends = {headers["ce-subject"]: datetime.fromisoformat(headers["ce-holduntil"]) for headers in server.headers}
    assert ends["default/minilm/cpu"].timestamp() - now <= 1.2 * COLD_S
    assert ends["eu%20west/minilm/cpu"].timestamp() - now > 1.2 * COLD_S


@pytest.mark.parametrize(
    "template", ["http://{bundle}.ns:8o80/", "http://{bundle}-{zone}.ns/"], ids=["a port", "a placeholder"]
)
async def test_a_session_without_an_address_is_told_of_and_tried_again(
    template: str, caplog: pytest.LogCaptureFixture
) -> None:
    async with Sessions(template, session_s=60) as sessions:
        sessions.hold(LANE, 1)
        await eventually(lambda: sessions.answer(LANE).words != "")
        (slot,) = sessions._slots[LANE]
        assert not slot.done()
    assert "cannot be opened" in caplog.text


@pytest.mark.parametrize(
    "template",
    [
        "http://{bundle}.ns:8o80/",
        "http://{bundle}-{zone}.ns/",
        "http://{bundle}-{}.ns/",
        "{bundle}.ns/",
        "http://{",
        "",
    ],
)
def test_a_template_of_which_no_address_can_be_made_is_refused_by_its_setting(template: str) -> None:
    with pytest.raises(ConfigurationError, match="SIE_DEMAND_URL") as refused:
        check(template)
    assert refused.value.field == "SIE_DEMAND_URL"


@pytest.mark.parametrize("template", ["http://{bundle}-{profile}.sie.svc.cluster.local", "https://x:1/{pool}"])
def test_any_other_template_is_taken(template: str) -> None:
    check(template)


async def test_closing_leaves_no_session_open(server: SessionServer) -> None:
    async with Sessions(server.url + PATH, session_s=60) as sessions:
        sessions.hold(LANE, 3)
        await eventually(lambda: server.open == 3)
    await eventually(lambda: server.open == 0)


def test_backoff_grows_from_a_fifth_of_a_second_to_five() -> None:
    pauses = [pause_s(Ended.BROKEN, failures) for failures in range(10)]
    assert 0.16 <= pauses[0] <= 0.2
    assert all(4.0 <= pause <= 5.0 for pause in pauses[5:])
    assert pause_s(Ended.NORMALLY, 9) == 0.0
    assert 0.0 <= pause_s(Ended.WAITING, 9) <= 1.0
