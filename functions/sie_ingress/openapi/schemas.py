"""JSON Schema of the types that travel, made by msgspec, with the limits of the settings in force.

Owns what msgspec cannot know: arrays, the limits that the settings set, and what a description says of msgpack.
"""

from __future__ import annotations

import inspect
from collections.abc import Iterable, Mapping
from typing import Any

import msgspec
import numpy as np

from sie_ingress.settings import Settings
from sie_sdk import wire

_TEMPLATE = "#/components/schemas/{name}"
_TEXT = {"required": ["text"], "properties": {"text": {"type": "string"}}}
_TEXT_OR_VECTORS = {
    "anyOf": [_TEXT, {"required": ["multivector"], "properties": {"multivector": {"not": {"type": "null"}}}}]
}
"""What an item must have; vectors are scored in place of a text."""
_ARRAYS = "In msgpack an array of numbers is a map with the binary keys `nd`, `type`, `kind`, `shape` and `data`."


def of(kinds: Iterable[Any], settings: Settings) -> tuple[dict[Any, dict[str, Any]], dict[str, Any]]:
    """The schema of each type, and the components they refer to."""
    wanted = list(dict.fromkeys(kinds))
    single = list(dict.fromkeys(one for kind in wanted for one in (kind if isinstance(kind, tuple) else (kind,))))
    schemas = msgspec.json.schema_components(single, schema_hook=_array, ref_template=_TEMPLATE)
    made, components = msgspec.json.decode(msgspec.json.encode(schemas))  # a default may be a tuple
    schema_of = dict(zip(single, made, strict=True))
    schema_of |= {kind: {"anyOf": [schema_of[one] for one in kind]} for kind in wanted if isinstance(kind, tuple)}
    for component in components.values():
        if "description" in component:
            component["description"] = _flowing(component["description"])
    _limit(components, settings)
    return schema_of, components


def _array(kind: type) -> dict[str, Any]:
    """``Item.multivector``, the one array that a request may hold."""
    if kind is not np.ndarray:
        raise NotImplementedError
    return {
        "type": "array",
        "description": f"Floats of shape [tokens, dims]. {_ARRAYS}",
        "minItems": 1,
        "items": {"type": "array", "minItems": 1, "items": {"type": "number"}},
    }


def _flowing(docstring: str) -> str:
    """A docstring as Markdown."""
    return inspect.cleandoc(docstring).replace("``", "`")


def _limit(components: Mapping[str, Any], settings: Settings) -> None:
    """The limits that ``sie_sdk.wire`` checks; a text's is in bytes, so in characters it is the most there can be."""
    most = {
        "EncodeRequest": settings.max_items,
        "ExtractRequest": settings.max_items,
        "ScoreRequest": min(settings.max_items, wire.DEFAULT_LIMITS.max_score_items),
    }
    for name, limit in most.items():
        if name in components:
            items = components[name]["properties"]["items"]
            content = _TEXT_OR_VECTORS if name == "ScoreRequest" else _TEXT
            items |= {"minItems": 1, "maxItems": limit, "items": {"allOf": [items["items"], content]}}
    if "Item" in components:
        text = components["Item"]["properties"]["text"]["anyOf"][0]
        text |= {
            "maxLength": settings.max_text_bytes,
            "description": f"At most {settings.max_text_bytes} bytes of UTF-8.",
        }
    if "ExtractParams" in components:
        labels = components["ExtractParams"]["properties"]["labels"]["anyOf"][0]
        labels |= {"maxItems": wire.DEFAULT_LIMITS.max_labels, "uniqueItems": True}
        labels["items"] |= {"minLength": 1, "pattern": r"\S"}
