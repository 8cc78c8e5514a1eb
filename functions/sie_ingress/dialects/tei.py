"""The dialect of text-embeddings-inference (TEI): embed, embed_sparse, rerank, predict and similarity. Pure.

Owns the requests and the answers, as version 1.9 has them; errors are ``tei_server``'s. A server of TEI has one model,
so its requests name none: here the path may, or a header, or the field ``model``; which model it is else is
``speaking``'s.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, Final

import msgspec
import numpy as np

from sie_config.model.model_spec import ModelSpec
from sie_ingress.dialects import ranking, vectors
from sie_ingress.dialects.dialect import (
    Asking,
    Headers,
    Question,
    Spoken,
    check_text,
    check_texts,
    empty,
    one_of,
    overflow,
    read_json,
)
from sie_ingress.dialects.openai import dimensions
from sie_ingress.dialects.tei_server import LABEL, refuse
from sie_sdk import results, wire
from sie_sdk.errors import InvalidInputError
from sie_sdk.types import EncodeParams, EncodeRequest, ExtractParams, ExtractRequest, Item, OutputType

PROMPTS: Final = {
    "query": True,
    "search_query": True,
    "document": False,
    "search_document": False,
    "passage": False,
}
"""``prompt_name``: whether it is the model's prompt for queries or that for documents."""
DIRECTIONS: Final = {"left": True, "right": False}
_EMBED = '{"inputs": ["a text"]}'
_PREDICT = '{"inputs": [["a text"], ["another"]]}'
_RERANK = '{"query": "a question", "texts": ["a text"]}'
_SIMILARITY = '{"inputs": {"source_sentence": "a text", "sentences": ["another"]}}'


class _Choices(msgspec.Struct, frozen=True, kw_only=True):
    """What all requests may say."""

    model: str | None = None
    truncate: bool | None = None
    truncation_direction: str = "right"
    prompt_name: str | None = None


class Embed(_Choices, frozen=True, kw_only=True):
    """The body of ``/embed`` and ``/embed_sparse``."""

    inputs: str | list[str]
    normalize: bool = True
    dimensions: int | None = None


class Rerank(_Choices, frozen=True, kw_only=True):
    """The body of ``/rerank``."""

    query: str
    texts: list[str]
    raw_scores: bool = False
    return_text: bool = False


class Predict(_Choices, frozen=True, kw_only=True):
    """The body of ``/predict``: a text, a pair of two, or a list of lists of one or two."""

    inputs: str | list[str | list[str]]
    raw_scores: bool = False


class Compared(msgspec.Struct, frozen=True):
    """A text, and those that it is compared with."""

    source_sentence: str
    sentences: list[str]


class Similarity(msgspec.Struct, frozen=True, kw_only=True):
    """The body of ``/similarity``."""

    inputs: Compared
    parameters: _Choices | None = None
    model: str | None = None


class _Shape(msgspec.Struct, frozen=True):
    model: str | None = None
    inputs: Any = None
    query: Any = None


_embed = msgspec.json.Decoder(Embed)
_rerank = msgspec.json.Decoder(Rerank)
_predict = msgspec.json.Decoder(Predict)
_similarity = msgspec.json.Decoder(Similarity)
_shape = msgspec.json.Decoder(_Shape)
_to_json = msgspec.json.Encoder(enc_hook=str)

Read = Callable[[bytes, Headers, wire.Limits], Asking]


def spoken() -> list[Spoken]:
    """The routes: at the root, where TEI has them, and below the name of a model."""
    reads: dict[str, tuple[Read, str]] = {
        "/embed": (partial(read_embed, output="dense"), "inputs"),
        "/embed_sparse": (partial(read_embed, output="sparse"), "inputs"),
        "/rerank": (read_rerank, "texts"),
        "/predict": (read_predict, "inputs"),
        "/similarity": (read_similarity, "inputs"),
        "": (read_any, "inputs"),
    }
    return [
        Spoken(f"{prefix}{path}" or "/", read, partial(refuse, items=items))
        for prefix in ("", "/tei/{model:path}")
        for path, (read, items) in reads.items()
    ]


def embeds(output: OutputType) -> Callable[[ModelSpec], bool]:
    """Whether a model has this output."""
    return lambda spec: getattr(spec.tasks, output) is not None


def scores(spec: ModelSpec) -> bool:
    """Whether a model is a reranker."""
    return spec.tasks.score is not None


