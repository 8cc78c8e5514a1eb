"""The published sie-sdk's two clients read our models, capacity and status, and watch until the server leaves."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.compat.venvs import CLIENTS, run, venv
from tests.e2e.conftest import serving
from tests.platform import MODEL, Platform

pytestmark = [pytest.mark.compat, pytest.mark.e2e, pytest.mark.weights]

ALIASES = json.dumps({"house": MODEL})
SDK = ["sie-sdk==0.10.1"]


@pytest.fixture(scope="module")
def served() -> Iterator[str]:
    with serving("--models", MODEL, SIE_MODEL_ALIASES=ALIASES) as url:
        yield url


@pytest.fixture(scope="module")
def platform(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    platform = Platform(tmp_path_factory.mktemp("capacity"), quiet_s=600)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("SIE_MODEL_ALIASES", ALIASES)
        platform.up(0, "--models", MODEL)
    try:
        yield platform.url
    finally:
        platform.down()


@pytest.fixture(scope="module", params=["served", "platform"])
def url(request: pytest.FixtureRequest) -> str:
    return str(request.getfixturevalue(request.param))


@pytest.fixture(scope="module")
def every(url: str) -> dict[str, dict[str, Any]]:
    """What both clients have read. The platform starts from nothing: the first call brings a worker."""
    read: dict[str, dict[str, Any]] = run(venv("sie-sdk", SDK), "capacity.py", url, MODEL)
    return read


@pytest.fixture(params=["blocking", "awaited"])
def read(every: dict[str, dict[str, Any]], request: pytest.FixtureRequest) -> dict[str, Any]:
    return every[request.param]


def test_waiting_for_capacity_with_a_model_starts_a_worker_and_without_one_finds_it(read: dict[str, Any]) -> None:
    for name in ("capacity_for_a_model", "waited", "of_cpu"):
        (worker,) = read[name]["workers"]
        assert (worker["gpu"], worker["healthy"], worker["bundle"]) == ("cpu", True, "default")
    assert read["of_l4"]["workers"] == [] and read["of_l4"]["worker_count"] == 0


def test_capacity_has_every_field_with_values_of_a_worker_that_is_up(read: dict[str, Any]) -> None:
    capacity = read["capacity"]
    (worker,) = capacity.pop("workers")
    assert capacity == {
        "status": "healthy",
        "worker_count": 1,
        "gpu_count": 0,
        "models_loaded": 1,
        "configured_gpu_types": ["cpu"],
        "live_gpu_types": ["cpu"],
    }
    assert worker["loaded_models"] == [MODEL]
    assert worker["memory_total_bytes"] > worker["memory_used_bytes"] > 0
    assert len(worker["bundle_config_hash"]) == 16


def test_models_are_listed_with_what_they_are_and_that_they_are_loaded(read: dict[str, Any]) -> None:
    (model,) = read["models"]
    assert (model["name"], model["state"], model["loaded"], model["last_error"]) == (MODEL, "loaded", True, None)
    assert (model["inputs"], model["outputs"], model["dims"]) == (["text"], ["dense"], {"dense": 384})
    assert (model["profiles"], model["aliases"]) == ({"default": {"is_default": True}}, ["house"])
    assert model["max_sequence_length"] == 256 and len(model["revision"]) == 40


def test_one_model_is_the_same_under_every_spelling_of_its_name(read: dict[str, Any]) -> None:
    (listed,) = read["models"]
    for model in read["spellings"]:
        assert {name: model[name] for name in listed} == listed
        assert (model["id"], model["object"], model["owned_by"]) == (MODEL, "model", "sentence-transformers")


def test_an_unknown_model_is_the_client_s_own_error_with_our_code(every: dict[str, dict[str, Any]]) -> None:
    unknown = every["blocking"]["unknown"]
    assert (unknown["class"], unknown["code"], unknown["status"]) == ("RequestError", "MODEL_NOT_FOUND", 404)
    assert "org/nothing" in unknown["message"]


@pytest.mark.parametrize("mode", ["auto", "cluster"])
def test_watching_brings_frames_of_the_cluster(read: dict[str, Any], mode: str) -> None:
    first, second = read["frames"][mode]
    assert second["timestamp"] > first["timestamp"]
    assert second["cluster"]["worker_count"] == 1 and "total_qps" in second["cluster"]
    (model,) = second["models"]
    assert (model["name"], model["state"], model["worker_count"], model["gpu_types"]) == (MODEL, "loaded", 1, ["cpu"])


def test_watching_a_worker_brings_frames_of_the_server_as_one(read: dict[str, Any]) -> None:
    first, second = read["frames"]["worker"]
    assert 0.1 < second["timestamp"] - first["timestamp"] < 5
    assert (second["ready"], second["machine_profile"], second["loaded_models"]) == (True, "cpu", [MODEL])
    assert second["models"][0]["config"]["hf_id"] == MODEL and second["server"]["pid"] > 0


def test_a_watcher_ends_without_an_error_when_the_server_leaves(tmp_path: Path) -> None:
    python = venv("sie-sdk", SDK)
    with serving("--models", MODEL) as url:
        watcher = subprocess.Popen([python, CLIENTS / "watching.py", url], stdout=subprocess.PIPE, text=True)
        assert watcher.stdout is not None and watcher.stdout.readline() == "watching\n"
        httpx.get(f"{url}/health")
    told, _ = watcher.communicate(timeout=30)
    assert watcher.returncode == 0 and json.loads(told)["frames"] >= 1


def test_the_openai_client_lists_and_retrieves_models(served: str) -> None:
    read = run(venv("openai", ["openai==3.54.0"]), "openai_models.py", served, MODEL)
    assert (read["listed"], read["alias"]) == ([MODEL], MODEL)
    assert read["one"] == [MODEL, "model", "sentence-transformers"]
    code, message = read["missing"]
    assert code == "MODEL_NOT_FOUND" and "org/nothing" in message
