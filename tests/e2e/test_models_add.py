"""A model that no catalogue lists, as a user brings it: `sie models add`, `sie serve --models`, `sie encode`."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

import numpy as np
import pytest

from sie_config import catalog
from sie_sdk import SIEClient
from tests.bundle.hub_double import COMMIT, hub_double
from tests.e2e.conftest import serving
from tests.golden import golden
from tests.golden.checkpoints import checkpoint
from tests.platform import Platform, wait_until

pytestmark = [pytest.mark.e2e, pytest.mark.weights]

PARITY = 0.9999


def sie(*arguments: str, stdin: str = "", **settings: str) -> str:
    """One command in a process of its own; gives its standard output."""
    command = [str(Path(sys.executable).with_name("sie")), *arguments]
    done = subprocess.run(command, input=stdin, env={**os.environ, **settings}, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return done.stdout


def compare(url: str, model: str, key: str) -> None:
    """The vectors of `sie encode` are those of sentence-transformers."""
    stored, texts = golden.arrays(key), golden.texts()
    wanted: Mapping[str, np.ndarray] = dict(zip(stored["names"].tolist(), stored["vectors"], strict=True))
    names = [name for name in wanted if texts[name].strip()]
    lines = "".join(json.dumps({"text": texts[name]}) + "\n" for name in names)
    printed = sie("encode", model, "-", "--json", "--url", url, stdin=lines)
    vectors = [json.loads(line)["dense"] for line in printed.splitlines()]
    assert len(vectors) == len(names)
    for name, vector in zip(names, vectors, strict=True):
        assert float(np.asarray(vector, dtype=np.float64) @ wanted[name]) >= PARITY, name


def test_a_folder_becomes_a_spec_and_its_vectors_are_the_reference_librarys(tmp_path: Path) -> None:
    specs = tmp_path / "specs"
    sie("models", "add", str(checkpoint("bge-small")), "--id", "acme/bge", "--out", str(specs))
    assert [spec.status for spec in catalog.read(specs).values()] == ["ready"]
    with serving("--models", str(specs)) as url:
        compare(url, "acme/bge", "bge-small")


def test_a_model_is_added_to_a_platform_that_runs_and_served_without_a_restart(tmp_path: Path) -> None:
    platform = Platform(tmp_path / "state")
    platform.up()
    try:
        here = {"SIE_BASE_URL": platform.url, "SIE_STATE_DIR": str(tmp_path / "state")}
        sie("models", "add", str(checkpoint("gte-small")), "--id", "acme/gte", "--yes", "--note", "tried", **here)
        wait_until(lambda: "acme/gte" in sie("models", "--json", **here))
        compare(platform.url, "acme/gte", "gte-small")
        assert "tried" in sie("config", "history", **here)
    finally:
        platform.down()


def test_a_model_of_the_hub_is_added_fetched_and_served_at_its_commit(tmp_path: Path) -> None:
    with hub_double() as hub:
        hub.repos["acme/minilm"] = checkpoint("minilm")
        place = {"HF_ENDPOINT": hub.url, "HF_HOME": str(tmp_path / "hf"), "no_proxy": "127.0.0.1"}
        place |= {"HF_HUB_OFFLINE": "0", "SIE_CACHE_DIR": str(tmp_path / "cache"), "SIE_WEIGHTS_DIR": ""}
        specs = tmp_path / "specs"
        sie("models", "add", "acme/minilm", "--out", str(specs), **place)
        assert hub.sent < 1 << 20, "the weights stay where they are"
        with serving("--models", str(specs), **place) as url:
            compare(url, "acme/minilm", "minilm")
            with SIEClient(url) as client:
                assert client.get_model("acme/minilm").revision == COMMIT
    assert hub.sent > checkpoint("minilm").joinpath("model.safetensors").stat().st_size
