"""The real MiniLM, fetched once into the user's own cache; and what a module has loaded goes with its last test."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from sie_bundle.models.model import EncoderModel
from sie_bundle.settings import Settings
from sie_bundle.weights import weights
from sie_config import catalog
from sie_sdk import settings
from tests import tiny_model


@pytest.fixture(scope="session")
def minilm() -> EncoderModel:
    spec = catalog.load()["sentence-transformers/all-MiniLM-L6-v2"]
    setting = settings.read(Settings)
    weights_dir = Path(setting.weights_dir) if setting.weights_dir else None
    return tiny_model.load(spec, weights.resolve(spec, weights_dir, Path(setting.cache_dir)).folder)


@pytest.fixture(autouse=True, scope="module")
def loaded_models_go(request: pytest.FixtureRequest) -> Iterator[None]:
    """A process that runs all modules would hold the models of each until its end."""
    yield
    for kept in vars(request.module).values():
        if hasattr(kept, "cache_clear"):
            kept.cache_clear()