def predicts(spec: ModelSpec) -> bool:
    """Whether a model has labels of its own for whole texts."""
    return spec.tasks.extract is not None and spec.tasks.extract.kind == "classes"


# -- vectors -----------------------------------------------------------------------------------------------------------


def read_embed(body: bytes, headers: Headers, limits: wire.Limits, *, output: OutputType) -> Asking:
    """``/embed`` (dense) and ``/embed_sparse``; see `dialect.Spoken`."""
    asked = read_json(body, headers, _embed, _EMBED)
    texts = _texts([asked.inputs] if isinstance(asked.inputs, str) else asked.inputs, limits)

    def ask(spec: ModelSpec) -> Question:
        if output == "sparse":
            return Question("encode", _encode(texts, asked, spec, output, {}), _sparse_written)
        options = {"normalize": asked.normalize} | dimensions(asked.dimensions, spec, "dimensions")
        request = _encode(texts, asked, spec, output, options)
        return Question("encode", request, lambda reply, _: vectors.listed(vectors.dense(reply), vectors.in_numbers))

    return Asking(asked.model, embeds(output), ask)


def read_similarity(body: bytes, headers: Headers, limits: wire.Limits) -> Asking:
    """``/similarity``: cosines of one text with others; see `dialect.Spoken`."""
    asked = read_json(body, headers, _similarity, _SIMILARITY)
    if not asked.inputs.sentences:
        raise empty("inputs.sentences", "`inputs.sentences` cannot be empty")
    texts = _texts([asked.inputs.source_sentence, *asked.inputs.sentences], limits)
    choices = asked.parameters or _Choices()

    def written(reply: bytes, _: str) -> bytes:
        first, *others = vectors.dense(reply)
        return vectors.in_numbers(np.stack(others) @ first)

    return Asking(
        asked.model,
        embeds("dense"),
        lambda spec: Question("encode", _encode(texts, choices, spec, "dense", {"normalize": True}), written),
    )


def _texts(given: Sequence[str], limits: wire.Limits) -> list[str]:
    if not given or "" in given:
        raise empty("inputs", "`inputs` cannot be empty")
    check_texts(given, "inputs", limits, limits.max_items)
    return list(given)


def _encode(
    texts: Sequence[str], asked: _Choices, spec: ModelSpec, output: OutputType, options: dict[str, Any]
) -> EncodeRequest:
    options = options | _overflow(asked)
    instruction = None
    if asked.prompt_name is not None:
        options["is_query"] = one_of(asked.prompt_name, PROMPTS, "prompt_name")
    elif (dense := spec.tasks.dense) is not None and (dense.query_prompt or dense.document_prompt):
        instruction = ""  # TEI puts nothing before a text unless it is told to
    params = EncodeParams([output], instruction, "float32", options or None)
    return EncodeRequest(items=[Item(text=text) for text in texts], params=params)


def _overflow(asked: _Choices) -> dict[str, Any]:
    """A text that is too long is cut at its end; its beginning is never cut, but refused with it."""
    left = one_of(asked.truncation_direction, DIRECTIONS, "truncation_direction")
    return overflow(False if left else asked.truncate)


def _sparse_written(reply: bytes, _: str) -> bytes:
    lists = []
    for found in results.read_encode(reply):
        if (sparse := found.sparse) is None:
            continue
        pairs = zip(
            *(vectors.in_numbers(each)[1:-1].split(b",") for each in (sparse.indices, sparse.values)), strict=True
        )
        entries = [b'{"index":%b,"value":%b}' % pair for pair in pairs] if len(sparse.indices) else []
        lists.append(b"[" + b",".join(entries) + b"]")
    return b"[" + b",".join(lists) + b"]"


# -- scores and labels -------------------------------------------------------------------------------------------------


def read_rerank(body: bytes, headers: Headers, limits: wire.Limits) -> Asking:
    """``/rerank``; see `dialect.Spoken`."""
    asked = read_json(body, headers, _rerank, _RERANK)
    if not asked.texts:
        raise empty("texts", "`texts` cannot be empty")
    check_texts(asked.texts, "texts", limits, limits.max_score_items)
    check_text(asked.query, "query", limits)
    options = _overflow(asked)

    def ask(spec: ModelSpec) -> Question:
        relevance = (lambda score: score) if asked.raw_scores else ranking.relevance(spec)
        texts = asked.texts if asked.return_text else None
        return Question(
            "score",
            ranking.request(asked.query, asked.texts, spec, options),
            lambda reply, _: _ranked(reply, relevance, texts),
        )

    return Asking(asked.model, scores, ask)


