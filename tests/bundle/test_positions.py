"""Tables of positions: made once, longer ones when texts are longer, and none let go while a pass may read it."""

from __future__ import annotations

import weakref

import torch

from sie_bundle.engine.positions import RelativeBias, RotaryTables
from sie_bundle.engine.rope import Rope

CPU = torch.device("cpu")


def test_a_table_of_rotations_stays_when_longer_texts_need_another() -> None:
    tables = RotaryTables(8, CPU, torch.float32)
    short = tables.table(Rope(10_000.0), 300)
    of_short = weakref.ref(short.cosines)
    long = tables.table(Rope(10_000.0), 1_000)
    assert len(long.cosines) >= 1_000 and torch.equal(long.cosines[:300], short.cosines[:300])
    assert tables.table(Rope(10_000.0), 700) is long
    del short
    assert of_short() is not None


def test_a_bias_by_distance_stays_when_longer_texts_need_another() -> None:
    bias = RelativeBias(torch.randn(32, 4))
    short = bias(16)
    of_short = weakref.ref(short)
    long = bias(64)
    assert torch.equal(long[:, :16, :16], short) and bias(40) is long
    del short
    assert of_short() is not None
