"""Score: how relevant each item is to a query. Cross-encoders, yes/no rerankers and MaxSim over multivectors.

Owns the texts that are put together and what of the outputs is the score. The way around it is ``operation``.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, cast

import numpy as np

from sie_bundle.engine.outputs import Floats, Outputs
from sie_bundle.engine.row import Row
from sie_bundle.operations import prompts
from sie_bundle.operations.aside import INLINE_ITEMS, INLINE_OUTPUT_BYTES
from sie_bundle.operations.classification import sigmoid
from sie_bundle.operations.encode import encode_rows
from sie_bundle.operations.operation import Plan
from sie_bundle.operations.options import Options, longest_text
from sie_bundle.operations.tokens import kept
from sie_config.model import runtime_options, template
from sie_config.model.model_spec import ModelSpec
from sie_config.model.tasks import Multivector
from sie_sdk import replies, wire
from sie_sdk.errors import InvalidInputError, ModelLoadFailedError
from sie_sdk.scoring import maxsim
from sie_sdk.types import Item, ScoreRequest, Timing, Usage

if TYPE_CHECKING:
    from sie_bundle.models.model import Model  # brings torch

ACTIVATIONS = ("none", "sigmoid")


def parse(body: bytes) -> ScoreRequest:
    """The body as the ingress passed it on, checked again."""
    return wire.parse_score(body, wire.MSGPACK)


def plan(model: Model, spec: ModelSpec, request: ScoreRequest) -> Plan:
    """See `operation.Planner`.

    Raises:
        InvalidInputError: the model does not score, an option it does not have, vectors of another size.
        InputTooLongError: a pair over the limit with ``overflow_policy="error"``; see `prompts.check_repeated`.
        ModelLoadFailedError: the model computes more than a score; when the plan is finished.
    """
    if (task := spec.tasks.score) is None:
        raise InvalidInputError(
            f"{spec.id} does not score.", field="model", hint=f"It offers: {', '.join(spec.outputs)}."
        )
    known = runtime_options.score(spec.tasks)
    options = Options(request.options, known, "options")
    if request.instruction and "instruction" not in known:
        raise InvalidInputError(
            f"{spec.id} takes no instruction.",
            field="instruction",
            hint="Leave it out: of models that score, those whose template has a place for one take it.",
        )
    if task.kind == "maxsim":
        return _maxsim(model, spec, request, options)
    _texts_only(request)
    longest = options.longest(spec.max_sequence_length)
    query, documents = request.query.text or "", [item.text or "" for item in request.items]
    if task.kind == "cross_encoder":
        rows = model.tokenizer.pairs(query, documents, longest, options.overflow())
        head = "logits"
    else:
        instruction = request.instruction or options.text("instruction", task.instruction)
        of_each = max((query, "query.text"), (instruction, "instruction"), key=lambda told: len(told[0]))
        prompts.check_repeated((len(query) + len(instruction)) * len(documents), len(documents), of_each[1])
        parts = re.split("(\n)", task.template) if task.by_line else [task.template]
        texts = [
            [template.filled(part, instruction=instruction, query=query, document=document) for part in parts]
            for document in documents
        ]
        rows = model.tokenizer.framed(task.prefix, texts, task.suffix, longest, options.overflow())
        head = "yes_no"
    activation = options.choice("activation", task.activation, ACTIVATIONS)

    def finish(computed: Mapping[str, Outputs], timing: Timing, usage: Usage) -> bytes:
        logits = cast("Floats", computed[head])
        if logits.shape[1] > 2:
            raise ModelLoadFailedError(
                f"{spec.id} computes {logits.shape[1]} numbers for a pair, none of which is its score.",
                hint="Leave tasks.score out of its spec; a model of natural language inference extracts.",
            )
        # Two logits are "not relevant" and "relevant": their difference is the one logit.
        scores = logits[:, 0] if logits.shape[1] == 1 else logits[:, -1] - logits[:, 0]
        return _reply(spec.id, request, _activated(scores, activation), timing, usage)

    return Plan(rows, [head], finish)


def repeated(spec: ModelSpec, request: ScoreRequest) -> int:
    """See `operation.Repeated`."""
    if (task := spec.tasks.score) is None:
        return 0
    if task.kind == "maxsim":
        texts = [item.text or "" for item in (request.query, *request.items)]
        return prompts.repeated(texts, spec.tasks, request.options, None)
    instruction = longest_text(request.options, request.instruction, task.instruction)
    return len(request.items) * (len(request.query.text or "") + instruction + len(task.template))


def _maxsim(model: Model, spec: ModelSpec, request: ScoreRequest, options: Options) -> Plan:
    """One row for each text, as encode makes it; vectors that came with the request are not computed again."""
    task = cast("Multivector", spec.tasks.multivector)
    given = [request.query, *request.items]
    texts = [number for number, item in enumerate(given) if item.multivector is None]
    rows: list[Row] = []
    if 0 in texts:
        query = prompts.prompted([request.query.text or ""], spec.tasks, options, None, is_query=True)
        rows += encode_rows(model, spec, query, options, ["multivector"], is_query=True, name="query.text".format)
    if documents := [number for number in texts if number]:
        own = [given[number].text or "" for number in documents]
        own = prompts.prompted(own, spec.tasks, options, None, is_query=False)
        rows += encode_rows(
            model, spec, own, options, ["multivector"], is_query=False, name=lambda i: f"{_name(documents[i])}.text"
        )

    def finish(computed: Mapping[str, Outputs], timing: Timing, usage: Usage) -> bytes:
        vectors = [_given(number, item, task.dim) for number, item in enumerate(given)]
        states = cast("list[Floats]", computed["multivector"]) if rows else []
        for number, own, row in zip(texts, states, rows, strict=True):
            vectors[number] = kept([own], [row], model.tokenizer, task, is_query=number == 0)[0]
        query, *items = cast("list[Floats]", vectors)
        return _reply(spec.id, request, maxsim(query, items), timing, usage)

    brought = sum(item.multivector.nbytes for item in given if item.multivector is not None)
    long = brought > INLINE_OUTPUT_BYTES or len(given) - 1 > INLINE_ITEMS
    return Plan(rows, ["multivector"], finish, long, item=lambda row: _name(texts[row]))


def _given(number: int, item: Item, dim: int) -> Floats | None:
    """The vectors an item brought, checked."""
    if item.multivector is None:
        return None
    vectors = np.asarray(item.multivector, dtype=np.float32)
    if vectors.ndim != 2 or vectors.shape[1] != dim or not len(vectors) or not np.isfinite(vectors).all():
        raise InvalidInputError(
            f"The vectors have the shape {list(vectors.shape)}, or are not finite.",
            field=f"{_name(number)}.multivector",
            limit=dim,
            hint=f"Send a float array [tokens, {dim}] with at least one token.",
        )
    return vectors


def _name(number: int) -> str:
    """What errors call the query or an item; the query is number 0."""
    return f"items[{number - 1}]" if number else "query"


def _texts_only(request: ScoreRequest) -> None:
    for number, item in enumerate([request.query, *request.items]):
        if item.text is None:
            raise InvalidInputError(
                "This model scores texts.",
                field=f"{_name(number)}.text",
                hint="Send a text; only multivector models score vectors.",
            )


def _activated(scores: Floats, activation: str) -> Floats:
    return scores if activation == "none" else sigmoid(scores)


def _reply(model: str, request: ScoreRequest, scores: Floats, timing: Timing, usage: Usage) -> bytes:
    ids: Sequence[str | None] = [item.id for item in request.items]
    return replies.score(model, scores, ids, request.query.id, timing, usage)