def _ranked(reply: bytes, relevance: ranking.Relevance, texts: Sequence[str] | None) -> bytes:
    return _to_json.encode(
        [
            {"index": entry.index}
            | ({} if texts is None else {"text": texts[entry.index]})
            | {"score": relevance(entry.score)}
            for entry in results.read_score(reply).scores
        ]
    )


def read_predict(body: bytes, headers: Headers, limits: wire.Limits) -> Asking:
    """``/predict``: labels of texts, or a reranker's one label of pairs; see `dialect.Spoken`."""
    asked = read_json(body, headers, _predict, _PREDICT)
    given: Sequence[Any] = [asked.inputs] if isinstance(asked.inputs, str) else asked.inputs
    batch = bool(given) and isinstance(given[0], list)
    rows = given if batch else [given]
    if not given or not all(isinstance(row, list) and all(isinstance(each, str) for each in row) for row in rows):
        raise InvalidInputError("inputs is no text and no list of lists.", field="inputs", hint=f"Send {_PREDICT}.")
    options = _overflow(asked)
    sizes = {len(row) for row in rows}
    if sizes == {1}:
        return _labels(asked, _texts([row[0] for row in rows], limits), options, batch)
    if sizes == {2}:
        return _pairs(asked, rows, limits, options, batch)
    raise InvalidInputError(
        "inputs has texts and pairs, or more than two texts in one.", field="inputs", hint=f"Send {_PREDICT}."
    )


def _labels(asked: Predict, texts: Sequence[str], options: dict[str, Any], batch: bool) -> Asking:
    if asked.raw_scores:
        raise InvalidInputError(
            "raw_scores is not offered here: labels come with probabilities.",
            field="raw_scores",
            hint="Leave it out, or false.",
        )

    def ask(spec: ModelSpec) -> Question:
        if not predicts(spec):
            raise InvalidInputError(f"{spec.id} has no labels for whole texts.", field="route", hint="See GET /info.")
        request = ExtractRequest([Item(text=text) for text in texts], ExtractParams(options=options or None))
        return Question("extract", request, lambda reply, _: _predicted(reply, batch))

    return Asking(asked.model, predicts, ask)


def _pairs(
    asked: Predict, rows: Sequence[Sequence[str]], limits: wire.Limits, options: dict[str, Any], batch: bool
) -> Asking:
    query, texts = rows[0][0], [row[1] for row in rows]
    if any(row[0] != query for row in rows):
        raise InvalidInputError(
            "The pairs have different first texts.", field="inputs", hint="Send those of one first text at a time."
        )
    check_texts(texts, "inputs", limits, limits.max_score_items)
    check_text(query, "inputs[0]", limits)

    def ask(spec: ModelSpec) -> Question:
        relevance = (lambda score: score) if asked.raw_scores else ranking.relevance(spec)

        def written(reply: bytes, _: str) -> bytes:
            scored = sorted(results.read_score(reply).scores, key=lambda entry: entry.index)
            lists = [[{"score": relevance(entry.score), "label": LABEL}] for entry in scored]
            return _to_json.encode(lists if batch else lists[0])

        return Question("score", ranking.request(query, texts, spec, options), written)

    return Asking(asked.model, scores, ask)


def _predicted(reply: bytes, batch: bool) -> bytes:
    lists = [
        [{"score": each.score, "label": each.label} for each in found.classifications]
        for found in results.read_extract(reply)
    ]
    return _to_json.encode(lists if batch else lists[0])


def read_any(body: bytes, headers: Headers, limits: wire.Limits) -> Asking:
    """The root: what is asked is told by the fields, and else by what the model does."""
    shape = read_json(body, headers, _shape, _EMBED)
    if shape.query is not None:
        return read_rerank(body, headers, limits)
    if isinstance(shape.inputs, dict):
        return read_similarity(body, headers, limits)

    def asking(spec: ModelSpec) -> Asking:
        if spec.tasks.dense is not None:
            return read_embed(body, headers, limits, output="dense")
        if spec.tasks.sparse is not None:
            return read_embed(body, headers, limits, output="sparse")
        return read_predict(body, headers, limits)

    return Asking(
        shape.model,
        lambda spec: embeds("dense")(spec) or embeds("sparse")(spec) or predicts(spec),
        lambda spec: asking(spec).ask(spec),
    )
