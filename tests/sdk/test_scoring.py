"""MaxSim is the literal sum of maxima, whatever the tiles it is computed in."""

from __future__ import annotations

import tracemalloc
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sie_sdk import scoring
from sie_sdk.errors import InvalidInputError
from sie_sdk.scoring import maxsim, maxsim_batch, maxsim_packed
from sie_sdk.types import EncodeResult, Quantization, SparseVector

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
        patch.setattr(scoring, "SIMILARITIES", tile)
        patch.setattr(scoring, "PACKED", tile if packs else 1 << 20)
        made = maxsim_batch(queries, documents)
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
    assert maxsim_batch([query], []).shape == (1, 0)
    assert maxsim_batch([], [query]).shape == (0, 1)


@pytest.mark.parametrize("shape", [(0, 4), (4,), (2, 5), (1, 2, 4)])
def test_documents_without_tokens_or_of_another_shape_are_refused_by_name(shape: tuple[int, ...]) -> None:
    (query,) = whole_numbers(0, [3], 4)
    with pytest.raises(InvalidInputError) as caught:
        maxsim(query, [query, np.zeros(shape, np.float32)])
    assert caught.value.field == "documents[1]" and caught.value.limit == 4


def test_a_query_without_tokens_is_refused_by_name() -> None:
    (document,) = whole_numbers(0, [3], 4)
    with pytest.raises(InvalidInputError) as caught:
        maxsim_batch([document, np.zeros((0, 4), np.float32)], [document])
    assert caught.value.field == "queries[1]"


def test_memory_is_bounded_however_long_the_texts_are() -> None:
    query, document = np.ones((2048, 4), np.float32), np.ones((40_000, 4), np.float32)
    tracemalloc.start()
    scores = maxsim(query, [document])
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert scores.tolist() == [2048 * 4]
    assert peak < 16 << 20, "all similarities at once would take 328 MB"


# -- encode results ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("dtype", "kind"), [("int8", np.int8), ("uint8", np.uint8)])
def test_quantized_results_are_scored_as_the_numbers_they_stand_for(dtype: str, kind: type[Any]) -> None:
    random = np.random.default_rng(1)
    lengths, top = (5, 1, 9), np.iinfo(kind).max
    results, plain = [], []
    for length in lengths:
        values = random.integers(0, top, (length, 8)).astype(kind)
        quantization = Quantization(
            random.random(length, np.float32), 0.0 if dtype == "int8" else random.random(length, np.float32)
        )
        results.append(EncodeResult(multivector=values, multivector_quantization=quantization))
        plain.append(quantization.dequantise(values))
    (query,) = whole_numbers(0, [3], 8)
    assert maxsim(query, results).tolist() == maxsim(query, plain).tolist()
    assert maxsim(results[0], results).tolist() == maxsim(plain[0], plain).tolist()
    floats = EncodeResult(multivector=query.astype(np.float16))
    assert maxsim(floats, [floats]).tolist() == maxsim(query, [query]).tolist()


def test_what_stands_for_no_floats_is_refused_by_name() -> None:
    (query,) = whole_numbers(0, [3], 4)
    raw = EncodeResult(multivector=np.ones((2, 4), np.int8))
    for wrong, said in ((raw, "type int8"), (np.ones((2, 4), np.uint8), "type uint8"), (EncodeResult(), "no multivec")):
        with pytest.raises(InvalidInputError, match=said) as caught:
            maxsim(query, [query, wrong])
        assert caught.value.field == "documents[1]"


@pytest.mark.parametrize("dtype", ["uint8", "int8", "bool"])
def test_cosine_refuses_numbers_that_are_no_floats(dtype: str) -> None:
    floats, others = np.ones((2, 8), np.float32), np.ones((2, 8), dtype)
    for field, query, documents in (("query", others[0], floats), ("documents", floats[0], others)):
        with pytest.raises(InvalidInputError, match=f"{field} has numbers of type {dtype}") as caught:
            scoring.cosine(query, documents)
        assert caught.value.field == field


def test_cosine_is_of_each_row_and_nought_with_nothing() -> None:
    rows = np.array([[2, 0], [1, 1], [0, -3], [0, 0]], np.float16)
    np.testing.assert_allclose(scoring.cosine(np.array([5.0, 0.0]), rows), [1, 0.5**0.5, 0, 0], atol=1e-6)
    assert scoring.cosine([5.0, 0.0], list(rows)).tolist() == scoring.cosine(np.array([5.0, 0.0]), rows).tolist()
    assert scoring.cosine(np.zeros(2), rows).tolist() == [0, 0, 0, 0]
    assert scoring.cosine(np.zeros(2), np.array([])).tolist() == []


places = st.dictionaries(st.integers(0, 30), st.integers(-9, 9), max_size=10)


@given(places, places)
def test_sparse_vectors_are_multiplied_as_the_dense_ones_they_stand_for(
    one: dict[int, int], other: dict[int, int]
) -> None:
    def sparse(values: dict[int, int]) -> SparseVector:
        order = sorted(values)
        return SparseVector(np.array(order, np.int32), np.array([values[at] for at in order], np.float16), 31)

    wanted = sum(value * other.get(place, 0) for place, value in one.items())
    assert scoring.sparse_dot(sparse(one), sparse(other)) == wanted
