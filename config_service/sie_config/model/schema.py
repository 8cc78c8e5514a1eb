"""The JSON schema of a model spec, for editors and whoever checks documents without this package.

``python -m sie_config.model.schema > docs/schemas/model-spec.json`` writes it. Owns what it says beside the types: the
notes of the fields, and two rules between fields that JSON Schema can say. The others are ``validation``'s.
"""

from __future__ import annotations

import ast
import inspect
import sys
import textwrap
from functools import cache
from typing import Any, Final

import msgspec

from sie_config.model.model_spec import ModelSpec
from sie_config.model.runtime_options import Options

ID: Final = "urn:sie:model-spec"
NOT_IN_IDS: Final = r"__|\.\.|//|/$|/[Ss][Tt][Aa][Tt][Uu][Ss]$"


@cache
def document() -> dict[str, Any]:
    """The schema of one spec as it is written, in draft 2020-12."""
    kinds = records()
    _, definitions = msgspec.json.schema_components([ModelSpec, Options], ref_template="#/$defs/{name}")
    for name, definition in definitions.items():
        told = notes(kinds[name])
        definition["description"] = plain(inspect.cleandoc(kinds[name].__doc__ or ""))
        for field, schema in definition["properties"].items():
            if field in told:
                definition["properties"][field] = {**schema, "description": told[field]}
    definitions["Profile"]["properties"]["options"] |= {"$ref": "#/$defs/Options"}
    spec = definitions["ModelSpec"]
    spec["properties"]["id"]["not"] = {"pattern": NOT_IN_IDS}
    spec |= {
        "if": {"properties": {"status": {"const": "planned"}}, "required": ["status"]},
        "then": {"required": ["blocked_by"]},
        "else": {"required": ["max_sequence_length"]},
    }
    whole = {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "$id": ID,
        "title": "A model of the catalogue of sie-knative",
        "$ref": "#/$defs/ModelSpec",
        "$defs": definitions,
    }
    plain_data: dict[str, Any] = msgspec.json.decode(msgspec.json.encode(whole))
    return plain_data


@cache
def records() -> dict[str, type[msgspec.Struct]]:
    """Every record that a spec is made of, by name, each after the one that holds it."""
    found: dict[str, type[msgspec.Struct]] = {}
    waiting: list[Any] = [msgspec.inspect.type_info(kind) for kind in (Options, ModelSpec)]
    while waiting:
        match waiting.pop():
            case msgspec.inspect.StructType(cls=cls, fields=fields) if cls.__name__ not in found:
                found[cls.__name__] = cls
                waiting += [field.type for field in reversed(fields)]
            case msgspec.inspect.UnionType(types=types):
                waiting += types
            case msgspec.inspect.Metadata(type=inner):
                waiting.append(inner)
            case msgspec.inspect.VarTupleType(item_type=inner) | msgspec.inspect.DictType(value_type=inner):
                waiting.append(inner)
    return found


@cache
def notes(kind: type[msgspec.Struct]) -> dict[str, str]:
    """What the source of a record says of its fields, each in the text behind it."""
    (written,) = ast.parse(textwrap.dedent(inspect.getsource(kind))).body
    assert isinstance(written, ast.ClassDef)
    told = {}
    for statement, after in zip(written.body, written.body[1:], strict=False):
        match statement, after:
            case ast.AnnAssign(target=ast.Name(id=name)), ast.Expr(value=ast.Constant(value=str(text))):
                told[name] = plain(inspect.cleandoc(text))
    return told


def plain(text: str) -> str:
    """The text of a docstring as Markdown on as few lines as it has paragraphs."""
    return "\n\n".join(" ".join(part.split()) for part in text.replace("``", "`").split("\n\n"))


if __name__ == "__main__":
    sys.stdout.buffer.write(msgspec.json.format(msgspec.json.encode(document()), indent=2) + b"\n")
