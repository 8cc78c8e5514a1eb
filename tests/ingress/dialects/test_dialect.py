"""What all dialects refuse before they make anything of it."""

from __future__ import annotations

import tracemalloc
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest

from sie_ingress.dialects import cohere, cohere_embed, openai, tei
from sie_ingress.dialects.dialect import MOST_VALUES
from sie_sdk import wire
from sie_sdk.errors import PayloadTooLargeError


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
