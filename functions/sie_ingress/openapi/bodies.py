"""The JSON of replies that the server writes by hand, as records, so that their schemas can be made like all others.

Owns nothing that runs: the forms are those of ``sie_sdk.replies`` and ``sie_sdk.refusals``, and a test holds real
replies against them. Arrays are lists of numbers here; in msgpack they are maps with binary keys.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal, TypeAlias

import msgspec
from msgspec import UNSET, Meta, UnsetType

from sie_sdk.types import Classification, Entity, JobStatus, PairUsage, ScoreEntry, Timing, Usage

Count: TypeAlias = Annotated[int, Meta(ge=0)]


class DenseVector(msgspec.Struct):
    """One vector. For int8 and uint8 a number is about ``value * scale + offset``; bits are eight to a number."""

    dims: Count
    dtype: Literal["float32", "float16", "int8", "uint8", "binary"]
    values: list[float]
    scale: float | UnsetType = UNSET
    offset: float | UnsetType = UNSET


class SparseValues(msgspec.Struct):
    """A vector by its non-zero places."""

    dims: Count
    dtype: Literal["float32", "float16"]
    indices: list[Count]
    values: list[float]


class TokenVectors(msgspec.Struct):
    """One vector for each token; ``scale`` and ``offset`` as of a dense vector, one for each token."""

    token_dims: Count
    num_tokens: Count
    dtype: Literal["float32", "float16", "int8", "uint8", "binary"]
    values: list[list[float]]
    scale: list[float] | UnsetType = UNSET
    offset: list[float] | UnsetType = UNSET


class Encoded(msgspec.Struct):
    """The representations of one item: those that were asked for."""

    id: str | UnsetType = UNSET
    dense: DenseVector | UnsetType = UNSET
    sparse: SparseValues | UnsetType = UNSET
    multivector: TokenVectors | UnsetType = UNSET


class EncodeReply(msgspec.Struct):
    """One entry for each item, in the request's order."""

    model: str
    timing: Timing
    usage: Usage
    items: list[Encoded]


class ScoreReply(msgspec.Struct):
    """The items best first, equal scores in the request's order."""

    model: str
    timing: Timing
    usage: PairUsage
    scores: list[ScoreEntry]
    query_id: str | UnsetType = UNSET


class Extracted(msgspec.Struct):
    """What was found in one item; ``relations``, ``objects`` and ``data`` stay empty."""

    id: str
    entities: list[Entity]
    classifications: list[Classification]
    relations: list[dict[str, Any]]
    objects: list[dict[str, Any]]
    data: dict[str, Any]


class ExtractReply(msgspec.Struct):
    """One entry for each item, in the request's order."""

    model: str
    timing: Timing
    usage: Usage
    items: list[Extracted]


class JobReply(msgspec.Struct):
    """Work that is queued and kept; its answer waits at ``/v1/jobs/{id}``."""

    job: JobStatus


class Refusal(msgspec.Struct):
    """What is wrong, and what to do next. ``param`` names the field at fault as a path."""

    code: str
    message: str
    param: str | UnsetType = UNSET
    limit: float | str | UnsetType = UNSET
    hint: str | UnsetType = UNSET
    retry_after: float | UnsetType = UNSET


class ErrorReply(msgspec.Struct):
    """Every error has this body, and its code in the header ``X-SIE-Error-Code``."""

    error: Refusal


class Detail(msgspec.Struct):
    """The short form of an error."""

    code: str
    message: str


class DetailedErrorReply(ErrorReply):
    """An error of the pools' routes: published clients read ``detail`` there."""

    detail: Detail


class AcceptedJob(msgspec.Struct):
    """Where the answer of one event of a batch will be."""

    id: str
    location: str


class AcceptedJobs(msgspec.Struct):
    """One entry for each event of the batch, in its order."""

    jobs: list[AcceptedJob]


class Message(msgspec.Struct):
    """What was done, for people."""

    message: str
