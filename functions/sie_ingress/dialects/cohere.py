"""Cohere's dialect: ``POST /v1/rerank`` and ``/v2/rerank``, the first one with what Jina's clients send there. Pure.

Owns the requests, the answers and the errors, as the official ``cohere`` client has them. What all reranking has in
common is ``ranking``'s.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import partial
from typing import Annotated, Any, Final
from uuid import UUID

import msgspec

from sie_config.model.model_spec import ModelSpec
from sie_ingress.dialects import ranking
from sie_ingress.dialects.dialect import (
    Asking,
    Headers,
    Question,
    Refusal,
    Spoken,
    check_text,
    check_texts,
    empty,
    overflow,
    read_json,
    renamed,
)
from sie_ingress.dialects.ranking import Document
from sie_sdk import results, wire
from sie_sdk.errors import SIEError

EXAMPLE: Final = '{"model": "org/model", "query": "a question", "documents": ["a text"]}'
SEARCH_UNIT: Final = 100
"""Documents that Cohere counts as one search."""

Count = Annotated[int, msgspec.Meta(ge=1)]


class Rerank(msgspec.Struct, frozen=True):
    """The body. What is not here is ignored: documents are cut at the model's length anyway."""

    query: str | dict[str, Any]
    documents: list[Document]
    model: str | None = None
    top_n: Count | None = None
    rank_fields: list[str] | None = None
    return_documents: bool | None = None
    max_tokens_per_doc: Count | None = None
    max_chunks_per_doc: Count | None = None
    truncation: bool | None = None


_form = msgspec.json.Decoder(Rerank)
_to_json = msgspec.json.Encoder(enc_hook=str)


def spoken() -> list[Spoken]:
    """The routes."""
    return [
        Spoken(f"/v{version}/rerank", partial(read_rerank, version=version), partial(refuse, items="documents"))
        for version in (1, 2)
    ]


def read_rerank(body: bytes, headers: Headers, limits: wire.Limits, *, version: int) -> Asking:
    """A request; see `dialect.Spoken`.

    Jina's clients expect documents in the answer unless they say otherwise, Cohere's the other way round: those are
    known by their header, and by fields that Jina has not.
    """
    asked = read_json(body, headers, _form, EXAMPLE)
    query = asked.query if isinstance(asked.query, str) else ranking.text_of(asked.query, ("text",), "query")
    if not query:
        raise empty("query", "query cannot be empty")
    texts = ranking.texts_of(asked.documents, asked.rank_fields)
    check_texts(texts, "documents", limits, limits.max_score_items)
    check_text(query, "query", limits)
    cohere = version == 2 or headers.get("x-fern-sdk-name") == "cohere" or _has_cohere_fields(asked)
    returned = asked.return_documents if asked.return_documents is not None else not cohere
    documents, top_n = asked.documents if returned else None, asked.top_n
    options = overflow(asked.truncation)

    def ask(spec: ModelSpec) -> Question:
        relevance = ranking.relevance(spec)
        return Question(
            "score",
            ranking.request(query, texts, spec, options),
            lambda reply, request_id: ranked(reply, request_id, relevance, top_n, documents, version),
        )

    return Asking(asked.model, lambda spec: spec.tasks.score is not None, ask)


def _has_cohere_fields(asked: Rerank) -> bool:
    return any(each is not None for each in (asked.rank_fields, asked.max_chunks_per_doc, asked.max_tokens_per_doc))


def ranked(
    reply: bytes,
    request_id: str,
    relevance: ranking.Relevance,
    top_n: int | None,
    documents: Sequence[Document] | None,
    version: int,
) -> bytes:
    """The answer: the best ``top_n``, with ``documents`` where they are wanted.

    Version 1 has Jina's fields too (``model``, ``usage``, ``object``): each client reads its own.
    """
    found = results.read_score(reply)
    entries: list[dict[str, Any]] = []
    for score in found.scores[:top_n]:
        entry: dict[str, Any] = {"index": score.index, "relevance_score": relevance(score.score)}
        if documents is not None:
            document = documents[score.index]
            entry["document"] = {"text": document} if isinstance(document, str) else document
        entries.append(entry)
    tokens = found.usage.input_tokens if found.usage else 0
    answer: dict[str, Any] = {
        "id": identity(request_id),
        "results": entries,
        "meta": meta(version, tokens, search_units=math.ceil(len(found.scores) / SEARCH_UNIT)),
    }
    if version == 1:
        answer |= {"model": found.model, "object": "list", "usage": {"prompt_tokens": tokens, "total_tokens": tokens}}
    return _to_json.encode(answer)


def identity(request_id: str) -> str:
    """A request's id (32 hex digits) as Cohere writes ids."""
    return str(UUID(request_id))


def meta(version: int, tokens: int, **billed: int) -> dict[str, Any]:
    """What an answer says of itself. Nothing is billed; the units are what Cohere would count."""
    return {
        "api_version": {"version": str(version)},
        "billed_units": billed,
        "tokens": {"input_tokens": tokens, "output_tokens": 0},
    }


def refuse(error: SIEError, items: str) -> Refusal:
    """``{"message", ...}`` and the ``detail`` that Jina's clients read. ``items``: what the route calls the items."""
    error = renamed(error, items, 'truncate "END"' if items == "texts" else "truncation true")
    said = {"message": str(error), "detail": str(error)}
    return Refusal(error.status or 500, _to_json.encode(said | error.to_wire() | said))
