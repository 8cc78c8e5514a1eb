"""The catalogue as it is told to callers: in the protocol's words and OpenAI's at once, with what is loaded where."""

from __future__ import annotations

import msgspec
import pytest

from sie_broker.records import LoadFailure, WorkerState
from sie_config.model.model_spec import Profile
from sie_config.registry import Registry, lane_of
from sie_ingress.models import fleet, info
from sie_sdk import results
from sie_sdk.types import ModelLoadError, ProfileInfo
from tests.ingress.conftest import EVERYTHING, SPEC, SPECS, Desk

STATE = WorkerState("w", lane_of(SPEC), "ready", 0.0)


async def test_the_list_is_read_by_the_published_client_s_key_and_by_openai_s(desk: Desk) -> None:
    body = (await desk.client.get("/v1/models")).json()
    ids = sorted(spec.id for spec in SPECS)
    assert [model["name"] for model in body["models"]] == ids
    assert (body["object"], [model["id"] for model in body["data"]]) == ("list", ids)
    assert body["data"][0] == {"id": ids[0], "object": "model", "created": 0, "owned_by": "org"}


async def test_one_model_carries_both_words_side_by_side(desk: Desk) -> None:
    desk.registry.put(msgspec.structs.replace(EVERYTHING, profiles={"light": Profile()}))
    answer = await desk.client.get(f"/v1/models/{EVERYTHING.id}:light")
    assert answer.json() == {
        "id": EVERYTHING.id,
        "object": "model",
        "created": 0,
        "owned_by": "org",
        "name": EVERYTHING.id,
        "bundle": "default",
        "inputs": ["text"],
        "outputs": ["dense", "sparse", "multivector", "score"],
        "dims": {"dense": 2, "sparse": 100, "multivector": 4},
        "max_sequence_length": 16,
        "revision": "7",
        "loaded": False,
        "state": "available",
        "last_error": None,
        "profiles": {"default": {"is_default": True}, "light": {"is_default": False}},
        "aliases": [],
        "capabilities": None,
        "routing": {"policy": None, "upstream_kind": None},
    }
    read = results.read_model(answer.content, answer.headers["content-type"])
    assert read.profiles["default"] == ProfileInfo(is_default=True)


@pytest.mark.parametrize(
    ("workers", "state"),
    [
        ([], "available"),
        ([{"models": (SPEC.id,)}], "loaded"),
        ([{"loading": (SPEC.id,)}], "loading"),
        ([{"failed": {SPEC.id: LoadFailure("network", "No route.", 3)}}], "failed"),
        ([{"failed": {SPEC.id: LoadFailure("network", "", 1)}}, {"models": (SPEC.id,)}], "loaded"),
        ([{"failed": {SPEC.id: LoadFailure("network", "", 1)}}, {"loading": (SPEC.id,)}], "loading"),
        ([{"models": (EVERYTHING.id,)}], "available"),
    ],
)
def test_a_model_s_state_is_that_of_the_worker_where_it_is_furthest(
    workers: list[dict[str, object]], state: str
) -> None:
    row = info(SPEC, fleet(msgspec.structs.replace(STATE, **worker) for worker in workers), Registry())
    assert (row.state, row.loaded) == (state, state == "loaded")
    assert (row.last_error is not None) == (state == "failed")


@pytest.mark.parametrize(
    ("reason", "code"),
    [
        ("memory", "OOM"),
        ("too_large", "OOM"),
        ("corrupt", "STORAGE"),
        ("network", "NETWORK"),
        ("not_found", "NOT_FOUND"),
    ],
)
def test_why_a_model_did_not_load_is_told_in_the_protocol_s_words_and_never_as_final(reason: str, code: str) -> None:
    failed = msgspec.structs.replace(STATE, failed={SPEC.id: LoadFailure(reason, "It says why.", 2)})
    told = info(SPEC, fleet([failed]), Registry()).last_error
    assert told == ModelLoadError(code, "It says why.", 2, permanent=False)


def test_a_model_s_own_default_profile_is_marked() -> None:
    spec = msgspec.structs.replace(SPEC, profiles={"light": Profile(), "dark": Profile()}, default_profile="light")
    told = info(spec, fleet([]), Registry()).profiles
    assert told == {"light": ProfileInfo(is_default=True), "dark": ProfileInfo()}
