"""What proposals know of architectures equals what the engine has, and what transformers has."""

from __future__ import annotations

from contextlib import nullcontext
from importlib import import_module
from pathlib import Path
from typing import Any

import msgspec
import pytest

from sie_bundle.engine import linear
from sie_bundle.models import activations, by_layer, family, gliner
from sie_bundle.weights import layout
from sie_config.propose import Folder, chain, families, weights
from sie_config.propose import gliner as proposed
from sie_config.propose.families import Known

modeling: Any = import_module("transformers.models.auto.modeling_auto")


def test_every_family_of_the_engine_is_known_and_no_other() -> None:
    assert {*families.FAMILIES, families.AUTO} == family.FAMILIES.keys()


def test_what_a_gliner_may_say_is_what_the_engine_reads() -> None:
    assert gliner.NAMED.keys() == proposed.NAMED
    assert (gliner.COMPUTED, gliner.EMPTY) == (proposed.COMPUTED, proposed.EMPTY)
    ours = {field.name: field.default for field in msgspec.structs.fields(gliner.Config)}
    theirs = {field.name: field.default for field in msgspec.structs.fields(proposed.Gliner)}
    assert {name: ours[name] for name in theirs} == theirs
    assert layout.GLINER_CONFIG == proposed.FILE


@pytest.mark.parametrize("name", families.FAMILIES)
def test_a_family_is_known_as_the_engine_has_it(name: str) -> None:
    own = family.FAMILIES[name]
    assert families.FAMILIES[name] == Known(
        first_position=own.first_position if own.positions else 0,
        hidden=own.config.get("hidden_size", "hidden_size"),
        longest=own.config.get("max_position_embeddings", "max_position_embeddings"),
        packed=own.way == "packed",
        padded=own.way == "padded",
        vocabulary=bool(own.masked_lm),
        published_code=families.FAMILIES[name].published_code,
        decoder=own.causal,
    )


def test_activations_are_those_of_the_engine() -> None:
    assert activations.NAMES.keys() == families.ACTIVATIONS
    assert {act for act in chain._ACTIVATIONS.values() if act} <= linear.ACTIVATIONS.keys()


@pytest.mark.parametrize("kind", [*sorted(families.ROTATIONS), "yarn", "longrope", "dynamic"])
def test_rotations_are_those_of_the_engine(kind: str) -> None:
    scaling = {"rope_type": kind, "factor": 2.0, "original_max_position_embeddings": 64}
    described = {"rope_scaling": scaling | {"low_freq_factor": 1.0, "high_freq_factor": 4.0}}
    with nullcontext() if kind in families.ROTATIONS else pytest.raises(by_layer.UnsupportedRope):
        assert by_layer.ropes(described, ["full_attention"], 32)


def test_what_is_left_to_transformers_is_a_text_model_it_has() -> None:
    assert modeling.MODEL_MAPPING_NAMES.keys() >= families.OF_TRANSFORMERS
    assert families.OF_TRANSFORMERS.isdisjoint(families.FAMILIES)


@pytest.mark.parametrize(
    "names",
    [
        ("model.safetensors", "pytorch_model.bin"),
        ("model.safetensors.index.json", "a.safetensors", "b.safetensors"),
        ("model.safetensors.index.json", "a.safetensors", "pytorch_model.bin"),
        ("model.safetensors.index.json", "a.safetensors", "b.safetensors.bin"),
        ("pytorch_model.bin",),
        (),
    ],
)
def test_the_files_of_the_weights_are_those_the_engine_opens(names: tuple[str, ...], tmp_path: Path) -> None:
    second = "b.safetensors.bin" if "b.safetensors.bin" in names else "b.safetensors"
    index = b'{"weight_map": {"x": "a.safetensors", "y": "%s"}}' % second.encode()
    contents = {name: index if name.endswith(".json") else b"" for name in names}
    for name, content in contents.items():
        (tmp_path / name).write_bytes(content)
    assert weights.files(Folder(contents)) == layout.files(tmp_path)
    assert "b.safetensors.bin" not in layout.files(tmp_path)
