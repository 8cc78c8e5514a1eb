"""The published sie-sdk, synchronous and not, against ``sie serve`` and ``sie up`` with a model for every task."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from sie_config import catalog
from tests import tiny_model
from tests.compat import every_task
from tests.compat.published.remote import Client, Flavour, Remote
from tests.compat.venvs import INSTALL_S, RUN_S, venv
from tests.e2e.conftest import SPEC, serving
from tests.golden import random_models
from tests.golden.checkpoints import checkpoint
from tests.platform import Platform

VERSION = "0.10.1"
# The first test makes the environment.
WITHOUT_WEIGHTS = [pytest.mark.compat, pytest.mark.timeout(INSTALL_S + RUN_S)]
DRIVEN = [*WITHOUT_WEIGHTS, pytest.mark.weights]
Post = Callable[[str, str, dict[str, Any]], Any]
TINY, ABSENT, CLASSIFIER = "test/tiny", "test/absent", "test/classifier"
COLBERT = "answerdotai/answerai-colbert-small-v1"


@pytest.fixture(scope="session")
def models(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Those of ``every_task``, a ColBERT, random classes, a tiny one that fails on "poison", one without weights."""
    folder = tmp_path_factory.mktemp("published") / "models"
    every_task.make(folder)
    tiny_model.make(folder / "tiny", nan_token="poison")
    (folder / "tiny.yaml").write_text(SPEC.format(path="tiny"))
    random_models.make("bert-nli", folder / "classifier")
    classes = SPEC.format(path="classifier").replace(TINY, CLASSIFIER).partition("tasks:")[0]
    classes += "tasks: {extract: {kind: classes}}\nsources: [{kind: local, path: classifier}]\n"
    (folder / "classifier.yaml").write_text(classes)
    (folder / COLBERT).parent.mkdir()
    (folder / COLBERT).symlink_to(checkpoint("answerai-colbert"))
    shutil.copy(catalog.PACKAGED / f"{COLBERT.replace('/', '__')}.yaml", folder)
    (folder / "absent.yaml").write_text(SPEC.format(path="absent").replace(TINY, ABSENT))
    return folder


@pytest.fixture(scope="session")
def served(models: Path) -> Iterator[str]:
    """The URL of ``sie serve``."""
    with serving("--models", str(models)) as url:
        yield url


@pytest.fixture(scope="session")
def platform(models: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Platform]:
    """A ``sie up`` that stays warm."""
    platform = Platform(tmp_path_factory.mktemp("state"), quiet_s=600)
    # A pool's worker, beside the one that stays.
    platform.up(0, "--models", str(models), "--max-scale", "2")
    try:
        platform.encode("warm", prefer="wait=60")
        yield platform
    finally:
        platform.down()


@pytest.fixture(scope="session", params=["serve", "up"])
def url(request: pytest.FixtureRequest) -> str:
    """The URL of each kind of server in turn."""
    if request.param == "serve":
        return str(request.getfixturevalue("served"))
    return str(request.getfixturevalue("platform").url)


@pytest.fixture(scope="session")
def remote() -> Iterator[Remote]:
    """The published client in a process of its own environment."""
    remote = Remote(venv("sie-sdk", [f"sie-sdk=={VERSION}"]))
    assert remote.version == VERSION
    yield remote
    remote.close()


@pytest.fixture(scope="session", params=["sync", "async"])
def flavour(request: pytest.FixtureRequest) -> Flavour:
    """Its two clients."""
    flavour: Flavour = request.param
    return flavour


@pytest.fixture
def client(remote: Remote, flavour: Flavour, url: str) -> Client:
    """Each published client with each server."""
    return Client(remote, flavour, url)


@pytest.fixture(scope="session")
def ours(url: str) -> Iterator[Post]:
    """The same server by plain HTTP in JSON, for values to compare with: ``ours("encode", model, body)``."""
    with httpx.Client(base_url=url, timeout=60) as http:

        def post(operation: str, model: str, body: dict[str, Any]) -> Any:
            answer = http.post(f"/v1/{operation}/{model}", json=body, headers={"Prefer": "wait=60"})
            assert answer.status_code == 200, answer.text
            return answer.json()

        yield post
