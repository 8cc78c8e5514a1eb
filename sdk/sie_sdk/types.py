"""The wire contract of encode, score and extract: requests and results as frozen records, used by both ends.

Owns the names, types and defaults of the fields. Not here: bytes (``wire``, ``replies``), arrays (``arrays``), what a
bundle hands over to be serialised (``outputs``), HTTP (``client``).
Field names follow the published SIE protocol, so that existing clients and ours speak the same bodies.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, Literal, TypeAlias, cast

import msgspec

from sie_sdk.deferred import Deferred

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt
else:
    np, npt = Deferred("numpy"), Deferred("numpy.typing")

OutputType: TypeAlias = Literal["dense", "sparse", "multivector"]
OutputDtype: TypeAlias = Literal["float32", "float16", "int8", "uint8", "binary", "ubinary"]
SPARSE_DTYPES: Final[tuple[OutputDtype, ...]] = ("float32", "float16")
Operation: TypeAlias = Literal["encode", "score", "extract"]
Priority: TypeAlias = Literal["interactive", "bulk"]
"""Somebody waits for the answer, or nobody does: interactive work goes first."""


def asks_for_muvera(option: object) -> bool:
    """Whether ``options.muvera`` asks for one dense vector of a multivector: it is neither null nor false."""
    return option is not None and option is not False


# -- requests ----------------------------------------------------------------------------------------------------------


class Item(msgspec.Struct, frozen=True, omit_defaults=True, eq=False):
    """One input. ``text`` is the content; ``id`` (echoed in the result) and ``metadata`` are the caller's own.

    ``multivector``: float vectors of shape ``[tokens, dims]`` computed before, for scoring by MaxSim instead of a text.
    """

    text: str | None = None
    id: str | None = None
    metadata: dict[str, Any] | None = None
    multivector: npt.NDArray[np.floating[Any]] | None = None

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Item):
            return NotImplemented
        if (self.text, self.id, self.metadata) != (other.text, other.id, other.metadata):
            return False
        if self.multivector is None or other.multivector is None:
            return self.multivector is other.multivector
        return np.array_equal(self.multivector, other.multivector)


class EncodeParams(msgspec.Struct, frozen=True, omit_defaults=True):
    """What to compute. ``options`` holds per-model choices such as ``is_query`` or ``overflow_policy``."""

    output_types: list[OutputType] | None = None
    instruction: str | None = None
    output_dtype: OutputDtype | None = None
    options: dict[str, Any] | None = None


if TYPE_CHECKING:
    _EncodeParams: TypeAlias = EncodeParams
else:  # a generated client writes null for what it leaves out
    _EncodeParams = EncodeParams | None


class EncodeRequest(msgspec.Struct, frozen=True, omit_defaults=True):
    """The body of ``POST /v1/encode/{model}``. ``params`` are never None once they are read."""

    items: list[Item]
    params: _EncodeParams = EncodeParams()

    def __post_init__(self) -> None:
        _read_null_as_absent(self, EncodeParams)


class ScoreRequest(msgspec.Struct, frozen=True, omit_defaults=True):
    """The body of ``POST /v1/score/{model}``: every item is scored against the one query."""

    query: Item
    items: list[Item]
    instruction: str | None = None
    options: dict[str, Any] | None = None


class ExtractParams(msgspec.Struct, frozen=True, omit_defaults=True):
    """What to look for: ``labels`` for models that take them, ``output_schema`` for those that fill one."""

    labels: list[str] | None = None
    output_schema: dict[str, Any] | None = None
    instruction: str | None = None
    options: dict[str, Any] | None = None


if TYPE_CHECKING:
    _ExtractParams: TypeAlias = ExtractParams
else:
    _ExtractParams = ExtractParams | None


class ExtractRequest(msgspec.Struct, frozen=True, omit_defaults=True):
    """The body of ``POST /v1/extract/{model}``. ``params`` are never None once they are read."""

    items: list[Item]
    params: _ExtractParams = ExtractParams()

    def __post_init__(self) -> None:
        _read_null_as_absent(self, ExtractParams)


def _read_null_as_absent(request: EncodeRequest | ExtractRequest, kind: type[EncodeParams | ExtractParams]) -> None:
    if cast(object, request.params) is None:
        msgspec.structs.force_setattr(request, "params", kind())


# -- results -----------------------------------------------------------------------------------------------------------


class Timing(msgspec.Struct, frozen=True):
    """Where the time went, in milliseconds. Neighbouring stages share one clock reading, so they add up to the total.

    ``queue_ms``: accepted by the ingress until taken by a worker whose model is loaded; of a first request the load.
    ``tokenization_ms``: parsing and tokenization. ``batch_wait_ms``: waiting for the device. ``inference_ms``: the
    forward pass, with what others of the same batch take. ``postprocessing_ms``: checks, number formats, serialising.
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


class PairUsage(Usage, frozen=True):
    """What a score computed: the tokens, and the pairs of query and item."""

    pairs: int = 0


class SparseVector(msgspec.Struct, frozen=True, eq=False):
    """A vector by its non-zero places: ``indices`` (int32) and ``values`` (float), both ``[k]``, of ``dims`` in all."""

    indices: npt.NDArray[np.int32]
    values: npt.NDArray[np.floating[Any]]
    dims: int | None = None


