"""Scores computed where the vectors are: MaxSim of multivectors, cosine, the product of sparse vectors.

Owns the definitions and the bound on their memory; the server scores by the same code. Not here: where vectors come
from (``client.encode``), what a score request is (``client.score``). No torch.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from sie_sdk.errors import InvalidInputError
from sie_sdk.types import EncodeResult, SparseVector

Floats: TypeAlias = npt.NDArray[np.float32]
Counts: TypeAlias = npt.NDArray[np.intp]
Vectors: TypeAlias = npt.NDArray[Any] | EncodeResult
"""A text's vectors: float ``[tokens, dims]``, or an encode result, whose quantization is undone."""

SIMILARITIES = 1 << 20
"""At most this many similarities (4 MiB) exist at a time: few enough to stay in a core's cache between the matrix
product that writes them and the maximum that reads them."""
PACKED = 1 << 22
"""At most this many numbers (16 MiB) of documents are packed together at a time, unless one document has more."""


def maxsim(query: Vectors, documents: Sequence[Vectors]) -> Floats:
    """The score of each document, float32 ``[n]``: sum over query tokens of the largest dot product with its tokens.

    >>> query = client.encode(model, "rivers?", output_types=["multivector"], is_query=True)
    >>> documents = client.encode(model, texts, output_types=["multivector"], output_dtype="int8", is_query=False)
    >>> best = maxsim(query, documents).argmax()

    Args:
        query: float ``[q, d]``, one vector per token, or an :class:`EncodeResult` with a multivector.
        documents: likewise, ``[t_i, d]`` each. They may have any lengths.

    Raises:
        InvalidInputError: a text without tokens, with vectors of another size than the query's, or with numbers that
            are no floats and that no quantization explains; names it.

    Source: ColBERT, 2004.12832, section 3.3.
    """
    return maxsim_batch([query], documents).reshape(-1)


