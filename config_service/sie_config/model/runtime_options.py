"""Runtime options: which ones each operation reads, and which values a profile may give them. Pure.

Owns their names and types, and how large an encoding may be. What an option does stands where it is read
(``sie_bundle.operations``), what a profile's do to a request in ``profile``.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache
from typing import Annotated, Final, Literal, TypeAlias

import msgspec

from sie_config.model.tasks import Pooling, Tasks
from sie_sdk.types import OutputDtype, OutputType

ENCODE: Final = (
    *("is_query", "overflow_policy", "max_seq_length", "query_max_length", "normalize", "dimensions", "pooling"),
    *("query_template", "doc_template", "default_instruction", "output_types", "muvera", "lora_id"),
)
"""All there are; what of them a model has says `encode`."""
SCORE: Final[Mapping[str, tuple[str, ...]]] = {
    "cross_encoder": ("overflow_policy", "max_seq_length", "activation", "lora_id"),
    "yes_no": ("overflow_policy", "max_seq_length", "activation", "instruction", "lora_id"),
    "maxsim": ("overflow_policy", "max_seq_length", "query_max_length", "lora_id"),
}
"""By the kind of the model's task."""
EXTRACT: Final[Mapping[str, tuple[str, ...]]] = {
    "entities": ("threshold", "aggregation_strategy", "flat_ner", "max_seq_length", "lora_id"),
    "classes": ("threshold", "top_k", "multi_label", "overflow_policy", "max_seq_length", "lora_id"),
    "spans": ("threshold", "flat_ner", "multi_label", "max_seq_length"),
    "entailment": (
        *("threshold", "top_k", "multi_label", "hypothesis_template", "overflow_policy", "max_seq_length", "lora_id"),
    ),
}
"""By the kind of the model's task: what the engine extracts."""

PARAMS: Final = ("output_types", "output_dtype", "instruction")
"""What a profile gives an encode request as ``params``, so that the request's own come first there too."""

Count = Annotated[int, msgspec.Meta(ge=1)]

MUVERA_LARGEST: Final = 1 << 24
"""The most numbers of a fixed dimensional encoding before its final projection, and of those drawn for it."""
MUVERA_REPETITIONS: Final = 40
MUVERA_SIMHASH_BITS: Final = 6


Option: TypeAlias = Literal[
    "is_query",
    "overflow_policy",
    "max_seq_length",
    "query_max_length",
    "normalize",
    "dimensions",
    "output_types",
    "output_dtype",
    "instruction",
    "default_instruction",
    "query_template",
    "doc_template",
    "pooling",
    "lora_id",
    "muvera",
    "activation",
    "threshold",
    "aggregation_strategy",
    "flat_ner",
    "top_k",
    "multi_label",
    "hypothesis_template",
]


