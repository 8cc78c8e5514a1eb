"""MaxSim is the literal sum of maxima, whatever the tiles it is computed in."""

from __future__ import annotations

import tracemalloc
from typing import TypeAlias

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sie_bundle.operations import maxsim as module
from sie_bundle.operations.maxsim import maxsim, maxsim_many, maxsim_packed
from sie_sdk.errors import InvalidInputError

Floats: TypeAlias = npt.NDArray[np.float32]


def literal(query: Floats, document: Floats) -> float:
    """The definition, token by token, in Python's own numbers."""
    total = 0.0
    for token in query.tolist():
        total += max(sum(a * b for a, b in zip(token, other, strict=True)) for other in document.tolist())
    return total


def whole_numbers(seed: int, lengths: list[int], dim: int) -> list[Floats]:
    """Vectors of small whole numbers: every product and sum is exact, in any order."""
    random = np.random.RandomState(seed)
    return [random.randint(-9, 10, (length, dim)).astype(np.float32) for length in lengths]


lengths = st.lists(st.integers(1, 9), min_size=1, max_size=7)


@given(lengths, lengths, st.integers(1, 6), st.integers(0, 99), st.sampled_from([1, 3, 16, 64, 1 << 20]), st.booleans())
@settings(deadline=None)
def test_scores_are_those_of_the_literal_loop_in_tiles_of_any_size(
    asked: list[int], held: list[int], dim: int, seed: int, tile: int, packs: bool
) -> None:
    queries, documents = whole_numbers(seed, asked, dim), whole_numbers(seed + 1, held, dim)
    wanted = [[literal(query, document) for document in documents] for query in queries]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "SIMILARITIES", tile)
        patch.setattr(module, "PACKED", tile if packs else 1 << 20)
        made = maxsim_many(queries, documents)
        one = maxsim(queries[0], documents)
    assert made.dtype == np.float32 and made.tolist() == wanted
    assert one.dtype == np.float32 and one.tolist() == wanted[0]
    counts = np.array(asked), np.array(held)
    packed = maxsim_packed(np.concatenate(queries), counts[0], np.concatenate(documents), counts[1])
    assert packed.tolist() == wanted


def test_real_numbers_are_scored_to_float32_precision() -> None:
    random = np.random.default_rng(3)
    query = random.standard_normal((32, 128), np.float32)
    documents = [random.standard_normal((length, 128), np.float32) for length in (1, 2, 180, 77, 1, 300)]
    wanted = [(query.astype(np.float64) @ own.T.astype(np.float64)).max(axis=1).sum() for own in documents]
    assert np.allclose(maxsim(query, documents), wanted, rtol=1e-6, atol=1e-4)


def test_other_float_dtypes_are_scored_as_float32() -> None:
    query, *documents = whole_numbers(5, [3, 4, 2], 8)
    wanted = maxsim(query, documents).tolist()
    assert maxsim(query.astype(np.float16), [own.astype(np.float64) for own in documents]).tolist() == wanted


def test_many_equal_contributions_add_up_exactly() -> None:
    query = np.full((1 << 17, 1), 0.1, np.float32)
    made = maxsim(query, [np.ones((2, 1), np.float32)])
    assert made[0] == np.float32(float(np.float32(0.1)) * (1 << 17))


def test_no_documents_and_no_queries_give_no_scores() -> None:
    (query,) = whole_numbers(0, [3], 4)
    assert maxsim(query, []).shape == (0,)
    assert maxsim_many([query], []).shape == (1, 0)
    assert maxsim_many([], [query]).shape == (0, 1)


@pytest.mark.parametrize("shape", [(0, 4), (4,), (2, 5), (1, 2, 4)])
def test_documents_without_tokens_or_of_another_shape_are_refused_by_name(shape: tuple[int, ...]) -> None:
    (query,) = whole_numbers(0, [3], 4)
    with pytest.raises(InvalidInputError) as caught:
        maxsim(query, [query, np.zeros(shape, np.float32)])
    assert caught.value.field == "documents[1]" and caught.value.limit == 4


def test_a_query_without_tokens_is_refused_by_name() -> None:
    (document,) = whole_numbers(0, [3], 4)
    with pytest.raises(InvalidInputError) as caught:
        maxsim_many([document, np.zeros((0, 4), np.float32)], [document])
    assert caught.value.field == "queries[1]"


def test_memory_is_bounded_however_long_the_texts_are() -> None:
    query, document = np.ones((2048, 4), np.float32), np.ones((40_000, 4), np.float32)
    tracemalloc.start()
    scores = maxsim(query, [document])
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert scores.tolist() == [2048 * 4]
    assert peak < 16 << 20, "all similarities at once would take 328 MB"
