"""The packed encoder, its attention, its linear layers and pooling, against plain numpy."""

from __future__ import annotations

import gc
import weakref
from pathlib import Path
from typing import Literal

import msgspec
import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.nn.functional import scaled_dot_product_attention

from sie_bundle.engine import native
from sie_bundle.engine.attention_mask import AttentionMask
from sie_bundle.engine.cpu_attention import attend
from sie_bundle.engine.linear import ACTIVATIONS, Activation, halved, linear, plain, prepacked
from sie_bundle.engine.packing import pack
from sie_bundle.engine.precision import arithmetic, gain_of_bfloat16, native_bfloat16, precision
from sie_bundle.engine.row import Row, row
from sie_bundle.models.model import EncoderModel
from sie_config.model.tasks import Dense, Tasks
from tests import tiny_model
from tests.bundle.reference import Bert

CPU = torch.device("cpu")


def rows_of(lengths: list[int], seed: int = 0) -> list[Row]:
    random = np.random.default_rng(seed)
    # The first ids are special tokens; "poison" is the last of the words.
    return [row(random.integers(9, 60, size=length)) for length in lengths]


@settings(max_examples=30, deadline=None)
@given(lengths=st.lists(st.integers(1, 32), min_size=1, max_size=12))
def test_vectors_of_any_batch_equal_plain_numpy(tiny: EncoderModel, tiny_folder: Path, lengths: list[int]) -> None:
    rows, bert = rows_of(lengths), Bert(tiny_folder)
    pooled = np.stack([bert.states(each.ids).mean(axis=0) for each in rows])
    expected = pooled / np.linalg.norm(pooled, axis=1, keepdims=True)
    assert np.abs(tiny_model.vectors(tiny, rows) - expected).max() < 1e-5


@pytest.mark.parametrize("pooling", ["cls", "mean", "last"])
@pytest.mark.parametrize("normalize", [True, False])
def test_pooling_takes_the_first_token_the_last_or_the_mean(
    tiny_folder: Path, pooling: Literal["cls", "mean", "last"], normalize: bool
) -> None:
    dense = Dense(dim=tiny_model.HIDDEN, pooling=pooling, normalize=normalize)
    spec = msgspec.structs.replace(tiny_model.spec(tiny_folder), tasks=Tasks(dense=dense))
    rows, bert = rows_of([3, 7, 3]), Bert(tiny_folder)
    states = [bert.states(each.ids) for each in rows]
    pooled = np.stack([{"cls": s[0], "last": s[-1], "mean": s.mean(axis=0)}[pooling] for s in states])
    if normalize:
        pooled /= np.linalg.norm(pooled, axis=1, keepdims=True)
    assert np.abs(tiny_model.vectors(tiny_model.load(spec, tiny_folder), rows) - pooled).max() < 1e-5


def test_packing_keeps_texts_of_equal_length_side_by_side_and_knows_their_places() -> None:
    rows = rows_of([4, 2, 4, 1])
    packed = pack(rows, CPU)
    assert [(group.start, group.texts, group.length) for group in packed.groups] == [(0, 1, 1), (1, 1, 2), (3, 2, 4)]
    assert packed.places.tolist() == [2, 1, 3, 0]
    assert packed.ids.tolist() == [int(token) for i in (3, 1, 0, 2) for token in rows[i].ids]
    assert packed.positions.tolist() == [0, 0, 1, 0, 1, 2, 3, 0, 1, 2, 3]


def test_a_row_without_tokens_is_not_packed() -> None:
    with pytest.raises(ValueError, match="without tokens"):
        pack([*rows_of([4, 2]), row([])], CPU)


def test_attention_equals_one_call_per_text() -> None:
    packed = pack(rows_of([5, 3, 5, 1, 3]), CPU)
    q, k, v = torch.randn(3, len(packed.ids), 4, 8, generator=torch.Generator().manual_seed(0))
    expected, start = [], 0
    for group in packed.groups:
        for _ in range(group.texts):
            text = slice(start, start := start + group.length)
            one = scaled_dot_product_attention(*(each[text].transpose(0, 1)[None] for each in (q, k, v)))
            expected.append(one[0].transpose(0, 1))
    found = attend(q, k, v, packed, AttentionMask())
    assert torch.allclose(found, torch.cat(expected), atol=1e-6)


