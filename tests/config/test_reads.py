"""The catalogue as its keepers read it, at the config service: lists, one spec in either format, and look-ups."""

from __future__ import annotations

import gzip
import re
from collections.abc import AsyncIterator
from typing import Any

import httpx
import jsonschema
import msgspec
import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from sie_config import catalog
from sie_config.api import reads
from sie_config.deployment import placement
from sie_config.model import model_spec
from sie_config.model.model_spec import ModelSpec, Profile
from tests.config.served import NAME, Service, error, served
from tests.ingress.conftest import EVERYTHING, RERANKER, SPEC, SPECS, TAGGER

PROFILED = msgspec.structs.replace(EVERYTHING, profiles={"light": Profile({"output_dtype": "int8"})})
ELSEWHERE = msgspec.structs.replace(RERANKER, bundle="Other", pool="own", machine_profiles=("l4",))
PACKAGED = list(catalog.load().values())


@pytest.fixture
async def service() -> AsyncIterator[Service]:
    async with served(SPEC, PROFILED, ELSEWHERE, TAGGER) as service:
        yield service


@pytest.fixture
def client(service: Service) -> httpx.AsyncClient:
    return service.client


@given(st.sampled_from([*PACKAGED, *SPECS, PROFILED, ELSEWHERE]))
def test_a_spec_as_yaml_is_read_back_as_the_same_spec_and_says_nothing_needless(spec: ModelSpec) -> None:
    written = model_spec.document(spec)
    assert model_spec.parse(yaml.safe_load(yaml.safe_dump(written)), origin="m.yaml") == spec
    assert "default_profile" not in written and None not in written.values()


@given(st.sampled_from(PACKAGED), st.sampled_from(["pool", "owner", "licence"]))
def test_the_etag_is_the_specs_own_and_another_after_any_change(spec: ModelSpec, field: str) -> None:
    read_back = model_spec.parse(model_spec.document(spec), origin="m.yaml")
    assert re.fullmatch("[0-9a-f]{16}", model_spec.etag(spec))
    assert model_spec.etag(read_back) == model_spec.etag(spec)
    assert model_spec.etag(msgspec.structs.replace(spec, **{field: "another"})) != model_spec.etag(spec)


async def test_one_spec_is_yaml_unless_json_is_asked_for(client: httpx.AsyncClient) -> None:
    answer = await client.get(f"/v1/configs/models/{PROFILED.id.upper()}:light")
    assert (answer.headers["content-type"], answer.headers["vary"]) == ("application/yaml", "Accept")
    assert model_spec.parse(yaml.safe_load(answer.text), origin="answer") == PROFILED
    for accept in ("application/json", "text/plain, application/json;q=0.9", "application/json, application/yaml"):
        answer = await client.get(f"/v1/configs/models/{PROFILED.id}", headers={"Accept": accept})
        assert msgspec.json.decode(answer.content, type=ModelSpec) == PROFILED
        assert answer.json()["pool"] == "default"  # with every default
    for accept in ("*/*", "application/yaml, application/json", "application/x-yaml"):
        answer = await client.get(f"/v1/configs/models/{PROFILED.id}", headers={"Accept": accept})
        assert answer.headers["content-type"] == "application/yaml"


async def test_all_models_are_listed_with_where_they_run(client: httpx.AsyncClient) -> None:
    told = (await client.get("/v1/configs/models")).json()
    assert [row["model_id"] for row in told["models"]] == [SPEC.id, EVERYTHING.id, RERANKER.id, TAGGER.id]
    assert told["models"][2] == {
        "model_id": RERANKER.id,
        "bundle": "Other",
        "pool": "own",
        "machine_profile": "l4",
        "revision": "0",
        "profiles": ["default"],
        "machine_profiles": ["l4"],
        "status": "ready",
        "origin": "baseline",
        "owner": "",
        "etag": model_spec.etag(ELSEWHERE),
    }
    assert told["models"][1]["profiles"] == ["default", "light"] and told["epoch"] == 1


async def test_the_list_is_of_what_is_asked_for(service: Service) -> None:
    planned = msgspec.structs.replace(SPEC, id="org/planned", status="planned", blocked_by="time", owner="me")
    await service.send("PUT", f"/models/{planned.id}", model_spec.document(planned))
    every = {row["model_id"] for row in (await service.send("GET", "/models?origin=all")).json()["models"]}
    assert planned.id in every and len(every) == 5
    for query in ("origin=written", "owner=me", "status=planned", "origin=written&owner=me&status=planned"):
        rows = (await service.send("GET", f"/models?{query}")).json()["models"]
        assert [row["model_id"] for row in rows] == [planned.id]
    rows = (await service.send("GET", "/models?origin=baseline&status=ready")).json()["models"]
    assert {row["model_id"] for row in rows} == every - {planned.id}
    for wrong in ("origin=elsewhere", "status=gone"):
        assert (await service.send("GET", f"/models?{wrong}")).status_code == 400


@pytest.mark.parametrize("path", ["/models", f"/models/{SPEC.id}", "/export", "/export?format=yaml"])
async def test_who_has_it_is_not_sent_it_again_until_it_changes(service: Service, path: str) -> None:
    first = await service.send("GET", path)
    assert first.headers["x-sie-config-epoch"] == "1"
    for known in (first.headers["etag"], f'"x", W/{first.headers["etag"]}', "*"):
        again = await service.send("GET", path, if_none_match=known)
        assert (again.status_code, again.content) == (304, b"")
        assert (again.headers["etag"], again.headers["x-sie-config-epoch"]) == (first.headers["etag"], "1")
    await service.send("PATCH", f"/models/{SPEC.id}", {"revision": "2"})
    changed = await service.send("GET", path, if_none_match=first.headers["etag"])
    assert (changed.status_code, changed.headers["x-sie-config-epoch"]) == (200, "2")


