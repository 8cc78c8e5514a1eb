"""The vectors of a worker's reply as dialects write them: base64 of little-endian float32, JSON numbers, bits.

Owns these forms. No number of a vector becomes an object of Python: bytes are written as they came, and float32 in as
few digits as bring it back (half of what float64 takes). A row at a time, so that a thread that writes many lets
others run.
"""

from __future__ import annotations

import base64
from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from sie_sdk import arrays, results

Array: TypeAlias = npt.NDArray[Any]
Writer: TypeAlias = Callable[[Array], bytes]
"""From one vector to its JSON."""


def dense(reply: bytes) -> list[Array]:
    """The dense vectors of an encode reply, in request order."""
    return [found.dense for found in results.read_encode(reply) if found.dense is not None]


def in_base64(vector: Array) -> bytes:
    """A JSON string: base64 of the vector's bytes."""
    return b'"' + base64.b64encode(vector.data) + b'"'


def in_numbers(vector: Array) -> bytes:
    """A JSON list of numbers."""
    return arrays.to_json(vector)


def in_signed_numbers(bits: Array) -> bytes:
    """A JSON list of packed bits as numbers from -128 to 127, as Cohere and Jina have it: each byte less 128."""
    return in_numbers((bits ^ np.uint8(0x80)).view(np.int8))


def listed(vectors: Sequence[Array], write: Writer) -> bytes:
    """A JSON list of vectors."""
    return b"[" + b",".join(map(write, vectors)) + b"]"
