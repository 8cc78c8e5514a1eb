"""Extract: entities, classes or the caller's own labels. What to tokenize, which head, and the last steps.

Owns what requests may ask for and the limits. The way around it is ``operation``; how logits become results stands in
``entities``, ``classification``, ``entailment`` and ``spans``.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Mapping, Sequence
from itertools import accumulate
from typing import TYPE_CHECKING, TypeVar, cast

from sie_bundle.engine.outputs import Floats, Outputs
from sie_bundle.models.gliner import TOKEN_LEVEL
from sie_bundle.models.label_tokenizer import Labelled, LabelTokenizer
from sie_bundle.models.tokenization import ITEM, Name, Windows
from sie_bundle.operations import classification, entailment, spans
from sie_bundle.operations.entities import AGGREGATIONS, OUTSIDE, Aggregation, entities, scheme
from sie_bundle.operations.operation import Plan
from sie_bundle.operations.options import Options, longest_text
from sie_bundle.operations.prompts import check_repeated
from sie_config.model import runtime_options
from sie_config.model.model_spec import ModelSpec
from sie_config.model.tasks import Extract
from sie_sdk import replies, wire
from sie_sdk.errors import InputTooLongError, InvalidInputError, ModelLoadFailedError
from sie_sdk.labels import labels_to_try
from sie_sdk.replies import Extracted
from sie_sdk.types import ExtractRequest, Timing, Usage

if TYPE_CHECKING:
    from sie_bundle.models.model import Model  # brings torch

W = TypeVar("W", Windows, Labelled)

MAX_WINDOWS = 4096
"""Windows of one request: two million tokens at 512 each, and some 150 MB while it is computed."""

LOT = 1 << 20
"""Characters of texts that are cut into windows together: some 500 MB meanwhile, at a token for each."""

MAX_PAIRS = 16_384
"""Items times labels of one request; 70 MB of token ids at 512 each."""

MAX_SCORES = 1 << 26
"""Spans times labels of one request: 256 MB while it is computed."""

INLINE_TOKENS = 1024
"""Tokens of a request whose labels are put together on the event loop: some 4 KB of text."""

INLINE_SCORES = 10_000
"""Scores of a small request that are looked through on the event loop: some 0.4 ms."""

SPAN_THRESHOLD = 0.5
LOW_THRESHOLD = 0.1

UNNAMED = ("LABEL_0", "LABEL_1")
"""The labels that a config.json without any means."""


def parse(body: bytes) -> ExtractRequest:
    """The body as the ingress passed it on, checked again."""
    return wire.parse_extract(body, wire.MSGPACK)


def plan(model: Model, spec: ModelSpec, request: ExtractRequest) -> Plan:
    """See `operation.Planner`.

    Raises:
        InvalidInputError: the model does not extract, a label or option it does not have, no labels where it needs
            them, more items times labels than `MAX_PAIRS`.
        InputTooLongError: a text over the limit with ``overflow_policy="error"``; more than `MAX_WINDOWS`.
        ModelLoadFailedError: the model's labels do not fit what it is for.
    """
    params = request.params
    if (task := spec.tasks.extract) is None:
        raise InvalidInputError(
            f"{spec.id} does not extract.", field="model", hint=f"It offers: {', '.join(spec.outputs)}."
        )
    for name in ("output_schema", "instruction"):
        if getattr(params, name):
            raise InvalidInputError(f"{spec.id} takes no {name}.", field=f"params.{name}", hint="Leave it out.")
    options = Options(params.options, runtime_options.extract(spec.tasks), "params.options")
    planners = {"entities": _entities, "classes": _classes, "entailment": _entailment, "spans": _spans}
    return planners[task.kind](model, spec, request, task, options)


def repeated(spec: ModelSpec, request: ExtractRequest) -> int:
    """See `operation.Repeated`."""
    task, params = spec.tasks.extract, request.params
    if task is None or task.kind not in ("entailment", "spans"):
        return 0
    sentence = longest_text(params.options, task.hypothesis) if task.kind == "entailment" else 0
    return len(request.items) * sum(sentence + len(label) for label in params.labels or ())


def _entities(model: Model, spec: ModelSpec, request: ExtractRequest, task: Extract, options: Options) -> Plan:
    labels = scheme(model.labels or UNNAMED)
    aggregation = cast("Aggregation", options.choice("aggregation_strategy", task.aggregation, AGGREGATIONS))
    threshold = options.number("threshold", 0.0, 0.0, 1.0)
    if not options.flag("flat_ner", default=True):
        raise options.wrong("flat_ner", f"true: entities of {spec.id} never lie over each other")
    names = [name for name in labels.names if name != OUTSIDE]
    wanted = frozenset(_known(request.params.labels, names, spec)) if request.params.labels else None
    texts = [item.text or "" for item in request.items]
    longest = options.longest(spec.max_sequence_length)
    windows = _by_lots(texts, lambda lot, name: model.tokenizer.windows(lot, longest, task.overlap, name))
    rows = [row for own in windows for row in own.rows]

    def extracted(computed: Mapping[str, Outputs]) -> list[Extracted]:
        logits = cast("Sequence[Floats]", computed["token_logits"]) if rows else []
        if len(logits):
            _check_labels(labels.labels, logits[0], spec)
        made, at = [], 0
        for text, own in zip(texts, windows, strict=True):
            outputs, at = logits[at : at + len(own.rows)], at + len(own.rows)
            found = entities(
                text, own, outputs, model.tokenizer, labels, aggregation, threshold=threshold, wanted=wanted
            )
            made.append(Extracted(entities=found))
        return made

    def finish(computed: Mapping[str, Outputs], timing: Timing, usage: Usage) -> bytes:
        return _reply(spec, request, extracted(computed), timing, usage)

    long = sum(map(len, rows)) > INLINE_TOKENS
    return Plan(rows, ["token_logits"], finish, long, item=_item_of([len(own.rows) for own in windows]))


def _classes(model: Model, spec: ModelSpec, request: ExtractRequest, task: Extract, options: Options) -> Plan:
    labels = model.labels or UNNAMED
    columns = list(range(len(labels)))
    if request.params.labels:  # several outputs may have one name, and each has a score of its own
        wanted = _known(request.params.labels, labels, spec)
        columns = [column for label in wanted for column in columns if labels[column] == label]
    asked = [labels[column] for column in columns]
    multi_label = options.flag("multi_label", task.multi_label)
    threshold, top_k = options.number("threshold", 0.0, 0.0, 1.0), options.count("top_k", len(labels), len(labels))
    rows = model.tokenizer.rows(
        [item.text or "" for item in request.items], options.longest(spec.max_sequence_length), options.overflow()
    )

    def finish(computed: Mapping[str, Outputs], timing: Timing, usage: Usage) -> bytes:
        logits = cast("Floats", computed["logits"])
        _check_labels(labels, logits, spec)
        scores = classification.probabilities(logits, multi_label=multi_label)[:, columns]
        found = [classification.ranked(asked, own, threshold=threshold, top_k=top_k) for own in scores]
        return _reply(spec, request, [Extracted(classifications=own) for own in found], timing, usage)

    return Plan(rows, ["logits"], finish)


def _entailment(model: Model, spec: ModelSpec, request: ExtractRequest, task: Extract, options: Options) -> Plan:
    sides = entailment.sides(model.labels, spec.id)
    labels = labels_to_try(request, spec.id)
    if len(request.items) * len(labels) > MAX_PAIRS:
        raise InvalidInputError(
            f"{len(request.items)} items and {len(labels)} labels are too many at once.",
            field="items",
            limit=MAX_PAIRS,
            hint=f"Items times labels is at most {MAX_PAIRS}: send {MAX_PAIRS // len(labels)} items at a time.",
        )
    template = options.text("hypothesis_template", task.hypothesis)
    if entailment.PLACE not in template:
        raise options.wrong("hypothesis_template", "a sentence with {} where the label goes")
    check_repeated(len(template) * len(labels), len(labels), options.field("hypothesis_template"))
    multi_label = options.flag("multi_label", task.multi_label)
    threshold, top_k = options.number("threshold", 0.0, 0.0, 1.0), options.count("top_k", len(labels), len(labels))
    rows = model.tokenizer.hypotheses(
        [item.text or "" for item in request.items],
        [entailment.hypothesis(template, label) for label in labels],
        options.longest(spec.max_sequence_length),
        options.overflow(),
    )

    def finish(computed: Mapping[str, Outputs], timing: Timing, usage: Usage) -> bytes:
        logits = cast("Floats", computed["logits"])
        _check_labels(model.labels, logits, spec)
        by_item = logits.reshape(len(request.items), len(labels), -1)
        scores = entailment.probabilities(by_item, sides, multi_label=multi_label)
        found = [classification.ranked(labels, own, threshold=threshold, top_k=top_k) for own in scores]
        return _reply(spec, request, [Extracted(classifications=own) for own in found], timing, usage)

    return Plan(rows, ["logits"], finish, item=lambda row: f"items[{row // len(labels)}]")


def _spans(model: Model, spec: ModelSpec, request: ExtractRequest, task: Extract, options: Options) -> Plan:
    tokenizer = model.tokenizer
    if not isinstance(tokenizer, LabelTokenizer):
        raise ModelLoadFailedError(f"{spec.id} is of family {spec.family}, which puts no labels before a text.")
    labels = labels_to_try(request, spec.id)
    threshold = options.number("threshold", SPAN_THRESHOLD, 0.0, 1.0)
    flat, multi_label = options.flag("flat_ner", default=True), options.flag("multi_label", task.multi_label)
    texts = [item.text or "" for item in request.items]
    longest = options.longest(spec.max_sequence_length)
    read = _by_lots(
        texts, lambda lot, name: tokenizer.labelled(lot, labels, longest, task.overlap, most=MAX_WINDOWS, name=name)
    )
    rows = [row for own in read for row in own.rows]
    token_level = tokenizer.config.span_mode == TOKEN_LEVEL
    words = sum(len(row.marks.words) for row in rows if row.marks)
    scores = words * len(labels) * (3 if token_level else tokenizer.config.max_width)
    _check_scores(scores)

    def finish(computed: Mapping[str, Outputs], timing: Timing, usage: Usage) -> bytes:
        outputs = cast("Sequence[Floats]", computed["spans"]) if rows else []
        made, at, count = [], 0, 0
        for text, own in zip(texts, read, strict=True):
            part, at = outputs[at : at + len(own.rows)], at + len(own.rows)
            found = spans.candidates(own.bounds, part, threshold, token_level=token_level, already=count)
            count += len(found.score)
            made.append(Extracted(spans.entities(text, own, found, labels, flat=flat, multi_label=multi_label)))
        return _reply(spec, request, made, timing, usage)

    # Where nearly everything is a candidate, choosing takes longer than the forward pass.
    long = threshold < LOW_THRESHOLD or scores > INLINE_SCORES
    return Plan(rows, ["spans"], finish, long, item=_item_of([len(own.rows) for own in read]))


def _check_scores(scores: int) -> None:
    if scores > MAX_SCORES:
        raise InputTooLongError(
            f"The texts have {scores} spans and labels to be scored.",
            field="items",
            limit=MAX_SCORES,
            hint="Send fewer or shorter texts, or fewer labels, at once.",
        )


def _known(asked: Sequence[str], labels: Sequence[str], spec: ModelSpec) -> Sequence[str]:
    """The labels asked for, each one of the model's."""
    for i, label in enumerate(asked):
        if label not in labels:
            raise InvalidInputError(
                f"{spec.id} has no label {label!r}.",
                field=f"params.labels[{i}]",
                limit=", ".join(labels),
                hint=f"Its labels: {', '.join(labels)}.",
            )
    return asked


