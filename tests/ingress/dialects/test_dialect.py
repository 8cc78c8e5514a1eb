"""What all dialects refuse before they make anything of it."""

from __future__ import annotations

import tracemalloc
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from sie_bundle.models.checkpoint import Checkpoint
from sie_ingress.dialects import cohere, cohere_embed, openai, tei, tei_server
from sie_ingress.dialects.dialect import MOST_VALUES, Refusal
from sie_sdk import wire
from sie_sdk.errors import InputTooLongError, PayloadTooLargeError, SIEError
from tests import tiny_model


@pytest.mark.parametrize(
    ("refuse", "told"),
    [
        (partial(cohere.refuse, items="texts"), 'truncate "END"'),
        (partial(cohere.refuse, items="documents"), "truncation true"),
        (openai.refuse, "truncate true"),
        (partial(tei_server.refuse, items="inputs"), 'truncate true and truncation_direction "right"'),
    ],
)
def test_a_text_that_is_too_long_is_told_the_dialect_s_own_field_to_have_it_cut(
    tmp_path: Path, refuse: Callable[[SIEError], Refusal], told: str
) -> None:
    folder = tiny_model.make(tmp_path)
    with pytest.raises(InputTooLongError) as error:
        Checkpoint(tiny_model.spec(folder), folder).tokenizer.rows(["hello " * 100], 8, "error")
    body = refuse(error.value).body.decode().replace('\\"', '"')
    assert f"or send {told}." in body and "overflow_policy" not in body


@pytest.mark.parametrize(
    ("read", "body", "value"),
    [
        (partial(cohere.read_rerank, version=2), b'{"query": "q", "documents": [{"text": "a", "x": [%b]}]}', b"[]"),
        (partial(openai.read, tokenizer="off"), b'{"input": [%b]}', b"{}"),
        (partial(openai.read, tokenizer="off"), b'{"input": [%b]}', b'"a"'),
        (partial(openai.read, tokenizer="off"), b'{"input": [%b, 1]}', b"1"),
        (partial(openai.read, tokenizer="off"), b'{"input": [{"text": "a", "x": [%b]}]}', b"1.5"),
        (tei.read_any, b'{"inputs": [%b, 1]}', b"1"),
        (tei.read_any, b'{"inputs": [%b]}', b"[]"),
        (partial(cohere_embed.read, version=2), b'{"inputs": [{"content": [%b]}]}', b'{"type": ""}'),
    ],
)
def test_millions_of_values_are_refused_before_one_is_made(read: Callable[..., Any], body: bytes, value: bytes) -> None:
    whole = body % b",".join([value] * MOST_VALUES)
    tracemalloc.start()
    try:
        with pytest.raises(PayloadTooLargeError, match="texts, lists, maps and commas") as refused:
            read(whole, {}, wire.DEFAULT_LIMITS)
        assert tracemalloc.get_traced_memory()[1] < 3 * len(whole)
    finally:
        tracemalloc.stop()
    assert (refused.value.field, refused.value.limit) == ("body", MOST_VALUES)


@pytest.mark.parametrize("mark", [b"[", b","])
def test_brackets_and_commas_in_texts_are_no_values(mark: bytes) -> None:
    text = mark * wire.DEFAULT_LIMITS.max_text_bytes
    body = b'{"input": ["%b", "%b"]}' % (text, text)
    assert body.count(mark) > MOST_VALUES
    openai.read(body, {}, wire.DEFAULT_LIMITS, tokenizer="off")
