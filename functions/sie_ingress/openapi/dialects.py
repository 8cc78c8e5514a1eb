"""The description of the routes that speak another's dialect: that of OpenAI, Cohere, Jina and TEI."""

from __future__ import annotations

from typing import Any, Final

import msgspec
from msgspec import UNSET, UnsetType

from sie_ingress.dialects import cohere, cohere_embed, openai, tei, tei_server
from sie_ingress.openapi.headers import (
    BAD_BODY,
    COMPUTED,
    EXPIRES,
    IDEMPOTENCY,
    NOT_COMPUTED,
    NOT_NAMED,
    NOT_PLACED,
    NOT_SERVED,
    POOL,
    PREFER,
    PRIORITY,
    TENANT,
    TRACE,
)
from sie_ingress.openapi.inference import NAME, ONE_PATH, PASSAGES, QUERY
from sie_ingress.openapi.operation import MODEL, ONLY_JSON, Body, Described, Example, Operation, Parameter, Reply, Said
from sie_sdk.errors import InvalidInputError, SIEError

TAG: Final = "dialects"
HELD: Final = "Never a 202: what is not answered within the hold is refused with 503 and `Retry-After`."
IN_HEADER: Final = Parameter("X-SIE-Model", "The model, where neither the body nor the path names one.")
TERMS: Final = (PREFER, IDEMPOTENCY, PRIORITY, TENANT, EXPIRES, POOL, TRACE)


class Embedding(msgspec.Struct):
    """One vector: numbers, or base64 of little-endian float32."""

    object: str
    index: int
    embedding: list[float] | str


class EmbeddingUsage(msgspec.Struct):
    """Tokens computed."""

    prompt_tokens: int
    total_tokens: int


class EmbeddingList(msgspec.Struct):
    """One entry for each input, in their order."""

    object: str
    data: list[Embedding]
    model: str
    usage: EmbeddingUsage


class OpenAIRefusal(msgspec.Struct):
    """What is wrong, as OpenAI says it; further fields as in every error of this server."""

    message: str
    type: str
    param: str | None
    code: str


class OpenAIError(msgspec.Struct):
    """``detail`` is what Jina's clients read."""

    error: OpenAIRefusal
    detail: str


class Ranked(msgspec.Struct):
    """One document. ``relevance_score`` lies between 0 and 1."""

    index: int
    relevance_score: float
    document: dict[str, Any] | UnsetType = UNSET


class Ranking(msgspec.Struct):
    """The documents, best first. ``model`` and ``usage`` come with version 1."""

    id: str
    results: list[Ranked]
    meta: dict[str, Any]
    model: str | UnsetType = UNSET
    usage: EmbeddingUsage | UnsetType = UNSET


class CohereEmbeddings(msgspec.Struct):
    """The vectors by type, each a list with an entry for each text; version 1 has plain lists where none was named."""

    id: str
    response_type: str
    embeddings: dict[str, list[list[float] | str]] | list[list[float]]
    texts: list[str]
    meta: dict[str, Any]


class CohereError(msgspec.Struct):
    """``detail`` is what Jina's clients read."""

    message: str
    code: str
    detail: str


class SparsePlace(msgspec.Struct):
    """A non-zero place of a sparse vector."""

    index: int
    value: float


class TeiRank(msgspec.Struct):
    """One text's score, with the text where it was asked for."""

    index: int
    score: float
    text: str | UnsetType = UNSET


class TeiPrediction(msgspec.Struct):
    """A label and its probability."""

    score: float
    label: str


class TeiInfo(msgspec.Struct):
    """A model as a server of TEI tells of its own."""

    model_id: str
    model_type: dict[str, Any]
    max_input_length: int
    max_client_batch_size: int
    version: str


class TeiError(msgspec.Struct):
    """What is wrong."""

    error: str
    error_type: str
    code: str


Vectors = list[list[float]]
Sparse = list[list[SparsePlace]]
Predictions = list[TeiPrediction]
Batch = list[list[TeiPrediction]]


def _spoken(
    name: str, summary: str, description: str, body: Said, reply: Said, error: Said, *examples: Example
) -> Operation:
    return Operation(
        id=name,
        summary=summary,
        tag=TAG,
        description=f"{description} {HELD}",
        parameters=(IN_HEADER, *TERMS),
        body=Body(body, ONLY_JSON),
        replies=(Reply(200, "The answer.", reply, headers=COMPUTED),),
        errors=BAD_BODY + NOT_PLACED + NOT_COMPUTED,
        error_kind=error,
        examples=examples,
    )


def _below(operation: Operation, body: Any, offers: str) -> Operation:
    """The same below a model's name."""
    return msgspec.structs.replace(
        operation,
        id=f"{operation.id}_of_model",
        parameters=(NAME, *operation.parameters[1:]),
        examples=(Example("by path", 200, body, ONE_PATH, offers=offers),) if offers else (),
    )


def _tei(name: str, summary: str, description: str, body: Said, reply: Said, sent: Any, offers: str) -> Described:
    at_root = _spoken(f"tei_{name or 'any'}", summary, description, body, reply, TeiError)
    at_root = msgspec.structs.replace(
        at_root,
        statuses_of=_tei_statuses,
        examples=(Example("by header", 200, sent, headers={"X-SIE-Model": MODEL}, offers=offers),) if offers else (),
    )
    path = f"/{name}" if name else ""
    return {("POST", path or "/"): at_root, ("POST", f"/tei/{{model}}{path}"): _below(at_root, sent, offers)}


