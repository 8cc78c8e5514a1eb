"""Pools from the caller's side, for both clients: what is sent, what comes back, and a lease that ends cleanly."""

from __future__ import annotations

import asyncio
import json
import logging
import threading
import time
from collections.abc import Callable
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sie_sdk import (
    AssignedWorker,
    InvalidInputError,
    PoolForbiddenError,
    PoolInfo,
    PoolNotFoundError,
    PoolSpec,
    PoolStatus,
    SIEAsyncClient,
    SIEClient,
    UnexpectedReplyError,
    leases,
    refusals,
    wire,
)
from sie_sdk.errors import SIEError
from tests.conftest import eventually
from tests.platform import wait_until
from tests.sdk.scripted_server import Answer, Asked, ScriptedServer, json_answer, vectors

Caller = Callable[..., Any]
TEAM = PoolInfo(
    PoolSpec("team-a", {"cpu": 2}, minimum_worker_count=1),
    PoolStatus("active", [AssignedWorker("w-1", gpu="cpu", bundle="default")], 1.0, 2.0),
)
MADE = Answer(201, msgspec.json.encode(TEAM), {"Content-Type": wire.JSON})
DONE = json_answer({"message": "done"})


def refused(error: SIEError) -> Answer:
    """As the pools routes refuse: with a detail object too."""
    return Answer(error.status, refusals.error_body(error, detail=True), {"Content-Type": wire.JSON})


def asked(server: ScriptedServer) -> list[str]:
    return [f"{each.method} {each.path}" for each in server.asked]


# -- calls -------------------------------------------------------------------------------------------------------------


def test_a_pool_is_made_of_its_keywords(server: ScriptedServer, call: Caller) -> None:
    server.script = [MADE]
    made = call(
        "create_pool",
        "team-a",
        {"cpu": 2},
        gpu_caps={"cpu": 3},
        bundle="b",
        minimum_worker_count=1,
        ttl_s=60,
        pinned_models=("org/m",),
    )
    assert made == TEAM
    assert asked(server) == ["POST /v1/pools"]
    assert server.asked[0].headers["content-type"] == "application/json"
    assert json.loads(server.asked[0].body) == {
        "name": "team-a",
        "gpus": {"cpu": 2},
        "gpu_caps": {"cpu": 3},
        "bundle": "b",
        "queue_pool": "default",
        "ttl_seconds": 60,
        "minimum_worker_count": 1,
        "pinned_models": ["org/m"],
    }


def test_pools_are_listed_looked_at_renewed_and_deleted(server: ScriptedServer, call: Caller) -> None:
    server.script = [json_answer({"pools": [TEAM]}), json_answer(TEAM), DONE, DONE]
    assert call("list_pools") == [TEAM]
    assert call("get_pool", "team-a") == TEAM
    assert call("renew_pool", "team-a") is True
    assert call("delete_pool", "a/b") is True
    assert asked(server) == [
        "GET /v1/pools",
        "GET /v1/pools/team-a",
        "POST /v1/pools/team-a/renew",
        "DELETE /v1/pools/a%2Fb",
    ]


def test_a_pool_that_is_not_there_is_none_or_false(server: ScriptedServer, call: Caller) -> None:
    server.script = [refused(PoolNotFoundError("No pool.")) for _ in range(3)]
    assert call("get_pool", "x") is None
    assert call("renew_pool", "x") is False
    assert call("delete_pool", "x") is False


def test_other_refusals_are_raised_as_their_class(server: ScriptedServer, call: Caller) -> None:
    theirs = {"detail": {"code": "POOL_OPERATION_FORBIDDEN", "message": "Static pool"}}  # a published server's form
    server.script = [
        refused(PoolForbiddenError("There are 64 pools.", limit=64)),
        Answer(403, json.dumps(theirs).encode(), {"Content-Type": wire.JSON}),
        json_answer([1]),
    ]
    with pytest.raises(PoolForbiddenError, match="64 pools"):
        call("create_pool", "team-a", {"cpu": 1})
    with pytest.raises(PoolForbiddenError, match="Static pool"):
        call("delete_pool", "gold")
    with pytest.raises(UnexpectedReplyError, match="a pool"):
        call("list_pools")


def test_an_empty_name_is_refused_before_sending(call: Caller) -> None:
    for method in ("get_pool", "renew_pool", "delete_pool"):
        with pytest.raises(InvalidInputError):
            call(method, "")