def _item_of(counts: Sequence[int]) -> Callable[[int], str]:
    """`Plan.item` where item ``i`` has ``counts[i]`` rows."""
    ends = list(accumulate(counts))
    return lambda row: f"items[{bisect_right(ends, row)}]"


def _by_lots(texts: Sequence[str], cut: Callable[[Sequence[str], Name], list[W]]) -> list[W]:
    """What ``cut`` makes of the texts, some at a time: what a tokenizer says of a token takes hundreds of bytes.

    Raises:
        InputTooLongError: together they take more than `MAX_WINDOWS`; no text behind that one is looked at.
    """
    made: list[W] = []
    total, begin = 0, 0
    while begin < len(texts):
        end, characters = begin + 1, len(texts[begin])
        while end < len(texts) and (characters := characters + len(texts[end])) <= LOT:
            end += 1
        made += cut(texts[begin:end], _items_from(begin))
        for i in range(begin, end):
            if (total := total + len(made[i].rows)) > MAX_WINDOWS:
                raise InputTooLongError(
                    f"The texts up to this one take {total} windows of the model's length.",
                    field=ITEM(i),
                    limit=MAX_WINDOWS,
                    hint="Send fewer or shorter texts at once.",
                )
        begin = end
    return made


def _items_from(begin: int) -> Name:
    return lambda i: ITEM(begin + i)


def _check_labels(labels: Sequence[str], logits: Floats, spec: ModelSpec) -> None:
    if len(labels) != logits.shape[1]:
        raise ModelLoadFailedError(
            f"{spec.id} computes {logits.shape[1]} labels, and {len(labels)} are named.",
            hint="Name them in order under tasks.extract.labels of its spec.",
        )


def _reply(spec: ModelSpec, request: ExtractRequest, found: Sequence[Extracted], timing: Timing, usage: Usage) -> bytes:
    return replies.extract(spec.id, [item.id for item in request.items], found, timing, usage)
