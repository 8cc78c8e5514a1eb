"""The catalogue as its keepers read it, at the config service: lists, one spec in either format, and look-ups."""

from __future__ import annotations

import re
from collections.abc import AsyncIterator
from typing import Any

import httpx
import msgspec
import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from sie_config import catalog, model_spec, reads
from sie_config.app import app
from sie_config.model_spec import ModelSpec, Profile
from sie_config.registry import Registry
from tests.ingress.conftest import EVERYTHING, RERANKER, SPEC, SPECS, TAGGER

PROFILED = msgspec.structs.replace(EVERYTHING, profiles={"light": Profile({"output_dtype": "int8"})})
ELSEWHERE = msgspec.structs.replace(RERANKER, bundle="Other", pool="own", machine_profiles=("l4",))
PACKAGED = list(catalog.load().values())


@pytest.fixture
async def client() -> AsyncIterator[httpx.AsyncClient]:
    served = app(Registry([SPEC, PROFILED, ELSEWHERE, TAGGER]))
    async with httpx.AsyncClient(transport=httpx.ASGITransport(served), base_url="http://config") as client:
        yield client


def error(answer: httpx.Response) -> Any:
    return answer.json()["error"]


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
    }
    assert told["models"][1]["profiles"] == ["default", "light"] and told["epoch"] == 1


async def test_bundles_are_listed_and_one_is_told_in_either_format(client: httpx.AsyncClient) -> None:
    other, default = (await client.get("/v1/configs/bundles")).json()["bundles"]
    assert (other["bundle_id"], other["model_count"], other["adapter_count"]) == ("Other", 1, 1)
    assert (default["bundle_id"], default["model_count"], default["connected_workers"]) == ("default", 3, 0)
    one = await client.get("/v1/configs/bundles/OTHER")
    assert one.headers["content-type"] == "application/yaml"
    told = {"name": "Other", "priority": 100, "source": "catalogue", "adapters": ["bert"], "models": [RERANKER.id]}
    assert yaml.safe_load(one.text) == told
    as_json = await client.get("/v1/configs/bundles/other", headers={"Accept": "application/json"})
    assert as_json.json() == told
    missing = await client.get("/v1/configs/bundles/none")
    assert (missing.status_code, error(missing)["bundles"]) == (404, ["Other", "default"])


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
