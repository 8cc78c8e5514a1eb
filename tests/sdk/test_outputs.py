"""Which outputs a request asks of a model, given what the model offers."""

from __future__ import annotations

from typing import Any

import pytest

from sie_sdk.errors import InvalidInputError
from sie_sdk.outputs import wanted
from sie_sdk.types import EncodeParams, EncodeRequest, Item

EVERYTHING = ["dense", "sparse", "multivector", "score"]


def asked(offered: list[str], **params: Any) -> list[str]:
    return [*wanted(EncodeRequest([Item(text="a")], EncodeParams(**params)), "m", offered)]


@pytest.mark.parametrize(
    ("offered", "computed"),
    [
        (["dense"], ["dense"]),
        (EVERYTHING, ["dense"]),
        (["sparse"], ["sparse"]),
        (["multivector", "score"], ["multivector"]),
    ],
)
def test_without_a_wish_it_is_dense_or_what_there_is(offered: list[str], computed: list[str]) -> None:
    assert asked(offered) == asked(offered, output_types=[]) == computed


def test_every_output_is_computed_once_in_the_order_asked_for() -> None:
    assert asked(EVERYTHING, output_types=["sparse", "dense", "sparse"]) == ["sparse", "dense"]


def test_the_options_go_before_the_parameter() -> None:
    assert asked(EVERYTHING, output_types=["dense"], options={"output_types": ["multivector"]}) == ["multivector"]


def test_a_fixed_dimensional_encoding_is_a_dense_output_of_a_model_with_multivectors() -> None:
    assert asked(["multivector"], options={"muvera": True}) == ["dense"]
    assert asked(["multivector"], options={"muvera": {}}) == ["dense"]
    assert asked(["multivector"], options={"muvera": None}) == ["multivector"]
    assert asked(["multivector"], output_types=["multivector", "dense"], options={"muvera": {"seed": 1}}) == [
        "multivector",
        "dense",
    ]
    with pytest.raises(InvalidInputError):
        asked(["sparse"], output_types=["dense"], options={"muvera": True})


@pytest.mark.parametrize(
    ("offered", "params", "field", "complaint"),
    [
        (["dense"], {"output_types": ["sparse"]}, "params.output_types", "Its output types: dense."),
        (["score"], {}, "params.output_types", "m does not compute any outputs. Its output types: none."),
        (["dense"], {"options": {"output_types": ["score"]}}, "params.options.output_types", "compute score"),
        (["dense"], {"options": {"output_types": [{}]}}, "params.options.output_types", "compute {}"),
        (["dense"], {"options": {"output_types": 3}}, "params.options.output_types", "compute 3"),
        (EVERYTHING, {"output_types": ["sparse"], "output_dtype": "int8"}, "params.output_dtype", "float32, float16"),
    ],
)
def test_what_the_model_does_not_offer_is_refused_with_what_it_does(
    offered: list[str], params: dict[str, Any], field: str, complaint: str
) -> None:
    with pytest.raises(InvalidInputError) as caught:
        asked(offered, **params)
    assert caught.value.field == field
    assert complaint in str(caught.value)
