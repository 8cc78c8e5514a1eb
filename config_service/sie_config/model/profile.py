"""A profile's options in a request: what the request leaves out, its profile gives. Pure.

Owns the order of precedence: the request's own, as far as the spec allows them, then its profile's. Whoever accepts a
request applies its profile; workers know of none but its LoRA, which travels as ``options.lora_id``.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec

from sie_config.model import runtime_options, variant
from sie_config.model.model_spec import ModelSpec
from sie_config.model.runtime_options import PARAMS
from sie_sdk.errors import InvalidInputError
from sie_sdk.formats import Request
from sie_sdk.types import EncodeRequest, ExtractRequest, ScoreRequest

LORA = "lora_id"
"""The option that names a LoRA: the profile that declares it. Empty: none, whatever the profile has."""


def with_profile(request: Request, spec: ModelSpec) -> Request:
    """The request as it is computed: with the options of the profile it chose, and without the choice.

    ``options.profile`` chooses, else the name of the model did (``spec.default_profile``). The same object, when there
    is nothing to change.

    Raises:
        InvalidInputError: the model has no such profile or LoRA, its name is no string, or the spec allows requests
            other options only.
    """
    own = options_of(request)
    if spec.options:
        _check_allowed(own, spec, "options" if isinstance(request, ScoreRequest) else "params.options")
    if not spec.profiles and not own.keys() & {"profile", LORA, "lora"}:
        return request
    field = "options" if isinstance(request, ScoreRequest) else "params.options"
    options = dict(own)
    if "lora" in options:  # another name that clients know it by
        options.setdefault(LORA, options.pop("lora"))
    if (name := options.pop("profile", None)) is not None:
        if not isinstance(name, str):
            choices = ", ".join(spec.profile_names)
            raise InvalidInputError(f"{field}.profile is not a string.", field=f"{field}.profile", limit=choices)
        spec = spec.with_profile(name.strip().lower(), f"{field}.profile")
    defaults = dict(spec.chosen.options)
    if spec.chosen.lora is not None:
        defaults[LORA] = spec.default_profile
    lora_of(spec, options.get(LORA), f"{field}.{LORA}")
    if not defaults and len(options) == len(own) and "lora" not in own:
        return request
    return _merged(request, spec, options, defaults)


def _check_allowed(own: Mapping[str, Any], spec: ModelSpec, field: str) -> None:
    for name in own:
        if name != "profile" and (LORA if name == "lora" else name) not in spec.options:
            allowed = ", ".join(("profile", *spec.options))
            raise InvalidInputError(
                f"{spec.id} takes no option {name[:64]!r} of requests.",
                field=f"{field}.{name[:64]}",
                limit=allowed,
                hint=f"It takes: {allowed}.",
            )


def options_of(request: Request) -> Mapping[str, Any]:
    """The request's own options, wherever its kind has them."""
    return (request.options if isinstance(request, ScoreRequest) else request.params.options) or {}


def lora_of(spec: ModelSpec, value: Any, field: str = f"options.{LORA}") -> str:
    """The name of the model's LoRA that the option ``lora_id`` names; empty: none.

    Raises:
        InvalidInputError: it has no such LoRA; lists those it has.
    """
    if value is None or value == "":
        return ""
    known = variant.loras(spec)
    if isinstance(value, str) and (name := value.strip().lower()) in known:
        return name
    raise InvalidInputError(
        f"{spec.id} has no LoRA {str(value)[:64]!r}.",
        field=field,
        limit=", ".join(known) or None,
        hint=f"Its LoRAs: {', '.join(known)}." if known else f"It has none: leave {LORA} out.",
        loras=known,
    )


def _merged(request: Request, spec: ModelSpec, own: dict[str, Any], defaults: Mapping[str, Any]) -> Request:
    match request:
        case EncodeRequest():
            params = {
                name: defaults[name]
                for name in PARAMS
                if defaults.get(name) is not None and getattr(request.params, name) is None and name not in own
            }
            read = [name for name in runtime_options.encode(spec.tasks) if name not in PARAMS]
        case ScoreRequest():
            return msgspec.structs.replace(request, options=_options(own, defaults, runtime_options.score(spec.tasks)))
        case ExtractRequest():
            params, read = {}, list(runtime_options.extract(spec.tasks))
    changed = msgspec.structs.replace(request.params, **params, options=_options(own, defaults, read))
    return msgspec.structs.replace(request, params=changed)


def _options(own: dict[str, Any], defaults: Mapping[str, Any], read: Any) -> dict[str, Any] | None:
    return ({name: defaults[name] for name in read if name in defaults} | own) or None