class Quantization(msgspec.Struct, frozen=True, eq=False):
    """How int8 and uint8 values stand for numbers: ``x ~= values * scale + offset``.

    Both are one number for a dense vector and arrays of shape ``[tokens]`` for a multivector.
    """

    scale: float | npt.NDArray[np.floating[Any]]
    offset: float | npt.NDArray[np.floating[Any]] = 0.0

    def dequantise(self, values: npt.NDArray[Any]) -> npt.NDArray[np.float32]:
        """The numbers (float32) that ``values``, ``[dims]`` or ``[tokens, dims]``, stand for."""
        scale, offset = (np.asarray(each, np.float32)[..., None] for each in (self.scale, self.offset))
        return np.asarray(values.astype(np.float32) * scale + offset, np.float32)


class EncodeResult(msgspec.Struct, frozen=True, eq=False):
    """The representations of one item; what was not asked for is None. Arrays are read-only.

    ``dense`` has shape ``[dims]``, ``multivector`` ``[tokens, dims]``, of the dtype asked for; ``binary`` and
    ``ubinary`` are uint8 with eight dimensions in each byte (``numpy.unpackbits`` opens them). The two quantizations
    are there for int8 and uint8.
    """

    dense: npt.NDArray[Any] | None = None
    sparse: SparseVector | None = None
    multivector: npt.NDArray[Any] | None = None
    dense_quantization: Quantization | None = None
    multivector_quantization: Quantization | None = None
    id: str | None = None
    timing: Timing | None = None


class ScoreEntry(msgspec.Struct, frozen=True):
    """One item's score. ``rank`` counts from 0, the best; ``index`` is the item's place in the request.

    ``item_id`` is the item's own id, else ``item-{index}``. A server that is not ours may leave ``index`` out (-1).
    """

    item_id: str
    score: float
    rank: int
    index: int = -1


class ScoreResult(msgspec.Struct, frozen=True):
    """Every item of a request scored against its query, best first."""

    scores: list[ScoreEntry]
    model: str = ""
    query_id: str | None = None
    usage: PairUsage | None = None
    timing: Timing | None = None


class Entity(msgspec.Struct, frozen=True):
    """A labelled piece of an item's text: ``text[start:end]``, counted in characters (Unicode code points)."""

    text: str
    label: str
    score: float
    start: int | None = None
    end: int | None = None


class Classification(msgspec.Struct, frozen=True):
    """A label for a whole item; scores lie in 0 to 1."""

    label: str
    score: float


class ExtractFailure(msgspec.Struct, frozen=True):
    """Why one item has no result, when a server answers the others."""

    code: str
    message: str = ""


class ExtractResult(msgspec.Struct, frozen=True):
    """What was found in one item. ``relations``, ``objects`` and ``data`` are the protocol's; ours stay empty."""

    id: str | None = None
    entities: list[Entity] = []
    classifications: list[Classification] = []
    relations: list[dict[str, Any]] = []
    objects: list[dict[str, Any]] = []
    data: dict[str, Any] = {}
    error: ExtractFailure | None = None
    timing: Timing | None = None


# -- catalogue and jobs ------------------------------------------------------------------------------------------------


class ProfileInfo(msgspec.Struct, frozen=True):
    """One profile of a model; ``is_default``: requests that choose none have it."""

    is_default: bool = False


class ModelLoadError(msgspec.Struct, frozen=True):
    """Why a model did not load where it was last tried; ``permanent``: it will not be tried again."""

    code: str
    message: str = ""
    attempts: int = 1
    permanent: bool = False


class ModelInfo(msgspec.Struct, frozen=True):
    """One row of ``GET /v1/models``.

    ``state``: available, loading, loaded or failed, wherever it is furthest; or planned: not served, and ``last_error``
    says what it waits for. ``capabilities`` and ``routing`` are the protocol's, for servers that generate text or pass
    requests on.
    """

    name: str
    outputs: list[str] = []
    dims: dict[str, int] = {}
    max_sequence_length: int | None = None
    revision: str | None = None
    bundle: str | None = None
    loaded: bool = False
    state: str = "available"
    last_error: ModelLoadError | None = None
    inputs: list[str] = []
    profiles: dict[str, ProfileInfo] = {}
    aliases: list[str] = []
    capabilities: dict[str, Any] | None = None
    routing: dict[str, Any] | None = None


class JobStatus(msgspec.Struct, frozen=True):
    """The ``job`` object of a 202 reply: work that is queued and kept. ``message`` is for people."""

    id: str
    state: str = "queued"
    retry_after_s: float | None = None
    message: str | None = None


class Progress(msgspec.Struct, frozen=True):
    """What a waiting call tells its ``progress`` callback.

    ``state``: the job's own (``queued``, ``provisioning``, ...) or the call's: ``retrying`` (the server said not now),
    ``unreachable`` (no connection), ``running`` (some items are done), ``done``. ``retry_after_s`` is the pause before
    the next look, None without one. ``done`` of ``total`` items have their results; the total of a stream is None.
    """

    state: str
    job: str | None = None
    elapsed_s: float = 0.0
    retry_after_s: float | None = None
    message: str | None = None
    done: int = 0
    total: int | None = None