@pytest.mark.skipif(not torch.backends.mkldnn.is_available(), reason="this torch has no oneDNN")  # type: ignore[no-untyped-call]
@pytest.mark.parametrize("activation", ACTIVATIONS)
def test_prepacked_linear_layers_equal_plain_ones(activation: Activation) -> None:
    with torch.inference_mode():
        random = torch.Generator().manual_seed(0)
        weight, bias = torch.randn(48, 32, generator=random) / 6, torch.randn(48, generator=random)
        for rows in (1, 5, 300):
            x = torch.randn(rows, 32, generator=random)
            difference = prepacked(weight, bias, activation)(x) - plain(weight, bias, activation)(x)
            assert difference.abs().max() < 1e-5


@pytest.mark.skipif(arithmetic(CPU, torch.float16) is torch.float16, reason="this torch has no FBGEMM")
@pytest.mark.parametrize("activation", ACTIVATIONS)
def test_weights_halved_to_float16_are_computed_with_in_float32(activation: Activation) -> None:
    with torch.inference_mode():
        random = torch.Generator().manual_seed(0)
        weight, bias = (torch.randn(48, 32, generator=random) / 6).half(), torch.randn(48, generator=random).half()
        for rows in (1, 5, 300):
            x = torch.randn(rows, 32, generator=random)
            before = x.clone()
            for layer, own in (
                (linear(weight, bias, activation), bias.float()),
                (halved(weight, None, activation), None),
            ):
                exact = plain(weight.float(), own, activation)(x)
                assert layer(x).dtype is torch.float32
                assert (layer(x) - exact).abs().max() < 1e-5
            assert torch.equal(x, before), "the layer's input is the caller's"


def test_a_cpu_that_does_not_multiply_bfloat16_keeps_weights_in_float16(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sie_bundle.engine.precision.native_bfloat16", lambda: False)
    for engines, kept in ((["qnnpack", "fbgemm"], torch.float16), (["qnnpack"], torch.float32)):
        monkeypatch.setattr(type(torch.backends.quantized), "supported_engines", engines)
        assert precision(CPU) is kept
        assert precision(CPU, "bfloat16") is kept, "it would have to be emulated"
        assert arithmetic(CPU, kept) is torch.float32
        assert arithmetic(CPU, torch.bfloat16) is torch.bfloat16


@pytest.mark.parametrize(("gain", "taken"), [(0.55, torch.float16), (1.1, torch.float16), (1.8, torch.bfloat16)])
def test_a_cpu_that_multiplies_bfloat16_takes_it_by_itself_only_where_that_is_faster(
    monkeypatch: pytest.MonkeyPatch, gain: float, taken: torch.dtype
) -> None:
    monkeypatch.setattr("sie_bundle.engine.precision.native_bfloat16", lambda: True)
    monkeypatch.setattr("sie_bundle.engine.precision.gain_of_bfloat16", lambda: gain)
    monkeypatch.setattr(type(torch.backends.quantized), "supported_engines", ["fbgemm"])
    assert precision(CPU) is taken
    assert precision(CPU, "bfloat16") is torch.bfloat16, "who asks for it gets it"


@pytest.mark.skipif(not native_bfloat16(), reason="this CPU has no instructions for bfloat16")
def test_how_fast_products_of_bfloat16_are_is_tried_once(monkeypatch: pytest.MonkeyPatch) -> None:
    first = gain_of_bfloat16()
    assert 0.05 < first < 50
    monkeypatch.setattr("sie_bundle.engine.precision._timed", lambda way: pytest.fail("tried again"))
    assert gain_of_bfloat16() == first


@pytest.mark.parametrize("kernels", [native.KEPT, None], ids=["compiled", "torch"])
def test_an_encoder_goes_with_its_last_holder_and_not_with_a_later_collection(
    tiny_folder: Path, kernels: Path | None
) -> None:
    model = tiny_model.load(tiny_model.spec(tiny_folder), tiny_folder, kernels=kernels)
    encoder = weakref.ref(model._encoder)
    gc.disable()
    try:
        del model
        assert encoder() is None
    finally:
        gc.enable()
