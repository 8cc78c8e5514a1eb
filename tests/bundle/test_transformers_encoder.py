"""Models of transformers run packed: equal to transformers alone, whatever shares the row; and proven so at load."""

from __future__ import annotations

import gc
import logging
import subprocess
import sys
import weakref
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import lru_cache
from importlib import import_module
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.torch import load_file, save_file

from sie_bundle.engine.outputs import Floats
from sie_bundle.engine.packing import pack
from sie_bundle.engine.row import Row, row
from sie_bundle.models import family
from sie_bundle.models.checkpoint import Checkpoint
from sie_bundle.models.model import EncoderModel
from sie_bundle.models.padded_encoder import PaddedEncoder
from sie_bundle.models.parameters import Parameters
from sie_bundle.models.transformers_encoder import Body, TransformersEncoder
from sie_config.model.model_spec import ModelSpec
from sie_config.model.sources import LocalSource
from sie_config.model.tasks import Dense, Extract, Score, Tasks
from sie_sdk.errors import ModelLoadFailedError
from tests.golden import random_models, tiny_tokenizers

CPU = torch.device("cpu")
PACKED = {
    "bert": 0,
    "xlm-roberta": 2,
    "roberta": 2,
    "distilbert": 0,
    "albert": 0,
    "electra": 0,
    "modernbert": 0,
    "qwen3": 0,
    "qwen3-bidirectional": 0,
    "llama": 0,
    "mistral": 0,
    "embedding-gemma": 0,
}
"""Kind of random model, and its first position."""
PADDED = {"mpnet": "does not use transformers' attention interface", "gemma2": "softcap"}
"""Kinds that cannot be packed, and why."""
FAR = {"mistral": 2e-5}
"""The largest difference where it is not 1e-5: transformers' own two attentions are as far apart there."""
OTHERS: dict[str, dict[str, Any]] = {
    "gpt_neox": {},
    "opt": {"ffn_dim": 48, "word_embed_proj_dim": 32, "intermediate_size": None},
    "convbert": {"embedding_size": 32, "conv_kernel_size": 3, "head_ratio": 2},
    "t5": {"d_model": 32, "d_kv": 8, "d_ff": 48, "num_layers": 3, "num_heads": 4, "decoder_start_token_id": 0},
}
"""Model types without a record in ``family``: what their config.json says beside the usual sizes."""


@pytest.fixture(autouse=True, scope="module")
def one_thread() -> Iterator[None]:
    """Passes this small are slower on two cores, and much slower where others want them."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> Any:
    root = tmp_path_factory.mktemp("random")
    return lru_cache(maxsize=None)(lambda kind: random_models.make(kind, root / kind))


@pytest.fixture(scope="module")
def models(folders: Any) -> Any:
    return lru_cache(maxsize=None)(lambda kind: loaded(kind, folders(kind)))


def spec_of(model: str, folder: Path, tasks: Tasks | None = None) -> ModelSpec:
    return ModelSpec(
        id=model,
        family="auto",
        tasks=tasks or Tasks(dense=Dense(dim=32)),
        sources=(LocalSource(path=str(folder)),),
        max_sequence_length=48,
        revision="random",
    )


def loaded(kind: str, folder: Path, tasks: Tasks | None = None, precision: str = "float32") -> EncoderModel:
    model = EncoderModel(Checkpoint(spec_of(kind, folder, tasks), folder), precision_wanted=precision)
    model.try_out()
    return model


def rows_of(model: EncoderModel, lengths: list[int], seed: int = 0) -> list[Row]:
    usual = np.setdiff1d(np.arange(model.tokenizer.vocabulary), list(model.tokenizer.special))
    random = np.random.default_rng(seed)
    return [row(random.choice(usual, length)) for length in lengths]


def states(model: EncoderModel, rows: list[Row]) -> list[Floats]:
    """Each row's states, in the order of the rows."""
    packed = pack(rows, CPU)
    with torch.inference_mode():
        found = model._encoder(packed).float().numpy()
    return [found[start : start + length] for start, length in zip(packed.starts, packed.lengths, strict=True)]


def largest_difference(found: list[Floats], wanted: list[Floats]) -> float:
    return max(float(np.abs(one - other).max()) for one, other in zip(found, wanted, strict=True))


@pytest.mark.parametrize("kind", [*PACKED, *PADDED])
def test_states_of_a_mixed_batch_equal_transformers_one_text_at_a_time(kind: str, models: Any, folders: Any) -> None:
    model = models(kind)
    assert isinstance(model._encoder, TransformersEncoder if kind in PACKED else PaddedEncoder)
    if isinstance(model._encoder, TransformersEncoder):
        assert model._encoder._first_position == PACKED[kind]
    rows = rows_of(model, [5, 17, 3, 30, 17, 1, 44])
    wanted = [random_models.reference(kind, folders(kind), each.ids.tolist())["states"] for each in rows]
    assert largest_difference(states(model, rows), wanted) < FAR.get(kind, 1e-5)


