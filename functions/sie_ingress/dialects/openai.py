"""OpenAI's dialect: ``POST /v1/embeddings``, with what Jina's clients send to the same route. Pure.

Owns the request, the answer and the errors, as the official ``openai`` client has them. Not here: what token ids stand
for (``token_ids``), Jina's own words (``jina``).
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any, Final

import msgspec

from sie_config.model.model_spec import ModelSpec
from sie_ingress.dialects import jina, vectors
from sie_ingress.dialects.dialect import (
    Asking,
    Headers,
    Question,
    Refusal,
    Spoken,
    check_texts,
    empty,
    one_of,
    overflow,
    read_json,
    renamed,
)
from sie_ingress.dialects.token_ids import OFF, joined, vocabulary
from sie_ingress.dialects.vectors import Writer
from sie_sdk import results, wire
from sie_sdk.errors import InputTooLongError, InvalidInputError, SIEError
from sie_sdk.types import EncodeParams, EncodeRequest, Item, OutputDtype

MAX_INPUTS: Final = 2048
MOST_BYTES: Final = 64 * 1024 * 1024
"""Of all texts that came as token ids, each of which may be 128 bytes of one: as many as a body of texts may have."""
EXAMPLE: Final = '{"model": "org/model", "input": ["a text"]}'
INPUT_TYPES: Final = {
    "query": True,
    "search_query": True,
    "document": False,
    "search_document": False,
    "passage": False,
    "classification": False,
    "clustering": False,
}
"""``input_type``, which some compatible clients send: whether the inputs are queries."""
CUTS: Final = {"end": True, "none": False, "start": False}
"""``truncate``: whether a text that is too long is cut or refused; its beginning is never cut, but refused with it."""
FORMATS: Final[dict[str, tuple[OutputDtype, Writer]]] = {
    "float": ("float32", vectors.in_numbers),
    "base64": ("float32", vectors.in_base64),
    "int8": ("int8", vectors.in_numbers),
    "uint8": ("uint8", vectors.in_numbers),
    "binary": ("ubinary", vectors.in_signed_numbers),
    "ubinary": ("ubinary", vectors.in_numbers),
}
"""``encoding_format`` (the first two) and Jina's ``embedding_type``: what is computed, and how it is written."""


class Embeddings(msgspec.Struct, frozen=True):
    """The body. ``user`` and everything else that is not here is ignored."""

    input: str | list[str | int | list[int] | dict[str, Any]]
    model: str | None = None
    dimensions: int | None = None
    encoding_format: str | None = None
    input_type: str | None = None
    # Jina's; `truncate` is NVIDIA's too, which has words for it
    task: str | None = None
    normalized: bool | None = None
    embedding_type: str | list[str] | None = None
    encoding_type: str | None = None
    truncate: bool | str | None = None
    late_chunking: bool | None = None


_form = msgspec.json.Decoder(Embeddings)
_to_json = msgspec.json.Encoder(enc_hook=str)


def spoken(tokenizer: str) -> list[Spoken]:
    """The route, and the same below a model's name, where the model the body names does not count (TEI has it so).

    ``tokenizer``: the vocabulary of token ids, or ``off`` to refuse them.
    """
    return [
        Spoken("/v1/embeddings", partial(read, tokenizer=tokenizer), refuse),
        Spoken("/tei/{model:path}/v1/embeddings", partial(read, tokenizer=tokenizer, named=False), refuse),
    ]


def read(body: bytes, headers: Headers, limits: wire.Limits, *, tokenizer: str, named: bool = True) -> Asking:
    """A request; see `dialect.Spoken`. ``named``: whether the model that it names counts."""
    asked = read_json(body, headers, _form, EXAMPLE)
    if isinstance(asked.input, str):
        asked = msgspec.structs.replace(asked, input=[asked.input])
    if not asked.input:
        raise empty("input", "input cannot be an empty array")
    slow = any(isinstance(each, int | list) for each in (asked.input[0], asked.input[-1]))
    return Asking(
        asked.model if named else None,
        lambda spec: spec.tasks.dense is not None,
        lambda spec: _question(asked, spec, limits, tokenizer),
        slow,
    )


def _question(asked: Embeddings, spec: ModelSpec, limits: wire.Limits, tokenizer: str) -> Question:
    texts = texts_of(asked.input, tokenizer)
    check_texts(texts, "input", limits, min(MAX_INPUTS, limits.max_items))
    for place, text in enumerate(texts):
        if not text:
            raise empty(f"input[{place}]", f"input[{place}] cannot be an empty string")
    dtype, write = _format(asked)
    request = EncodeRequest(
        items=[Item(text=text) for text in texts],
        params=EncodeParams(output_types=["dense"], output_dtype=dtype, options=_options(asked, spec) or None),
    )
    return Question("encode", request, lambda reply, _: written(reply, write))


