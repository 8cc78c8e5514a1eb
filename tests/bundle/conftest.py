"""The tiny model the engine's tests run on."""

from __future__ import annotations

from pathlib import Path

import pytest

from sie_bundle.engine.model import EncoderModel
from tests import tiny_model


@pytest.fixture(scope="session")
def tiny_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny BERT for which "poison" has no finite vector."""
    return tiny_model.make(tmp_path_factory.mktemp("tiny"), nan_token="poison")


@pytest.fixture(scope="session")
def tiny(tiny_folder: Path) -> EncoderModel:
    return tiny_model.load(tiny_model.spec(tiny_folder), tiny_folder)