async def test_the_epoch_tells_when_two_have_the_same_catalogue(service: Service) -> None:
    first = (await service.send("GET", "/epoch")).json()
    assert (first["epoch"], first["writer"]) == (1, NAME)
    await service.send("PATCH", f"/models/{SPEC.id}", {"revision": "2"})
    second = (await service.send("GET", "/epoch")).json()
    assert second["epoch"] == 2 and second["hash"] != first["hash"]
    assert second["bundle_config_hashes_hash"] != first["bundle_config_hashes_hash"]
    assert second["bundles_hash"] == first["bundles_hash"]


async def test_who_serves_a_model_is_asked_of_the_ingress(service: Service) -> None:
    answer = await service.send("GET", f"/models/{SPEC.id}/status")
    assert (answer.status_code, error(answer)["code"]) == (404, "NOT_FOUND")
    assert "ingress" in error(answer)["message"]


async def test_the_schema_is_that_of_a_spec(client: httpx.AsyncClient) -> None:
    answer = await client.get("/v1/configs/schema")
    assert answer.headers["content-type"] == "application/schema+json"
    jsonschema.validate(model_spec.document(SPEC), answer.json())


async def test_bundles_are_listed_and_one_is_told_in_either_format() -> None:
    async with served(SPEC, TAGGER, deployment=placement.deployment("cpu,l4")) as service:
        rows = (await service.send("GET", "/bundles")).json()
        default = next(row for row in rows["bundles"] if row["bundle_id"] == "default")
        assert (default["model_count"], default["connected_workers"]) == (2, 0)
        assert default["machine_profiles"] == ["cpu", "l4"]
        one = await service.send("GET", "/bundles/DEFAULT")
        assert one.headers["content-type"] == "application/yaml"
        as_json = await service.send("GET", "/bundles/default", accept="application/json")
        assert yaml.safe_load(one.text) == as_json.json()
        assert as_json.json()["models"] == [SPEC.id, TAGGER.id]
        missing = await service.send("GET", "/bundles/none")
        assert (missing.status_code, error(missing)["code"]) == (404, "BUNDLE_NOT_FOUND")
        epoch = (await service.send("GET", "/epoch")).json()
        assert epoch["bundles_hash"] == rows["bundles_hash"]


@pytest.mark.parametrize(
    ("wanted", "profile", "bundle"),
    [
        ({"model": "ORG/everything"}, "default", "default"),
        ({"model": "everything:light"}, "light", "default"),
        ({"model": "reranker", "bundle": "OTHER"}, "default", "Other"),
        ({"model": "other:/org/reranker", "bundle": None}, "default", "Other"),
        ({"model": "org/reranker", "bundle": ""}, "default", "Other"),
    ],
)
async def test_a_name_is_resolved_as_requests_are(
    client: httpx.AsyncClient, wanted: dict[str, Any], profile: str, bundle: str
) -> None:
    for encode, media in ((msgspec.json.encode, "application/json"), (msgspec.msgpack.encode, "application/msgpack")):
        answer = await client.post("/v1/configs/resolve", content=encode(wanted), headers={"Content-Type": media})
        told = answer.json()
        assert (told["resolved_bundle"], told["profile"]) == (bundle, profile)
        assert told["compatible_bundles"] == [bundle]
        assert told["profiles"] == (["default", "light"] if told["model"] == EVERYTHING.id else ["default"])


@pytest.mark.parametrize(
    ("body", "status", "code"),
    [
        (b'{"model": "org/nothing"}', 404, "MODEL_NOT_FOUND"),
        (b'{"model": "org/everything", "bundle": "other"}', 409, "BUNDLE_ROUTING_CONFLICT"),
        (b'{"model": "org/everything", "bundle": "none"}', 404, "BUNDLE_NOT_FOUND"),
        (b'{"model": "org/everything:none"}', 400, "PROFILE_NOT_FOUND"),
        (b'{"model": "a:b:c"}', 400, "INVALID_INPUT"),
        (b'{"model": 1}', 400, "INVALID_INPUT"),
        (b"{}", 400, "INVALID_INPUT"),
        (b"\xff", 400, "INVALID_INPUT"),
        (b"[" * 60_000, 400, "INVALID_INPUT"),
        (b" " * (reads.MAX_BODY_BYTES + 1), 413, "PAYLOAD_TOO_LARGE"),
    ],
    ids=lambda value: str(value)[:30],
)
async def test_a_look_up_that_leads_nowhere_is_a_typed_error(
    client: httpx.AsyncClient, body: bytes, status: int, code: str
) -> None:
    answer = await client.post("/v1/configs/resolve", content=body)
    assert (answer.status_code, error(answer)["code"]) == (status, code)


async def test_a_look_up_comes_as_it_is_and_packed_is_refused_as_that(client: httpx.AsyncClient) -> None:
    body = b'{"model": "org/everything"}'
    for encoding, sent, status in (("identity", body, 200), ("gzip", gzip.compress(body), 415), ("br", body, 415)):
        answer = await client.post("/v1/configs/resolve", content=sent, headers={"Content-Encoding": encoding})
        assert answer.status_code == status
    assert (error(answer)["code"], error(answer)["param"]) == ("UNSUPPORTED_MEDIA_TYPE", "Content-Encoding")
    assert answer.headers["accept-encoding"] == "identity"