class MuveraSizes(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The sizes of a fixed dimensional encoding; without one ``sie_bundle.operations.muvera`` has its default."""

    repetitions: Annotated[int, msgspec.Meta(ge=1, le=1024)] | None = None
    """Independent partitions."""
    simhash_bits: Annotated[int, msgspec.Meta(ge=0, le=12)] | None = None
    """Hyperplanes of a partition."""
    projection: Count | None = None
    """Dimensions of a token within a bucket; null: all."""
    final_dims: Annotated[int, msgspec.Meta(ge=1, le=1 << 24)] | None = None
    """Length of the encoding; null: as it comes."""
    seed: Annotated[int, msgspec.Meta(ge=0, le=(1 << 32) - 1)] | None = None
    """Of all random choices."""


class Options(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Everything that a profile may hold, with its type."""

    is_query: bool | None = None
    """Whether the texts are queries: they get the query's prompt, template, marker or length."""
    overflow_policy: Literal["default", "truncate_text", "error"] | None = None
    """What becomes of a longer text: it is cut (the default), or refused."""
    max_seq_length: Count | None = None
    """Tokens of a text, at most the model's."""
    query_max_length: Count | None = None
    """Tokens of a query, at most the model's."""
    normalize: bool | None = None
    """Bring dense vectors to length 1, or leave them."""
    dimensions: Count | None = None
    """Length of dense vectors: ``dim``, or one of ``dims``."""
    output_types: list[OutputType] | None = None
    """What is computed where a request does not say: else dense, or all of a model without it."""
    output_dtype: OutputDtype | None = None
    """The number format of vectors."""
    instruction: str | None = None
    """What the model is to do: stands for ``{instruction}``, or before the text where there is no template."""
    default_instruction: str | None = None
    """What stands for ``{instruction}`` in a template where a request gives none."""
    query_template: str | None = None
    """Instead of the model's own: the text of a query with its places ``{text}`` and ``{instruction}``."""
    doc_template: str | None = None
    """The same of a document."""
    pooling: Pooling | None = None
    """How token states become the dense vector, instead of the model's own way."""
    lora_id: str | None = None
    """The LoRA, by the profile that declares it; empty: none."""
    muvera: bool | MuveraSizes | None = None
    """Multivectors as one dense vector (2405.19504): true, or its sizes."""
    activation: Literal["none", "sigmoid"] | None = None
    """What is done to scores."""
    threshold: Annotated[float, msgspec.Meta(ge=0, le=1)] | None = None
    """Entities and classes below it are left out."""
    aggregation_strategy: Literal["none", "simple", "first", "average", "max"] | None = None
    """How labels of sub-words become one."""
    flat_ner: bool | None = None
    """Leave out entities that lie over a better one; without it, only those that cross one."""
    top_k: Count | None = None
    """So many classes, the best."""
    multi_label: bool | None = None
    """Labels do not exclude each other."""
    hypothesis_template: str | None = None
    """What is made of a label, with its place ``{}``."""


def muvera_numbers(dim: int, repetitions: int | None, simhash_bits: int | None, projection: int | None) -> int:
    """How many numbers a fixed dimensional encoding of vectors of ``dim`` has before its final projection."""
    partitions = MUVERA_REPETITIONS if repetitions is None else repetitions
    bits = MUVERA_SIMHASH_BITS if simhash_bits is None else simhash_bits
    return (partitions << bits) * (projection or dim)


def muvera_drawn(dim: int, repetitions: int | None, simhash_bits: int | None, projection: int | None) -> int:
    """How many random numbers of a kind, of hyperplanes or of projections, are drawn for such an encoding."""
    partitions = MUVERA_REPETITIONS if repetitions is None else repetitions
    bits = MUVERA_SIMHASH_BITS if simhash_bits is None else simhash_bits
    return partitions * dim * max(bits, projection or 0)


KNOWN: Final = frozenset(Options.__struct_fields__)


_OF_DENSE: Final = frozenset({"normalize", "dimensions", "pooling"})
_OF_MULTIVECTOR: Final = frozenset({"muvera"})


@lru_cache(maxsize=1024)
def encode(tasks: Tasks) -> tuple[str, ...]:
    """The options of encode that say something to a model with these tasks; none if it does not encode."""
    if not (tasks.dense or tasks.sparse or tasks.multivector):
        return ()
    mute = (frozenset() if tasks.dense else _OF_DENSE) | (frozenset() if tasks.multivector else _OF_MULTIVECTOR)
    return tuple(name for name in ENCODE if name not in mute)


def score(tasks: Tasks) -> tuple[str, ...]:
    """The options of score with these tasks; none if the model does not score."""
    if tasks.score is None:
        return ()
    told = "{instruction}" in tasks.score.template
    return tuple(name for name in SCORE[tasks.score.kind] if name != "instruction" or told)


def extract(tasks: Tasks) -> tuple[str, ...]:
    """The options of extract with these tasks; none if the engine does not compute that kind."""
    return EXTRACT.get(tasks.extract.kind, ()) if tasks.extract else ()


def read_by(tasks: Tasks) -> set[str]:
    """The options that some operation reads for a model that has these tasks."""
    encoded = encode(tasks)
    return {*encoded, *(PARAMS if encoded else ()), *score(tasks), *extract(tasks)}
