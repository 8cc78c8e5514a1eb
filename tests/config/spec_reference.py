"""The reference part of docs/model-spec.md, made from the records; ``python -m tests.config.spec_reference`` writes it.

The examples of the fields are the values that they have in the specs further up on the page.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import yaml

from sie_config.model import runtime_options, schema, structure

PAGE = Path(__file__).parents[2] / "docs" / "model-spec.md"
MARK = "<!-- Below this line is what `python -m tests.config.spec_reference` writes. -->\n"
WHERE = {
    "ModelSpec": ("The model", ""),
    "Tasks": ("Tasks", "tasks"),
    "Dense": ("Dense", "tasks.dense"),
    "Sparse": ("Sparse", "tasks.sparse"),
    "Multivector": ("Multivector", "tasks.multivector"),
    "Score": ("Score", "tasks.score"),
    "Extract": ("Extract", "tasks.extract"),
    "LocalSource": ("Sources: a folder", "sources[]"),
    "HubSource": ("Sources: the Hugging Face Hub", "sources[]"),
    "PackageSource": ("Sources: a wheel", "sources[]"),
    "Profile": ("Profiles", "profiles.NAME"),
    "Options": ("Options of a profile", "profiles.NAME.options"),
    "MuveraSizes": ("The option muvera", "profiles.NAME.options.muvera"),
    "Lora": ("LoRA", "profiles.NAME.lora"),
    "Parity": ("Parity", "parity[]"),
}
"""The heading of each record, and its path in a document."""


def examples() -> list[dict[str, Any]]:
    """The specs on the page."""
    blocks = re.findall(r"^```yaml\n(.*?)^```", PAGE.read_text(), re.MULTILINE | re.DOTALL)
    read = [document for block in blocks for document in yaml.load_all(block, Loader=yaml.CSafeLoader)]
    return [document for document in read if "tasks" in document]


def reference() -> str:
    """A section for every record: what it is, and its fields with type, range, default and an example."""
    records = schema.records()
    assert WHERE.keys() == records.keys(), "a record without a heading"
    shown: dict[tuple[str, str], Any] = {}
    for document in examples():
        for key, value in _held(msgspec.inspect.type_info(records["ModelSpec"]), document):
            shown.setdefault(key, value)
    return "\n".join(_section(title, path, records[name], shown) for name, (title, path) in WHERE.items())


def _held(kind: msgspec.inspect.Type, value: Any) -> Iterator[tuple[tuple[str, str], Any]]:
    """Every value in a document, by its record and field."""
    match kind:
        case msgspec.inspect.Metadata(extra={"fields": record}):
            yield from _held(msgspec.inspect.type_info(record), value)
        case msgspec.inspect.Metadata(type=inner):
            yield from _held(inner, value)
        case msgspec.inspect.StructType(cls=cls, fields=fields) if isinstance(value, dict):
            for field in fields:
                if field.encode_name in value:
                    yield (cls.__name__, field.encode_name), value[field.encode_name]
                    yield from _held(field.type, value[field.encode_name])
        case msgspec.inspect.VarTupleType(item_type=inner) if isinstance(value, list):
            for each in value:
                yield from _held(inner, each)
        case msgspec.inspect.DictType(value_type=inner) if isinstance(value, dict):
            for each in value.values():
                yield from _held(inner, each)
        case msgspec.inspect.UnionType(types=types):
            structs = [each for each in types if isinstance(each, msgspec.inspect.StructType)]
            tagged = [each for each in structs if each.tag_field and value.get(each.tag_field) == each.tag]
            for each in tagged or structs[:1]:
                yield from _held(each, value)


def _section(title: str, path: str, record: type[msgspec.Struct], shown: dict[tuple[str, str], Any]) -> str:
    about = schema.plain(inspect.cleandoc(record.__doc__ or ""))
    info = msgspec.inspect.type_info(record)
    assert isinstance(info, msgspec.inspect.StructType)
    rows = []
    if info.tag_field:
        rows.append(_row(info.tag_field, f"`{info.tag}`", "required", f"`{info.tag}`", "Which kind of source this is."))
    told = schema.notes(record)
    for field in info.fields:
        assert (record.__name__, field.encode_name) in shown, f"{path}.{field.encode_name} is in no example on the page"
        example = _example(shown[record.__name__, field.encode_name])
        rows.append(_row(field.encode_name, _allowed(field.type), _default(field), example, told[field.name]))
    table = ["| field | is | default | for instance | |", "| --- | --- | --- | --- | --- |", *rows]
    return "\n".join([f"### {title}\n", *([f"`{path}`\n"] if path else []), f"{about}\n", *table, ""])


def _row(*cells: str) -> str:
    name, *rest = (cell.replace("|", "\\|").replace("\n", " ") for cell in cells)
    return f"| `{name}` | {' | '.join(rest)} |"


def _example(value: Any) -> str:
    nested = isinstance(value, dict) or (isinstance(value, list) and any(isinstance(each, dict) for each in value))
    return "" if nested else f"`{msgspec.json.encode(value).decode()}`"


def _allowed(kind: msgspec.inspect.Type) -> str:
    """What a field may be, with what its lists and maps hold."""
    match kind:
        case msgspec.inspect.Metadata(extra={"fields": record}):
            return _allowed(msgspec.inspect.type_info(record))
        case msgspec.inspect.VarTupleType(item_type=item) | msgspec.inspect.ListType(item_type=item):
            return f"{structure.allowed(kind)}, each {_allowed(item)}"
        case msgspec.inspect.DictType(key_type=key, value_type=held):
            return f"a mapping from {_allowed(key)} to {_allowed(held)}"
        case msgspec.inspect.StructType(cls=cls):
            return _link(cls)
        case msgspec.inspect.UnionType(types=types):
            return " or ".join(_allowed(each) for each in types if not isinstance(each, msgspec.inspect.NoneType))
        case msgspec.inspect.LiteralType(values=values) if set(values) == runtime_options.KNOWN:
            return f"the name of {_link(runtime_options.Options)}"
        case msgspec.inspect.LiteralType(values=values):
            return " ".join(f"`{value}`" for value in values)
    return structure.allowed(kind)


def _link(record: Any) -> str:
    title, _ = WHERE[record.__name__]
    return f"[{title.lower()}](#{title.lower().replace(' ', '-').replace(':', '')})"


def _default(field: Any) -> str:
    if field.required:
        return "required"
    value = field.default_factory() if field.default_factory is not msgspec.NODEFAULT else field.default
    if value in ("", (), None) or value == {}:
        return "none"
    return f"`{msgspec.json.encode(value).decode()}`"


if __name__ == "__main__":
    PAGE.write_text(PAGE.read_text().partition(MARK)[0] + MARK + "\n" + reference())
