"""MaxSim: the late-interaction score of multivectors. For each query token the best document token, summed.

Owns the score (Chamfer similarity) and the bound on its memory. Which vectors a text keeps is ``tokens``; what a score
request is, ``score``. No torch.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from sie_sdk.errors import InvalidInputError

Floats: TypeAlias = npt.NDArray[np.float32]
Counts: TypeAlias = npt.NDArray[np.intp]

SIMILARITIES = 1 << 20
"""At most this many similarities (4 MiB) exist at a time: few enough to stay in a core's cache between the matrix
product that writes them and the maximum that reads them."""
PACKED = 1 << 22
"""At most this many numbers (16 MiB) of documents are packed together at a time, unless one document has more."""


def maxsim(query: npt.NDArray[Any], documents: Sequence[npt.NDArray[Any]]) -> Floats:
    """The score of each document, float32 ``[n]``: sum over query tokens of the largest dot product with its tokens.

    Args:
        query: float ``[q, d]``, one vector per token.
        documents: float arrays ``[t_i, d]``.

    Raises:
        InvalidInputError: a text without tokens, or with vectors of another size than the query's; names it.

    Source: ColBERT, 2004.12832, section 3.3.
    """
    return maxsim_many([query], documents).reshape(-1)


def maxsim_many(queries: Sequence[npt.NDArray[Any]], documents: Sequence[npt.NDArray[Any]]) -> Floats:
    """The score of each document for each query, float32 ``[m, n]``. Arguments and errors as `maxsim`."""
    if not queries:
        return np.zeros((0, len(documents)), np.float32)
    dim = queries[0].shape[-1]
    _check(queries, dim, "queries")
    _check(documents, dim, "documents")
    packed_queries, query_counts = _pack(queries)
    scores = np.zeros((len(queries), len(documents)), np.float32)
    counts = np.array([len(document) for document in documents], np.intp)
    for start, stop in _groups(counts, PACKED // max(1, dim)):
        packed, _ = _pack(documents[start:stop])
        scores[:, start:stop] = maxsim_packed(packed_queries, query_counts, packed, counts[start:stop])
    return scores


def maxsim_packed(queries: Floats, query_counts: Counts, documents: Floats, document_counts: Counts) -> Floats:
    """As `maxsim_many`, with the vectors of all queries, and of all documents, one after the other.

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


def _check(texts: Sequence[npt.NDArray[Any]], dim: int, name: str) -> None:
    for number, text in enumerate(texts):
        if text.ndim != 2 or not len(text) or text.shape[1] != dim:
            raise InvalidInputError(
                f"{name}[{number}] has the shape {list(text.shape)}.",
                field=f"{name}[{number}]",
                limit=dim,
                hint=f"Give an array [tokens, {dim}] with at least one token.",
            )
