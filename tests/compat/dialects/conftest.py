"""``sie serve`` and ``sie up`` with a model for every task and a classifier, for clients of other services."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml

from tests.compat import every_task
from tests.e2e.conftest import serving
from tests.golden.checkpoints import checkpoint
from tests.platform import Platform, wait_until

CLASSIFIER = "org/question-classifier"
SETTINGS = {"SIE_PRECISION": "float32"}
"""So that a batch changes nothing of a value."""


@pytest.fixture(scope="package")
def models(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of specs."""
    folder = every_task.make(tmp_path_factory.mktemp("dialects") / "models")
    spec = {
        "id": CLASSIFIER,
        "family": "bert",
        "revision": "test",
        "max_sequence_length": 512,
        "tasks": {"extract": {"kind": "classes"}},
        "sources": [{"kind": "local", "path": str(checkpoint("question-classifier"))}],
    }
    (folder / "classifier.yaml").write_text(yaml.safe_dump(spec))
    return folder


@pytest.fixture(scope="package")
def served(models: Path) -> Iterator[str]:
    """The URL of ``sie serve``."""
    with serving("--models", str(models), **SETTINGS) as url:
        yield url


@pytest.fixture(scope="package")
def platform(models: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Platform]:
    """A ``sie up`` that stays warm."""
    platform = Platform(tmp_path_factory.mktemp("state"), quiet_s=600)
    with pytest.MonkeyPatch.context() as patch:
        for name, value in SETTINGS.items():
            patch.setenv(name, value)
        platform.up(0, "--models", str(models))
    try:
        platform.encode("warm", prefer="wait=60")
        wait_until(lambda: any(worker["healthy"] for worker in platform.workers()))
        yield platform
    finally:
        platform.down()