def _tei_statuses(error: type[SIEError]) -> set[int]:
    """Which status TEI has for an error is told by what is at fault, too."""
    faults: list[dict[str, Any]] = [{}, {"reason": "empty"}, {"field": "route"}, {"field": "model"}]
    return {tei_server.refuse(error("", **fault), "").status for fault in faults}


def _told(name: str, summary: str, reply: Said | None, *parameters: Parameter) -> Operation:
    return Operation(
        id=name,
        summary=summary,
        tag=TAG,
        parameters=parameters,
        replies=(Reply(200, "It.", reply),),
        errors=(InvalidInputError, *NOT_NAMED, *NOT_SERVED),
        error_kind=TeiError,
        statuses_of=_tei_statuses,
    )


_TEXTS: Final = ["A cat sits.", "A kitten rests."]
_EMBED: Final = {"model": MODEL, "input_type": "search_document", "texts": _TEXTS}
_RERANK: Final = {"model": MODEL, "query": QUERY, "documents": PASSAGES}
_EMBEDDINGS: Final = _spoken(
    "openai_embeddings",
    "Texts to vectors, as OpenAI has it",
    "With what Jina's clients send there. `input` is a text, a list of texts, or arrays of token ids.",
    openai.Embeddings,
    EmbeddingList,
    OpenAIError,
    Example("texts", 200, {"model": MODEL, "input": _TEXTS}, offers="dense"),
    Example("base64", 200, {"model": MODEL, "input": _TEXTS, "encoding_format": "base64"}, offers="dense"),
    Example("token ids", 200, {"model": MODEL, "input": [[32, 8415, 23874, 13]]}, offers="dense"),
    Example("an empty text", 400, {"model": MODEL, "input": ""}, offers="dense"),
    Example("no such model", 404, {"model": "no/such-model", "input": "A cat sits."}),
)

DESCRIBED: Final[Described] = {
    ("POST", "/v1/embeddings"): _EMBEDDINGS,
    ("POST", "/v1/rerank"): _spoken(
        "cohere_rerank_v1",
        "Rank documents, as Cohere and Jina have it",
        "Jina's clients get the documents back unless they say otherwise, Cohere's only if they say so.",
        cohere.Rerank,
        Ranking,
        CohereError,
        Example("two documents", 200, _RERANK, offers="score"),
        Example("the best, with its text", 200, {**_RERANK, "top_n": 1, "return_documents": True}, offers="score"),
        Example("no documents", 400, {**_RERANK, "documents": []}, offers="score"),
    ),
    ("POST", "/v2/rerank"): _spoken(
        "cohere_rerank",
        "Rank documents, as Cohere has it",
        "Documents are strings, or objects of which `text` (or `rank_fields`) is read.",
        cohere.Rerank,
        Ranking,
        CohereError,
        Example("two documents", 200, _RERANK, offers="score"),
    ),
    ("POST", "/v1/embed"): _spoken(
        "cohere_embed_v1",
        "Texts to vectors, as Cohere has it",
        "",
        cohere_embed.Embed,
        CohereEmbeddings,
        CohereError,
        Example("texts", 200, _EMBED, offers="dense"),
    ),
    ("POST", "/v2/embed"): _spoken(
        "cohere_embed",
        "Texts to vectors, as Cohere has it",
        "In one number format or several (`embedding_types`).",
        cohere_embed.Embed,
        CohereEmbeddings,
        CohereError,
        Example("texts", 200, _EMBED, offers="dense"),
        Example("two formats", 200, {**_EMBED, "embedding_types": ["int8", "ubinary"]}, offers="dense"),
        Example("no texts", 400, {**_EMBED, "texts": []}, offers="dense"),
    ),
    **_tei("embed", "Texts to vectors, as TEI has it", "", tei.Embed, Vectors, {"inputs": _TEXTS}, "dense"),
    **_tei("embed_sparse", "Sparse vectors, as TEI has it", "", tei.Embed, Sparse, {"inputs": _TEXTS}, "sparse"),
    **_tei(
        "rerank",
        "Rank texts, as TEI has it",
        "`raw_scores`: before the sigmoid.",
        tei.Rerank,
        list[TeiRank],
        {"query": QUERY, "texts": PASSAGES},
        "score",
    ),
    **_tei(
        "predict",
        "Labels of texts, as TEI has it",
        "",
        tei.Predict,
        (Predictions, Batch),
        {"inputs": [[text] for text in _TEXTS]},
        "classes",
    ),
    **_tei(
        "similarity",
        "Cosines of one text with others, as TEI has it",
        "",
        tei.Similarity,
        list[float],
        {"inputs": {"source_sentence": _TEXTS[0], "sentences": _TEXTS}},
        "dense",
    ),
    **_tei(
        "",
        "Whatever the model does, as TEI has it",
        "`query` asks for ranks, `inputs` for vectors or labels, `inputs.source_sentence` for cosines.",
        (tei.Embed, tei.Predict, tei.Rerank, tei.Similarity),
        (Vectors, Sparse, Predictions, Batch, list[TeiRank], list[float]),
        {"inputs": _TEXTS},
        "dense",
    ),
    ("POST", "/tei/{model}/v1/embeddings"): _below(_EMBEDDINGS, {"model": "any", "input": _TEXTS}, "dense"),
    ("GET", "/info"): _told("tei_info", "A model, as TEI tells of its own", TeiInfo, IN_HEADER),
    ("GET", "/tei/{model}/info"): _told("tei_info_of_model", "A model, as TEI tells of its own", TeiInfo, NAME),
    ("GET", "/tei/{model}/health"): _told("tei_health_of_model", "Whether there is such a model", None, NAME),
}
