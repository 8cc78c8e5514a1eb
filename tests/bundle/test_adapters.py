"""Adapters: the example package is installed by pip, found by its entry point, and answers a request."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import save_file

from sie_bundle.engine.executor import Executor
from sie_bundle.models.checkpoint import Checkpoint
from sie_bundle.models.family import AUTO, FAMILIES
from sie_bundle.models.model import EncoderModel, Model, load
from sie_bundle.operations import encode
from sie_config.model import model_spec
from sie_config.model.model_spec import ModelSpec
from sie_sdk import results
from sie_sdk.errors import ModelLoadFailedError
from sie_sdk.types import EncodeRequest, Item, Timing, Usage
from tests import tiny_model
from tests.golden import tiny_tokenizers

EXAMPLE = Path(__file__).parents[2] / "examples" / "adapter"
DIM = 16
TEXTS = ("hello world", "ship", "lighthouse")


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the installed example, as a site-packages would have it."""
    root = tmp_path_factory.mktemp("adapter")
    # A copy, because a build leaves files beside the source.
    source, site = shutil.copytree(EXAMPLE, root / "source"), root / "site"
    offline = ("--no-deps", "--no-build-isolation", "--no-index", "--disable-pip-version-check", "--quiet")
    command = [sys.executable, "-m", "pip", "install", *offline, "--target", str(site), str(source)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return site


@pytest.fixture
def installed(site: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.syspath_prepend(str(site))
    yield
    sys.modules.pop("sie_static_embedding", None)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model as model2vec writes it: a vector for each token, and nothing to say in config.json."""
    folder = tmp_path_factory.mktemp("static")
    tokenizer = tiny_tokenizers.make("bert")
    tokenizer.save(str(folder / "tokenizer.json"))
    (folder / "config.json").write_text(json.dumps({"model_type": "model2vec", "normalize": True}))
    vectors = np.random.default_rng(0).normal(size=(tokenizer.get_vocab_size(), DIM)).astype(np.float32)
    save_file({"embeddings": vectors}, folder / "model.safetensors")
    return folder


def spec_of(folder: Path, dim: int = DIM) -> ModelSpec:
    document = {
        "id": "test/static",
        "revision": "1",
        "family": "static-embedding",
        "tasks": {"dense": {"dim": dim}},
        "max_sequence_length": 64,
        "sources": [{"kind": "local", "path": str(folder)}],
    }
    return model_spec.parse(document, origin="test")


async def test_the_example_is_installed_loaded_and_answers_an_encode_request(installed: None, folder: Path) -> None:
    model = load(Checkpoint(spec_of(folder), folder))
    assert type(model).__module__ == "sie_static_embedding"
    request = EncodeRequest(items=[Item(text=text) for text in TEXTS])
    plan = encode.plan(model, model.spec, request)
    executor = Executor()
    try:
        done = await executor.forward(model, plan.rows, plan.heads)
    finally:
        executor.close()
    answers = results.read_encode(plan.finish(done.outputs, Timing(), Usage(input_tokens=1)))
    tokenizer, vectors = tiny_tokenizers.make("bert"), Checkpoint(spec_of(folder), folder).tensors["embeddings"].numpy()
    for text, answer in zip(TEXTS, answers, strict=True):
        mean = vectors[tokenizer.encode(text, add_special_tokens=False).ids].mean(axis=0)
        assert answer.dense is not None
        assert np.abs(answer.dense - mean / np.linalg.norm(mean)).max() < 1e-6


def test_what_an_adapter_refuses_reaches_the_caller(installed: None, folder: Path) -> None:
    with pytest.raises(ModelLoadFailedError, match="computes 16 dense dimensions"):
        load(Checkpoint(spec_of(folder, dim=8), folder))


@pytest.mark.parametrize("name", [*Model.__annotations__, "forward"])
def test_a_model_that_lacks_what_is_asked_of_one_is_refused_when_it_is_loaded(
    tiny: EncoderModel, folder: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    has = {each: getattr(tiny, each) for each in (*Model.__annotations__, "forward") if each != name}
    entry = SimpleNamespace(load=lambda: lambda *_: SimpleNamespace(**has))
    monkeypatch.setattr("sie_bundle.models.model.entry_points", lambda **_: [entry])
    with pytest.raises(ModelLoadFailedError, match=f"made of test/static has no {name}"):
        load(Checkpoint(spec_of(folder), folder))


def test_without_its_adapter_a_family_is_unknown(folder: Path) -> None:
    with pytest.raises(ModelLoadFailedError, match="no family 'static-embedding'") as caught:
        load(Checkpoint(spec_of(folder), folder))
    assert "adapter" in str(caught.value.hint)


def test_an_installed_adapter_leaves_the_other_families_alone(installed: None, tiny_folder: Path) -> None:
    assert isinstance(load(Checkpoint(tiny_model.spec(tiny_folder), tiny_folder)), EncoderModel)


def test_the_documented_contract_is_the_models() -> None:
    documented = (EXAMPLE.parents[1] / "docs" / "models.md").read_text()
    for name, kind in Model.__annotations__.items():
        assert f"    {name}: {kind}" in documented
    for name, record in FAMILIES.items():
        way = "transformers" if name == AUTO else record.way
        (row,) = [line for line in documented.splitlines() if line.startswith(f"| {way} |")]
        assert f"`{name}`" in row


def test_the_example_is_as_short_as_it_says() -> None:
    code = (EXAMPLE / "sie_static_embedding.py").read_text().splitlines()
    assert len(code) < 60
