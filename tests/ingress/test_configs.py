"""The config service's reads at the ingress: the same answers from its own copy, and where writes are to go."""

from __future__ import annotations

import httpx
import msgspec
import pytest
import yaml

from sie_broker.memory import MemoryBroker
from sie_config import model_spec
from sie_config.app import app
from tests.ingress.conftest import EVERYTHING, SPEC, Desk, opened

PATHS = [
    "/v1/configs/models",
    f"/v1/configs/models/{EVERYTHING.id}",
    "/v1/configs/bundles/default",
    "/v1/configs/models/org/nothing",
    "/v1/configs/bundles/nowhere",
]


async def test_the_ingress_answers_as_the_config_service_does(desk: Desk) -> None:
    transport = httpx.ASGITransport(app(desk.registry))
    async with httpx.AsyncClient(transport=transport, base_url="http://config") as service:
        for path in PATHS:
            for accept in ("*/*", "application/json"):
                there = await service.get(path, headers={"Accept": accept})
                here = await desk.client.get(path, headers={"Accept": accept})
                assert (here.status_code, here.content) == (there.status_code, there.content)
                assert here.headers["content-type"] == there.headers["content-type"]


async def test_a_change_of_the_catalogue_shows_at_once(desk: Desk) -> None:
    desk.registry.put(msgspec.structs.replace(SPEC, revision="2"))
    text = (await desk.client.get(f"/v1/configs/models/{SPEC.id}")).text
    assert model_spec.parse(yaml.safe_load(text), origin="answer").revision == "2"


async def test_a_bundle_s_workers_are_counted(desk: Desk) -> None:
    async def connected() -> list[int]:
        bundles = (await desk.client.get("/v1/configs/bundles")).json()["bundles"]
        return [bundle["connected_workers"] for bundle in bundles]

    assert await connected() == [0]
    async with desk.worker():
        assert await connected() == [1]


@pytest.mark.parametrize("url", ["", "http://config:8080/"])
@pytest.mark.parametrize(
    ("method", "path"),
    [
        ("POST", "/v1/configs/models"),
        ("PUT", f"/v1/configs/models/{SPEC.id}"),
        ("DELETE", f"/v1/configs/models/{SPEC.id}"),
        ("PATCH", "/v1/configs/models/org%2Fx:y"),
    ],
)
async def test_writes_are_refused_with_the_place_where_they_go(method: str, path: str, url: str) -> None:
    async with opened(MemoryBroker(), config_url=url) as desk:
        answer = await desk.client.request(method, path, content=b"id: org/new")
        error = answer.json()["error"]
        assert (answer.status_code, answer.headers["allow"]) == (405, "GET, HEAD")
        assert error["code"] == "METHOD_NOT_ALLOWED"
        assert "SIE_CONFIG_URL" in error["hint"] and url.rstrip("/") in error["hint"]
        assert desk.registry.resolve(SPEC.id) == SPEC