def test_a_call_names_its_pool_or_takes_the_clients(server: ScriptedServer) -> None:
    server.script = [vectors() for _ in range(3)]
    with SIEClient(server.url) as client:
        client.encode("m", "a", pool="team-a")
    with SIEClient(server.url, pool="team-b") as client:
        client.encode("m", "a")
        client.encode("m", "a", pool="default")
    assert [each.headers.get("x-sie-pool") for each in server.asked] == ["team-a", "team-b", "default"]


# -- leases ------------------------------------------------------------------------------------------------------------


@given(st.floats(1.0, 3600.0), st.integers(0, 100))
def test_a_renewal_is_never_later_than_a_third_of_the_lease(ttl_s: float, failures: int) -> None:
    pause = leases.pause_s(ttl_s, failures)
    assert 0 < pause <= ttl_s / 3
    assert failures == 0 or pause <= leases.LONGEST_S


def test_a_renewal_that_failed_is_tried_again_sooner_until_one_succeeds(server: ScriptedServer) -> None:
    with SIEClient(server.url) as client:
        lease = client.pool("team-a", {"cpu": 2}, ttl_s=30)
        pauses = []
        for error in (None, SIEError("No."), SIEError("No."), None):
            lease._renewed(error)
            pauses.append(lease._pause_s())
    assert pauses == [10.0, 0.5, 1.0, 10.0]


def threads() -> list[str]:
    return [thread.name for thread in threading.enumerate() if thread.name.startswith("sie-pool")]


def tasks() -> list[str]:
    return [task.get_name() for task in asyncio.all_tasks() if task.get_name().startswith("sie-pool")]


def bodies(server: ScriptedServer, what: str) -> list[Asked]:
    return [each for each in server.asked if f"{each.method} {each.path}" == what]


RENEWED = "POST /v1/pools/team-a/renew"


def test_a_pool_lives_in_its_block_and_leaves_no_thread(server: ScriptedServer) -> None:
    server.script = [MADE, *[DONE] * 100]
    with SIEClient(server.url) as client:
        with client.pool("team-a", {"cpu": 2}, minimum_worker_count=1, ttl_s=0.1) as team:
            assert (team.name, threads()) == ("team-a", ["sie-pool-team-a"])
            wait_until(lambda: len(bodies(server, RENEWED)) >= 3)
        assert threads() == []
        ended = asked(server)
        assert ended[0] == "POST /v1/pools" and ended[-1] == "DELETE /v1/pools/team-a"
        assert set(ended[1:-1]) == {RENEWED}
    assert json.loads(server.asked[0].body)["ttl_seconds"] == 0.1


async def test_a_pool_lives_in_its_async_block_and_leaves_no_task(server: ScriptedServer) -> None:
    server.script = [MADE, *[DONE] * 100]
    async with SIEAsyncClient(server.url) as client:
        async with client.pool("team-a", {"cpu": 2}, ttl_s=0.1):
            assert tasks() == ["sie-pool-team-a"]
            await eventually(lambda: len(bodies(server, RENEWED)) >= 3)
        assert tasks() == []
    ended = asked(server)
    assert ended[0] == "POST /v1/pools" and ended[-1] == "DELETE /v1/pools/team-a"


def test_a_lease_that_is_entered_again_is_kept_again_and_its_client_forgets_it_at_the_end(
    server: ScriptedServer,
) -> None:
    server.script = [MADE, DONE, MADE, *[DONE] * 100]
    with SIEClient(server.url) as client:
        lease = client.pool("team-a", {"cpu": 2}, ttl_s=600)
        with lease:
            assert client._leases == {lease}
        lease._spec = msgspec.structs.replace(lease._spec, ttl_seconds=0.1)
        with lease:
            wait_until(lambda: len(bodies(server, RENEWED)) >= 2)
        assert client._leases == set()


async def test_an_async_client_forgets_a_lease_at_its_end(server: ScriptedServer) -> None:
    server.script = [MADE, DONE]
    async with SIEAsyncClient(server.url) as client:
        async with client.pool("team-a", {"cpu": 2}, ttl_s=600) as lease:
            assert client._leases == {lease}
        assert client._leases == set()


