"""The tiny model the engine's tests run on, and a hub that cannot be reached."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from sie_bundle.models.model import EncoderModel
from tests import tiny_model
from tests.bundle.hub_double import HubDouble, hub_double


@pytest.fixture(scope="session")
def tiny_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny BERT for which "poison" has no finite vector."""
    return tiny_model.make(tmp_path_factory.mktemp("tiny"), nan_token="poison")


@pytest.fixture(scope="session")
def tiny(tiny_folder: Path) -> EncoderModel:
    return tiny_model.load(tiny_model.spec(tiny_folder), tiny_folder)


@pytest.fixture
def no_hub(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """The Hugging Face Hub has a name nobody resolves, and its cache is empty."""
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path / "hf"))
    monkeypatch.setattr("huggingface_hub.constants.ENDPOINT", "https://hub.invalid")
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", False)
    for name in ("https_proxy", "HTTPS_PROXY", "all_proxy", "ALL_PROXY"):
        monkeypatch.delenv(name, raising=False)


@pytest.fixture
def hub_here(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[HubDouble]:
    """A hub without a repository, on this machine, and an empty cache."""
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path / "hf"))
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", False)
    monkeypatch.setenv("no_proxy", "127.0.0.1")
    with hub_double() as double:
        for name in ("ENDPOINT", "HUGGINGFACE_CO_URL_HOME"):
            monkeypatch.setattr(f"huggingface_hub.constants.{name}", double.url)
        template = double.url + "/{repo_id}/resolve/{revision}/{filename}"
        monkeypatch.setattr("huggingface_hub.constants.HUGGINGFACE_CO_URL_TEMPLATE", template)
        yield double
