"""Padding: which texts share a pass, and that a text's states are those it has alone."""

from __future__ import annotations

from collections.abc import Iterator
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from sie_bundle.engine.outputs import Floats
from sie_bundle.engine.packing import SHARE, SLACK, buckets, pack
from sie_bundle.engine.row import Row, row
from sie_bundle.models.checkpoint import Checkpoint
from sie_bundle.models.model import EncoderModel
from sie_bundle.models.padded_encoder import SQUARES, PaddedEncoder
from sie_config.model.model_spec import ModelSpec
from sie_config.model.sources import LocalSource
from sie_config.model.tasks import Dense, Extract, Multivector, Tasks
from sie_sdk.errors import ModelLoadFailedError
from tests.golden import random_models

DENSE = Tasks(dense=Dense(dim=32))
LENGTHS = st.lists(st.integers(1, 512), max_size=200).map(sorted)


@pytest.fixture(autouse=True, scope="module")
def one_thread() -> Iterator[None]:
    """Passes this small are slower on two cores, and much slower where others want them."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return random_models.make("deberta-v2", tmp_path_factory.mktemp("deberta"))


@pytest.fixture(scope="module")
def models(folder: Path) -> Any:
    return lru_cache(maxsize=None)(lambda precision: loaded(folder, precision))


def loaded(folder: Path, precision: str = "float32", tasks: Tasks = DENSE) -> EncoderModel:
    spec = ModelSpec(
        id="random/deberta",
        family="deberta-v2",
        tasks=tasks,
        sources=(LocalSource(path=str(folder)),),
        max_sequence_length=48,
        revision="random",
    )
    model = EncoderModel(Checkpoint(spec, folder), precision_wanted=precision)
    model.try_out()
    return model


def rows_of(lengths: list[int], seed: int = 0) -> list[Row]:
    # The first ids are special tokens.
    return [row(np.random.default_rng(seed + i).integers(4, 70, size=length)) for i, length in enumerate(lengths)]


def states(model: EncoderModel, rows: list[Row]) -> list[Floats]:
    packed = pack(rows, torch.device("cpu"))
    with torch.inference_mode():
        found = model._encoder(packed).float().numpy()
    return [found[start : start + length] for start, length in zip(packed.starts, packed.lengths, strict=True)]


def padding(lengths: list[int], part: range) -> int:
    return len(part) * lengths[part.stop - 1] - sum(lengths[part.start : part.stop])


@given(lengths=LENGTHS, squares=st.sampled_from([1, 1 << 14, 1 << 20]))
def test_every_text_is_in_one_bucket_in_order_and_none_is_too_large(lengths: list[int], squares: int) -> None:
    cut = buckets(lengths, squares=squares)
    assert [i for part in cut for i in part] == list(range(len(lengths)))
    assert all(len(part) for part in cut)
    assert all(len(part) == 1 or len(part) * lengths[part.stop - 1] ** 2 <= squares for part in cut)


@given(lengths=LENGTHS)
def test_padding_is_bounded_and_no_bucket_could_take_one_text_more(lengths: list[int]) -> None:
    cut = buckets(lengths, squares=SQUARES["cpu"])
    for part in cut:
        own = sum(lengths[part.start : part.stop])
        assert padding(lengths, part) <= max(SLACK, SHARE * own)
        if part.start:
            more = range(part.start - 1, part.stop)
            too_padded = padding(lengths, more) > max(SLACK, SHARE * (own + lengths[part.start - 1]))
            assert too_padded or len(more) * lengths[part.stop - 1] ** 2 > SQUARES["cpu"]


@given(lengths=LENGTHS)
def test_without_slack_only_equal_lengths_share_a_bucket(lengths: list[int]) -> None:
    cut = buckets(lengths, share=0.0, slack=0, squares=1 << 30)
    assert [padding(lengths, part) for part in cut] == [0] * len(set(lengths))


def test_short_texts_of_mixed_lengths_are_one_bucket() -> None:
    assert buckets([5, 6, 6, 8, 9, 11, 12], squares=SQUARES["cpu"]) == [range(7)]
    assert buckets([9, 12, 256], squares=SQUARES["cpu"]) == [range(2), range(2, 3)]


def test_states_of_a_mixed_batch_equal_transformers_one_text_at_a_time(models: Any, folder: Path) -> None:
    model = models("float32")
    assert isinstance(model._encoder, PaddedEncoder)
    rows = rows_of([5, 17, 3, 30, 17, 1, 44])
    for found, each in zip(states(model, rows), rows, strict=True):
        wanted = random_models.reference("deberta-v2", folder, each.ids.tolist())["states"]
        assert np.abs(found - wanted).max() < 1e-5


@settings(max_examples=8, deadline=None)
@given(lengths=st.lists(st.integers(1, 40), min_size=1, max_size=6))
def test_a_text_has_the_same_states_in_any_batch(models: Any, lengths: list[int]) -> None:
    rows = rows_of(lengths)
    alone = [states(models("float32"), [each])[0] for each in rows]
    for one, other in zip(states(models("float32"), rows), alone, strict=True):
        assert np.abs(one - other).max() < 1e-5


def test_bfloat16_stays_close(models: Any) -> None:
    rows = rows_of([5, 17, 30])
    for one, other in zip(states(models("float32"), rows), states(models("bfloat16"), rows), strict=True):
        assert (one * other).sum() / np.linalg.norm(one) / np.linalg.norm(other) > 0.999
    assert 0.4 * models("float32").bytes < models("bfloat16").bytes < 0.8 * models("float32").bytes


def test_a_classifier_stands_on_top(tmp_path: Path) -> None:
    made = random_models.make("deberta-v2-nli", tmp_path)
    model = loaded(made, tasks=Tasks(extract=Extract(kind="classes")))
    assert model.labels == ("entailment", "neutral", "contradiction")
    rows = rows_of([9, 4])
    pair = Row(rows[0].ids, 4, 9)
    found = model.forward([rows[0], rows[1], pair], {"logits": [0, 1, 2]})["logits"]
    # DeBERTa has no types; a pair is told apart by its separators alone.
    for each, logits in zip([*rows, pair], found, strict=True):
        assert (
            np.abs(random_models.reference("deberta-v2-nli", made, each.ids.tolist())["logits"] - logits).max() < 1e-5
        )


@pytest.mark.parametrize("attend", [True, False])
def test_an_augmentation_that_is_not_looked_at_is_refused(attend: bool, folder: Path) -> None:
    augmented = Multivector(dim=32, projection="", query_length=12, attend_to_mask=attend)
    if attend:
        assert loaded(folder, tasks=Tasks(multivector=augmented)).bytes
        return
    with pytest.raises(ModelLoadFailedError, match="queries cannot be augmented"):
        loaded(folder, tasks=Tasks(multivector=augmented))
