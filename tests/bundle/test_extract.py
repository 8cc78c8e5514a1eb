"""Extract by requests: what each kind of model answers, and what it refuses by name."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from sie_broker.records import Work
from sie_bundle.engine.cost import Fit
from sie_bundle.engine.executor import Executor
from sie_bundle.engine.outputs import Outputs
from sie_bundle.engine.row import Row
from sie_bundle.models.tokenization import Tokenizer
from sie_bundle.operations import entailment, extract
from sie_bundle.operations.operation import Operation
from sie_bundle.residency.residency import Residency
from sie_config.model.model_spec import ModelSpec
from sie_config.model.tasks import Extract, Tasks
from sie_config.registry import Registry, lane_of
from sie_sdk import results, wire
from sie_sdk.errors import InputTooLongError, InvalidInputError, ModelLoadFailedError
from sie_sdk.types import ExtractParams, ExtractRequest, ExtractResult, Item, Timing, Usage
from tests import tiny_model
from tests.golden import tiny_tokenizers

NER = ("O", "B-PER", "I-PER", "B-SHIP", "I-SHIP")
NLI = ("contradiction", "neutral", "entailment")
WORDS = {"hello": 1, "world": 2, "ship": 3, "lighthouse": 4}
"""The label of each word of the tiny tokenizer; all else is O."""


class Knowing:
    """A model that knows its words: a token's logits are by its id, a text's by how often each word is in it."""

    heads: tuple[str, ...] = ("logits", "token_logits")

    def __init__(self, tokenizer: Tokenizer, task: Extract, labels: Sequence[str]) -> None:
        self.spec = tagger(Path(), task)
        self.tokenizer = tokenizer
        self.labels = task.labels or tuple(labels)
        self.bytes, self.fit = 1, Fit()
        self.computed: list[int] = []
        self._label = {self.tokenizer.id(word): label for word, label in WORDS.items()}

    def forward(self, rows: Sequence[Row], wanted: Mapping[str, Sequence[int]]) -> Mapping[str, Outputs]:
        self.computed += [len(row) for row in rows]
        made: dict[str, Outputs] = {}
        for head, texts in wanted.items():
            tokens = [np.stack([self._logits(number) for number in rows[text].ids.tolist()]) for text in texts]
            made[head] = tokens if head == "token_logits" else np.stack([own.sum(axis=0) for own in tokens])
        return made

    def _logits(self, number: int) -> np.ndarray[tuple[int], np.dtype[np.float32]]:
        logits = np.zeros(len(self.labels), dtype=np.float32)
        logits[self._label.get(number, 0) % len(self.labels)] = 2.0
        return logits


def tagger(folder: Path, task: Extract) -> ModelSpec:
    """At most 32 tokens."""
    return msgspec.structs.replace(tiny_model.spec(folder, "test/tagger"), tasks=Tasks(extract=task))


@pytest.fixture(scope="module")
def tokenizer() -> Tokenizer:
    """[CLS] and [SEP] around texts and pairs; the words as one token each, other lower-case words by letters."""
    return Tokenizer(tiny_tokenizers.make("bert"))


@pytest.fixture
def ner(tokenizer: Tokenizer) -> Knowing:
    return Knowing(tokenizer, Extract("entities", overlap=2), NER)


@pytest.fixture
def classifier(tokenizer: Tokenizer) -> Knowing:
    return Knowing(tokenizer, Extract("classes"), ("none", "greeting", "place"))


@pytest.fixture
def nli(tokenizer: Tokenizer) -> Knowing:
    return Knowing(tokenizer, Extract("entailment", hypothesis="{}"), NLI)


def run(model: Knowing, *texts: str, **params: Any) -> list[ExtractResult]:
    """Plan, compute and finish, as the operation does."""
    request = ExtractRequest([Item(text=text) for text in texts], ExtractParams(**params))
    plan = extract.plan(model, model.spec, request)
    rows = range(len(plan.rows))
    computed = model.forward(plan.rows, dict.fromkeys(plan.heads, rows)) if plan.rows else {}
    return results.read_extract(plan.finish(computed, Timing(), Usage()))


def spans(result: ExtractResult) -> list[tuple[str, str, int | None, int | None]]:
    return [(entity.text, entity.label, entity.start, entity.end) for entity in result.entities]


def refused(model: Knowing, *texts: str, **params: Any) -> InvalidInputError:
    """The error of a request that never gets as far as the device."""
    model.computed.clear()
    with pytest.raises(InvalidInputError) as caught:
        run(model, *(texts or ("hello",)), **params)
    assert model.computed == []
    return caught.value


# -- entities ----------------------------------------------------------------------------------------------------------


def test_entities_are_slices_of_the_text_with_whole_offsets(ner: Knowing) -> None:
    text = "a Hello world, b ship."
    (result,) = run(ner, text)
    assert spans(result) == [("Hello world", "PER", 2, 13), ("ship", "SHIP", 17, 21)]
    for entity in result.entities:
        assert type(entity.start) is int and type(entity.end) is int
        assert text[entity.start : entity.end] == entity.text
        assert entity.score == pytest.approx(np.exp(2) / (np.exp(2) + 4))
    assert result.id == "item-0" and result.classifications == []


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("👩‍👩‍👧 ship 🏳️‍🌈", ("ship", 6, 10)),
        ("a\0 ship", ("ship", 3, 7)),
        ("he\0llo", ("he\0llo", 0, 6)),
        ("cafe\u0301 He\u0301llo", ("He\u0301llo", 6, 12)),
        ("\u2028ship\u200b", ("ship", 1, 5)),
        ("مرحبا ship", ("ship", 6, 10)),
        ("\U0001d518\U0001d52b ship", ("ship", 3, 7)),
    ],
)
def test_offsets_count_code_points(ner: Knowing, text: str, expected: tuple[str, int, int]) -> None:
    (result,) = run(ner, text)
    assert [(entity.text, entity.start, entity.end) for entity in result.entities] == [expected]


@pytest.mark.parametrize("text", ["", " ", "\0", "[SEP]", "[CLS] [SEP] [PAD]", "a b c"])
def test_texts_with_nothing_in_them_give_nothing(ner: Knowing, text: str) -> None:
    empty, full = run(ner, text, "ship")
    assert empty.entities == [] and spans(full) == [("ship", "SHIP", 0, 4)]


def test_texts_without_tokens_alone_compute_nothing(ner: Knowing) -> None:
    assert [result.entities for result in run(ner, "", "")] == [[], []]
    assert ner.computed == []


def test_a_long_text_is_read_in_windows_and_every_entity_found_once(ner: Knowing) -> None:
    text = "hello world a ship b " * 500
    results_by_length = [run(ner, text, options={"max_seq_length": length})[0] for length in (32, 17)]
    assert max(ner.computed) == 32
    assert results_by_length[0] == results_by_length[1]
    places = [21 * n for n in range(500)]
    expected = [entity for at in places for entity in (("PER", at, at + 11), ("SHIP", at + 14, at + 18))]
    assert [(entity.label, entity.start, entity.end) for entity in results_by_length[0].entities] == expected


def test_each_item_has_its_own_entities_however_many_windows_it_takes(ner: Knowing) -> None:
    found = run(ner, "ship", "a " * 100 + "ship", "", "hello " * 40)
    assert [len(result.entities) for result in found] == [1, 1, 0, 40]
    assert spans(found[1]) == [("ship", "SHIP", 200, 204)]


def test_the_strategy_is_the_models_or_the_requests(ner: Knowing) -> None:
    assert spans(run(ner, "hello world")[0]) == [("hello world", "PER", 0, 11)]
    each = run(ner, "hello world", options={"aggregation_strategy": "none"})[0]
    assert spans(each) == [("hello", "B-PER", 0, 5), ("world", "I-PER", 6, 11)]
    wrong = refused(ner, options={"aggregation_strategy": "best"})
    assert wrong.field == "params.options.aggregation_strategy"
    assert wrong.limit == "none, simple, first, average, max"


def test_a_threshold_leaves_out_what_is_less_certain(ner: Knowing) -> None:
    assert len(run(ner, "ship", options={"threshold": 0.6})[0].entities) == 1
    assert run(ner, "ship", options={"threshold": 0.7})[0].entities == []
    assert refused(ner, options={"threshold": 1.5}).field == "params.options.threshold"


def test_labels_choose_among_the_models_entities(ner: Knowing) -> None:
    assert spans(run(ner, "hello ship", labels=["SHIP"])[0]) == [("ship", "SHIP", 6, 10)]
    assert len(run(ner, "hello ship", labels=[])[0].entities) == 2
    wrong = refused(ner, labels=["PER", "ORG"])
    assert (wrong.field, wrong.limit) == ("params.labels[1]", "PER, SHIP")


def test_entities_that_overlap_are_not_to_be_had(ner: Knowing) -> None:
    assert len(run(ner, "ship", options={"flat_ner": True})[0].entities) == 1
    assert refused(ner, options={"flat_ner": False}).field == "params.options.flat_ner"


def test_more_windows_than_a_request_may_have_are_refused(ner: Knowing) -> None:
    wrong = refused(ner, "ship", "ship " * 5000, options={"max_seq_length": 3})
    assert isinstance(wrong, InputTooLongError)
    assert (wrong.field, wrong.limit) == ("items[1].text", extract.MAX_WINDOWS)


def test_a_text_that_is_not_unicode_is_named(ner: Knowing) -> None:
    assert refused(ner, "fine", "\ud800").field == "items[1].text"


# -- classes -----------------------------------------------------------------------------------------------------------


def scores(result: ExtractResult) -> dict[str, float]:
    """Label to score, in the order of the reply."""
    return {found.label: round(found.score, 4) for found in result.classifications}


def test_classes_are_all_labels_best_first_and_add_up_to_one(classifier: Knowing) -> None:
    greeting, place = run(classifier, "hello hello", "world")
    likely = scores(greeting)
    assert list(likely) == ["none", "greeting", "place"]  # the two special tokens count as none
    assert likely == {"none": 0.4955, "greeting": 0.4955, "place": 0.0091}
    assert sum(found.score for found in place.classifications) == pytest.approx(1)
    assert greeting.entities == []


def test_labels_that_do_not_exclude_each_other_have_scores_of_their_own(
    tokenizer: Tokenizer, classifier: Knowing
) -> None:
    by_spec = Knowing(tokenizer, Extract("classes", multi_label=True), classifier.labels)
    expected = {"none": 0.982, "greeting": 0.8808, "place": 0.5}
    assert scores(run(by_spec, "hello")[0]) == expected
    assert scores(run(classifier, "hello", options={"multi_label": True})[0]) == expected


def test_a_single_logit_is_a_probability(tokenizer: Tokenizer) -> None:
    alone = Knowing(tokenizer, Extract("classes"), ("spam",))
    assert scores(run(alone, "")[0]) == {"spam": 0.982}


def test_classes_can_be_fewer(classifier: Knowing) -> None:
    assert list(scores(run(classifier, "hello", options={"top_k": 2})[0])) == ["none", "greeting"]
    assert list(scores(run(classifier, "hello", options={"threshold": 0.5})[0])) == ["none"]
    chosen = run(classifier, "hello", labels=["place", "greeting"])[0]
    assert scores(chosen) == {"greeting": 0.1173, "place": 0.0159}
    assert refused(classifier, options={"top_k": 4}).limit == 3
    assert refused(classifier, labels=["weather"]).limit == "none, greeting, place"


def test_outputs_of_one_name_have_scores_of_their_own(tokenizer: Tokenizer) -> None:
    twice = Knowing(tokenizer, Extract("classes"), ("none", "place", "place"))
    (found,) = run(twice, "hello")
    assert [each.label for each in found.classifications] == ["none", "place", "place"]
    assert sum(each.score for each in found.classifications) == pytest.approx(1)
    (asked,) = run(twice, "hello", labels=["place"])
    assert asked.classifications == found.classifications[1:]


def test_a_text_over_the_limit_is_cut_or_refused(classifier: Knowing) -> None:
    run(classifier, "hello " * 40)
    assert classifier.computed == [32]
    wrong = refused(classifier, "hello", "hello " * 40, options={"overflow_policy": "error"})
    assert isinstance(wrong, InputTooLongError)
    assert (wrong.field, wrong.limit) == ("items[1].text", 32)


def test_labels_that_do_not_fit_the_head_are_the_specs_fault(tokenizer: Tokenizer) -> None:
    model = Knowing(tokenizer, Extract("classes"), ("a", "b"))
    plan = extract.plan(model, model.spec, ExtractRequest([Item(text="hello")]))
    with pytest.raises(ModelLoadFailedError, match="computes 3 labels, and 2 are named"):
        plan.finish({"logits": np.zeros((1, 3), dtype=np.float32)}, Timing(), Usage())


# -- entailment --------------------------------------------------------------------------------------------------------


def test_labels_are_tried_as_hypotheses_and_share_one(nli: Knowing) -> None:
    # Rows are "[CLS] text [SEP] label [SEP]"; of the labels only "world" has a token that speaks for entailment.
    for result in run(nli, "a", "ship", labels=["hello", "world"]):
        assert scores(result) == {"world": 0.8808, "hello": 0.1192}
    assert nli.computed == [5, 5, 5, 5]


def test_labels_by_themselves_are_entailment_against_contradiction(nli: Knowing) -> None:
    (result,) = run(nli, "a", labels=["hello", "world"], options={"multi_label": True})
    # The special tokens and the letter speak for contradiction with 2 each; neutral does not count.
    assert scores(result) == {"world": 0.0025, "hello": 0.0003}
    assert scores(run(nli, "a", labels=["world"])[0]) == {"world": 0.0025}


def test_a_template_has_its_place_filled_once_and_nothing_else(nli: Knowing) -> None:
    assert entailment.hypothesis("A {} of {} and {0.__class__}.", "{}!") == "A {}! of {} and {0.__class__}."
    (result,) = run(nli, "a", labels=["b"], options={"hypothesis_template": "world {}"})
    assert result.classifications[0].label == "b"
    assert nli.computed == [6]
    wrong = refused(nli, labels=["b"], options={"hypothesis_template": "nothing"})
    assert wrong.field == "params.options.hypothesis_template"


@pytest.mark.parametrize("labels", [None, []])
def test_without_labels_there_is_nothing_to_try(nli: Knowing, labels: list[str] | None) -> None:
    assert refused(nli, labels=labels).field == "params.labels"


def test_only_the_text_is_cut_to_make_room_for_a_label(nli: Knowing) -> None:
    run(nli, "a " * 100, labels=["hello world", "ship"])
    assert nli.computed == [32, 32]
    wrong = refused(nli, "a", "a " * 28, labels=["b", "b b"], options={"overflow_policy": "error"})
    assert isinstance(wrong, InputTooLongError)
    assert (wrong.field, wrong.limit) == ("items[1].text", 32)
    assert refused(nli, labels=["b", "b " * 40]).field == "params.labels[1]"


def test_items_times_labels_have_a_limit(nli: Knowing) -> None:
    wrong = refused(nli, *["a"] * 200, labels=[str(number) for number in range(100)])
    assert (wrong.field, wrong.limit) == ("items", extract.MAX_PAIRS)
    assert "send 163 items" in (wrong.hint or "")


@pytest.mark.parametrize(
    ("labels", "expected"),
    [
        (("CONTRADICTION", "NEUTRAL", "ENTAILMENT"), (2, 0)),
        (("entailment", "neutral", "contradiction"), (0, 2)),
        (("neutral", "entailment", "contradiction"), (1, 2)),
        (("entailment", "not_entailment"), (0, 1)),
        (("not_entailment", "Entailment"), (1, 0)),
        (("no", "entail"), (1, 0)),
    ],
)
def test_entailment_and_contradiction_are_found_by_name(labels: tuple[str, ...], expected: tuple[int, int]) -> None:
    assert entailment.sides(labels, "m") == expected


@pytest.mark.parametrize(
    "labels", [(), ("LABEL_0", "LABEL_1", "LABEL_2"), ("entailment", "neutral", "other"), ("a", "b")]
)
def test_labels_that_do_not_say_what_they_mean_are_refused(labels: tuple[str, ...]) -> None:
    with pytest.raises(ModelLoadFailedError, match="do not say which"):
        entailment.sides(labels, "m")


def test_a_template_that_would_be_gigabytes_with_all_its_labels_is_refused(nli: Knowing) -> None:
    labels, template = [f"label {number}" for number in range(1000)], "{} " + "x" * 20_000
    assert refused(nli, labels=labels, options={"hypothesis_template": template}).field == (
        "params.options.hypothesis_template"
    )


# -- every kind --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["ner", "classifier", "nli"])
def test_unknown_options_and_parameters_are_refused_by_name(kind: str, request: pytest.FixtureRequest) -> None:
    model: Knowing = request.getfixturevalue(kind)
    assert refused(model, options={"num_beams": 4}).field == "params.options.num_beams"
    assert refused(model, output_schema={"a": "string"}).field == "params.output_schema"
    assert refused(model, instruction="Find ships.").field == "params.instruction"
    assert refused(model, labels=["any"] if kind == "nli" else None, options={"max_seq_length": 33}).limit == 32


def test_a_model_without_the_task_says_what_it_has(tiny_folder: Path, ner: Knowing) -> None:
    ner.spec = tiny_model.spec(tiny_folder)
    assert "It offers: dense" in (refused(ner).hint or "")


# -- the whole way -----------------------------------------------------------------------------------------------------


@pytest.fixture
def tagging(tmp_path: Path) -> ModelSpec:
    """The tiny model with a layer over each token."""
    folder = tiny_model.make(tmp_path / "tagger")
    tensors, random = load_file(folder / "model.safetensors"), np.random.default_rng(1)
    tensors["classifier.weight"] = random.normal(size=(len(NER), tiny_model.HIDDEN)).astype(np.float32)
    save_file(tensors, folder / "model.safetensors")
    return tagger(folder, Extract("entities", labels=NER, overlap=8))


async def test_a_request_goes_all_the_way_from_its_bytes_to_the_replys(tagging: ModelSpec, tmp_path: Path) -> None:
    items = [Item(text="hello world ship" * 20, id="long"), Item(text=""), Item(text="ship hello")]
    body = wire.request_body(ExtractRequest(items, ExtractParams(options={"aggregation_strategy": "first"})))
    executor, threads = Executor(), ThreadPoolExecutor(1)
    operation = Operation(
        *(extract.parse, extract.plan, Registry([tagging]), Residency(None, tmp_path / "cache", 1 << 30)),
        executor,
        {"interactive": threads},
    )
    work = Work(id="1", op="extract", lane=lane_of(tagging), model=tagging.id, data=body, time=time.time())
    found = results.read_extract(await operation(work))
    executor.close()
    threads.shutdown()
    assert [result.id for result in found] == ["long", "item-1", "item-2"]
    assert found[0].entities and not found[1].entities
    for item, result in zip(items, found, strict=True):
        for entity in result.entities:
            assert item.text is not None and item.text[entity.start : entity.end] == entity.text
            assert entity.label in ("PER", "SHIP")
    assert found[0].timing is not None and found[0].timing.inference_ms > 0