@pytest.mark.parametrize("kind", ["modernbert", "qwen3"])
@settings(max_examples=8, deadline=None)
@given(lengths=st.lists(st.integers(1, 40), min_size=1, max_size=6))
def test_a_text_has_the_same_states_in_any_batch(kind: str, models: Any, lengths: list[int]) -> None:
    rows = rows_of(models(kind), lengths)
    alone = [states(models(kind), [each])[0] for each in rows]
    assert largest_difference(states(models(kind), rows), alone) < 1e-5


@pytest.mark.parametrize("kind", ["bert", "albert", "electra"])
def test_a_pairs_second_text_has_the_other_type(kind: str, models: Any, folders: Any) -> None:
    single, other = rows_of(models(kind), [9, 12])
    pair = Row(other.ids, 7, 12)
    types = [0] * 7 + [1] * 5
    wanted = random_models.reference(kind, folders(kind), pair.ids.tolist(), types)["states"]
    assert largest_difference([states(models(kind), [single, pair])[1]], [wanted]) < 1e-5


@pytest.mark.parametrize("kind", ["xlm-roberta", "mpnet"], ids=["packed", "padded"])
def test_the_paddings_id_inside_a_text_has_the_position_that_transformers_gives_it(
    kind: str, models: Any, folders: Any
) -> None:
    rows = rows_of(models(kind), [9, 12, 30])
    rows[0].ids[4] = rows[2].ids[0] = rows[2].ids[7] = 1
    wanted = [random_models.reference(kind, folders(kind), each.ids.tolist())["states"] for each in rows]
    assert largest_difference(states(models(kind), rows), wanted) < 1e-5


@pytest.mark.parametrize("kind", ["bert", "modernbert"])
def test_a_querys_augmentation_looks_and_is_not_looked_at(kind: str, models: Any, folders: Any) -> None:
    query, other = rows_of(models(kind), [12, 7])
    judge = random_models.model(kind, folders(kind))
    with torch.inference_mode():
        mask = (torch.arange(12) < 9).long()[None]
        wanted = judge.base_model(input_ids=torch.from_numpy(query.ids)[None], attention_mask=mask).last_hidden_state
    found = states(models(kind), [Row(query.ids, 12, 9), other])[0]
    assert largest_difference([found], [wanted[0].numpy()]) < 1e-5


def test_several_threads_may_run_one_model_at_once(models: Any) -> None:
    model = models("bert")
    batches = [rows_of(model, [3 + i, 20, 5], seed=i) for i in range(8)]
    wanted = [states(model, rows) for rows in batches]
    with ThreadPoolExecutor(4) as pool:
        for _ in range(5):
            for found, own in zip(pool.map(lambda rows: states(model, rows), batches), wanted, strict=True):
                assert largest_difference(found, own) < 1e-6


@pytest.mark.parametrize("kind", ["bert", "modernbert", "qwen3"])
def test_bfloat16_stays_close_and_takes_half_the_memory_of_linear_layers(kind: str, models: Any, folders: Any) -> None:
    exact, fast = models(kind), loaded(kind, folders(kind), precision="bfloat16")
    rows = rows_of(exact, [5, 17, 30])
    for one, other in zip(states(exact, rows), states(fast, rows), strict=True):
        assert (one * other).sum() / np.linalg.norm(one) / np.linalg.norm(other) > 0.999
    assert 0.4 * exact.bytes < fast.bytes < 0.8 * exact.bytes


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU")
@pytest.mark.parametrize("kind", ["bert", "xlm-roberta", "modernbert", "qwen3", "mpnet", "deberta-v2"])
def test_both_ways_run_on_a_gpu(kind: str, models: Any, folders: Any) -> None:
    model = EncoderModel(Checkpoint(spec_of(kind, folders(kind)), folders(kind)), "cuda")
    assert isinstance(model._encoder, TransformersEncoder if kind in PACKED else PaddedEncoder)
    rows = rows_of(model, [5, 17, 3, 30, 17, 1, 44])
    vectors, exact = (each.forward(rows, {"dense": range(len(rows))})["dense"] for each in (model, models(kind)))
    assert isinstance(vectors, np.ndarray) and isinstance(exact, np.ndarray)
    assert (vectors * exact).sum(axis=1).min() > 0.99


