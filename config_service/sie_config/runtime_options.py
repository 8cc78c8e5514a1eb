"""Runtime options: which ones each operation reads, and which values a profile may give them. Pure.

Owns their names and types. What an option does stands where it is read (``sie_bundle.operations``), what a profile's
do to a request in ``profile``.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Annotated, Any, Final, Literal

import msgspec

from sie_sdk.types import OutputDtype, OutputType

ENCODE: Final = ("is_query", "overflow_policy", "max_seq_length", "normalize", "dimensions", "output_types", "muvera")
SCORE: Final = ("overflow_policy", "max_seq_length", "activation", "instruction")
EXTRACT: Final[Mapping[str, tuple[str, ...]]] = {
    "entities": ("threshold", "aggregation_strategy", "flat_ner", "max_seq_length"),
    "classes": ("threshold", "top_k", "multi_label", "overflow_policy", "max_seq_length"),
    "entailment": ("threshold", "top_k", "multi_label", "hypothesis_template", "overflow_policy", "max_seq_length"),
}
"""By the kind of the model's task."""

PARAMS: Final = ("output_types", "output_dtype", "instruction")
"""What a profile gives an encode request as ``params``, so that the request's own come first there too."""

Count = Annotated[int, msgspec.Meta(ge=1)]


class Options(msgspec.Struct, frozen=True):
    """Everything that a profile may hold, with its type."""

    is_query: bool | None = None
    overflow_policy: Literal["default", "truncate_text", "error"] | None = None
    max_seq_length: Count | None = None
    normalize: bool | None = None
    dimensions: Count | None = None
    output_types: list[OutputType] | None = None
    output_dtype: OutputDtype | None = None
    instruction: str | None = None
    muvera: bool | dict[str, Any] | None = None
    activation: Literal["none", "sigmoid"] | None = None
    threshold: Annotated[float, msgspec.Meta(ge=0, le=1)] | None = None
    aggregation_strategy: Literal["none", "simple", "first", "average", "max"] | None = None
    flat_ner: bool | None = None
    top_k: Count | None = None
    multi_label: bool | None = None
    hypothesis_template: str | None = None


KNOWN: Final = frozenset(Options.__struct_fields__)


def faults(options: Mapping[str, Any], offered: Sequence[str]) -> Iterator[str]:
    """What is wrong with the options of a profile, one line each; ``offered``: the outputs of its model."""
    for name in sorted(options):
        if name not in KNOWN:
            yield f"{name}: unknown option (known: {', '.join(sorted(KNOWN))})"
            continue
        try:
            asked = msgspec.convert({name: options[name]}, Options).output_types or []
        except msgspec.ValidationError as error:
            yield f"{name}: {str(error).partition(' - at ')[0]}"
        else:
            yield from (f"{name}: the model has no {output} output" for output in asked if output not in offered)
