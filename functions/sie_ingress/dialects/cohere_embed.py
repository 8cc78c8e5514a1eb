"""Cohere's dialect, embeddings: ``POST /v1/embed`` and ``/v2/embed``, in one number format or several at once. Pure.

Owns the requests and the answers, as the official ``cohere`` client has them. Reranking and the errors of both are
``cohere``'s; what the number formats are is ``sie_sdk.quantize``'s.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Annotated, Any, Final

import msgspec
import numpy as np

from sie_config.model.model_spec import ModelSpec
from sie_ingress.dialects import cohere, vectors
from sie_ingress.dialects.dialect import (
    Asking,
    Headers,
    Question,
    Spoken,
    check_texts,
    empty,
    one_of,
    overflow,
    read_json,
)
from sie_ingress.dialects.openai import CUTS, INPUT_TYPES, dimensions
from sie_ingress.dialects.vectors import Writer
from sie_sdk import results, wire
from sie_sdk.errors import InvalidInputError
from sie_sdk.quantize import quantize
from sie_sdk.types import EncodeParams, EncodeRequest, Item, OutputDtype

EXAMPLE: Final = '{"model": "org/model", "input_type": "search_document", "texts": ["a text"]}'
TYPES: Final[dict[str, tuple[OutputDtype, Writer]]] = {
    "float": ("float32", vectors.in_numbers),
    "int8": ("int8", vectors.in_numbers),
    "uint8": ("uint8", vectors.in_numbers),
    "binary": ("ubinary", vectors.in_signed_numbers),
    "ubinary": ("ubinary", vectors.in_numbers),
    "base64": ("float32", vectors.in_base64),
}
"""``embedding_types``: what becomes of a vector, and how it is written."""


class Content(msgspec.Struct, frozen=True):
    """A part of an input."""

    type: str
    text: str | None = None


class Input(msgspec.Struct, frozen=True):
    """One input, in parts."""

    content: list[Content]


class Embed(msgspec.Struct, frozen=True):
    """The body. What is not here is ignored."""

    model: str | None = None
    texts: list[str] | None = None
    inputs: list[Input] | None = None
    images: list[str] | None = None
    input_type: str | None = None
    embedding_types: list[str] | None = None
    output_dimension: int | None = None
    max_tokens: Annotated[int, msgspec.Meta(ge=1)] | None = None
    truncate: str | None = None


_form = msgspec.json.Decoder(Embed)
_to_json = msgspec.json.Encoder()


def spoken() -> list[Spoken]:
    """The routes."""
    refuse = partial(cohere.refuse, items="texts")
    return [Spoken(f"/v{version}/embed", partial(read, version=version), refuse) for version in (1, 2)]


def read(body: bytes, headers: Headers, limits: wire.Limits, *, version: int) -> Asking:
    """A request; see `dialect.Spoken`. Without ``embedding_types`` version 1 answers with plain lists of floats."""
    asked = read_json(body, headers, _form, EXAMPLE)
    texts = _texts(asked)
    check_texts(texts, "texts", limits, limits.max_items)
    named = asked.embedding_types or ["float"]
    types = {name.strip().lower(): one_of(name, TYPES, "embedding_types") for name in named}
    plain = version == 1 and not asked.embedding_types

    def ask(spec: ModelSpec) -> Question:
        params = EncodeParams(output_types=["dense"], output_dtype="float32", options=_options(asked, spec) or None)
        request = EncodeRequest(items=[Item(text=text) for text in texts], params=params)
        return Question("encode", request, lambda reply, own: _written(reply, own, texts, types, version, plain))

    return Asking(asked.model, lambda spec: spec.tasks.dense is not None, ask)


def _texts(asked: Embed) -> list[str]:
    if asked.images:
        raise InvalidInputError("images cannot be embedded: this model reads text.", field="images", hint="Send texts.")
    texts = list(asked.texts or ())
    for place, given in enumerate(asked.inputs or ()):
        parts = [part.text for part in given.content if part.text is not None]
        if len(parts) < len(given.content):
            raise InvalidInputError(
                f"inputs[{place}] has more than text.", field=f"inputs[{place}]", hint="Send parts of the type text."
            )
        texts.append("\n".join(parts))
    if not texts:
        raise empty("texts", "texts cannot be empty")
    if "" in texts:
        place = texts.index("")
        raise empty(f"texts[{place}]", f"texts[{place}] cannot be an empty string")
    return texts


def _options(asked: Embed, spec: ModelSpec) -> dict[str, Any]:
    options: dict[str, Any] = {}
    if asked.input_type is not None:
        options["is_query"] = one_of(asked.input_type, INPUT_TYPES, "input_type")
    if asked.truncate is not None:
        options |= overflow(one_of(asked.truncate, CUTS, "truncate"))
    if asked.max_tokens is not None and asked.max_tokens < spec.max_sequence_length:
        options["max_seq_length"] = asked.max_tokens
    return options | dimensions(asked.output_dimension, spec, "output_dimension")


def _written(
    reply: bytes,
    request_id: str,
    texts: Sequence[str],
    types: dict[str, tuple[OutputDtype, Writer]],
    version: int,
    plain: bool,
) -> bytes:
    tokens = results.read_head(reply).usage.input_tokens
    found = np.stack(vectors.dense(reply))
    lists = {name: vectors.listed(list(quantize(found, dtype).rows), write) for name, (dtype, write) in types.items()}
    embeddings = (
        lists["float"] if plain else b"{%b}" % b",".join(b'"%b":%b' % (k.encode(), v) for k, v in lists.items())
    )
    return _to_json.encode(
        {
            "id": cohere.identity(request_id),
            "response_type": "embeddings_floats" if plain else "embeddings_by_type",
            "embeddings": msgspec.Raw(embeddings),
            "texts": texts,
            "meta": cohere.meta(version, tokens, input_tokens=tokens),
        }
    )
