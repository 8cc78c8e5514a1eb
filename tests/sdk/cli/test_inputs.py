"""Inputs in every format, one at a time: what is read as what, and how a wrong line is named."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

import click
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sie_sdk.cli import inputs, json_array
from sie_sdk.cli.inputs import InputOptions
from sie_sdk.types import Item
from tests.sdk.cli.running import sie


def read(data: bytes, **options: Any) -> list[Item]:
    file = io.BytesIO(data)
    file.name = options.pop("name", "<stdin>")
    asked: Any = {"texts": (), "file": file, "format": "auto", "field": None, "skip": 0, **options}
    return list(inputs.read(asked))


def refused(data: bytes, **options: Any) -> str:
    with pytest.raises(click.ClickException) as told:
        read(data, **options)
    assert told.value.exit_code == 2
    return told.value.message


def test_a_line_is_a_text_unless_it_begins_like_an_object() -> None:
    found = read(b'hello\r\n\n  \n{"text": "a", "id": "7", "unknown": 1}\n  two words \n')
    assert found == [Item(text="hello"), Item(text="a", id="7"), Item(text="  two words ")]


def test_the_format_can_be_told_and_else_goes_by_the_ending() -> None:
    assert read(b"{braces}\n", format="text") == [Item(text="{braces}")]
    assert read(b"{braces}\n", name="in.txt") == [Item(text="{braces}")]
    assert "Line 1" in refused(b"hello\n", name="in.jsonl")


ARRAY = [Item(text="a"), Item(text="b", id="7"), Item(text="")]


@pytest.mark.parametrize(
    ("data", "options"),
    [
        (b'["a", {"text": "b", "id": 7}, ""]', {}),
        (b'\xef\xbb\xbf\n [\r\n  "a",\n  {\n    "text": "b",\n    "id": 7\n  },\n""\n]\n\n', {}),
        (b'["a", {"text": "b", "id": 7}, ""]', {"name": "in.JSON"}),
        (b'["a", {"text": "b", "id": 7}, ""]', {"name": "in.txt", "format": "json"}),
        (b'{"text": "a"}\n{"text": "b", "id": 7}\n{"text": ""}', {"name": "in.json"}),
    ],
)
def test_a_json_array_is_read_element_by_element(data: bytes, options: dict[str, Any]) -> None:
    assert read(data, **options) == ARRAY


def test_any_field_of_an_arrays_objects_may_hold_the_text() -> None:
    assert read(b'[{"title": "a"}, {"title": "b", "id": 7}]', field="title") == ARRAY[:2]


@pytest.mark.parametrize("line", ["[INFO] started", "[1] A footnote", "[[a link]]", "[2026-11-30 17:05] [x]"])
def test_a_text_in_brackets_begins_no_array(line: str) -> None:
    assert read(f"{line}\n{line}\n".encode()) == [Item(text=line)] * 2


@pytest.mark.parametrize("format", ["text", "jsonl"])
def test_an_array_on_a_line_is_a_line_where_the_format_says_so(format: str) -> None:
    if format == "text":
        assert read(b'["a", "b"]\n', format=format) == [Item(text='["a", "b"]')]
    else:
        assert "Line 1 is not an item" in refused(b'["a", "b"]\n', format=format)


@pytest.mark.parametrize(
    ("data", "told"),
    [
        (b'["a", "b"', "What begins like a JSON array is none: Input data was truncated. With --format text"),
        (b'["a", he said]\n', "What begins like a JSON array is none: "),
        (b'["a"]\n["b"]\n', "trailing characters"),
        (b"[1, 2]", "Element 1 is neither a text nor an object."),
        (b'["a", ["b"]]', "Element 2 is neither a text nor an object."),
        (b'["a", "\xff"]', "Element 2 is not "),
        (b'["a", {"text": 3}]', "Element 2 is not an item: "),
        (b'["a", {"title": "b"}]', "Element 2 has no text in its field 'text'; its fields: title. Name another"),
        (b"[]", "There is no text"),
        (b"[" * 100_000, "What begins like a JSON array is none"),
    ],
)
def test_an_array_that_cannot_be_read_is_told_by_its_element(data: bytes, told: str) -> None:
    assert told in refused(data, format="json" if data.startswith(b"[[") else "auto")


def test_an_array_larger_than_is_held_is_refused_on_one_line_or_many(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(json_array, "MOST_BYTES", 1 << 20)
    for between in (b",", b",\n"):
        assert "has over 1 MiB" in refused(b"[" + between.join([b'"text"'] * 200_000) + b"]")
    assert len(read(b'"text"\n' * 200_000)) == 200_000


@pytest.mark.parametrize(
    ("data", "options", "place"),
    [
        (b"hello\n", {}, "Line 1"),
        (b'{"title": "a"}\n\nhello\n', {}, "Line 3"),
        (b"hello\n", {"name": "in.txt"}, "Line 1"),
        (b'{"title": "a"}\n', {"format": "text"}, "Line 1"),
        (b'[{"title": "a"}, "b"]', {}, "Element 2"),
    ],
)
def test_a_field_of_plain_text_is_refused(data: bytes, options: dict[str, Any], place: str) -> None:
    told = f"{place} is plain text, which has no field 'title'. Leave out --field."
    assert refused(data, field="title", **options) == told


def test_a_file_is_not_looked_at_before_the_arguments_are_asked_for() -> None:
    class Untouched(io.BytesIO):
        def readline(self, size: int | None = -1, /) -> bytes:
            raise AssertionError("read")

    options = InputOptions(texts=("a",), file=Untouched(b"b"), format="auto", field=None, skip=0)
    assert next(inputs.read(options)) == Item(text="a")


def test_a_byte_order_mark_is_no_part_of_a_text() -> None:
    assert read(b"\xef\xbb\xbfhello\n") == [Item(text="hello")]
    assert read(b"\xef\xbb\xbftext\nhello\n", format="csv") == [Item(text="hello")]


def test_an_id_may_be_a_number() -> None:
    assert read(b'{"text": "a", "id": 7}\n') == [Item(text="a", id="7")]
    assert read(b'{"body": "a", "id": 7}\n', field="body") == [Item(text="a", id="7")]
    assert "Line 1" in refused(b'{"text": "a", "id": true}\n')


def test_any_field_of_an_object_may_hold_the_text() -> None:
    assert read(b'{"title": "a", "text": "b"}\n', field="title") == [Item(text="a")]
    told = refused(b'{"title": "a"}\n{"other": 1}\n', field="title")
    assert "Line 2" in told and "other" in told


@pytest.mark.parametrize(
    ("data", "options", "told"),
    [
        (b'{"title": "a", "body": "b"}', {}, "Line 1 has no text in its field 'text'; its fields: title, body."),
        (b'{"text": "a"}\n\n{}\n', {}, "Line 3 has no text in its field 'text'; its fields: none."),
        (b'{"text": null, "id": 7}', {}, "Line 1 has no text in its field 'text'; its fields: text, id."),
        (b'{"a": "b"}', {"field": "c"}, "Line 1 has no text in its field 'c'; its fields: a."),
        (b"title,body\na,b\n", {"format": "csv"}, "There is no column 'text'; the first line names: title, body."),
    ],
)
def test_what_has_no_text_where_it_is_looked_for_is_told_with_the_places_there_are(
    data: bytes, options: dict[str, Any], told: str
) -> None:
    assert refused(data, **options) == f"{told} Name another with --field."


def test_vectors_are_read_from_objects() -> None:
    (found,) = read(b'{"multivector": [[1.0, 0.5]]}\n')
    assert found.multivector is not None and found.multivector.tolist() == [[1.0, 0.5]]


@pytest.mark.parametrize(("delimiter", "name"), [(",", "in.csv"), ("\t", "in.TSV")])
def test_a_column_of_a_table_holds_the_texts(delimiter: str, name: str) -> None:
    table = 'id,title,text\n7,a,"two\nlines, and a comma"\n,b,c\n'.replace(",", delimiter).replace(
        f"lines{delimiter}", "lines,"
    )
    assert read(table.encode(), name=name) == [Item(text="two\nlines, and a comma", id="7"), Item(text="c")]
    assert [item.text for item in read(table.encode(), name=name, field="title")] == ["a", "b"]
    assert "title" in refused(table.encode(), name=name, field="nothing")


def test_a_row_that_is_too_short_is_named() -> None:
    assert "Line 3" in refused(b"id,text\n1,a\n2\n", format="csv")


@pytest.mark.parametrize("format", ["auto", "text", "csv"])
def test_what_is_not_utf_8_is_named(format: str) -> None:
    told = refused(b"text\n\xff\xfe\n", format=format)
    assert "not UTF-8" in told and ("Line 2" in told or format == "csv")


@pytest.mark.parametrize("data", [b"", b"\n\n", b"   \n"])
def test_no_input_at_all_is_refused(data: bytes) -> None:
    assert "There is no text" in refused(data)


def test_arguments_come_before_a_file_and_a_file_and_standard_input_exclude_each_other() -> None:
    assert [item.text for item in read(b"c\n", texts=("a", "b"))] == ["a", "b", "c"]
    assert "not both" in refused(b"c\n", texts=("-",))


def test_lines_are_read_as_they_are_needed() -> None:
    """The second line is wrong, and nobody asks for it."""
    options = InputOptions(texts=(), file=io.BytesIO(b'{"text": "a"}\n{\n'), format="jsonl", field=None, skip=0)
    assert next(inputs.read(options)) == Item(text="a")


PIECES = st.sampled_from(
    [
        b"{",
        b"}",
        b'"text"',
        b":",
        b'"a"',
        b",",
        b'"id"',
        b"7",
        b'"multivector"',
        b"[",
        b"]",
        b"1.5",
        b"\n",
        b"\x00",
        b"\xff",
    ]
)


@pytest.mark.parametrize("format", ["auto", "text", "jsonl", "json", "csv", "tsv"])
@given(st.lists(PIECES, max_size=20), st.sampled_from([None, "text"]))
def test_any_bytes_are_inputs_or_are_refused(format: str, pieces: list[bytes], field: str | None) -> None:
    try:
        found = read(b"".join(pieces), format=format, field=field)
    except click.ClickException as refused:
        assert refused.exit_code == 2
    else:
        assert all(isinstance(item, Item) for item in found)


@pytest.mark.parametrize(
    "line", [b'{"text": "\xff"}', b'{"text": ' + b"[" * 100_000, b'{"multivector": [[1], [2, 3]]}']
)
def test_a_line_that_cannot_be_read_is_named(line: bytes) -> None:
    assert "Line 2" in refused(b'{"text": "a"}\n' + line + b"\n")


@given(st.lists(st.text(st.characters(exclude_categories=["Cs", "Cc", "Zl", "Zp"]), min_size=1), min_size=1))
def test_texts_of_any_characters_come_through(texts: list[str]) -> None:
    whole = [text for text in texts if text.strip(" ")]
    if any(text.encode().strip() for text in whole):
        assert [item.text for item in read("\n".join(whole).encode(), format="text")] == [
            text for text in whole if text.encode().strip()
        ]


def test_what_holds_no_text_is_named(tmp_path: Path) -> None:
    (tmp_path / "empty.txt").write_text("\n\n")
    for source, stdin in ((("--file", str(tmp_path / "empty.txt")), None), (("-",), "\n"), (("--file", "-"), "")):
        done = sie("encode", "m", *source, "--url", "http://127.0.0.1:1", stdin=stdin)
        named = str(tmp_path / "empty.txt") if stdin is None else "standard input"
        assert (done.exit_code, done.stderr) == (2, f"Error: There is no text in {named}.\n")
