"""What comes to a write: read as it was meant, or refused with the place, whatever it is and however it costs."""

from __future__ import annotations

import json
from typing import Any

import msgspec
import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from sie_config.model import plain
from sie_sdk.errors import InvalidInputError, UnsupportedMediaTypeError

# Beginning and end of a text come back otherwise from YAML only where YAML has no such letter.
TEXTS = st.text(
    st.characters(codec="utf-8", exclude_categories=("Cc", "Cs"), exclude_characters="\x85\u2028\u2029\ufeff")
)
VALUES = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**53), 2**53) | st.floats(allow_nan=False, allow_infinity=False) | TEXTS,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXTS, inner, max_size=3),
    max_leaves=12,
)


@given(st.dictionaries(TEXTS, VALUES))
def test_a_document_comes_as_json_as_it_was(document: dict[str, Any]) -> None:
    assert plain.read(json.dumps(document).encode(), "application/json; charset=utf-8") == [document]


@given(st.lists(st.dictionaries(TEXTS, VALUES, min_size=1), max_size=3))
def test_documents_come_as_yaml_as_they_were(documents: list[dict[str, Any]]) -> None:
    text = yaml.safe_dump_all(documents, allow_unicode=True)
    assert plain.read(text.encode(), None) == documents


@given(st.binary(max_size=200) | st.text(max_size=200).map(lambda text: text.encode("utf-8", "surrogatepass")))
def test_whatever_comes_is_read_or_refused(content: bytes) -> None:
    for media in ("application/yaml", "application/json"):
        try:
            documents = plain.read(content, media)
        except InvalidInputError as error:
            assert error.field == "body"
        else:
            assert msgspec.json.decode(msgspec.json.encode(documents)) == documents


@pytest.mark.parametrize("media", ["application/yaml", "text/yaml", "application/x-yaml", "TEXT/plain; a=b", None])
def test_yaml_has_many_names_and_empty_documents_are_none(media: str | None) -> None:
    assert plain.read(b"---\n# nothing\n---\nid: org/m\n---\n", media) == [{"id": "org/m"}]


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (b"id: a\nid: b\n", "'id' is there twice, again in line 2"),
        (b"a: {b: 1, 'b': 2}", "'b' is there twice"),
        (b"a: &x [1]\nb: *x\n", "anchor or an alias in line 1"),
        (b"b: *x\n", "anchor or an alias"),
        (b"1: a\n", "1 is no text"),
        (b"true: a\n", "True is no text"),
        (b"? [a]\n: b\n", "a key is no text"),
        (b"{a: b}: c\n", "a key is no text"),
        (b"a: .nan\n", "nan is no number"),
        (b"a: [.inf]\n", "inf is no number"),
        (b"a: !!binary aGk=\n", "a bytes"),
        (b"a: !!set {b}\n", "a set"),
        (b"a: !!python/object:os.system x\n", "could not determine a constructor"),
        (b"a: " + b"9" * 5000, "digits"),
        (b"a: " + b"9" * 30, "64 bits"),
        (b"a: 0x" + b"f" * 5000, "0xffff"),
        (b"? 0x" + b"f" * 5000 + b"\n: a", "is no text"),
        (b"a: [1\n", "line"),
        (b"\xff\xfe", "decode"),
        (b"[" * 100_000, "32 deep"),
        (b"- " * 100_000, "32 deep"),
        (b"{a: " * 100_000, "32 deep"),
        (b"[" + b"1," * 500_000 + b"]", "more than 100000 values"),
    ],
    ids=lambda value: str(value)[:30],
)
def test_yaml_that_readers_would_take_differently_is_refused_with_the_place(content: bytes, said: str) -> None:
    with pytest.raises(InvalidInputError) as refused:
        plain.read(content, "application/yaml")
    assert said.lower() in refused.value.message.lower()


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (b'{"id": 1, "id": 2}', "'id' is there twice"),
        (b'{"a": NaN}', "NaN is no number"),
        (b'{"a": -Infinity}', "no number"),
        (b'{"a": 1e999}', "no number"),
        (b'{"a": "\\ud800"}', "utf-8"),
        (b'{"a": ' + b"9" * 30 + b"}", "64 bits"),
        (b'{"a": ' + b"9" * 5000 + b"}", "digits"),
        (b"[" * 100_000, "32 deep"),
        (b"[" * 40 + b"]" * 40, "32 deep"),
        (b"{", "line 1"),
        (b"\xff", "decode"),
    ],
    ids=lambda value: str(value)[:30],
)
def test_json_that_readers_would_take_differently_is_refused(content: bytes, said: str) -> None:
    with pytest.raises(InvalidInputError) as refused:
        plain.read(content, "application/json")
    assert said.lower() in refused.value.message.lower()


def test_a_date_is_the_text_that_it_is_written_as() -> None:
    assert plain.read(b"revision: 2024-01-01\nmerge: {<<: 1}", None) == [{"revision": "2024-01-01", "merge": {"<<": 1}}]


def test_another_format_is_refused_with_those_that_are_read() -> None:
    with pytest.raises(UnsupportedMediaTypeError) as refused:
        plain.read(b"{}", "application/x-www-form-urlencoded")
    assert "application/yaml" in (refused.value.hint or "")


def test_one_document_is_a_map_and_alone() -> None:
    assert plain.mapping([{"a": 1}]) == {"a": 1}
    several: list[list[Any]] = [[], [[]], ["text"], [{}, {}]]
    for documents in several:
        with pytest.raises(InvalidInputError):
            plain.mapping(documents)