@pytest.mark.parametrize("kind", [*PADDED, "bert"])
def test_what_cannot_be_packed_is_padded_and_the_log_says_why(
    kind: str, folders: Any, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING):
        loaded(kind, folders(kind))
    said = [record.getMessage() for record in caplog.records if "padded instead of packed" in record.getMessage()]
    assert [PADDED[kind] in line for line in said] == ([True] if kind in PADDED else [])


def test_memory_that_runs_out_in_the_proof_is_nothing_against_packing(
    folders: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    def short(encoder: TransformersEncoder, packed: object) -> torch.Tensor:
        raise RuntimeError("CUDA out of memory. Tried to allocate 2.00 GiB.")

    monkeypatch.setattr(TransformersEncoder, "_states", short)
    with pytest.raises(RuntimeError, match="out of memory"):
        loaded("bert", folders("bert"))


def test_the_bytes_are_those_of_the_parameters(models: Any, folders: Any) -> None:
    stored = load_file(folders("bert") / "model.safetensors")
    # Beside the parameters two buffers, of positions and types.
    assert models("bert").bytes == sum(tensor.nbytes for tensor in stored.values()) + 2 * 64 * 8


@pytest.mark.parametrize(
    ("kind", "tasks", "head"),
    [
        ("bert-nli", Tasks(extract=Extract(kind="classes")), "logits"),
        ("xlm-roberta-reranker", Tasks(score=Score()), "logits"),
        ("modernbert-ner", Tasks(extract=Extract(kind="entities")), "token_logits"),
        ("deberta-v2-ner", Tasks(extract=Extract(kind="entities")), "token_logits"),
        ("albert-nli", Tasks(extract=Extract(kind="classes")), "logits"),
    ],
)
def test_heads_stand_on_top_by_the_record_of_the_model_type(kind: str, tasks: Tasks, head: str, folders: Any) -> None:
    model = loaded(kind, folders(kind), tasks)
    rows = rows_of(model, [9, 4])
    found = model.forward(rows, {head: [0, 1]})[head]
    for each, logits in zip(rows, found, strict=True):
        assert np.abs(random_models.reference(kind, folders(kind), each.ids.tolist())["logits"] - logits).max() < 1e-5


@pytest.fixture(scope="module")
def other(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """Folder and model of transformers of a model type without a record."""
    transformers: Any = import_module("transformers")
    sizes = {
        "hidden_size": 32,
        "num_hidden_layers": 3,
        "num_attention_heads": 4,
        "intermediate_size": 48,
        "vocab_size": 80,
        "max_position_embeddings": 64,
        "pad_token_id": 0,
        "bos_token_id": 1,
        "eos_token_id": 2,
    }

    def make(kind: str) -> tuple[Path, Any]:
        folder = tmp_path_factory.mktemp(kind)
        torch.manual_seed(0)
        config = {name: value for name, value in {**sizes, **OTHERS[kind]}.items() if value is not None}
        made = transformers.AutoModel.from_config(transformers.AutoConfig.for_model(kind, **config)).eval()
        with torch.no_grad():
            for name, parameter in made.named_parameters():
                if parameter.dim() > 1:
                    parameter.normal_(std=1.0 if "emb" in name else parameter.shape[-1] ** -0.5)
        made.save_pretrained(folder)
        tiny_tokenizers.make("bert").save(str(folder / "tokenizer.json"))
        return folder, made.get_encoder() if made.config.is_encoder_decoder else made

    return lru_cache(maxsize=None)(make)


@pytest.mark.parametrize(("kind", "packed"), [("gpt_neox", True), ("opt", True), ("t5", False), ("convbert", False)])
def test_a_model_type_without_a_record_is_run_as_it_bears_it(kind: str, packed: bool, other: Any) -> None:
    folder, judge = other(kind)
    model = loaded(kind, folder)
    assert isinstance(model._encoder, TransformersEncoder if packed else PaddedEncoder)
    rows = rows_of(model, [5, 17, 3, 30, 17, 1, 44])
    with torch.inference_mode():
        wanted = [judge(input_ids=torch.from_numpy(each.ids)[None]).last_hidden_state[0].numpy() for each in rows]
    assert largest_difference(states(model, rows), wanted) < 1e-5


def test_only_texts_of_equal_length_share_a_pass_where_padding_would_be_seen(
    other: Any, caplog: pytest.LogCaptureFixture
) -> None:
    model = loaded("convbert", other("convbert")[0])
    assert "only texts of equal length share a pass" in caplog.text
    assert isinstance(model._encoder, PaddedEncoder) and model._encoder._slack == model._encoder._share == 0


@pytest.mark.parametrize("task", [Tasks(score=Score()), Tasks(extract=Extract(kind="entities"))], ids=str)
def test_a_head_that_nobody_described_is_refused(task: Tasks, other: Any) -> None:
    with pytest.raises(ModelLoadFailedError, match="needs a head that nobody described for 'auto'"):
        loaded("opt", other("opt")[0], task)


def test_more_tokens_than_positions_are_refused(folders: Any) -> None:
    spec = msgspec.structs.replace(spec_of("roberta", folders("roberta")), max_sequence_length=65)
    with pytest.raises(ModelLoadFailedError, match="64 positions, its spec wants 65"):
        EncoderModel(Checkpoint(spec, folders("roberta")))


def test_a_missing_tensor_is_named(folders: Any, tmp_path: Path) -> None:
    random_models.make("bert", tmp_path)
    tensors = load_file(tmp_path / "model.safetensors")
    name = "encoder.layer.1.output.dense.weight"
    del tensors[name]
    save_file(tensors, tmp_path / "model.safetensors", metadata={"format": "pt"})
    with pytest.raises(ModelLoadFailedError, match=f"no tensor {name}"):
        loaded("bert", tmp_path)


def test_padding_that_is_no_token_is_refused(tmp_path: Path) -> None:
    random_models.make("bert", tmp_path)
    config = (tmp_path / "config.json").read_text().replace('"pad_token_id": 0', '"pad_token_id": 999')
    (tmp_path / "config.json").write_text(config)
    with pytest.raises(ModelLoadFailedError, match="transformers cannot load"):
        loaded("bert", tmp_path)


def test_positions_that_transformers_no_longer_computes_are_refused(tmp_path: Path) -> None:
    random_models.make("bert", tmp_path)
    config = (tmp_path / "config.json").read_text().replace('"absolute"', '"relative_key"')
    (tmp_path / "config.json").write_text(config)
    with pytest.raises(ModelLoadFailedError, match="relative_key"):
        loaded("bert", tmp_path)


def test_a_model_type_that_transformers_does_not_know_is_refused(tmp_path: Path) -> None:
    random_models.make("bert", tmp_path)
    config = (tmp_path / "config.json").read_text().replace('"bert"', '"unheard-of"')
    (tmp_path / "config.json").write_text(config)
    with pytest.raises(ModelLoadFailedError, match="transformers cannot read"):
        loaded("unheard-of", tmp_path)


def test_faster_linear_layers_that_compute_something_else_are_taken_out_again(folders: Any) -> None:
    checkpoint = Checkpoint(spec_of("bert", folders("bert")), folders("bert"))
    with torch.inference_mode():
        body = Body(checkpoint, Parameters(checkpoint.architecture, checkpoint.tensors, CPU, torch.float32))
        layers = list(body._model.modules())
        wanted = torch.ones(3)
        body.quicken(lambda: -wanted, wanted)
        assert list(body._model.modules()) == layers
        body.quicken(lambda: wanted, wanted)
        assert list(body._model.modules()) != layers


@pytest.mark.parametrize(("name", "imported"), [("bert", False), ("auto", True)])
def test_transformers_is_imported_for_the_models_that_need_it_alone(name: str, imported: bool, folders: Any) -> None:
    program = f"""
import sys
from pathlib import Path
from sie_bundle.models.checkpoint import Checkpoint
from sie_bundle.models.model import load
from sie_config.model.model_spec import ModelSpec
from sie_config.model.sources import LocalSource
from sie_config.model.tasks import Dense, Tasks
tasks, sources = Tasks(dense=Dense(dim=32)), (LocalSource(path="x"),)
spec = ModelSpec(id="t", family="{name}", tasks=tasks, sources=sources, max_sequence_length=48, revision="r")
load(Checkpoint(spec, Path({str(folders("bert"))!r})))
assert ("transformers" in sys.modules) == {imported}
"""
    done = subprocess.run([sys.executable, "-W", "error", "-c", program], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout == done.stderr == ""


def test_every_record_names_a_way_in() -> None:
    assert {record.way for record in family.FAMILIES.values()} == {"packed", "transformers", "padded"}


@pytest.mark.parametrize("kind", ["modernbert", "deberta-v2"], ids=["packed", "padded"])
def test_a_body_goes_with_its_last_holder_and_not_with_a_later_collection(kind: str, folders: Any) -> None:
    gc.disable()
    try:
        model = loaded(kind, folders(kind))
        assert isinstance(model._encoder, TransformersEncoder | PaddedEncoder)
        body = weakref.ref(model._encoder._body)
        del model
        assert body() is None
    finally:
        gc.enable()
