"""LoRA: merged into the weights that it names, in every way a model is computed; loaded and let go by itself."""

from __future__ import annotations

import asyncio
import copy
import json
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
import torch
from safetensors.numpy import load_file, save_file

from sie_broker.records import Work
from sie_bundle.engine.executor import Executor
from sie_bundle.models.checkpoint import Checkpoint
from sie_bundle.models.lora import Merged, matched
from sie_bundle.models.model import EncoderModel, load
from sie_bundle.operations import encode
from sie_bundle.operations.operation import Operation
from sie_config.model.model_spec import Lora, ModelSpec, Profile
from sie_config.model.sources import LocalSource
from sie_config.model.tasks import Extract, Tasks
from sie_config.model.variant import variant
from sie_config.registry import Registry, lane_of
from sie_sdk import results, wire
from sie_sdk.errors import InvalidInputError, ModelLoadFailedError, WeightsUnavailableError
from sie_sdk.types import EncodeParams, EncodeRequest, Item
from tests import tiny_model
from tests.bundle.residencies import Clock, Loads, residency
from tests.golden import lora_folder, random_models

LAYERS = lora_folder.bert(tiny_model.HIDDEN, tiny_model.INTERMEDIATE, tiny_model.LAYERS, ("query", "intermediate"))
TEXTS = ["hello world", "ship"]


@pytest.fixture
def law(tmp_path: Path) -> Path:
    return lora_folder.make(tmp_path / "law", LAYERS)


def spec_with(folder: Path, *, scale: float = 1.0, **loras: Path) -> ModelSpec:
    profiles = {name: Profile(lora=Lora((LocalSource(str(path)),), scale)) for name, path in loras.items()}
    return msgspec.structs.replace(tiny_model.spec(folder), profiles=profiles)


def merged_by_hand(folder: Path, lora: Path, into: Path, scale: float) -> Path:
    """A model whose own weights have the LoRA's in them."""
    into.mkdir()
    for name in ("config.json", "tokenizer.json"):
        (into / name).write_bytes((folder / name).read_bytes())
    weights, adapter = load_file(folder / "model.safetensors"), load_file(lora / "adapter_model.safetensors")
    for name in LAYERS:
        up, down = (adapter[f"base_model.model.{name}.lora_{part}.weight"] for part in "BA")
        weights[f"{name}.weight"] = weights[f"{name}.weight"] + scale * (up @ down)
    save_file(weights, into / "model.safetensors")
    return into


def vectors(model: EncoderModel) -> np.ndarray:
    return tiny_model.vectors(model, model.tokenizer.rows(TEXTS, 32))


def loaded(spec: ModelSpec, folder: Path, lora: Path) -> EncoderModel:
    model = load(Checkpoint(variant(spec, "law"), folder, lora=lora), precision="float32")
    assert isinstance(model, EncoderModel)
    return model


@pytest.mark.parametrize(
    ("config", "scale", "times"), [({}, 1.0, 2.0), ({}, 0.5, 1.0), ({"lora_alpha": 3, "use_rslora": True}, 1.0, 1.5)]
)
def test_a_merged_model_is_that_whose_weights_have_the_product_in_them(
    tiny_folder: Path, tmp_path: Path, config: dict[str, Any], scale: float, times: float
) -> None:
    lora = lora_folder.make(tmp_path / "law", LAYERS, **config)
    by_hand = merged_by_hand(tiny_folder, lora, tmp_path / "merged", times)
    wanted = vectors(tiny_model.load(tiny_model.spec(by_hand), by_hand))
    found = vectors(loaded(spec_with(tiny_folder, scale=scale, law=lora), tiny_folder, lora))
    assert np.abs(found - wanted).max() < 1e-6
    assert np.abs(found - vectors(tiny_model.load(tiny_model.spec(tiny_folder), tiny_folder))).max() > 0.01


