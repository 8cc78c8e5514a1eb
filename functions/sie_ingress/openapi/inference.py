"""The description of ``POST /v1/encode|score|extract/{model}``."""

from __future__ import annotations

from typing import Any, Final

from sie_ingress.openapi import bodies
from sie_ingress.openapi.headers import (
    ASK_AGAIN,
    BAD_BODY,
    COMPUTED,
    NOT_COMPUTED,
    NOT_PLACED,
    TERMS,
)
from sie_ingress.openapi.operation import BOTH, MODEL, Body, Described, Example, Operation, Parameter, Reply
from sie_sdk.types import EncodeRequest, ExtractRequest, ScoreRequest

NAME: Final = Parameter(
    "model",
    "The model as `[bundle:/]org/model[:profile]` or an alias, slashes included (`/` or `%2F`); case does not matter, "
    "and the organisation may be left out where that is unambiguous. `GET /v1/models` lists them.",
    where="path",
    example=MODEL,
)
QUEUED: Final = Reply(
    202, "No answer within the hold: the work is queued and kept.", bodies.JobReply, headers=ASK_AGAIN
)
ONE_PATH: Final = {"model": MODEL}
QUERY: Final = "How many people live in Berlin?"
PASSAGES: Final = ["Rome is old.", "Berlin has 3.5 million inhabitants."]


def _inference(
    name: str, summary: str, description: str, request: Any, reply: Any, examples: tuple[Example, ...]
) -> Operation:
    return Operation(
        id=name,
        summary=summary,
        tag="inference",
        description=description,
        parameters=(NAME, *TERMS),
        body=Body(request),
        replies=(Reply(200, "The answer.", reply, BOTH, COMPUTED), QUEUED),
        errors=BAD_BODY + NOT_PLACED + NOT_COMPUTED,
        examples=examples,
    )


_TEXTS: Final = {"items": [{"text": "A cat sits.", "id": "1"}, {"text": "A kitten rests."}]}
_PAIRS: Final = {"query": {"text": QUERY}, "items": [{"text": text} for text in PASSAGES]}
_LABELS: Final = {"labels": ["biography", "geography"]}
_SENTENCE: Final = {"items": [{"text": "Ada Lovelace lived in London.", "id": "1"}]}


def _encode(name: str, offers: str, *, wait: bool = False, **params: Any) -> Example:
    body = {**_TEXTS, "params": params} if params else _TEXTS
    return Example(name, 200, body, ONE_PATH, {"Prefer": "wait=30"} if wait else {}, offers=offers)


DESCRIBED: Final[Described] = {
    ("POST", "/v1/encode/{model}"): _inference(
        "encode",
        "Texts to vectors",
        "Dense, sparse and multivector embeddings, in one pass. Without `output_types` dense is computed, or all the "
        "model has when it has no dense. `options`: `is_query`; `overflow_policy`, `truncate_text` or `error`; "
        "`dimensions`, for models that were trained for shorter vectors.",
        EncodeRequest,
        bodies.EncodeReply,
        (
            _encode("dense", "dense", wait=True),
            _encode("eight bits a number", "dense", output_types=["dense"], output_dtype="int8"),
            _encode("a query", "dense", options={"is_query": True}),
            _encode("sparse", "sparse", output_types=["sparse"]),
            _encode("multivector", "multivector", output_types=["multivector"]),
            Example("no items", 400, {"items": []}, ONE_PATH, offers="dense"),
            Example("no such model", 404, _TEXTS, {"model": "no/such-model"}),
        ),
    ),
    ("POST", "/v1/score/{model}"): _inference(
        "score",
        "Rank items against a query",
        "Rerankers read query and item together; multivector models compare their vectors (MaxSim) and also take "
        "`multivector` in place of `text`, computed before. Best first; an item without an id is `item-{index}`.",
        ScoreRequest,
        bodies.ScoreReply,
        (
            Example("two passages", 200, _PAIRS, ONE_PATH, {"Prefer": "wait=30"}, offers="score"),
            Example("no query", 400, {"items": _PAIRS["items"]}, ONE_PATH, offers="score"),
        ),
    ),
    ("POST", "/v1/extract/{model}"): _inference(
        "extract",
        "Find entities and classes",
        "A zero-shot model tries the `labels` given; a model with labels of its own finds only those among them. "
        "`start` and `end` count characters (Unicode code points).",
        ExtractRequest,
        bodies.ExtractReply,
        (
            Example("entities", 200, _SENTENCE, ONE_PATH, {"Prefer": "wait=30"}, offers="entities"),
            Example("classes", 200, _SENTENCE, ONE_PATH, offers="classes"),
            Example("labels of your own", 200, {**_SENTENCE, "params": _LABELS}, ONE_PATH, offers="entailment"),
            Example("an empty label", 400, {**_SENTENCE, "params": {"labels": [""]}}, ONE_PATH, offers="json"),
        ),
    ),
}
