"""The config service's reads at the ingress: the same answers from its own copy, and where writes are to go."""

from __future__ import annotations

import re
import time
from typing import Any

import msgspec
import pytest
import yaml
from starlette.requests import Request

from sie_broker.memory import MemoryBroker
from sie_broker.records import WorkerState
from sie_config.deployment import placement
from sie_config.epochs.state import State
from sie_config.epochs.store import Change, Event, Stored
from sie_config.model import model_spec
from sie_config.registry import lane_of
from sie_ingress.applied import Applied
from sie_ingress.config_status import ConfigStatus, ModelStatus
from tests.config.served import served
from tests.ingress.conftest import EVERYTHING, SPEC, SPECS, Desk, opened

DEPLOYMENT = placement.deployment("cpu")
PATHS = [
    "/models",
    f"/models/{EVERYTHING.id}",
    "/bundles",
    "/bundles/default",
    "/epoch",
    "/export",
    "/export?format=yaml",
    "/schema",
    "/models/org/nothing",
    "/bundles/nowhere",
]


async def test_the_ingress_answers_as_the_config_service_does(desk: Desk) -> None:
    desk.registry.deploy(DEPLOYMENT)
    async with served(*SPECS, deployment=DEPLOYMENT) as service:
        for path in PATHS:
            for accept in ("*/*", "application/json"):
                there = await service.send("GET", path, accept=accept)
                here = await desk.client.get(f"/v1/configs{path}", headers={"Accept": accept})
                assert (here.status_code, _timeless(here.content)) == (there.status_code, _timeless(there.content))
                assert here.headers["content-type"] == there.headers["content-type"]
                assert ("etag" in here.headers) == ("etag" in there.headers)


def _timeless(content: bytes) -> bytes:
    """Without what says when and by whom it was told, and how often this catalogue was written."""
    return re.sub(rb'"(epoch|generated_at|writer|hash)":[^,}]*|of epoch .*', b"", content)


async def test_a_change_of_the_catalogue_shows_at_once(desk: Desk) -> None:
    desk.registry.put(msgspec.structs.replace(SPEC, revision="2"))
    text = (await desk.client.get(f"/v1/configs/models/{SPEC.id}")).text
    assert model_spec.parse(yaml.safe_load(text), origin="answer").revision == "2"


async def test_a_bundle_s_workers_are_counted(desk: Desk) -> None:
    desk.registry.deploy(DEPLOYMENT)

    async def connected() -> dict[str, int]:
        bundles = (await desk.client.get("/v1/configs/bundles")).json()["bundles"]
        return {bundle["bundle_id"]: bundle["connected_workers"] for bundle in bundles}

    assert sum((await connected()).values()) == 0
    async with desk.worker():
        assert {name for name, workers in (await connected()).items() if workers} == {"default"}


@pytest.mark.parametrize("url", ["", "http://config:8080/"])
@pytest.mark.parametrize(
    ("method", "path"),
    [
        ("POST", "/v1/configs/models"),
        ("PUT", f"/v1/configs/models/{SPEC.id}"),
        ("DELETE", f"/v1/configs/models/{SPEC.id}"),
        ("PATCH", "/v1/configs/models/org%2Fx:y"),
        ("POST", "/v1/configs/apply"),
        ("POST", "/v1/configs/rollback/3"),
        ("GET", "/v1/configs/history"),
        ("GET", "/v1/configs/history/3"),
    ],
)
async def test_writes_are_refused_with_the_place_where_they_go(method: str, path: str, url: str) -> None:
    async with opened(MemoryBroker(), config_url=url) as desk:
        answer = await desk.client.request(method, path, content=b"id: org/new")
        error = answer.json()["error"]
        taken = "GET, HEAD" if "/models" in path else ""
        assert (answer.status_code, answer.headers["allow"]) == (405, taken)
        assert error["code"] == "METHOD_NOT_ALLOWED"
        assert error.get("config_url") == (url.rstrip("/") or None)
        assert "SIE_CONFIG_URL" in error["hint"] and url.rstrip("/") in error["hint"]
        assert desk.registry.written(SPEC.id) == SPEC


async def test_the_read_token_is_asked_for_where_it_is_set() -> None:
    async with opened(MemoryBroker(), config_read_token="r1,r2", admin_token="a") as desk:
        for path in ("/models", f"/models/{SPEC.id}", f"/models/{SPEC.id}/status", "/export", "/epoch", "/schema"):
            for token, status in (("", 401), ("x", 401), ("r1", 200), ("r2", 200), ("a", 200)):
                headers = {"Authorization": f"Bearer {token}"}
                answer = await desk.client.get(f"/v1/configs{path}", headers=headers)
                assert answer.status_code == status, path
        assert (await desk.client.get("/v1/models")).status_code == 200


async def test_the_status_of_a_model_tells_who_has_its_newest_spec(desk: Desk) -> None:
    path = f"/v1/configs/models/{SPEC.id}/status"

    async def status() -> Any:
        return (await desk.client.get(path)).json()

    resting = await status()
    assert (resting["model_id"], resting["all_bundles_acked"], resting["no_bundles"]) == (SPEC.id, True, False)
    (lane,) = resting["bundles"]
    assert (lane["bundle_id"], lane["pool"], lane["total_eligible_workers"]) == ("default", "default", 0)
    assert lane["expected_bundle_config_hash"] == desk.registry.hash_of(lane_of(SPEC))
    async with desk.worker():  # one that tells no hash has not the newest specs
        (lane,) = (await status())["bundles"]
        assert (lane["total_eligible_workers"], lane["acked"]) == (1, False)
        assert len(lane["pending_workers"]) == 1
    assert (await desk.client.get("/v1/configs/models/org/none/status")).status_code == 404


async def test_workers_count_by_the_hash_they_tell_and_ingresses_by_their_epoch(desk: Desk) -> None:
    state = State.of(SPECS)
    state.apply(Event(3, 0.0, "", "put", (Change(SPEC.id, None, Stored(SPEC, "written", 3)),)))
    ingresses = [Applied("a", 3, "", 0.0), Applied("b", 2, "", 0.0)]
    told = ConfigStatus(desk.registry, lambda: state, desk.lanes, lambda: ingresses)
    lane, now = lane_of(SPEC), time.time()
    moved = msgspec.structs.replace(lane, pool="team")
    newest = desk.registry.hash_of(lane)
    for worker, at, known in (("new", lane, newest), ("old", lane, "0"), ("moved", moved, newest)):
        heartbeat = WorkerState(worker, at, "ready", now, bundle_config_hash=known)
        desk.lanes.heard(worker, msgspec.msgpack.encode(heartbeat))
    request = Request({"type": "http", "path_params": {"model": SPEC.id}, "headers": []})
    status = msgspec.json.decode((await told(request)).body, type=ModelStatus)
    assert (status.bundles[0].acked_workers, status.bundles[0].pending_workers) == (["moved", "new"], ["old"])
    assert (status.model_epoch, status.config_epoch, status.all_bundles_acked) == (3, 3, False)
    assert [(each.ingress, each.acked) for each in status.ingresses] == [("a", True), ("b", False)]
