"""The pools routes on both brokers: what is made, refused, renewed and ended, and where a request's work then waits."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import httpx
import msgspec
import pytest
from starlette.applications import Starlette

from sie_broker import clock
from sie_broker.pools.pool import Pool, pool_key
from sie_broker.pools.pool_table import PoolTable
from sie_config.deployment import placement
from sie_config.model.model_spec import Lora, Profile
from sie_config.model.sources import LocalSource
from sie_config.pool_queues import PoolQueues
from sie_ingress import answer, pools
from sie_sdk.errors import SIEError
from sie_sdk.pools import MAX_POOLS, PoolInfo
from tests.conftest import eventually
from tests.ingress.conftest import MODEL, SPEC, Desk

TEAM = {"name": "team-a", "gpus": {"cpu": 2}}


@pytest.fixture
async def pooled(desk: Desk) -> AsyncIterator[Desk]:
    """A desk whose config service gives pools their queues; its catalogue has models elsewhere too."""
    desk.registry.deploy(placement.deployment("cpu,l4"))
    desk.registry.put(msgspec.structs.replace(SPEC, id="org/elsewhere", machine_profiles=("l4",)))
    desk.registry.put(msgspec.structs.replace(SPEC, id="org/golden", pool="gold"))
    await desk.broker.provision(desk.registry.queues())
    keeping = asyncio.create_task(PoolQueues(desk.broker, desk.registry, PoolTable(desk.broker.pools)).run())
    yield desk
    keeping.cancel()
    await asyncio.gather(keeping, return_exceptions=True)


async def create(desk: Desk, **fields: object) -> dict[str, Any]:
    answer = await desk.post("/v1/pools", TEAM | fields)
    assert answer.status_code == 201, answer.text
    made: dict[str, Any] = answer.json()
    return made


def refused(answer: httpx.Response, status: int, code: str, field: str | None = None) -> str:
    """Check a refusal: the error object, the detail object beside it and the header; returns the message."""
    body = answer.json()
    assert (answer.status_code, body["error"]["code"]) == (status, code), answer.text
    assert body["detail"] == {"code": code, "message": body["error"]["message"]}
    assert answer.headers["x-sie-error-code"] == code
    assert body["error"].get("param") == field
    return str(body["error"]["message"])


# -- making ------------------------------------------------------------------------------------------------------------


async def test_a_model_may_be_pinned_with_the_lora_of_its_profile(pooled: Desk) -> None:
    profiles = {"law": Profile(lora=Lora((LocalSource("law"),))), "plain": Profile()}
    pooled.registry.put(msgspec.structs.replace(SPEC, profiles=profiles))
    made = await create(pooled, pinned_models=[f"{MODEL}:law", f"{MODEL}:plain", MODEL])
    assert made["spec"]["pinned_models"] == [f"{MODEL}:law", MODEL, MODEL]


async def test_a_new_pool_is_answered_as_the_protocol_says(pooled: Desk) -> None:
    made = await create(pooled, ttl_seconds=60, minimum_worker_count=1, gpu_caps={"cpu": 3}, pinned_models=[MODEL])
    status = made["status"]
    assert made == {
        "spec": {
            "name": "team-a",
            "gpus": {"cpu": 2},
            "gpu_caps": {"cpu": 3},
            "bundle": "default",
            "queue_pool": "default",
            "ttl_seconds": 60,
            "minimum_worker_count": 1,
            "pinned_models": [MODEL],
        },
        "status": {
            "state": "pending",
            "assigned_workers": [],
            "created_at": status["created_at"],
            "last_renewed": status["created_at"],
        },
    }
    assert (await pooled.client.get("/v1/pools/team-a")).json() == made
    assert (await pooled.client.get("/v1/pools/TEAM-A")).json() == made


async def test_a_pool_without_a_minimum_is_active_at_once_and_one_with_it_when_its_workers_are_ready(
    pooled: Desk,
) -> None:
    assert (await create(pooled))["status"]["state"] == "active"
    assert (await create(pooled, minimum_worker_count=1))["status"]["state"] == "pending"
    async with pooled.worker(pool="team-a") as worker:
        info = (await pooled.client.get("/v1/pools/team-a")).json()
        assert info["status"]["state"] == "active"
        (assigned,) = info["status"]["assigned_workers"]
        assert assigned == {"name": worker._name, "url": "", "gpu": "cpu", "bundle": "default"}


async def test_making_it_again_changes_and_renews_it(pooled: Desk) -> None:
    first = await create(pooled)
    second = await create(pooled, gpus={"cpu": 4, "l4": 1}, ttl_seconds=None)
    assert second["spec"]["gpus"] == {"cpu": 4, "l4": 1}
    assert second["status"]["created_at"] == first["status"]["created_at"]
    assert second["status"]["last_renewed"] > first["status"]["last_renewed"]


async def test_a_pool_does_not_lose_a_lane_in_which_work_may_wait(pooled: Desk) -> None:
    await create(pooled, gpus={"cpu": 1, "l4": 1})
    fewer = await pooled.post("/v1/pools", TEAM)
    assert "l4" in refused(fewer, 403, "POOL_OPERATION_FORBIDDEN", "gpus")


@pytest.mark.parametrize(
    ("fields", "field"),
    [
        ({"name": ""}, "name"),
        ({"name": "a_b"}, "name"),
        ({"name": "x" * 64}, "name"),
        ({"name": 7}, "name"),
        ({"gpus": {}}, "gpus"),
        ({"gpus": {"cpu": 0}}, "gpus.cpu"),
        ({"gpus": {"cpu": "two"}}, "gpus[...]"),
        ({"gpus": {"tpu": 1}}, "gpus"),
        ({"gpu_caps": {"cpu": -1}}, "gpu_caps.cpu"),
        ({"bundle": "unknown"}, "bundle"),
        ({"queue_pool": "gold"}, "queue_pool"),
        ({"ttl_seconds": 3601}, "ttl_seconds"),
        ({"ttl_seconds": 0}, "ttl_seconds"),
        ({"minimum_worker_count": 3}, "minimum_worker_count"),
        ({"minimum_worker_count": -1}, "minimum_worker_count"),
        ({"minimum_worker_count": 5, "gpus": {"cpu": 9}}, "minimum_worker_count"),
        ({"minimum_worker_count": 3, "gpus": {"cpu": 9, "l4": 9}}, "minimum_worker_count"),
        ({"pinned_models": [MODEL] * 65}, "pinned_models"),
    ],
    ids=lambda value: str(value)[:60],
)
async def test_what_a_pool_cannot_be_is_refused_by_name(pooled: Desk, fields: dict[str, Any], field: str) -> None:
    refused(await pooled.post("/v1/pools", TEAM | fields), 400, "INVALID_INPUT", field)


@pytest.mark.parametrize("body", [b"", b"{", b"[]", b'"name"', b"\xff"])
async def test_a_body_that_is_no_map_is_refused(pooled: Desk, body: bytes) -> None:
    answer = await pooled.client.post("/v1/pools", content=body, headers={"Content-Type": "application/json"})
    refused(answer, 400, "INVALID_INPUT", "body")


async def test_models_to_pin_must_be_known_and_served_by_the_pool(pooled: Desk) -> None:
    unknown = await pooled.post("/v1/pools", TEAM | {"pinned_models": ["org/countin-model"]})
    refused(unknown, 404, "MODEL_NOT_FOUND", "model")
    elsewhere = await pooled.post("/v1/pools", TEAM | {"pinned_models": ["org/elsewhere"]})
    refused(elsewhere, 409, "POOL_CAPACITY_UNAVAILABLE", "X-SIE-Pool")


async def test_there_may_be_64_pools_and_ended_ones_do_not_count(pooled: Desk) -> None:
    for number in range(MAX_POOLS - 1):
        await create(pooled, name=f"p{number}")
    await create(pooled, name="last")
    refused(await pooled.post("/v1/pools", TEAM), 403, "POOL_OPERATION_FORBIDDEN", "name")
    await create(pooled, name="last", gpus={"cpu": 3})
    await pooled.client.delete("/v1/pools/last")
    await create(pooled)


async def test_of_many_that_are_made_at_a_time_no_more_are_kept_than_there_may_be(
    pooled: Desk, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pools, "MAX_POOLS", 4)
    made = [pooled.post("/v1/pools", TEAM | {"name": f"p{number}"}) for number in range(20)]
    answers = await asyncio.gather(*made)
    assert sorted(each.status_code for each in answers) == [201] * 4 + [403] * 16
    listed = (await pooled.client.get("/v1/pools")).json()["pools"]
    assert len(listed) == 1 + 4


async def test_a_pool_that_is_one_too_many_because_another_ingress_made_some_is_taken_back(
    pooled: Desk, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pools, "MAX_POOLS", 1)
    table = PoolTable(pooled.broker.pools)
    own = PoolTable.look_all_up

    async def another_is_quicker(looking: PoolTable) -> None:
        other = Pool("other", {"cpu": 1}, created_at=clock.now(), last_renewed=clock.now(), ttl_s=60)
        await table.change("other", lambda _: other)
        await own(looking)

    monkeypatch.setattr(PoolTable, "look_all_up", another_is_quicker)
    refused(await pooled.post("/v1/pools", TEAM), 403, "POOL_OPERATION_FORBIDDEN", "name")
    await table.read()
    assert {name for name, pool in table.pools.items() if not pool.deleted} == {"other"}


# -- the others --------------------------------------------------------------------------------------------------------


async def test_pools_are_listed_behind_the_default_pool(pooled: Desk) -> None:
    await create(pooled, name="b")
    await create(pooled, name="a")
    async with pooled.worker():
        listed = (await pooled.client.get("/v1/pools")).json()["pools"]
        default = (await pooled.client.get("/v1/pools/default")).json()
    assert [each["spec"]["name"] for each in listed] == ["default", "a", "b"]
    assert listed[0] == default
    assert [worker["gpu"] for worker in default["status"]["assigned_workers"]] == ["cpu"]
    assert msgspec.convert(default, PoolInfo).status.state == "active"


async def test_a_renewed_pool_begins_its_lease_anew(pooled: Desk) -> None:
    made = await create(pooled)
    answer = await pooled.client.post("/v1/pools/team-a/renew")
    assert answer.status_code == 200 and "team-a" in answer.json()["message"]
    now = (await pooled.client.get("/v1/pools/team-a")).json()
    assert now["status"]["last_renewed"] > made["status"]["last_renewed"]
    assert now["spec"] == made["spec"]


async def test_what_is_not_there_is_not_found(pooled: Desk) -> None:
    for method, route in (("GET", ""), ("DELETE", ""), ("POST", "/renew")):
        answer = await pooled.client.request(method, f"/v1/pools/nobody{route}")
        refused(answer, 404, "POOL_NOT_FOUND", "pool")


async def test_a_deleted_pool_is_gone_for_everybody_at_once(pooled: Desk) -> None:
    await create(pooled)
    answer = await pooled.client.delete("/v1/pools/team-a")
    assert answer.status_code == 200 and "team-a" in answer.json()["message"]
    refused(await pooled.client.get("/v1/pools/team-a"), 404, "POOL_NOT_FOUND", "pool")
    refused(await pooled.client.delete("/v1/pools/team-a"), 404, "POOL_NOT_FOUND", "pool")
    refused(await pooled.client.post("/v1/pools/team-a/renew"), 404, "POOL_NOT_FOUND", "pool")
    assert len((await pooled.client.get("/v1/pools")).json()["pools"]) == 1


async def test_the_default_pool_and_the_catalogues_own_are_protected(pooled: Desk) -> None:
    refused(await pooled.client.delete("/v1/pools/default"), 403, "DEFAULT_POOL_DELETE_FORBIDDEN", "pool")
    refused(await pooled.post("/v1/pools", TEAM | {"name": "default"}), 403, "POOL_OPERATION_FORBIDDEN", "name")
    refused(await pooled.post("/v1/pools", TEAM | {"name": "gold"}), 403, "POOL_OPERATION_FORBIDDEN", "name")
    refused(await pooled.client.delete("/v1/pools/gold"), 403, "POOL_OPERATION_FORBIDDEN", "name")
    assert (await pooled.client.post("/v1/pools/default/renew")).status_code == 200


async def test_a_wrong_method_has_a_detail_object_too(pooled: Desk) -> None:
    refused(await pooled.client.put("/v1/pools"), 405, "METHOD_NOT_ALLOWED", "method")


# -- routing -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "headers", [{"X_SIE_Pool": "team-a"}, {"X_SIE_Pool": "Team-A"}, {"X_SIE_MACHINE_PROFILE": "team-a/cpu"}]
)
async def test_a_request_for_a_pool_is_computed_by_it_and_others_are_not(pooled: Desk, headers: dict[str, str]) -> None:
    await create(pooled)
    async with pooled.worker(pool="team-a"):
        answer = await pooled.encode("four", **headers)
        assert answer.status_code == 200, answer.text
        outside = await pooled.encode("outside")
        assert outside.status_code == 202

        async def one_is_left() -> bool:
            left = {lane.pool: count for lane, count in (await pooled.broker.backlog()).items() if count}
            return left == {"default": 1}

        await eventually(one_is_left)  # what is answered is acknowledged a moment later


async def test_a_cold_pool_queues_work_and_wakes_its_lane(pooled: Desk) -> None:
    await create(pooled)
    woken: list[str] = []
    async with pooled.broker.on_wake(lambda lane: woken.append(lane.pool)):
        answer = await pooled.encode("four", X_SIE_Pool="team-a")
        await eventually(lambda: woken == ["team-a"])
    assert answer.status_code == 202
    async with pooled.worker(pool="team-a"):
        done = await pooled.client.get(answer.headers["location"], headers={"Prefer": "wait=10"})
        assert done.status_code == 200


@pytest.mark.parametrize("headers", [{}, {"X_SIE_Pool": "default"}, {"X_SIE_MACHINE_PROFILE": "cpu"}])
async def test_without_a_pool_or_with_the_default_one_the_model_says_where(
    pooled: Desk, headers: dict[str, str]
) -> None:
    async with pooled.worker():
        assert (await pooled.encode("four", **headers)).status_code == 200
    golden = await pooled.post("/v1/encode/org/golden", {"items": [{"text": "a"}]}, **headers)
    assert golden.status_code == 202
    assert {lane.pool for lane in await pooled.broker.backlog()} == {"gold"}


async def test_a_pool_that_is_not_living_takes_no_request(pooled: Desk) -> None:
    unknown = await pooled.encode("a", X_SIE_Pool="nobody")
    assert (unknown.status_code, unknown.json()["error"]["code"]) == (404, "POOL_NOT_FOUND")
    assert unknown.json()["error"]["param"] == "X-SIE-Pool"
    await create(pooled)
    await pooled.client.delete("/v1/pools/team-a")
    assert (await pooled.encode("a", X_SIE_Pool="team-a")).status_code == 404
    assert sum((await pooled.broker.backlog()).values()) == 0


async def test_a_model_of_another_bundle_profile_or_pool_is_not_served_by_the_pool(pooled: Desk) -> None:
    await create(pooled)
    for model in ("org/elsewhere", "org/golden"):
        answer = await pooled.post(f"/v1/encode/{model}", {"items": [{"text": "a"}]}, X_SIE_Pool="team-a")
        assert (answer.status_code, answer.json()["error"]["code"]) == (409, "POOL_CAPACITY_UNAVAILABLE")


async def test_a_pool_made_through_another_ingress_is_known_at_once(pooled: Desk) -> None:
    other = PoolTable(pooled.broker.pools)
    made = Pool("team-b", {"cpu": 1}, 1.0, 4e9, 600.0)
    await other.change("team-b", lambda _: made)
    assert (await pooled.encode("a", X_SIE_Pool="team-b")).status_code == 202


async def test_work_is_not_accepted_before_the_pool_has_queues(desk: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pools, "READY_S", 0.05)  # and there is no config service
    assert (await create(desk))["status"]["state"] == "pending"
    answer = await desk.encode("a", X_SIE_Pool="team-a")
    assert (answer.status_code, answer.json()["error"]["code"]) == (503, "POOL_NOT_READY")
    assert answer.headers["retry-after"] == "1"


async def test_an_ended_lease_says_so_until_the_pool_is_gone(desk: Desk) -> None:
    ended = Pool("team-a", {"cpu": 1}, 1.0, 1.0, 600.0)
    await PoolTable(desk.broker.pools).change("team-a", lambda _: ended)
    info = (await desk.client.get("/v1/pools/team-a")).json()
    assert info["status"]["state"] == "expired"
    refused(await desk.client.post("/v1/pools/team-a/renew"), 404, "POOL_NOT_FOUND", "pool")
    await desk.broker.pools.delete(pool_key("team-a"))

    async def gone() -> bool:
        return (await desk.client.get("/v1/pools/team-a")).status_code == 404

    await eventually(gone)


async def test_one_process_has_no_pools_to_give(desk: Desk) -> None:
    alone = pools.Pools(desk.registry, desk.lanes, PoolTable(desk.broker.pools), assigns=False)
    one = Starlette(routes=alone.routes(), exception_handlers={SIEError: answer.refuse_typed})
    async with httpx.AsyncClient(transport=httpx.ASGITransport(one), base_url="http://one") as client:
        refused(await client.post("/v1/pools", json=TEAM), 501, "POOLS_UNSUPPORTED")
        refused(await client.post("/v1/pools/team-a/renew"), 501, "POOLS_UNSUPPORTED")
        refused(await client.delete("/v1/pools/team-a"), 501, "POOLS_UNSUPPORTED")
        listed = (await client.get("/v1/pools")).json()["pools"]
    assert [each["spec"]["name"] for each in listed] == ["default"]
