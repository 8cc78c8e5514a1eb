"""What is asked about: inputs from arguments, files and standard input, read one at a time as they are needed.

Owns the formats and what is said of a line that is wrong. Not here: results (``sinks``).
"""

from __future__ import annotations

import csv
import io
import os
import sys
from collections.abc import Callable, Iterable, Iterator
from itertools import chain
from typing import Any, BinaryIO, Literal, TypeAlias, TypedDict, get_args

import click
import msgspec

from sie_sdk import wire
from sie_sdk.cli import bursts, json_array
from sie_sdk.errors import InvalidInputError
from sie_sdk.types import Item

Format: TypeAlias = Literal["auto", "text", "jsonl", "json", "csv", "tsv"]

LONGEST_FIELD = 64 * 1024 * 1024
"""Bytes of one cell of a table; a longer request than this no server takes."""

ANOTHER = "Name another with --field."


class WrongInputError(click.ClickException):
    """A line that is no input; the command itself was right, so that its usage need not be shown."""

    exit_code = 2


_ENDINGS: dict[str, Format] = {
    ".txt": "text",
    ".jsonl": "jsonl",
    ".ndjson": "jsonl",
    ".json": "json",
    ".csv": "csv",
    ".tsv": "tsv",
}
_item = msgspec.json.Decoder(Item, dec_hook=wire.read_array)
_object = msgspec.json.Decoder(dict[str, Any])


class InputOptions(TypedDict):
    """The arguments and options of :data:`OPTIONS`, as click hands them over."""

    texts: tuple[str, ...]
    file: BinaryIO | None
    format: Format
    field: str | None
    skip: int


OPTIONS: tuple[Callable[..., Any], ...] = (
    click.argument("texts", nargs=-1, metavar="[TEXT]..."),
    click.option("--file", "-f", type=click.File("rb"), help="Read inputs from a file; - is standard input."),
    click.option(
        "--format",
        type=click.Choice(get_args(Format)),
        default="auto",
        show_default=True,
        help="How inputs stand in it. auto goes by the file's ending, else [ begins a JSON array, { a line of JSON.",
    ),
    click.option("--field", metavar="NAME", help="The field or column that holds the text.  [default: text]"),
    click.option("--skip", type=click.IntRange(min=0), default=0, help="Leave out the first N inputs.", metavar="N"),
)


def read(options: InputOptions) -> Iterator[Item]:
    """The inputs, lazily. An input that is wrong raises when its turn comes.

    Raises:
        UsageError, WrongInputError: there are none at all.
        WrongInputError: one is wrong, and is named by its line.
    """
    return coming(options)[0]


def coming(options: InputOptions) -> tuple[Iterator[Item], bursts.Ready]:
    """The inputs as :func:`read` has them, and whether the next one is there yet."""
    file, ready = stream(options), bursts.always
    named = (Item(text=text) for text in options["texts"] if options["texts"] != ("-",))
    found: Iterator[Item] = iter(())
    if file is not None and (format := _format(file, options["format"])) in ("csv", "tsv"):
        found = _rows(file, options["field"] or "text", "," if format == "csv" else "\t")
    elif file is not None:
        lines = bursts.lines(file)
        ready = ready if lines is None else lines.ready
        found = _found(_within(file) if lines is None else lines, format, options["field"])
    items = chain(named, found)
    first = next(items, None)
    if first is None and file is not None:
        raise WrongInputError(f"There is no text in {_name(file) or 'standard input'}.")
    if first is None:
        raise click.UsageError("There is no text. Give TEXT, --file FILE, or - to read standard input.")
    return chain([first], items), ready


def stream(options: InputOptions) -> BinaryIO | None:
    """The file or standard input that inputs come from; None where all of them are arguments."""
    if options["texts"] != ("-",):
        return options["file"]
    if options["file"] is not None:
        raise click.UsageError("Give --file or -, not both.")
    return sys.stdin.buffer


def _name(file: BinaryIO) -> str:
    """Of a file; standard input has none."""
    name = getattr(file, "name", "")
    return name if isinstance(name, str) and name not in ("<stdin>", "-") else ""


def _format(file: BinaryIO, format: Format) -> Format:
    return _ENDINGS.get(os.path.splitext(_name(file))[1].lower(), "auto") if format == "auto" else format


