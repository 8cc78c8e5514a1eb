"""A profile's options in a request: what the request leaves out, its profile gives. Pure.

Owns the order of precedence: the request's own, then its profile's. Whoever accepts a request applies its profile;
workers know of none.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec

from sie_config.model_spec import ModelSpec
from sie_config.runtime_options import ENCODE, EXTRACT, PARAMS, SCORE
from sie_sdk.errors import InvalidInputError
from sie_sdk.types import EncodeRequest, ExtractRequest, ScoreRequest
from sie_sdk.wire import Request


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
            params, read = {}, list(EXTRACT.get(task.kind, ())) if task is not None else []
    changed = msgspec.structs.replace(request.params, **params, options=_options(own, defaults, read))
    return msgspec.structs.replace(request, params=changed)


def _options(own: dict[str, Any], defaults: Mapping[str, Any], read: Any) -> dict[str, Any] | None:
    return ({name: defaults[name] for name in read if name in defaults} | own) or None
