"""The JSON schemas of docs/schemas, made from the records that travel; ``python -m tests.broker.event_schemas`` writes.

Owns which attributes each event type has and what its data is. Each schema describes the whole event in JSON; the data
alone is at ``#/properties/data``. Attributes of other people are allowed everywhere, as CloudEvents wants it.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, get_args

import msgspec

from sie_broker.events.envelope import AVAILABLE_TYPE, RESULT_TYPE, work_type
from sie_bundle.door import SESSION
from sie_config.epochs import changed_event
from sie_sdk import types
from sie_sdk.formats import MSGPACK
from sie_sdk.types import Priority

FOLDER = Path(__file__).parent.parent.parent / "docs" / "schemas"

Schema = dict[str, Any]


# -- data that has no record of its own in the SDK ---------------------------------------------------------------------


class DenseVector(msgspec.Struct, omit_defaults=True):
    """``dims`` numbers; packed in ``dtype`` binary, and to be scaled in int8 and uint8."""

    dims: int
    dtype: str
    values: list[float]
    scale: float | None = None
    offset: float | None = None


class SparseVector(msgspec.Struct):
    """The non-zero places of a vector of ``dims`` numbers."""

    dims: int
    dtype: str
    indices: list[int]
    values: list[float]


class Multivector(msgspec.Struct, omit_defaults=True):
    """One vector for each token."""

    token_dims: int
    num_tokens: int
    dtype: str
    values: list[list[float]]
    scale: list[float] | None = None
    offset: list[float] | None = None


class EncodedItem(msgspec.Struct, omit_defaults=True):
    """The representations of one item."""

    id: str | None = None
    dense: DenseVector | None = None
    sparse: SparseVector | None = None
    multivector: Multivector | None = None


class Encoded(msgspec.Struct):
    """The result of encode: one entry for each item, in the request's order."""

    model: str
    timing: types.Timing
    usage: types.Usage
    items: list[EncodedItem]


class Scored(msgspec.Struct, omit_defaults=True):
    """The result of score: best first."""

    model: str
    timing: types.Timing
    usage: types.PairUsage
    scores: list[types.ScoreEntry]
    query_id: str | None = None


class Extracted(msgspec.Struct):
    """The result of extract: one entry for each item, in the request's order."""

    model: str
    timing: types.Timing
    usage: types.Usage
    items: list[types.ExtractResult]


class Failure(msgspec.Struct):
    """What went wrong; codes are listed in docs/errors.md."""

    code: str
    message: str
    param: str | None = None
    limit: float | str | None = None
    hint: str | None = None
    retry_after: float | None = None


class Failed(msgspec.Struct):
    """The data of a result whose ``status`` is 400 or more."""

    error: Failure


class Session(msgspec.Struct):
    """What a worker says at the end of a demand session."""

    worker: str
    draining: bool
    completed: int


# -- schemas -----------------------------------------------------------------------------------------------------------

_TEXT: Schema = {"type": "string", "minLength": 1}
_TIME: Schema = {"type": "string", "format": "date-time"}
_COMMON: Schema = {
    "specversion": {"const": "1.0"},
    "id": _TEXT,
    "source": {"type": "string", "minLength": 1, "format": "uri-reference"},
    "time": _TIME,
}
_DATAREF: Schema = {"type": "string", "format": "uri-reference", "pattern": "^nats:"}
_TRACE: Schema = {"type": "string", "pattern": "^[0-9a-f]{2}-[0-9a-f]{32}-[0-9a-f]{16}-[0-9a-f]{2}$"}
_WORK: Schema = {
    "model": _TEXT,
    "pool": _TEXT,
    "bundle": _TEXT,
    "profile": _TEXT,
    "priority": {"enum": list(get_args(Priority))},
    "tenant": {"type": "string"},
    "expirytime": _TIME,
    "replyto": _TEXT,
    "causationid": _TEXT,
    "dataref": _DATAREF,
    "specetag": _TEXT,
    "traceparent": _TRACE,
    "tracestate": {"type": "string"},
}
# An integer, which binary mode makes a text.
_STATUS: Schema = {"type": ["integer", "string"], "minimum": 200, "maximum": 599, "pattern": "^[2-5][0-9]{2}$"}
_BINARY: Schema = {
    "type": "string",
    "contentEncoding": "base64",
    "contentMediaType": MSGPACK,
    "description": "The same data in msgpack.",
}


def _array(_: object) -> Schema:
    return {"type": "array", "items": {"type": "array", "items": {"type": "number"}}}


def _event(kind: str, attributes: Mapping[str, Schema], required: Sequence[str], *data: type, packed: bool) -> Schema:
    """The schema of one type: its own attributes, and as data any of these records, ``packed`` if msgpack will do."""
    described, records = msgspec.json.schema_components(data, schema_hook=_array, ref_template="#/$defs/{name}")
    payload = described[0] if len(described) == 1 else {"anyOf": list(described)} if data else False
    schema: Schema = {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "$id": f"urn:sie:event:{kind}",
        "title": kind,
        "type": "object",
        "properties": {
            "type": {"const": kind},
            **_COMMON,
            **attributes,
            **({"datacontenttype": _TEXT} if data else {}),
            "data": payload,
            "data_base64": packed and _BINARY,
        },
        "required": ["specversion", "id", "source", "type", *required],
    }
    if packed:
        schema["oneOf"] = [{"required": [where]} for where in ("data", "data_base64", "dataref")]
    elif data:
        schema["required"].append("data")
    return schema | ({"$defs": records} if records else {})


def schemas() -> dict[str, Schema]:
    """Every event type's schema."""
    requests = {"encode": types.EncodeRequest, "score": types.ScoreRequest, "extract": types.ExtractRequest}
    work = [_event(work_type(op), _WORK, ("model",), record, packed=True) for op, record in requests.items()]
    results = (Encoded, Scored, Extracted, Failed)
    result = {"status": _STATUS, "causationid": _TEXT, "traceparent": _TRACE, "dataref": _DATAREF}
    sequence: Schema = {"type": "string", "pattern": "^[0-9]+$"}
    made = [
        *work,
        _event(RESULT_TYPE, result, ("datacontenttype",), *results, packed=True),
        _event(AVAILABLE_TYPE, {"subject": _TEXT, "holduntil": _TIME}, ("holduntil",), packed=False),
        _event(SESSION, {}, (), Session, packed=False),
        _event(
            changed_event.TYPE,
            {"sequence": sequence},
            ("sequence", "datacontenttype"),
            changed_event.ConfigChanged,
            packed=False,
        ),
    ]
    return {schema["title"]: _tidied(schema) for schema in made}


def _tidied(value: Any) -> Any:
    """Descriptions come from docstrings: on one line, and without the marks of their markup."""
    if isinstance(value, dict):
        return {
            key: re.sub(r"\s+", " ", inner).replace("``", "`")
            if key == "description" and isinstance(inner, str)
            else _tidied(inner)
            for key, inner in value.items()
        }
    return [_tidied(inner) for inner in value] if isinstance(value, list | tuple) else value


def text(schema: Schema) -> bytes:
    """A schema as its file holds it."""
    return msgspec.json.format(msgspec.json.encode(schema), indent=2) + b"\n"


if __name__ == "__main__":
    for name, schema in schemas().items():
        (FOLDER / f"{name}.json").write_bytes(text(schema))