def test_a_forked_child_leaves_its_parent_s_pool_alone(server: ScriptedServer) -> None:
    server.script = [MADE, DONE]
    with SIEClient(server.url) as client, client.pool("team-a", {"cpu": 2}, ttl_s=600) as lease:
        own, lease._pid = lease._pid, -1  # what a child sees: its own number is another
        lease.__exit__()
        assert asked(server) == ["POST /v1/pools"]
        lease._pid = own
    assert asked(server) == ["POST /v1/pools", "DELETE /v1/pools/team-a"]


def away() -> list[Answer]:
    """A short outage, in several forms."""
    return [Answer(hang_up=True), Answer(503, b"", {}), Answer(502, b"<html>", {}), Answer(hang_up=True)]


def test_a_lease_survives_a_short_outage_and_says_so_once(
    server: ScriptedServer, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(leases, "SHORTEST_S", 0.01)
    server.script = [MADE, *away(), *[DONE] * 100]
    with (
        caplog.at_level(logging.INFO),
        SIEClient(server.url) as client,
        client.pool("team-a", {"cpu": 2}, ttl_s=0.15),
    ):
        wait_until(lambda: len(bodies(server, RENEWED)) >= 6)
    assert caplog.text.count("was not renewed") == 1
    assert "renewed again" in caplog.text
    assert len(bodies(server, "POST /v1/pools")) == 1


async def test_an_async_lease_survives_a_short_outage(server: ScriptedServer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(leases, "SHORTEST_S", 0.01)
    server.script = [MADE, *away(), *[DONE] * 100]
    async with SIEAsyncClient(server.url) as client, client.pool("team-a", {"cpu": 2}, ttl_s=0.15):
        await eventually(lambda: len(bodies(server, RENEWED)) >= 6)
    assert len(bodies(server, "POST /v1/pools")) == 1


def test_a_pool_that_ended_meanwhile_is_made_again(server: ScriptedServer) -> None:
    server.script = [MADE, refused(PoolNotFoundError("No pool.")), MADE, *[DONE] * 100]
    with SIEClient(server.url) as client, client.pool("team-a", {"cpu": 2}, ttl_s=0.1):
        wait_until(lambda: len(bodies(server, RENEWED)) >= 3)
    made = bodies(server, "POST /v1/pools")
    assert len(made) == 2 and made[0].body == made[1].body


def test_what_the_block_raises_counts_even_when_the_pool_cannot_be_deleted(
    server: ScriptedServer, caplog: pytest.LogCaptureFixture
) -> None:
    server.script = [MADE, Answer(hang_up=True)]
    with (
        pytest.raises(KeyError, match="enough"),
        SIEClient(server.url) as client,
        client.pool("team-a", {"cpu": 2}, ttl_s=600),
    ):
        raise KeyError("enough")
    assert "was not deleted" in caplog.text
    assert threads() == []


def test_a_pool_that_is_refused_starts_nothing(server: ScriptedServer) -> None:
    server.script = [refused(PoolForbiddenError("There are 64 pools."))]
    with (
        SIEClient(server.url) as client,
        pytest.raises(PoolForbiddenError),
        client.pool("team-a", {"cpu": 2}),
    ):
        pass
    assert threads() == []
    assert len(server.asked) == 1


def test_closing_the_client_ends_the_renewals_and_leaves_the_pool_to_its_lease(server: ScriptedServer) -> None:
    server.script = [MADE]
    client = SIEClient(server.url)
    with client.pool("team-a", {"cpu": 2}, ttl_s=600):
        client.close()
        assert threads() == []
    assert asked(server) == ["POST /v1/pools"]


async def test_closing_the_async_client_ends_the_renewals(server: ScriptedServer) -> None:
    server.script = [MADE]
    client = SIEAsyncClient(server.url)
    async with client.pool("team-a", {"cpu": 2}, ttl_s=600):
        await client.close()
        assert tasks() == []
    assert asked(server) == ["POST /v1/pools"]


def test_the_end_of_a_block_waits_for_no_pause(server: ScriptedServer) -> None:
    server.script = [MADE, DONE]
    with SIEClient(server.url) as client:
        began = time.monotonic()
        with client.pool("team-a", {"cpu": 2}, ttl_s=3600):
            pass
        assert time.monotonic() - began < 60  # a third of the lease is 1200


def test_a_lease_tells_of_its_pool(server: ScriptedServer) -> None:
    server.script = [MADE, json_answer(TEAM), DONE]
    with SIEClient(server.url) as client, client.pool("team-a", {"cpu": 2}) as team:
        assert team.info() == TEAM
