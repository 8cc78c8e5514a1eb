"""The default model's vectors equal those of sentence-transformers: alone, in mixed batches, in any order."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sie_bundle.engine.row import Row
from sie_bundle.models.model import EncoderModel
from tests.tiny_model import vectors

pytestmark = pytest.mark.weights

HERE = Path(__file__).parent
TEXTS: dict[str, str] = json.loads((HERE / "texts.json").read_text())
GOLDEN = np.load(HERE / "minilm.npz")
REFERENCE = 1e-5
"""Largest difference to the reference; measured 3e-7."""
BATCH = 1e-6
"""Largest difference between a text alone and the same text in a batch."""


@pytest.fixture(scope="module")
def rows(minilm: EncoderModel) -> list[Row]:
    return minilm.tokenizer.rows(list(TEXTS.values()), minilm.spec.max_sequence_length)


def test_the_golden_file_has_a_vector_for_each_text() -> None:
    assert GOLDEN["names"].tolist() == list(TEXTS)
    assert len(TEXTS) >= 12


def test_each_text_alone_has_its_golden_vector(minilm: EncoderModel, rows: list[Row]) -> None:
    for name, row, golden in zip(TEXTS, rows, GOLDEN["vectors"], strict=True):
        assert np.abs(vectors(minilm, [row])[0] - golden).max() < REFERENCE, name


def test_all_texts_in_one_batch_have_their_golden_vectors(minilm: EncoderModel, rows: list[Row]) -> None:
    assert np.abs(vectors(minilm, rows) - GOLDEN["vectors"]).max() < REFERENCE


@settings(max_examples=15, deadline=None)
@given(data=st.data())
def test_a_text_has_the_same_vector_in_any_batch(minilm: EncoderModel, rows: list[Row], data: st.DataObject) -> None:
    # Without the longest three, so that the whole run takes seconds.
    usual = [i for i, row in enumerate(rows) if len(row) < 256]
    mix = data.draw(st.lists(st.sampled_from(usual), min_size=1, max_size=24))
    together = vectors(minilm, [rows[i] for i in mix])
    alone = np.stack([vectors(minilm, [rows[i]])[0] for i in mix])
    assert np.abs(together - alone).max() < BATCH
    assert np.abs(together - GOLDEN["vectors"][mix]).max() < REFERENCE