def maxsim_batch(queries: Sequence[Vectors], documents: Sequence[Vectors]) -> Floats:
    """The score of each document for each query, float32 ``[m, n]``. Arguments and errors as :func:`maxsim`."""
    if not queries:
        return np.zeros((0, len(documents)), np.float32)
    dim = _array(queries[0], "queries[0]").shape[-1]
    _checked(queries, dim, "queries")
    packed_queries, query_counts = _pack([_floats(each) for each in queries])
    scores = np.zeros((len(queries), len(documents)), np.float32)
    own = _checked(documents, dim, "documents")
    counts = np.array([len(document) for document in own], np.intp)
    for start, stop in _groups(counts, PACKED // max(1, dim)):
        packed, _ = _pack([_floats(each) for each in documents[start:stop]])
        scores[:, start:stop] = maxsim_packed(packed_queries, query_counts, packed, counts[start:stop])
    return scores


def cosine(query: npt.ArrayLike, documents: npt.ArrayLike | Sequence[npt.ArrayLike]) -> Floats:
    """The cosine of a float vector ``[d]`` and each of ``[n, d]``, float32 ``[n]``; 0 with a vector of zeros.

    Raises:
        InvalidInputError: they are numbers that are no floats; names which.
    """
    one, many = (
        np.asarray(_real(np.asarray(each), name), np.float32)
        for each, name in ((query, "query"), (documents, "documents"))
    )
    if not many.size:
        return np.zeros(len(many), np.float32)
    lengths = np.linalg.norm(many, axis=-1) * np.linalg.norm(one)
    return np.asarray(np.divide(many @ one, lengths, out=np.zeros_like(lengths), where=lengths > 0), np.float32)


def sparse_dot(one: SparseVector, other: SparseVector) -> float:
    """The dot product of two sparse vectors."""
    _, here, there = np.intersect1d(one.indices, other.indices, assume_unique=True, return_indices=True)
    return float(np.dot(one.values[here].astype(np.float32), other.values[there].astype(np.float32)))


def maxsim_packed(queries: Floats, query_counts: Counts, documents: Floats, document_counts: Counts) -> Floats:
    """As `maxsim_batch`, with the vectors of all queries, and of all documents, one after the other.

    Args:
        queries: float32 ``[sum(query_counts), d]``. query_counts: the tokens of each query, ``[m]``, at least 1.
        documents: float32 ``[sum(document_counts), d]``. document_counts: likewise, ``[n]``.
    """
    scores = np.empty((len(query_counts), len(document_counts)), np.float32)
    ends = np.cumsum(query_counts)
    for start, stop in _groups(query_counts, max(1, SIMILARITIES // max(1, len(document_counts)))):
        own = queries[ends[start] - query_counts[start] : ends[stop - 1]]
        best = _best(own, documents, document_counts)
        # Thousands of tokens are added up: in float64, so that the order of them does not show.
        scores[start:stop] = np.add.reduceat(best, _starts(query_counts[start:stop]), axis=0, dtype=np.float64)
    return scores


def _best(query: Floats, documents: Floats, counts: Counts) -> Floats:
    """The largest dot product of each query token with a token of each document: ``[q, d]`` gives ``[q, n]``."""
    best = np.full((len(query), len(counts)), -np.inf, np.float32)
    starts, ends = _starts(counts), np.cumsum(counts)
    step = max(1, SIMILARITIES // len(query))
    for low in range(0, len(documents), step):
        high = min(low + step, len(documents))
        # A tile may begin and end within a document; its maximum is joined over the tiles.
        first, last = np.searchsorted(ends, low, side="right"), np.searchsorted(starts, high, side="left")
        similarities = query @ documents[low:high].T
        largest = np.maximum.reduceat(similarities, np.maximum(starts[first:last] - low, 0), axis=1)
        np.maximum(best[:, first:last], largest, out=best[:, first:last])
    return best


def _pack(texts: Sequence[npt.NDArray[Any]]) -> tuple[Floats, Counts]:
    """All vectors one after the other, float32, and how many each text has."""
    return np.concatenate(texts, dtype=np.float32), np.array([len(text) for text in texts], np.intp)


def _starts(counts: Counts) -> Counts:
    return np.cumsum(counts) - counts


def _groups(counts: Counts, most: int) -> Iterator[tuple[int, int]]:
    """Neighbours of at most ``most`` tokens together, or a single text, as ``(start, stop)``."""
    ends = np.cumsum(counts)
    start = 0
    while start < len(counts):
        budget = ends[start] - counts[start] + most
        stop = max(start + 1, int(np.searchsorted(ends, budget, side="right")))
        yield start, stop
        start = stop


def _array(text: Vectors, name: str) -> npt.NDArray[Any]:
    """The numbers as they are; whether they are floats, or said to stand for some."""
    known = isinstance(text, EncodeResult) and text.multivector_quantization is not None
    array = text.multivector if isinstance(text, EncodeResult) else text
    if not isinstance(array, np.ndarray):
        raise InvalidInputError(
            f"{name} has no multivector.", field=name, hint='Encode it with output_types=["multivector"].'
        )
    return array if known else _real(array, name)


def _real(array: npt.NDArray[Any], name: str) -> npt.NDArray[Any]:
    """Floats as they are; what other numbers stand for nobody knows here."""
    if array.dtype.kind != "f":
        raise InvalidInputError(
            f"{name} has numbers of type {array.dtype}.",
            field=name,
            hint="Pass floats, quantization.dequantise(values); maxsim takes the encode result itself, too.",
        )
    return array


def _floats(text: Vectors) -> npt.NDArray[Any]:
    if not isinstance(text, EncodeResult):
        return text
    values, quantization = text.multivector, text.multivector_quantization
    assert values is not None
    return values if quantization is None else quantization.dequantise(values)


def _checked(texts: Sequence[Vectors], dim: int, name: str) -> list[npt.NDArray[Any]]:
    arrays = [_array(text, f"{name}[{number}]") for number, text in enumerate(texts)]
    for number, array in enumerate(arrays):
        if array.ndim != 2 or not len(array) or array.shape[1] != dim:
            raise InvalidInputError(
                f"{name}[{number}] has the shape {list(array.shape)}.",
                field=f"{name}[{number}]",
                limit=dim,
                hint=f"Give an array [tokens, {dim}] with at least one token.",
            )
    return arrays
