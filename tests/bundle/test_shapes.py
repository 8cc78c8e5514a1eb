"""Tensors that contradict each other, or hold what is no number, fail the load before compiled code reads any."""

from __future__ import annotations

import pytest
import torch

from sie_bundle.engine.layer import Layer
from sie_bundle.engine.shapes import checked
from sie_sdk.errors import ModelLoadFailedError
from tests.bundle.test_fused import a_layer, norm, product, random, words_only


def broken(**changes: object) -> Layer:
    of = a_layer()
    attention, forward = of.attention, of.feed_forward
    named = {
        "qkv": lambda v: of._replace(attention=attention._replace(qkv=v)),
        "output": lambda v: of._replace(attention=attention._replace(output=v)),
        "heads": lambda v: of._replace(attention=attention._replace(heads=v)),
        "q_norm": lambda v: of._replace(attention=attention._replace(q_norm=v)),
        "norms": lambda v: of._replace(attention=attention._replace(q_norm=v[0], k_norm=v[1])),
        "up": lambda v: of._replace(feed_forward=forward._replace(up=v)),
        "gate": lambda v: of._replace(feed_forward=forward._replace(gate=v)),
        "down": lambda v: of._replace(feed_forward=forward._replace(down=v)),
        "output_norm": lambda v: of._replace(output_norm=v),
    }
    ((name, value),) = changes.items()
    return named[name](value)


@pytest.mark.parametrize(
    "contradicting",
    [
        broken(qkv=product(190, 64)),
        broken(qkv=product(192, 64)._replace(bias=random(191))),
        broken(output=product(64, 32)),
        broken(heads=5),
        a_layer(heads=5, key_heads=2),
        broken(q_norm=norm(33)),
        broken(q_norm=norm(32)),
        broken(norms=(norm(32), norm(64))),
        broken(norms=(norm(64), norm(32))),
        broken(norms=(norm(32)._replace(bias=random(31)), norm(32))),
        broken(up=product(95, 64)),
        broken(gate=product(95, 64)),
        broken(down=product(63, 96)),
        broken(output_norm=norm(65)),
        broken(output_norm=norm(64)._replace(bias=random(3))),
    ],
)
def test_shapes_that_contradict_each_other_are_refused_before_anything_reads_beyond_them(contradicting: Layer) -> None:
    tables = words_only(random(9, 64))
    list(checked(tables, [a_layer()], None))
    with pytest.raises(ModelLoadFailedError, match="contradict"):
        list(checked(tables, [contradicting], None))
    with pytest.raises(ModelLoadFailedError, match="of layer 1"):
        list(checked(tables, [a_layer(), contradicting], None))


def test_norms_of_heads_are_of_one_kind_in_all_layers_by_which_a_pass_goes_through_its_heads() -> None:
    tables, kinds = words_only(random(9, 64)), [a_layer(), a_layer(q_norm=32), a_layer(q_norm=64)]
    for first in kinds:
        list(checked(tables, [first, first], None))
        for other in kinds:
            if other is not first:
                with pytest.raises(ModelLoadFailedError, match="of layer 1"):
                    list(checked(tables, [first, other], None))


@pytest.mark.parametrize("what", ["query", "up", "bias", "norm"])
def test_weights_that_are_not_finite_fail_the_load(what: str) -> None:
    the = a_layer(q_norm=32)
    assert the.attention.q_norm is not None and the.attention.qkv.weight is not None
    assert the.attention.qkv.bias is not None and the.feed_forward.up.weight is not None
    weights = {
        "query": the.attention.qkv.weight[0],
        "up": the.feed_forward.up.weight[:, 3],
        "bias": the.attention.qkv.bias,
        "norm": the.attention.q_norm.weight,
    }
    list(checked(words_only(random(45, 64)), [the], None))
    for number in (torch.nan, torch.inf):
        weights[what][0] = number
        with pytest.raises(ModelLoadFailedError, match="layer 0 have numbers that are not finite") as caught:
            list(checked(words_only(random(45, 64)), [the], None))
        assert caught.value.details["reason"] == "corrupt"


def test_numbers_that_float16_does_not_hold_are_nothing_against_the_files() -> None:
    the = a_layer()
    weight = the.feed_forward.up.weight
    assert weight is not None
    weight[3, 4] = 1e5
    halved = the._replace(feed_forward=the.feed_forward._replace(up=the.feed_forward.up._replace(weight=weight.half())))
    list(checked(words_only(random(45, 64)), [the], None))
    with pytest.raises(ModelLoadFailedError, match="not finite in float16") as caught:
        list(checked(words_only(random(45, 64)), [halved], None))
    assert "reason" not in caught.value.details and "precision: float32" in str(caught.value.hint)