def _within(file: BinaryIO) -> Iterator[bytes]:
    """The lines of a file. An array may stand on one, so that none is read any further than an array may go."""
    while line := file.readline(json_array.MOST_BYTES + 1):
        if len(line) > json_array.MOST_BYTES:
            raise WrongInputError(json_array.too_large("A line").message)
        yield line


def _found(lines: Iterable[bytes], format: Format, field: str | None) -> Iterator[Item]:
    """The elements of an array where one begins, else what each line says."""
    lines, head, first = iter(lines), list[bytes](), b""
    while not first.strip() and (line := next(lines, None)) is not None:
        first = line if head else line.removeprefix(b"\xef\xbb\xbf")
        head.append(first)
    whole = chain(head, lines)
    if first.lstrip().startswith(b"[") if format == "json" else format == "auto" and json_array.begins(first):
        yield from _elements(whole, field)
    else:
        # Many a .json file has an object on each line.
        yield from _lines(whole, "jsonl" if format == "json" else format, field)


def _elements(lines: Iterable[bytes], field: str | None) -> Iterator[Item]:
    try:
        elements = json_array.read(lines)
    except InvalidInputError as error:
        raise WrongInputError(error.message) from None
    for number, element in enumerate(map(bytes, elements), 1):
        if element.startswith(b"{"):
            yield _parsed(element, f"Element {number}", field)
        elif element.startswith(b'"'):
            yield _plain(element, f"Element {number}", field, msgspec.json.Decoder(str).decode)
        else:
            raise WrongInputError(f"Element {number} is neither a text nor an object.")


def _lines(lines: Iterable[bytes], format: Format, field: str | None) -> Iterator[Item]:
    for number, line in enumerate(lines, 1):
        line = line.rstrip(b"\r\n")
        if not line.strip():
            continue
        if format == "jsonl" or (format == "auto" and line.startswith(b"{")):
            yield _parsed(line, f"Line {number}", field)
        else:
            yield _plain(line, f"Line {number}", field, bytes.decode)


def _plain(text: bytes, place: str, field: str | None, decode: Callable[[bytes], str]) -> Item:
    if field is not None:
        raise WrongInputError(f"{place} is plain text, which has no field {field!r}. Leave out --field.")
    try:
        return Item(text=decode(text))
    except (UnicodeDecodeError, msgspec.DecodeError) as error:
        wrong = "UTF-8" if isinstance(error, UnicodeDecodeError) else "a text"
        raise WrongInputError(f"{place} is not {wrong}: {error}.") from None


def _parsed(line: bytes, place: str, field: str | None) -> Item:
    try:
        item = _item_of(line) if field is None else None
        if item is not None and (item.text is not None or item.multivector is not None):
            return item
        found = _object.decode(line)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError, InvalidInputError) as error:
        raise WrongInputError(f"{place} is not an item: {error}.") from None
    text, own = found.get(field or "text"), found.get("id")
    if not isinstance(text, str):
        lacks = f"{place} has no text in its field {field or 'text'!r}"
        raise WrongInputError(f"{lacks}; its fields: {', '.join(found) or 'none'}. {ANOTHER}")
    return Item(text=text, id=str(own) if isinstance(own, str) or _is_number(own) else None)


def _item_of(line: bytes) -> Item:
    try:
        return _item.decode(line)
    except msgspec.ValidationError:
        # An id that is a number, which is common, is the only fault that is forgiven.
        found = _object.decode(line)
        if not _is_number(found.get("id")):
            raise
        return msgspec.convert(found | {"id": str(found["id"])}, Item, dec_hook=wire.read_array)


def _is_number(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _rows(file: BinaryIO, field: str, delimiter: str) -> Iterator[Item]:
    csv.field_size_limit(LONGEST_FIELD)
    rows = csv.DictReader(io.TextIOWrapper(file, "utf-8-sig", newline=""), delimiter=delimiter)
    try:
        columns = rows.fieldnames
        if columns is not None and field not in columns:
            raise WrongInputError(
                f"There is no column {field!r}; the first line names: {', '.join(columns) or 'none'}. {ANOTHER}"
            )
        for row in rows:
            if row[field] is None:
                raise WrongInputError(f"Line {rows.line_num} has no column {field!r}.")
            yield Item(text=row[field], id=row.get("id") or None)
    except UnicodeDecodeError as error:  # in a block of many lines
        raise WrongInputError(f"The table is not UTF-8: {error}.") from None
    except csv.Error as error:
        raise WrongInputError(f"Line {rows.line_num + 1} is no line of a table: {error}.") from None