@pytest.mark.parametrize(
    ("kind", "layer", "prefix"),
    [
        ("bert-splade", "attention.self.query", "bert."),
        ("deberta-v2", "attention.self.query_proj", "deberta."),
        ("modernbert-nli", "attn.Wqkv", "model."),
    ],
)
@pytest.mark.parametrize("way", ["own", "auto"])
def test_every_way_a_model_is_computed_has_the_lora_in_it(
    kind: str, layer: str, prefix: str, way: str, tmp_path: Path
) -> None:
    folder = random_models.make(kind, tmp_path / kind)
    family = str(json.loads((folder / "config.json").read_text())["model_type"])
    # Named as PEFT does when it wraps the body, whatever prefix the file has.
    layers = {
        name.removesuffix(".weight").removeprefix(prefix): value.shape
        for name, value in load_file(folder / "model.safetensors").items()
        if name.endswith(f"{layer}.weight")
    }
    lora = lora_folder.make(tmp_path / "law", layers)
    spec = msgspec.structs.replace(
        spec_with(folder, law=lora), family=family if way == "own" else "auto", max_sequence_length=16
    )
    with_lora = loaded(spec, folder, lora)
    plain = load(Checkpoint(variant(spec), folder), precision="float32")
    rows = plain.tokenizer.rows(["hello world ship"], 16)
    body = random_models.model(kind, folder).base_model
    before = {name: parameter.clone() for name, parameter in body.named_parameters()}
    adapter = load_file(lora / "adapter_model.safetensors")
    with torch.no_grad():
        for name in layers:
            up, down = (torch.from_numpy(adapter[f"base_model.model.{name}.lora_{part}.weight"]) for part in "BA")
            body.get_parameter(f"{name}.weight").add_(2.0 * up @ down)
        states = body(input_ids=torch.from_numpy(rows[0].ids)[None]).last_hidden_state[0].mean(dim=0)
        for name, parameter in body.named_parameters():
            parameter.copy_(before[name])
    wanted = torch.nn.functional.normalize(states, dim=-1).numpy()
    assert np.abs(tiny_model.vectors(with_lora, rows)[0] - wanted).max() < 1e-5
    assert np.abs(tiny_model.vectors(plain, rows)[0] - wanted).max() > 1e-3


@pytest.mark.parametrize(
    ("config", "said"),
    [
        ({"use_dora": True}, "use_dora"),
        ({"bias": "all"}, "bias all"),
        ({"fan_in_fan_out": True}, "fan_in_fan_out"),
        ({"alora_invocation_tokens": [1]}, "alora_invocation_tokens"),
        ({"use_of_tomorrow": {"steps": 2}}, "use_of_tomorrow"),
        ({"peft_type": "LOHA"}, "peft_type LOHA"),
        ({"init_lora_weights": "pissa_niter_16"}, "init_lora_weights pissa_niter_16"),
        ({"alpha_pattern": {"query": 3}}, "alpha_pattern"),
        ({"r": "four"}, "no LoRA"),
    ],
)
def test_a_lora_of_another_kind_is_refused_with_what_it_is(
    tiny_folder: Path, tmp_path: Path, config: dict[str, Any], said: str
) -> None:
    lora = lora_folder.make(tmp_path / "law", LAYERS, **config)
    with pytest.raises(ModelLoadFailedError, match=said):
        loaded(spec_with(tiny_folder, law=lora), tiny_folder, lora)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda tensors: tensors.update({"base_model.model.encoder.extra.lora_bias": np.ones(2, np.float32)}), "extra"),
        (lambda tensors: tensors.pop(next(name for name in tensors if "lora_A" in name)), "has no tensor"),
        (lambda tensors: tensors.clear(), "nothing"),
        (lambda tensors: tensors.update({name: own[:0] for name, own in tensors.items() if "lora_A" in name}), "rank"),
        (lambda tensors: tensors.update({name: own[0] for name, own in tensors.items() if "lora_A" in name}), "rank"),
    ],
)
def test_tensors_that_are_more_or_less_than_a_lora_are_refused(
    tiny_folder: Path, law: Path, change: Callable[[dict[str, Any]], object], said: str
) -> None:
    path = law / "adapter_model.safetensors"
    tensors = load_file(path)
    change(tensors)
    save_file(tensors, path)
    with pytest.raises(ModelLoadFailedError, match=said):
        loaded(spec_with(tiny_folder, law=law), tiny_folder, law)


