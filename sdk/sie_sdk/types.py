"""The wire contract of encode: requests and results as frozen records, used by both ends.

Owns the names, types and defaults of the fields. Not here: bytes (``wire``), arrays (``arrays``), HTTP (``client``).
Field names follow the published SIE protocol, so that existing clients and ours speak the same bodies.
"""

from __future__ import annotations

from typing import Any, Literal, TypeAlias

import msgspec
import numpy as np
import numpy.typing as npt

OutputType: TypeAlias = Literal["dense"]
OutputDtype: TypeAlias = Literal["float32", "float16"]


class Item(msgspec.Struct, frozen=True, omit_defaults=True):
    """One input. ``text`` is the content; ``id`` (echoed in the result) and ``metadata`` are the caller's own."""

    text: str | None = None
    id: str | None = None
    metadata: dict[str, Any] | None = None


class EncodeParams(msgspec.Struct, frozen=True, omit_defaults=True):
    """What to compute. ``options`` holds per-model choices such as ``is_query`` or ``overflow_policy``."""

    output_types: list[OutputType] | None = None
    instruction: str | None = None
    output_dtype: OutputDtype | None = None
    options: dict[str, Any] | None = None


class EncodeRequest(msgspec.Struct, frozen=True, omit_defaults=True):
    """The body of ``POST /v1/encode/{model}``."""

    items: list[Item]
    params: EncodeParams = EncodeParams()


class Timing(msgspec.Struct, frozen=True):
    """Where the time went, in milliseconds. Neighbouring stages share one clock reading, so they add up to the total.

    ``queue_ms``: accepted by the ingress until taken by a bundle. ``tokenization_ms``: parsing and tokenization (and
    the model's load, on first use). ``batch_wait_ms``: waiting for the device. ``inference_ms``: the forward pass.
    ``postprocessing_ms``: pooling's copy out, checks and serialising.
    """

    queue_ms: float = 0.0
    tokenization_ms: float = 0.0
    batch_wait_ms: float = 0.0
    inference_ms: float = 0.0
    postprocessing_ms: float = 0.0
    total_ms: float = 0.0


class Usage(msgspec.Struct, frozen=True):
    """What was computed: tokens after truncation, special tokens included."""

    input_tokens: int = 0


class EncodeResult(msgspec.Struct, frozen=True, eq=False):
    """The result of one item. ``dense`` is a read-only array of shape ``[dims]``."""

    dense: npt.NDArray[np.floating[Any]] | None = None
    id: str | None = None
    timing: Timing | None = None


class ModelInfo(msgspec.Struct, frozen=True):
    """One row of ``GET /v1/models``."""

    name: str
    outputs: list[str] = []
    dims: dict[str, int] = {}
    max_sequence_length: int | None = None
    revision: str | None = None
    bundle: str | None = None
    loaded: bool = False
    state: str = "available"


class JobStatus(msgspec.Struct, frozen=True):
    """The ``job`` object of a 202 reply: work that is queued and kept. ``message`` is for people."""

    id: str
    state: str = "queued"
    retry_after_s: float | None = None
    message: str | None = None


class Progress(msgspec.Struct, frozen=True):
    """What a waiting call tells its ``progress`` callback.

    ``state``: the job's own (``queued``, ``provisioning``, ...) or the call's: ``retrying`` (the server said not now),
    ``unreachable`` (no connection), ``done``. ``retry_after_s`` is the pause before the next look, None without one.
    """

    state: str
    job: str | None = None
    elapsed_s: float = 0.0
    retry_after_s: float | None = None
    message: str | None = None
