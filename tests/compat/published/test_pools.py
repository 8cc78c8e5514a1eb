"""Published sie-sdk: machine profiles and pools, their renewal in the background, and one process that has none."""

from __future__ import annotations

import time
from collections.abc import Iterator

import httpx
import pytest

from tests.compat.published.conftest import DRIVEN, TINY
from tests.compat.published.remote import Client, Flavour, Remote, array, call
from tests.platform import Platform

pytestmark = DRIVEN

HELLO = {"text": "hello"}


@pytest.fixture
def client(remote: Remote, flavour: Flavour, platform: Platform) -> Client:
    """Each published client with the platform."""
    return Client(remote, flavour, platform.url)


@pytest.fixture
def pool(platform: Platform, flavour: Flavour) -> Iterator[str]:
    """The name of a pool that does not outlive the test."""
    name = f"team-{flavour}-{time.time_ns()}"
    yield name
    httpx.delete(f"{platform.url}/v1/pools/{name}")


@pytest.mark.parametrize("gpu", ["cpu", "l4", "default/cpu"])
def test_a_machine_profile_is_a_wish_and_the_default_pool_can_be_named(client: Client, gpu: str) -> None:
    by_call, by_client = client("encode", TINY, HELLO, gpu=gpu), client.run(call("encode", TINY, HELLO), gpu=gpu)
    assert by_call.raised is None and by_client.outcomes[0].raised is None


def test_a_pool_is_made_used_changed_and_deleted(client: Client, pool: str) -> None:
    made, seen, used, scored, changed, seen_again, deleted, gone, again = client.run(
        call("create_pool", pool, {"cpu": 1}, bundle="default", pinned_models=[TINY]),
        call("get_pool", pool),
        call("encode", TINY, HELLO, gpu=f"{pool}/cpu"),
        call("encode", TINY, HELLO, gpu=f"{pool.upper()}/cpu"),
        call("create_pool", pool, {"cpu": 2}),
        call("get_pool", pool),
        call("delete_pool", pool),
        call("get_pool", pool),
        call("delete_pool", pool),
    ).outcomes
    assert made.raised is None and changed.raised is None
    info = seen.result
    assert info["name"] == info["spec"]["name"] == pool
    assert (info["spec"]["gpus"], info["spec"]["pinned_models"]) == ({"cpu": 1}, [TINY])
    assert info["status"]["state"] in ("pending", "active")
    assert array(used.result["dense"]).shape == (32,) and scored.raised is None
    assert seen_again.result["spec"]["gpus"] == {"cpu": 2}
    assert all(
        {"name", "url", "gpu", "bundle"} <= each.keys() for each in seen_again.result["status"]["assigned_workers"]
    )
    assert (deleted.result, gone.result, again.result) == (True, None, False)


def test_a_pool_is_renewed_in_the_background_as_long_as_its_client_is_open(client: Client, pool: str) -> None:
    _, before, after = client.run(
        call("create_pool", pool, {"cpu": 1}),
        call("get_pool", pool),
        call("sleep", 1.5),
        call("get_pool", pool),
        renewal_s=0.2,
    ).outcomes
    assert after.result["status"]["last_renewed"] > before.result["status"]["last_renewed"]
    assert client("get_pool", pool).result["status"]["state"] in ("pending", "active"), "closing deletes nothing"


def test_the_pool_of_the_constructor_is_made_with_the_first_call(client: Client, pool: str) -> None:
    used, seen = client.run(
        call("encode", TINY, HELLO), call("get_pool"), pool={"name": pool, "gpus": {"cpu": 1}}
    ).outcomes
    assert used.raised is None
    assert seen.result["spec"]["name"] == pool


def test_a_pool_that_is_not_there_is_an_error_of_its_own_code(client: Client) -> None:
    error = client("encode", TINY, HELLO, gpu="nobodys/cpu").error
    assert (error["class"], error["status_code"], error["code"]) == ("RequestError", 404, "POOL_NOT_FOUND")


@pytest.mark.parametrize(
    ("args", "keywords", "says"),
    [
        (["Not A Name!", {"cpu": 1}], {}, "name"),
        (["team", {"h100": 1}], {}, "h100"),
        (["team", {"cpu": 1}], {"pinned_models": ["no/such-model"]}, "no/such-model"),
        (["default", {"cpu": 1}], {}, "default"),
    ],
)
def test_a_pool_that_cannot_be_is_a_pool_error_that_says_why(
    client: Client, args: list[object], keywords: dict[str, object], says: str
) -> None:
    error = client("create_pool", *args, **keywords).error
    assert error["class"] == "PoolError"
    assert says in error["message"] and error["pool_name"] == args[0]


def test_the_default_pool_stays(client: Client) -> None:
    error = client("delete_pool", "default").error
    assert error["class"] == "PoolError" and "cannot be deleted" in error["message"]


def test_one_process_has_no_pools_and_says_so(remote: Remote, flavour: Flavour, served: str) -> None:
    made, seen, deleted, used, plain = remote.run(
        flavour,
        served,
        call("create_pool", "team", {"cpu": 1}),
        call("get_pool", "team"),
        call("delete_pool", "team"),
        call("encode", TINY, HELLO, gpu="team/cpu"),
        call("encode", TINY, HELLO, gpu="cpu"),
    ).outcomes
    for outcome in (made, deleted):
        assert outcome.error["class"] == "PoolError"
        assert "one process" in outcome.error["message"]
    assert seen.result is None
    assert used.error["code"] == "POOL_NOT_FOUND"
    assert plain.raised is None
