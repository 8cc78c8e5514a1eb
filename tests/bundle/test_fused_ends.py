"""Before the first layer and behind the last one compiled code equals torch: embedding, final norm, pooling."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch

from sie_bundle.engine import fused, pooling, shapes
from sie_bundle.engine.attention_mask import AttentionMask
from sie_bundle.engine.embedding import Embedding
from sie_bundle.engine.linear import plain
from sie_bundle.engine.packing import pack
from sie_bundle.engine.precision import FLOATS
from sie_bundle.engine.row import Row, row
from sie_bundle.models.packed_encoder import PackedEncoder
from tests import tiny_model
from tests.bundle import variants
from tests.bundle.guarded import ALL, LENGTHS, MASKS
from tests.bundle.test_fused import CPU, TOLERANCE, a_layer, batch, made, norm, random, stepwise, words_only


@pytest.mark.parametrize("of", variants.EVERY)
@pytest.mark.parametrize("stored", FLOATS)
@pytest.mark.parametrize("hidden", [64, 44, 7])
def test_embedding_and_final_norm_equal_torchs_whatever_the_tables_are_stored_as(
    hidden: int, stored: torch.dtype, of: str
) -> None:
    torch.manual_seed(11)
    tables = (random(60, hidden).to(stored), random(52, hidden).to(stored), random(2, hidden).to(stored))
    embedding = Embedding(*tables, 2, norm(hidden), None, torch.float32)
    layers = [a_layer(hidden=hidden, heads=1, key_heads=1, size=8)]
    final = norm(hidden, rms=True)
    rows = [Row(np.array([59, 0, 3, 3]), 2, 4), row(range(50)), row([7])]
    for some in (rows, rows[1:]):
        packed = pack(some, CPU)
        expected = final(stepwise(embedding(packed), layers, packed, [], AttentionMask()))
        got = made(of, embedding, layers, final_norm=final)(packed, [], [AttentionMask()])
        assert got.shape == expected.shape
        assert (got - expected).abs().max() < TOLERANCE[variants.dtype(of)] * float(expected.abs().max())


@pytest.mark.parametrize("of", variants.EVERY)
def test_a_projection_of_narrower_tables_is_torchs(of: str) -> None:
    torch.manual_seed(12)
    weight = random(64, 16, scale=0.25)
    embedding = words_only(random(45, 16))._replace(projection=plain(weight, None))
    packed, layers = batch([5, 40]), [a_layer()]
    expected = stepwise(embedding(packed), layers, packed, [], AttentionMask())
    got = made(of, embedding, layers)(packed, [], [AttentionMask()])
    assert (got - expected).abs().max() < TOLERANCE[variants.dtype(of)] * float(expected.abs().max())


@pytest.mark.parametrize("of", variants.EVERY)
@pytest.mark.parametrize("how", pooling.POOLINGS)
@pytest.mark.parametrize("size", [64, 40])
def test_each_pooling_equals_torchs(size: int, how: str, of: str) -> None:
    torch.manual_seed(13)
    packed = batch([4, 1, 40, 4])
    padded = torch.zeros(len(packed.ids), 64)
    padded[:, :size] = random(len(packed.ids), size)
    states = padded[:, :size]
    for unit in (False, True):
        expected = pooling.pool(states, packed, how, unit)
        got = torch.as_tensor(pooling.by(variants.library(of))(states, packed, how, unit))
        assert got.shape == (4, size) and (got - expected).abs().max() < 1e-6
    nothing = pooling.by(variants.library(of))(torch.zeros(49, 64), packed, how, True)
    assert not np.asarray(nothing).any(), "a vector of no length stays one"


@pytest.mark.parametrize("of", variants.EVERY)
@pytest.mark.parametrize("rms", [False, True])
def test_a_norm_of_numbers_far_from_nothing_equals_torchs(rms: bool, of: str) -> None:
    torch.manual_seed(14)
    final = norm(64, rms=rms)
    layers = [a_layer(pre_norm=True)]
    for off in (0.5, 3.0, 300.0):
        embedding = words_only(random(45, 64) + off)
        packed = batch([5, 40])
        expected = final(stepwise(embedding(packed), layers, packed, [], AttentionMask()))
        got = made(of, embedding, layers, final_norm=final)(packed, [], [AttentionMask()])
        # An input itself, rounded to float32, is known to 1e-7 of how far it is from nothing.
        assert (got - expected).abs().max() < TOLERANCE[variants.dtype(of)] * max(1.0, off)


@pytest.mark.parametrize("of", variants.EVERY)
def test_many_numbers_are_pooled_alike_with_pythons_lock_let_go(of: str, monkeypatch: pytest.MonkeyPatch) -> None:
    torch.manual_seed(15)
    packed, states = batch([4, 1, 40, 4]), random(49, 64)
    held = pooling.by(variants.library(of))(states, packed, "mean", True)
    monkeypatch.setattr(pooling, "BRIEF", 0)
    assert np.array_equal(np.asarray(held), np.asarray(pooling.by(variants.library(of))(states, packed, "mean", True)))


@pytest.mark.parametrize("of", variants.HERE)
@pytest.mark.parametrize("size", [12, 16, 20, 34])
def test_what_is_no_number_in_a_text_stays_out_of_its_neighbours_for_every_size_of_heads_that_fits(
    size: int, of: str
) -> None:
    torch.manual_seed(16)
    words = random(70, 64)
    words[10:] = torch.nan  # of the second text
    layers = [a_layer(heads=2, key_heads=1, size=size)]
    states = made(of, words_only(words), layers)(batch([10, 60]), [], [AttentionMask()])
    assert fused.fits(size, 1) and states[:10].isfinite().all()


@pytest.mark.parametrize("of", variants.HERE)
@pytest.mark.parametrize("activation", fused.ACTIVATIONS)
def test_what_is_no_number_is_none_behind_each_activation(
    activation: str, of: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shapes, "_is_finite", lambda tensor: True)
    the = a_layer(activation=activation)
    assert the.feed_forward.up.bias is not None
    the.feed_forward.up.bias[3] = torch.nan
    states = made(of, words_only(random(45, 64)), [the])(batch([5, 40]), [], [AttentionMask()])
    assert states.isnan().all()


def test_nothing_is_read_or_written_beyond_a_piece_of_memory() -> None:
    done = subprocess.run([sys.executable, "-m", "tests.bundle.guarded"], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout.splitlines()[-1:] + done.stderr.splitlines()[-3:]
    assert len(done.stdout.splitlines()) == len(variants.HERE) * len(ALL) * len(LENGTHS) * len(MASKS)


def test_very_small_heads_are_not_for_compiled_code(tiny_folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert [fused.fits(size, 1) for size in (4, 8, 10, 11, 32, 64)] == [False] * 3 + [True] * 3
    assert fused.fits(8, 2) and not fused.fits(4, 3)
    monkeypatch.setattr(fused, "fits", lambda head, key_heads: (head, key_heads) != (8, 4))
    model = tiny_model.load(tiny_model.spec(tiny_folder), tiny_folder)
    assert isinstance(model._encoder, PackedEncoder) and model._encoder._fused is None