def test_a_lora_for_another_model_is_refused(tiny_folder: Path, tmp_path: Path) -> None:
    for number, layers in enumerate(
        [lora_folder.bert(48, 64, 2), lora_folder.bert(32, 64, 3), {"encoder.layer.0.attention.wrong": (32, 32)}]
    ):
        lora = lora_folder.make(tmp_path / str(number), layers)
        with pytest.raises(ModelLoadFailedError, match="for another model"):
            loaded(spec_with(tiny_folder, law=lora), tiny_folder, lora)


@pytest.mark.parametrize("family", ["bert", "auto"])
def test_a_classifier_that_was_trained_beside_a_lora_takes_the_place_of_the_models(family: str, tmp_path: Path) -> None:
    folder = random_models.make("bert-nli", tmp_path / "nli")
    stored = load_file(folder / "model.safetensors")
    head = {f"classifier.{part}": stored[f"classifier.{part}"].shape for part in ("weight", "bias")}
    layers = {f"bert.{name}": shape for name, shape in lora_folder.bert(32, 48, 3).items()}
    lora = lora_folder.make(tmp_path / "law", layers, whole=head, task_type="SEQ_CLS")
    tasks = Tasks(extract=Extract(kind="classes"))
    spec = msgspec.structs.replace(spec_with(folder, law=lora), family=family, tasks=tasks, max_sequence_length=16)
    found = loaded(spec, folder, lora)
    reference, adapter = (
        copy.deepcopy(random_models.model("bert-nli", folder)),
        load_file(lora / "adapter_model.safetensors"),
    )
    with torch.no_grad():
        for name in layers:
            up, down = (torch.from_numpy(adapter[f"base_model.model.{name}.lora_{part}.weight"]) for part in "BA")
            reference.get_parameter(f"{name}.weight").add_(2.0 * up @ down)
        for name in head:
            reference.get_parameter(name).copy_(torch.from_numpy(adapter[f"base_model.model.{name}"]))
        rows = found.tokenizer.rows(["hello world ship"], 16)
        wanted = reference(input_ids=torch.from_numpy(rows[0].ids)[None]).logits.numpy()
    logits = np.asarray(found.forward(rows, {"logits": [0]})["logits"])
    assert np.abs(logits - wanted).max() < 2e-5 * np.abs(wanted).max()


def test_layers_that_were_trained_whole_are_those_whose_names_end_so(tiny_folder: Path, tmp_path: Path) -> None:
    """As PEFT has it: "norm" names `mlp_norm`, too."""
    name = "encoder.layer.0.attention.output.LayerNorm"
    whole = {f"{name}.{part}": (tiny_model.HIDDEN,) for part in ("weight", "bias")}
    lora = lora_folder.make(tmp_path / "law", LAYERS, whole=whole, modules_to_save=["Norm"])
    plain = lora_folder.make(tmp_path / "plain", LAYERS)
    found, without = (loaded(spec_with(tiny_folder, law=own), tiny_folder, own) for own in (lora, plain))
    assert np.abs(vectors(found) - vectors(without)).max() > 1e-3


def test_a_layer_is_found_whichever_side_has_a_prefix() -> None:
    names = ["bert.encoder.0.query.weight", "bert.encoder.0.query.bias", "classifier.weight", "weight"]
    for layer in ("bert.encoder.0.query", "encoder.0.query", "model.bert.encoder.0.query"):
        assert matched([layer], names, Path()) == {layer: names[0]}
    with pytest.raises(ModelLoadFailedError, match=r"several layers 0\.query"):
        matched(["0.query"], [*names, "other.encoder.0.query.weight"], Path())