def texts_of(given: str | Sequence[Any], tokenizer: str) -> list[str]:
    """The inputs as texts: strings, one array of token ids, several, or Jina's objects.

    Raises:
        InvalidInputError: kinds are mixed, an array is empty, an id is no token, or ids are not taken.
    """
    kinds = {type(each) for each in given}
    if kinds == {str}:
        return list(given)
    if kinds <= {str, dict}:
        return [
            each if isinstance(each, str) else jina.text_of(each, f"input[{place}]") for place, each in enumerate(given)
        ]
    if kinds not in ({int}, {list}):
        raise InvalidInputError(
            "input mixes texts and token ids.", field="input", hint="Send texts alone, or arrays of token ids alone."
        )
    if tokenizer == OFF:
        raise InvalidInputError(
            "input has token ids, and this server takes texts.",
            field="input",
            hint="Send texts (LangChain's OpenAIEmbeddings: check_embedding_ctx_length=False).",
        )
    words = vocabulary(tokenizer)
    if kinds == {int}:
        found = [words.tokens(given, "input")]  # type: ignore[arg-type]  # by its kinds
    else:
        for place, ids in enumerate(given):
            if not ids:
                raise empty(f"input[{place}]", f"input[{place}] cannot be an empty array")
        found = [words.tokens(ids, f"input[{place}]") for place, ids in enumerate(given)]
    if (size := sum(len(token) for tokens in found for token in tokens)) > MOST_BYTES:  # before any is joined
        raise InputTooLongError(
            f"The token ids of input stand for {size} bytes.",
            field="input",
            limit=MOST_BYTES,
            hint="Send fewer inputs at once.",
        )
    return [joined(tokens) for tokens in found]


def _format(asked: Embeddings) -> tuple[OutputDtype, Writer]:
    kind, field = asked.embedding_type, "embedding_type"
    if asked.encoding_type is not None:  # as LlamaIndex has it
        kind, field = asked.encoding_type, "encoding_type"
    if kind is None:
        kind, field = asked.encoding_format or "float", "encoding_format"
        return one_of(kind, {name: FORMATS[name] for name in ("float", "base64")}, field)
    if isinstance(kind, list):
        if len(kind) != 1:
            raise InvalidInputError(
                f"embedding_type names {len(kind)} types.", field=field, limit=1, hint="Ask for one at a time."
            )
        kind = kind[0]
    return one_of(kind, FORMATS, field)


def _options(asked: Embeddings, spec: ModelSpec) -> dict[str, Any]:
    options: dict[str, Any] = {}
    if asked.input_type is not None:
        options["is_query"] = one_of(asked.input_type, INPUT_TYPES, "input_type")
    elif asked.task is not None:
        options["is_query"] = jina.is_query(asked.task)
    if asked.late_chunking:
        raise InvalidInputError(
            "late_chunking is not offered: every input has a vector of its own.",
            field="late_chunking",
            hint="Leave it out, or false.",
        )
    if asked.normalized is not None:
        options["normalize"] = asked.normalized
    cut = one_of(asked.truncate, CUTS, "truncate") if isinstance(asked.truncate, str) else asked.truncate
    options |= overflow(cut)
    return options | dimensions(asked.dimensions, spec, "dimensions")


def dimensions(wanted: int | None, spec: ModelSpec, field: str) -> dict[str, Any]:
    """The option for vectors of ``wanted`` dimensions.

    Raises:
        InvalidInputError: the model was not trained for them; lists those it was.
    """
    if wanted is None or (dense := spec.tasks.dense) is None:
        return {}
    if wanted not in (known := (*dense.dims, dense.dim)):
        allowed = ", ".join(map(str, known))
        raise InvalidInputError(
            f"{spec.id} has no vectors of {wanted} dimensions.", field=field, limit=allowed, hint=f"It has {allowed}."
        )
    return {"dimensions": wanted}


def written(reply: bytes, write: Writer) -> bytes:
    """The answer: a list of embeddings, each as ``write`` has it."""
    head = results.read_head(reply)
    tokens = head.usage.input_tokens
    pieces = [b'{"object":"list","data":[']
    for place, vector in enumerate(vectors.dense(reply)):
        pieces += b',{"object":"embedding","index":%d,"embedding":' % place, write(vector), b"}"
    pieces[1] = pieces[1].removeprefix(b",")
    pieces.append(b'],"model":' + _to_json.encode(head.model))
    pieces.append(b',"usage":{"prompt_tokens":%d,"total_tokens":%d}}' % (tokens, tokens))
    return b"".join(pieces)  # copied once, and it may be large


def refuse(error: SIEError) -> Refusal:
    """``{"error": {message, type, param, code, ...}}``, and the ``detail`` that Jina's clients read."""
    error, status = renamed(error, "input", "truncate true"), error.status or 500
    kind = "rate_limit_error" if status == 429 else "server_error" if status >= 500 else "invalid_request_error"
    own = {"message": str(error), "type": kind, "param": error.field, "code": error.code}
    return Refusal(status, _to_json.encode({"error": own | error.to_wire() | own, "detail": str(error)}))
