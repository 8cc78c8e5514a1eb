"""Profiles that the engine would refuse of every request: told when the spec is written."""

from __future__ import annotations

import contextlib
from typing import Any

import pytest

from sie_bundle.operations.muvera import Muvera
from sie_sdk.errors import InvalidInputError
from tests.config.test_validation import changed, told


@pytest.mark.parametrize("value", [..., None])
def test_all_that_needs_multivectors_says_so_when_they_are_not_there(value: Any) -> None:
    faults = told(changed("tasks.multivector", value))
    assert [*faults] == ["tasks.score.kind", "profiles.fast.options.muvera"]
    assert "the multivector task, which is not there" in faults["tasks.score.kind"]
    assert "no multivectors" in faults["profiles.fast.options.muvera"]


@pytest.mark.parametrize(
    ("dim", "muvera", "fault", "message"),
    [
        (128, {"projection": 129}, ".projection", "129 is not at most tasks.multivector.dim, 128"),
        (128, {"repetitions": 1024, "simhash_bits": 8}, "", "33554432 numbers are not at most 16777216"),
        (1 << 13, True, "", "20971520 numbers are not at most 16777216"),
        (1 << 13, {"repetitions": 8, "projection": 1 << 8}, "", None),
        (1 << 13, {"repetitions": 64, "projection": 1 << 8}, "", "134217728 random numbers are not at most 16777216"),
        (1 << 13, {"repetitions": 1024, "projection": 1 << 9}, "", "33554432 numbers"),
    ],
)
def test_an_encoding_that_the_engine_refuses_is_told(dim: int, muvera: Any, fault: str, message: str | None) -> None:
    document = changed("profiles.fast.options.muvera", muvera, changed("tasks.multivector.dim", dim))
    found = told(document)
    assert [*found] == ([f"profiles.fast.options.muvera{fault}"] if message else [])
    assert message is None or message in found[f"profiles.fast.options.muvera{fault}"]
    with contextlib.nullcontext() if message is None else pytest.raises(InvalidInputError):
        Muvera(dim, **({} if muvera is True else muvera))


def test_what_no_dense_vectors_can_be_pooled_of_is_told() -> None:
    document = changed("profiles", {"p": {"options": {"pooling": "cls"}}}, changed("default_profile", "p"))
    assert told(document) == {}
    sparse = changed("tasks", {"sparse": {"dim": 8}}, document)
    assert [*told(sparse)] == ["profiles.p.options.pooling"]


@pytest.mark.parametrize(
    ("tasks", "options", "refused"),
    [
        ({"sparse": {"dim": 8}}, {"output_dtype": "int8"}, True),
        ({"sparse": {"dim": 8}}, {"output_dtype": "float16"}, False),
        ({"dense": {"dim": 8}, "sparse": {"dim": 8}}, {"output_dtype": "int8"}, False),
        ({"dense": {"dim": 8}, "sparse": {"dim": 8}}, {"output_dtype": "int8", "output_types": ["sparse"]}, True),
    ],
)
def test_a_dtype_that_sparse_vectors_do_not_come_in_is_told(tasks: Any, options: Any, refused: bool) -> None:
    document = changed("profiles", {"p": {"options": options}}, changed("default_profile", "p"))
    found = told(changed("tasks", tasks, document))
    assert [*found] == (["profiles.p.options.output_dtype"] if refused else [])


def test_a_default_instruction_without_a_place_for_it_is_told() -> None:
    option = "profiles.fast.options.default_instruction"
    assert "no template has a place" in told(changed(option, "Find it."))[option]


@pytest.mark.parametrize(
    ("field", "template"),
    [
        ("tasks.dense.query_template", "{instruction} {text}"),
        ("tasks.dense.document_template", "{instruction} {text}"),
        ("profiles.fast.options.doc_template", "{instruction} {text}"),
    ],
)
def test_a_default_instruction_needs_a_place_in_one_template_of_the_profile_or_the_model(
    field: str, template: str
) -> None:
    document = changed(field, template, changed("profiles.fast.options.default_instruction", "Find it."))
    assert told(document) == {}
    without = changed("profiles.fast.options.doc_template", "{text}", document)
    hidden = "query" not in field
    assert [*told(without)] == ["profiles.fast.options.default_instruction"] * hidden
