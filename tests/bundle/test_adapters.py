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
from sie_bundle.engine.outputs import SparseRow
from sie_bundle.models.checkpoint import Checkpoint
from sie_bundle.models.family import AUTO, FAMILIES
from sie_bundle.models.model import EncoderModel, Model, load
from sie_bundle.operations import encode
from sie_config.model import model_spec
from sie_config.model.model_spec import ModelSpec
from sie_config.model.sources import LocalSource
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


def spec_of(folder: Path, dim: int = DIM, tasks: Any = None) -> ModelSpec:
    document = {
        "id": "test/static",
        "revision": "1",
        "family": "static-embedding",
        "tasks": tasks or {"dense": {"dim": dim}},
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


def adapted(
    monkeypatch: pytest.MonkeyPatch, tiny: EncoderModel, spec: ModelSpec, outputs: dict[str, Any], **has: Any
) -> Model:
    """The model of an adapter that gives ``outputs`` for whatever two rows."""
    own = {each: getattr(tiny, each) for each in Model.__annotations__} | {"spec": spec, "heads": tuple(outputs)} | has
    entry = SimpleNamespace(load=lambda: lambda *_: SimpleNamespace(**own, forward=lambda rows, wanted: outputs))
    monkeypatch.setattr("sie_bundle.models.model.entry_points", lambda **_: [entry])
    (source,) = spec.sources
    assert isinstance(source, LocalSource)
    return load(Checkpoint(spec, Path(source.path)))


def ones(*shape: int) -> Any:
    return np.ones(shape, np.float32)


DENSE, SPARSE = {"dense": {"dim": 4}}, {"sparse": {"dim": 9}}
YES_NO = {"score": {"kind": "yes_no"}}
CLASSES = {"extract": {"kind": "classes", "labels": ["a", "b", "c"]}}
ROW = SparseRow(np.array([8], np.int32), ones(1))


@pytest.mark.parametrize(
    ("tasks", "outputs", "told"),
    [
        (DENSE, {"dense": ones(2, 3)}, "computes 3 dense dimensions, its spec says 4"),
        (DENSE, {"dense": [ones(4), ones(4)]}, r"as a list of ndarray, not as one numpy array \[rows, size\]"),
        (DENSE, {"dense": ones(2, 4).astype(np.float64)}, "float64, not in float32"),
        (DENSE, {"dense": ones(1, 4)}, "1 dense outputs for 2 rows"),
        (DENSE, {"dense": ones(2, 4) * np.nan}, "not finite"),
        (DENSE, {"dense": ones(2, 4), "pooled": ones(2, 3)}, "computes 3 pooled dimensions"),
        (DENSE, {"dense": None}, "dense as nothing"),
        (DENSE, {}, "has no head dense, which the tasks of its spec need; it has: none"),
        (YES_NO, {"logits": ones(2, 1)}, "has no head yes_no, which the tasks of its spec need; it has: logits"),
        (YES_NO, {"yes_no": ones(2, 2)}, "computes 2 yes_no dimensions, its spec says 1"),
        (CLASSES, {"logits": ones(2, 4)}, "computes 4 logits, there are labels for 3"),
        (SPARSE, {"sparse": ones(2, 9)}, "not as a list with one output for each row"),
        (SPARSE, {"sparse": [ROW, ones(9)]}, r"not as SparseRow\(indices, values\)"),
        (SPARSE, {"sparse": [ROW, SparseRow(np.array([9], np.int32), ones(1))]}, "index of 9, its spec says 9"),
        ({"multivector": {"dim": 4}}, {"multivector": [ones(1, 4), ones(1, 4)]}, "for a row of 3 tokens"),
    ],
)
def test_outputs_that_are_not_what_the_spec_says_are_refused_when_the_model_is_loaded(
    tiny: EncoderModel, folder: Path, monkeypatch: pytest.MonkeyPatch, tasks: Any, outputs: dict[str, Any], told: str
) -> None:
    with pytest.raises(ModelLoadFailedError, match=told) as caught:
        adapted(monkeypatch, tiny, spec_of(folder, tasks=tasks), outputs, labels=("a", "b", "c"))
    assert "docs/models.md" in str(caught.value.hint)


@pytest.mark.parametrize(
    ("tasks", "outputs"),
    [
        (DENSE, {"dense": ones(2, 4)}),
        (YES_NO, {"yes_no": ones(2, 1)}),
        ({"score": {"kind": "cross_encoder"}}, {"logits": ones(2, 1)}),
        (CLASSES, {"logits": ones(2, 3)}),
        (SPARSE, {"sparse": [ROW, ROW]}),
        (SPARSE, {"dense": ones(2, 4), "sparse": [ROW, ROW]}),  # no task asks for its dense vectors
        ({"multivector": {"dim": 4}, "score": {"kind": "maxsim"}}, {"multivector": [ones(3, 4), ones(4, 4)]}),
        ({"extract": {"kind": "entities"}}, {"token_logits": [ones(3, 3), ones(4, 3)]}),
    ],
)
def test_outputs_as_the_contract_has_them_are_served(
    tiny: EncoderModel, folder: Path, monkeypatch: pytest.MonkeyPatch, tasks: Any, outputs: dict[str, Any]
) -> None:
    model = adapted(monkeypatch, tiny, spec_of(folder, tasks=tasks), outputs, labels=("a", "b", "c"))
    assert model.heads == tuple(outputs)


def test_an_adapter_s_model_that_fails_its_first_pass_is_refused_with_the_reason(
    tiny: EncoderModel, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def forward(rows: Any, wanted: Any) -> Any:
        raise ZeroDivisionError("by nothing")

    has = {each: getattr(tiny, each) for each in Model.__annotations__}
    entry = SimpleNamespace(load=lambda: lambda *_: SimpleNamespace(**has, forward=forward))
    monkeypatch.setattr("sie_bundle.models.model.entry_points", lambda **_: [entry])
    with pytest.raises(ModelLoadFailedError, match="test/static failed: ZeroDivisionError: by nothing"):
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
