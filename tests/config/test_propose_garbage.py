"""Whatever the files of a folder hold: a proposal that is a valid spec, or an error that names file and field."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import msgspec
import pytest
import yaml
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from sie_config.model import model_spec
from sie_config.model.sources import LocalSource
from sie_config.propose import Tensor, local, papers, spec, wanted, weights, written
from sie_config.propose.folder import READ
from sie_sdk.errors import ConfigurationError
from tests.config.model_folders import BERT, CARD, GLINER, PYLATE, PYLATE_SIZES, TOKENIZER, folder, labels, sentence

SLOW = (HealthCheck.too_slow,)
"""Tests share two cores."""

TEXT = st.one_of(
    st.text(max_size=12), st.sampled_from(["", "mean", "torch.nn.Tanh", "\ud800", "a\nb: # c", "\x85\u2028", "query"])
)
NUMBER = st.one_of(st.integers(), st.sampled_from([-1, 0, 1, 2, 512, 10**30]), st.floats())
JSON = st.recursive(
    st.one_of(st.none(), st.booleans(), NUMBER, TEXT),
    lambda inner: st.one_of(st.lists(inner, max_size=3), st.dictionaries(TEXT, inner, max_size=3)),
    max_leaves=6,
)
BASES: list[dict[str, Any]] = [
    sentence(
        "Pooling",
        "Dense",
        "Normalize",
        **{"2_Dense/config.json": {"out_features": 8, "activation_function": "torch.nn.Identity"}},
    ),
    PYLATE,
    {"config.json": BERT | {"architectures": ["HF_ColBERT"]}, "artifact.metadata": {"query_maxlen": 32, "dim": 96}},
    {"config.json": BERT | {"architectures": ["BertForSequenceClassification"], **labels("entailment", "other")}},
]
FIELDS = sorted(
    {
        field.encode_name
        for kind in (papers.Config, papers.Sentence, papers.Transformer, papers.Tokenizer, papers.Colbert, papers.Step)
        for field in msgspec.structs.fields(kind)
    }
)


def check(files: dict[str, Any]) -> None:
    made = folder(files, PYLATE_SIZES, {"linear.weight": Tensor("F32", ())})
    try:
        wanted(made)
        found = spec(made, id="acme/model", revision="r", sources=(LocalSource(path="x"),))
    except ConfigurationError as error:
        assert error.field is not None
        assert error.field.partition(":")[0] in {*READ, "tokenizer.json", *files}, error.message
        assert error.message.startswith(error.field.partition(":")[0]) and error.hint
        return
    text = written.document(found, "x\n- y")
    assert model_spec.parse(yaml.safe_load(text.encode()), origin="written") == found.spec
    assert found.spec.status == "ready" or found.spec.blocked_by


@given(st.sampled_from(BASES), st.data())
@settings(max_examples=400, deadline=None, suppress_health_check=SLOW)
def test_one_field_of_one_file_is_anything(base: dict[str, Any], data: st.DataObject) -> None:
    files = {"tokenizer_config.json": TOKENIZER, "README.md": CARD.format(tags="x"), **base}
    name = data.draw(st.sampled_from(sorted(own for own in files if isinstance(files[own], dict))))
    field = data.draw(st.sampled_from([*FIELDS, *files[name]]))
    check(files | {name: files[name] | {field: data.draw(JSON)}})


@given(st.sampled_from(BASES), st.data())
@settings(max_examples=200, deadline=None, suppress_health_check=SLOW)
def test_a_file_is_any_json(base: dict[str, Any], data: st.DataObject) -> None:
    name = data.draw(st.sampled_from([*base, *READ]))
    check(base | {name: json.dumps(data.draw(JSON))})


@given(st.sampled_from(BASES), st.data())
@settings(max_examples=200, deadline=None, suppress_health_check=SLOW)
def test_a_file_is_any_bytes(base: dict[str, Any], data: st.DataObject) -> None:
    name = data.draw(st.sampled_from([*base, *READ]))
    check(base | {name: data.draw(st.binary(max_size=40))})


@given(st.lists(st.fixed_dictionaries({"type": TEXT, "path": TEXT}), max_size=4))
@settings(max_examples=100, deadline=None, suppress_health_check=SLOW)
def test_modules_are_of_any_kind_and_lie_anywhere(modules: list[dict[str, str]]) -> None:
    check(BASES[0] | {"modules.json": json.dumps(modules)})


@given(TEXT, TEXT)
@settings(deadline=None, suppress_health_check=SLOW)
def test_prompts_are_any_text(query: str, document: str) -> None:
    prompts = {"query": query, "document": document, "": query}
    check(BASES[0] | {"config_sentence_transformers.json": json.dumps({"prompts": prompts})})


def test_a_card_that_stands_for_more_than_anybody_can_read_is_passed_over() -> None:
    lines = ["a0: &a0 [x]", *(f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 10)}]" for n in range(1, 12))]
    for last in ("tags: [*a11]", "tags: [matryoshka]\nmodel-index: *a11"):
        read = papers.read(folder(BASES[0] | {"README.md": "---\n" + "\n".join([*lines, last]) + "\n---\n"}))
        assert (read.card, read.tags) == ({}, frozenset()) and "aliases" in read.card_fault


@given(TEXT, JSON)
@settings(max_examples=200, deadline=None, suppress_health_check=SLOW)
def test_a_card_says_anything(name: str, value: Any) -> None:
    card = json.dumps({"license": value, "tags": value, "language": value, "model-index": value, name: value})
    check(BASES[0] | {"README.md": f"---\n{card}\n---\n"})


def test_a_file_of_nothing_but_brackets_is_no_json() -> None:
    with pytest.raises(ConfigurationError, match=r"config\.json: it is not JSON"):
        check_raises({"config.json": b"[" * 100_000})


def check_raises(files: dict[str, Any]) -> None:
    spec(folder(files), id="acme/model", revision="r", sources=(LocalSource(path="x"),))


def test_a_field_of_another_type_is_named_with_its_file() -> None:
    with pytest.raises(ConfigurationError) as told:
        check_raises(sentence(**{"1_Pooling/config.json": {"pooling_mode_cls_token": "yes"}}))
    assert told.value.field == "1_Pooling/config.json: pooling_mode_cls_token"
    with pytest.raises(ConfigurationError) as told:
        check_raises({"config.json": BERT, "modules.json": [{"type": "a.B"}, {"path": "x"}]})
    assert told.value.field == "modules.json: [1].type"


@given(st.binary(max_size=64))
def test_weights_are_any_bytes(content: bytes) -> None:
    try:
        weights.tensors(content[8 : 8 + weights.header_length(content)], len(content))
    except ConfigurationError as error:
        assert (error.field or "").startswith("model.safetensors")


WHOLE = {"dtype": "F32", "shape": [2, 3], "data_offsets": [0, 24]}


@pytest.mark.parametrize(
    ("header", "told"),
    [
        (json.dumps({"w": WHOLE | {"shape": [-2, -3]}}), "header: Expected `int` >= 0"),
        (json.dumps({"w": WHOLE | {"data_offsets": [0, 25]}}), "it ends after"),
        (json.dumps({"w": WHOLE, "v": {"dtype": "F32", "shape": [2]}}), "data_offsets"),
        ('{"w": %s, "w": %s}' % ((json.dumps(WHOLE),) * 2), "header: a name is there twice"),
    ],
    ids=["a negative shape", "data cut short", "no place", "a name twice"],
)
def test_a_part_of_the_weights_that_is_not_what_it_says_is_named(tmp_path: Path, header: str, told: str) -> None:
    def part(name: str, header: str) -> None:
        (tmp_path / name).write_bytes(len(header).to_bytes(8, "little") + header.encode() + bytes(24))

    index = {"weight_map": {"u": "model-1.safetensors", "w": "model-2.safetensors"}}
    (tmp_path / "config.json").write_text(json.dumps(BERT))
    (tmp_path / "model.safetensors.index.json").write_text(json.dumps(index))
    part("model-1.safetensors", json.dumps({"u": WHOLE, "__metadata__": {"format": "pt"}}))
    part("model-2.safetensors", json.dumps({"w": WHOLE}))
    assert local.read(tmp_path).tensors == {name: Tensor("F32", (2, 3)) for name in "uw"}
    part("model-2.safetensors", header)
    with pytest.raises(ConfigurationError, match=rf"^model-2\.safetensors: .*{told}"):
        local.read(tmp_path)


@pytest.mark.parametrize("length", [-5, 0, 10**17])
def test_a_gliner_without_a_length_of_texts_is_refused(length: int) -> None:
    with pytest.raises(ConfigurationError, match=r"gliner_config\.json: max_len"):
        check_raises({"gliner_config.json": GLINER | {"max_len": length}})


def test_a_folder_with_broken_weights_says_so(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps(BERT))
    (tmp_path / "model.safetensors").write_bytes(b"\x10\0\0\0\0\0\0\0{}")
    with pytest.raises(ConfigurationError, match=r"model\.safetensors: header"):
        local.read(tmp_path)
    with pytest.raises(ConfigurationError, match="There is no folder"):
        local.read(tmp_path / "absent")
