"""Runtime options: which ones each operation reads, and what a profile adds to a request that leaves them out. Pure.

Owns the names of the options and the order of precedence: the request's own, then its profile's. What an option does
stands where it is read (``sie_bundle.operations``); whoever accepts a request applies its profile, workers know none.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Annotated, Any, Final, Literal

import msgspec

from sie_sdk.errors import InvalidInputError
from sie_sdk.types import EncodeRequest, ExtractRequest, OutputDtype, OutputType, ScoreRequest
from sie_sdk.wire import Request

if TYPE_CHECKING:
    from sie_config.model_spec import ModelSpec

ENCODE: Final = ("is_query", "overflow_policy", "max_seq_length", "normalize", "dimensions", "output_types", "muvera")
SCORE: Final = ("overflow_policy", "max_seq_length", "activation", "instruction")
EXTRACT: Final = {
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


def with_profile(request: Request, spec: ModelSpec) -> Request:
    """The request as it is computed: with the options of the profile it chose, and without the choice.

    ``options.profile`` chooses, else the name of the model did (``spec.default_profile``). The same object, when there
    is nothing to change.

    Raises:
        InvalidInputError: the model has no such profile, or its name is no string.
    """
    own = (request.options if isinstance(request, ScoreRequest) else request.params.options) or {}
    if "profile" not in own and not spec.profiles:
        return request
    options = dict(own)
    if (name := options.pop("profile", None)) is not None:
        field = "options.profile" if isinstance(request, ScoreRequest) else "params.options.profile"
        if not isinstance(name, str):
            raise InvalidInputError(f"{field} is not a string.", field=field, limit=", ".join(spec.profile_names))
        spec = spec.with_profile(name.strip().lower(), field)
    defaults = spec.chosen.options
    if not defaults and len(options) == len(own):
        return request
    return _merged(request, spec, options, defaults)


def _merged(request: Request, spec: ModelSpec, own: dict[str, Any], defaults: Mapping[str, Any]) -> Request:
    match request:
        case EncodeRequest():
            params = {
                name: defaults[name]
                for name in PARAMS
                if defaults.get(name) is not None and getattr(request.params, name) is None and name not in own
            }
            read = [name for name in ENCODE if name not in PARAMS]
        case ScoreRequest():
            return msgspec.structs.replace(request, options=_options(own, defaults, SCORE))
        case ExtractRequest():
            task = spec.tasks.extract
            params, read = {}, list(EXTRACT[task.kind]) if task is not None else []
    changed = msgspec.structs.replace(request.params, **params, options=_options(own, defaults, read))
    return msgspec.structs.replace(request, params=changed)


def _options(own: dict[str, Any], defaults: Mapping[str, Any], read: Any) -> dict[str, Any] | None:
    return ({name: defaults[name] for name in read if name in defaults} | own) or None
