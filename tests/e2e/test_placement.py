"""Machines that are deployed, on one machine: work goes where its model is placed, or where its caller asks."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests import tiny_model
from tests.e2e.conftest import SPEC
from tests.platform import Platform, wait_until

pytestmark = pytest.mark.e2e

ITEMS = {"items": [{"text": "hello world"}]}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """``test/tiny`` for any machine, ``test/far`` for one alone, and ``test/spans`` for a bundle that is planned."""
    folder = tmp_path_factory.mktemp("placed")
    tiny_model.make(folder / "tiny")
    tiny = SPEC.format(path="tiny")
    (folder / "tiny.yaml").write_text(tiny)
    (folder / "far.yaml").write_text(tiny.replace("test/tiny", "test/far") + "machine_profiles: [h100]\n")
    (folder / "spans.yaml").write_text(tiny.replace("test/tiny", "test/spans") + "bundle: gliner\n")
    return folder


@pytest.fixture
def state(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Where a platform keeps its data; every machine profile computes on this machine's CPU."""
    monkeypatch.setenv("SIE_DEVICE", "cpu")
    monkeypatch.setenv("SIE_PRECISION", "float32")
    path = tmp_path_factory.mktemp("state")
    yield path
    Platform(path).down()


def encode(platform: Platform, model: str, **headers: str) -> httpx.Response:
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    return httpx.post(
        f"{platform.url}/v1/encode/{model}", json=ITEMS, headers={"Prefer": "wait=60"} | named, timeout=70
    )


def machines(platform: Platform) -> dict[str, str]:
    """The machine profile of each worker, by its name."""
    return {worker["name"]: worker["gpu"] for worker in platform.workers()}


def placed(platform: Platform) -> dict[str, list[str]]:
    """The machine profiles of each model, as the ingress has them."""
    rows = httpx.get(f"{platform.url}/v1/configs/models").json()["models"]
    return {row["model_id"]: row["machine_profiles"] for row in rows}


def refused(answer: httpx.Response) -> dict[str, Any]:
    error: dict[str, Any] = answer.json()["error"]
    return error


def test_work_is_computed_on_the_machine_it_is_placed_on_or_asked_for(
    folder: Path, state: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SIE_MACHINE_PROFILES", "t4,cpu")
    platform = Platform(state)
    platform.up(0, "--models", str(folder), "--max-scale", "2")
    for asked, machine in ((None, "cpu"), ("t4", "t4"), ("h100", "cpu")):
        answer = encode(platform, "test/tiny", **({"X_SIE_MACHINE_PROFILE": asked} if asked else {}))
        assert answer.status_code == 200, answer.text
        assert machines(platform)[answer.headers["x-sie-worker"]] == machine
    assert sorted(machines(platform).values()) == ["cpu", "t4"]

    made = httpx.post(
        f"{platform.url}/v1/pools", json={"name": "team", "gpus": {"t4": 1}, "pinned_models": ["test/tiny"]}
    )
    assert made.status_code == 201, made.text
    answer = encode(platform, "test/tiny", X_SIE_MACHINE_PROFILE="team/cpu")
    assert answer.status_code == 200, answer.text
    assert machines(platform)[answer.headers["x-sie-worker"]] == "t4"

    far, spans = encode(platform, "test/far"), encode(platform, "test/spans")
    assert (far.status_code, refused(far)["code"]) == (501, "MODEL_UNPLACED")
    assert "Deploy h100" in refused(far)["hint"] and "deployed: cpu, t4" in refused(far)["message"]
    assert (spans.status_code, refused(spans)["code"]) == (501, "MODEL_PLANNED")
    for model, error in (("test/far", "MODEL_UNPLACED"), ("test/spans", "MODEL_PLANNED")):
        listed = httpx.get(f"{platform.url}/v1/models/{model}").json()
        assert (listed["state"], listed["last_error"]["code"]) == ("planned", error)
    bundles = httpx.get(f"{platform.url}/v1/configs/bundles").json()["bundles"]
    assert [(row["bundle_id"], row["model_count"]) for row in bundles] == [("default", 2), ("gliner", 1), ("sglang", 0)]
    assert bundles[0]["machine_profiles"] == ["cpu", "t4"]


def test_a_machine_that_is_deployed_later_serves_what_waited_for_it(
    folder: Path, state: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    platform = Platform(state)
    platform.up(0, "--models", str(folder))
    assert refused(encode(platform, "test/far"))["code"] == "MODEL_UNPLACED"
    platform.down()
    monkeypatch.setenv("SIE_MACHINE_PROFILES", "h100")
    platform.up(0, "--models", str(folder))
    wait_until(lambda: placed(platform) == {"test/far": ["h100"], "test/tiny": ["h100"], "test/spans": []})
    for model in ("test/far", "test/tiny"):
        answer = encode(platform, model)
        assert answer.status_code == 200, answer.text
        assert machines(platform)[answer.headers["x-sie-worker"]] == "h100"
