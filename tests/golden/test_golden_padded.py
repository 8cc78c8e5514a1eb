"""The real DeBERTa classifier through the padded way: its logits equal transformers', in any batch and precision."""

from __future__ import annotations

from collections.abc import Iterator
from functools import lru_cache

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from sie_bundle.engine.outputs import Floats
from sie_bundle.engine.row import Row
from sie_bundle.models.checkpoint import Checkpoint
from sie_bundle.models.model import EncoderModel
from sie_bundle.models.padded_encoder import PaddedEncoder
from sie_config.model.model_spec import ModelSpec
from sie_config.model.sources import LocalSource
from sie_config.model.tasks import Extract, Tasks
from tests.golden import golden
from tests.golden.checkpoint_table import CHECKPOINTS
from tests.golden.checkpoints import checkpoint

pytestmark = pytest.mark.weights

KEY = "prompt-guard"
RECORD, STORED = CHECKPOINTS[KEY], golden.arrays(KEY)
NAMES: list[str] = STORED["names"].tolist()


@pytest.fixture(autouse=True, scope="module")
def one_thread() -> Iterator[None]:
    """Passes this small are slower on two cores, and much slower where others want them."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@lru_cache(maxsize=2)
def loaded(precision: str = "float32") -> EncoderModel:
    folder = checkpoint(KEY)
    spec = ModelSpec(
        id=RECORD.model,
        family="deberta-v2",
        tasks=Tasks(extract=Extract(kind="classes")),
        sources=(LocalSource(path=str(folder)),),
        max_sequence_length=RECORD.max_length,
        revision="golden",
    )
    model = EncoderModel(Checkpoint(spec, folder), precision_wanted=precision)
    model.try_out()
    return model


def rows() -> list[Row]:
    texts = golden.messages()
    return loaded().tokenizer.rows([texts[name] for name in NAMES], RECORD.max_length)


def logits(model: EncoderModel, some: list[Row]) -> Floats:
    found = model.forward(some, {"logits": range(len(some))})["logits"]
    assert isinstance(found, np.ndarray)
    return found


def test_the_tokens_are_the_references() -> None:
    stored = golden.rows(STORED["tokens"], STORED["lengths"])
    assert [each.ids.tolist() for each in rows()] == [own.tolist() for own in stored]


def test_logits_of_all_texts_in_one_batch_equal_transformers() -> None:
    assert isinstance(loaded()._encoder, PaddedEncoder)
    assert loaded().labels == ("BENIGN", "MALICIOUS")
    assert np.abs(logits(loaded(), rows()) - STORED["logits"]).max() < 2e-5


@settings(max_examples=5, deadline=None)
@given(mix=st.lists(st.sampled_from(range(len(NAMES))), min_size=1, max_size=6))
def test_a_text_has_the_same_logits_in_any_batch(mix: list[int]) -> None:
    short = [i for i in mix if len(rows()[i]) < 128] or [0]
    found = logits(loaded(), [rows()[i] for i in short])
    assert np.abs(found - STORED["logits"][short]).max() < 2e-5


def test_the_machines_own_precision_keeps_the_answer() -> None:
    found = logits(loaded("auto"), rows())
    # Logits run from -5 to 5.
    assert np.abs(found - STORED["logits"]).max() < 0.15
    assert (found.argmax(axis=1) == STORED["logits"].argmax(axis=1)).all()
