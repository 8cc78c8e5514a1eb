"""Embeddings as frameworks keep them: what is asked of ``encode``, and its arrays as lists of floats. Pure.

Whatever number format the vectors travel in, a framework gets floats that it can compare.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeVar

import numpy as np

from sie_sdk.errors import UnexpectedReplyError
from sie_sdk.keywords import CallKeywords, EncodeKeywords
from sie_sdk.types import EncodeResult, OutputDtype, OutputType

T = TypeVar("T")


def asked(
    output: OutputType,
    terms: CallKeywords,
    *,
    is_query: bool,
    instruction: str | None = None,
    query_instruction: str | None = None,
    dimensions: int | None = None,
    output_dtype: OutputDtype | None = None,
) -> EncodeKeywords:
    """The keywords of ``encode`` for one kind of output; ``terms`` are those of every call."""
    asked: EncodeKeywords = {**terms, "output_types": [output], "output_dtype": output_dtype, "is_query": is_query}
    asked["instruction"] = query_instruction if is_query and query_instruction is not None else instruction
    if dimensions is not None:
        asked["options"] = {**(terms.get("options") or {}), "dimensions": dimensions}
    return asked


def dense(results: Sequence[EncodeResult]) -> list[list[float]]:
    """The dense vectors. int8 and uint8 become the numbers they stand for; of packed bits, 1 becomes 1.0 and 0 -1.0."""
    return [_floats(result) for result in results]


def multivector(results: Sequence[EncodeResult]) -> list[list[list[float]]]:
    """The vectors of each text's tokens."""
    return [_there(result.multivector, "multivector").astype(np.float32).tolist() for result in results]


def sparse(results: Sequence[EncodeResult]) -> list[tuple[list[int], list[float]]]:
    """The places and the values of each sparse vector."""
    vectors = [_there(result.sparse, "sparse vector") for result in results]
    return [(vector.indices.tolist(), vector.values.astype(np.float32).tolist()) for vector in vectors]


def _floats(result: EncodeResult) -> list[float]:
    vector = _there(result.dense, "dense vector")
    if result.dense_quantization is not None:
        vector = result.dense_quantization.dequantise(vector)
    elif vector.dtype == np.uint8:
        vector = np.unpackbits(vector).astype(np.float32) * 2 - 1
    floats: list[float] = vector.astype(np.float32, copy=False).tolist()
    return floats


def _there(value: T | None, name: str) -> T:
    if value is None:
        raise UnexpectedReplyError(f"The reply has no {name}, which was asked for.")
    return value
