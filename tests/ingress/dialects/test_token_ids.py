"""Token ids become the texts they were made of, with the vocabularies that were published."""

from __future__ import annotations

import base64
import hashlib

import pytest

from sie_ingress.dialects.token_ids import joined, vocabulary
from sie_sdk.errors import InvalidInputError
from tests.golden.make_vocabularies import PUBLISHED


@pytest.mark.parametrize(("name", "size"), [("cl100k_base", 100_256), ("o200k_base", 199_998)])
def test_the_file_holds_exactly_what_was_published(name: str, size: int) -> None:
    tokens = vocabulary(name)._tokens
    table = b"".join(base64.b64encode(token or b"") + b" %d\n" % rank for rank, token in enumerate(tokens[:size]))
    assert hashlib.sha256(table).hexdigest() == PUBLISHED[name][1]


@pytest.mark.parametrize(
    ("name", "ids", "text"),
    [
        ("cl100k_base", [15339, 1917], "hello world"),
        ("cl100k_base", [100257], "<|endoftext|>"),
        ("cl100k_base", [100276], "<|endofprompt|>"),
        ("o200k_base", [24912, 2375], "hello world"),
        ("o200k_base", [199999, 200018], "<|endoftext|><|endofprompt|>"),
    ],
)
def test_ids_are_read_as_tiktoken_reads_them(name: str, ids: list[int], text: str) -> None:
    assert joined(vocabulary(name).tokens(ids, "input")) == text


def test_a_character_that_was_cut_between_two_arrays_does_not_fail_the_text() -> None:
    assert joined(vocabulary("cl100k_base").tokens([9468, 19044], "input")) == "\N{SLIGHTLY SMILING FACE}"
    assert joined(vocabulary("cl100k_base").tokens([15339, 9468], "input")) == "hello\N{REPLACEMENT CHARACTER}"


@pytest.mark.parametrize("wrong", [-1, 100_256, 100_270, 100_277, 10**30])
def test_what_is_no_token_is_refused_and_its_place_named(wrong: int) -> None:
    with pytest.raises(InvalidInputError, match="no token of cl100k_base") as error:
        vocabulary("cl100k_base").tokens([1, 2, wrong, 3], "input[7]")
    assert error.value.field == "input[7][2]"