def test_only_what_the_lora_names_is_not_as_it_is_stored(tiny_folder: Path, law: Path) -> None:
    plain = Checkpoint(tiny_model.spec(tiny_folder), tiny_folder)
    merged = Merged(plain.tensors, law)
    assert set(merged) == set(plain.tensors) and len(merged) == len(plain.tensors)
    changed = {name for name in merged if not torch.equal(merged[name], plain.tensors[name])}
    # The words' table has a vector that is not a number, which equals nothing.
    assert changed - {"embeddings.word_embeddings.weight"} == {f"{name}.weight" for name in LAYERS}
    with_lora = Checkpoint(variant(spec_with(tiny_folder, law=law), "law"), tiny_folder, lora=law)
    assert with_lora.bytes == plain.bytes


async def test_base_and_loras_are_in_memory_side_by_side_and_go_one_by_one(
    tiny_folder: Path, tmp_path: Path, law: Path
) -> None:
    loads, clock = Loads(), Clock()
    spec = spec_with(tiny_folder, law=law, other=lora_folder.make(tmp_path / "other", LAYERS, seed=1))
    models = residency(tmp_path, loads, clock)
    held: dict[str, np.ndarray] = {}
    for lora in ("", "law", "other"):
        clock.now += 10
        model = await models.model(spec, lora)
        assert await models.model(spec, lora) is model
        held[lora] = vectors(model)  # type: ignore[arg-type]
    del model
    assert loads == ["test/tiny", "test/tiny:law", "test/tiny:other"] == list(models.resident())
    assert np.abs(held["law"] - held["other"]).max() > 0.01 < np.abs(held["law"] - held[""]).max()
    whole = models.bytes
    clock.now += 10
    await models.model(spec)  # used last, so the first LoRA goes
    assert models.relieve() and models.resident() == ("test/tiny:other", "test/tiny")
    assert models.bytes == pytest.approx(whole * 2 / 3)
    assert np.array_equal(vectors(await models.model(spec, "law")), held["law"])  # type: ignore[arg-type]
    assert np.array_equal(vectors(await models.model(spec)), held[""])  # type: ignore[arg-type]


async def test_a_lora_that_is_nowhere_fails_by_itself(tiny_folder: Path, tmp_path: Path) -> None:
    models = residency(tmp_path, Loads(), Clock())
    spec = spec_with(tiny_folder, law=tmp_path / "absent")
    with pytest.raises(WeightsUnavailableError, match="test/tiny's LoRA law"):
        await models.model(spec, "law")
    await models.model(spec)
    assert [failure.spec.default_profile for failure in models.failed(5)] == ["law"]


async def test_requests_that_name_loras_run_at_once_and_get_their_own(
    tiny_folder: Path, tmp_path: Path, law: Path
) -> None:
    spec = spec_with(tiny_folder, law=law, other=lora_folder.make(tmp_path / "other", LAYERS, seed=1))
    executor, threads = Executor(), ThreadPoolExecutor(2)
    models = residency(tmp_path, Loads(), Clock())
    operation = Operation(
        encode.parse, encode.plan, Registry([spec]), models, executor, {"interactive": threads, "bulk": threads}
    )

    async def answer(lora: object) -> np.ndarray:
        options = None if lora is None else {"lora_id": lora}
        body = wire.request_body(EncodeRequest([Item(text=text) for text in TEXTS], EncodeParams(options=options)))
        found = results.read_encode(await operation(Work("1", "encode", lane_of(spec), spec.id, body, time.time())))
        return np.stack([each.dense for each in found if each.dense is not None])

    wanted = {lora: vectors(await models.model(spec, lora)) for lora in ("", "law", "other")}  # type: ignore[arg-type]
    asked = [None, "law", "other", "", "law", "other"] * 8
    for lora, found in zip(asked, await asyncio.gather(*map(answer, asked)), strict=True):
        assert np.abs(found - wanted[lora or ""]).max() < 1e-6
    with pytest.raises(InvalidInputError) as refused:
        await answer("none")
    assert refused.value.limit == "law, other"
    executor.close()
    threads.shutdown()
