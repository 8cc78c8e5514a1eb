"""Extract equals transformers' pipelines: on real checkpoints as stored, on small random ones as they run here."""

from __future__ import annotations

import json
import warnings
from functools import lru_cache
from importlib import import_module
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from sie_bundle.models.checkpoint import Checkpoint
from sie_bundle.models.model import EncoderModel
from sie_bundle.operations import extract
from sie_bundle.operations.entities import AGGREGATIONS
from sie_config.model.model_spec import ModelSpec
from sie_config.model.sources import LocalSource
from sie_config.model.tasks import Extract, Tasks
from sie_sdk import results
from sie_sdk.types import Entity, ExtractParams, ExtractRequest, ExtractResult, Item, Timing, Usage
from tests.golden import golden, random_models, tiny_tokenizers
from tests.golden.checkpoint_table import CHECKPOINTS
from tests.golden.checkpoints import checkpoint
from tests.golden.random_kinds import KINDS

transformers: Any = import_module("transformers")
transformers.utils.logging.disable_progress_bar()

NER_STRIDE = 128
"""What windows of the stored reference share, see ``make_golden``."""

TAGGERS = ["bert-ner", "tinybert-ner"]
REFERENCE = 2e-5
"""Largest difference of a score to the reference; measured 4e-6."""
HALF = 0.03
"""The same in the precision this machine takes by itself; measured 0.023 in bfloat16."""

Spans = list[tuple[str, int, int]]


def model(folder: Path, family: str, task: Extract, longest: int, **more: Any) -> EncoderModel:
    """``more``: the precision, and what else the spec says."""
    precision, source = more.pop("precision", "float32"), (LocalSource(path=str(folder)),)
    tasks = Tasks(extract=task)
    spec = ModelSpec(folder.name, family, tasks, source, max_sequence_length=longest, revision="golden", **more)
    return EncoderModel(Checkpoint(spec, folder), precision_wanted=precision)


@lru_cache(maxsize=2)
def tagger(key: str, precision: str = "float32") -> EncoderModel:
    task = Extract("entities", overlap=NER_STRIDE)
    return model(checkpoint(key), "bert", task, CHECKPOINTS[key].max_length, precision=precision)


def classifier(key: str, precision: str = "float32") -> EncoderModel:
    folder, longest = checkpoint(key), CHECKPOINTS[key].max_length
    family, task = "deberta-v2" if key == "prompt-guard" else "bert", Extract("classes")
    files: tuple[str, ...] = ()
    if key == "injection-classifier":
        task = Extract("classes", head="2_Dense.linear relu 3_Dense.linear", pooling="mean")
        files = ("2_Dense/model.safetensors", "3_Dense/model.safetensors")
    return model(folder, family, task, longest, files=files, precision=precision)


def run(model: EncoderModel, texts: list[str], **params: Any) -> list[ExtractResult]:
    request = ExtractRequest([Item(text=text) for text in texts], ExtractParams(**params))
    plan = extract.plan(model, model.spec, request)
    rows = range(len(plan.rows))
    computed = model.forward(plan.rows, dict.fromkeys(plan.heads, rows)) if plan.rows else {}
    return results.read_extract(plan.finish(computed, Timing(), Usage()))


def spans(found: list[Entity]) -> Spans:
    return [(entity.label, entity.start or 0, entity.end or 0) for entity in found]


def reference(found: list[dict[str, Any]]) -> tuple[Spans, list[float]]:
    named = [(one.get("entity_group") or one["entity"], one["start"], one["end"]) for one in found]
    return named, [one["score"] for one in found]


# -- real checkpoints --------------------------------------------------------------------------------------------------


@pytest.mark.weights
@pytest.mark.parametrize("aggregation", AGGREGATIONS)
@pytest.mark.parametrize("key", TAGGERS)
def test_entities_equal_those_of_the_pipeline(key: str, aggregation: str) -> None:
    texts = {name: text for name, text in golden.tagged_texts().items() if name != "long"}
    found = run(tagger(key), list(texts.values()), options={"aggregation_strategy": aggregation})
    for name, result in zip(texts, found, strict=True):
        named, scores = reference(golden.entities(key)[aggregation][name])
        assert spans(result.entities) == named, name
        assert [entity.score for entity in result.entities] == pytest.approx(scores, abs=REFERENCE), name
        assert all(entity.text == texts[name][entity.start : entity.end] for entity in result.entities)
    assert sum(len(result.entities) for result in found) > 30


@pytest.mark.weights
@pytest.mark.parametrize("aggregation", AGGREGATIONS[1:])
@pytest.mark.parametrize("key", TAGGERS)
def test_a_long_text_has_the_entities_of_the_pipeline_where_there_is_one_window(key: str, aggregation: str) -> None:
    """In what two windows share, the pipeline takes the longer entity, and the engine that with more around it."""
    text, own = golden.tagged_texts()["long"], tagger(key)
    (windows,) = own.tokenizer.windows([text], own.spec.max_sequence_length, NER_STRIDE)
    shared = [
        (int(windows.spans[start, 0]), int(windows.spans[stop - 1, 1]))
        for (_, stop), (start, _) in pairwise(windows.bounds)
    ]
    assert shared

    def alone(found: Spans, scores: list[float]) -> dict[tuple[str, int, int], float]:
        return {
            span: score
            for span, score in zip(found, scores, strict=True)
            if all(span[2] <= first or span[1] >= last for first, last in shared)
        }

    (result,) = run(own, [text], options={"aggregation_strategy": aggregation})
    ours = alone(spans(result.entities), [entity.score for entity in result.entities])
    theirs = alone(*reference(golden.entities(key)[aggregation]["long"]))
    assert ours.keys() == theirs.keys() and len(ours) > 40
    assert list(ours.values()) == pytest.approx(list(theirs.values()), abs=REFERENCE)
    every = spans(result.entities)
    assert all(before[2] <= after[1] for before, after in pairwise(every))


@pytest.mark.weights
@pytest.mark.parametrize("key", TAGGERS)
def test_this_machines_own_precision_finds_the_same_entities(key: str) -> None:
    """But for texts with a token that has two labels which are equally likely."""
    exact = tagger(key)
    texts = {name: text for name, text in golden.tagged_texts().items() if name != "long" and not tied(exact, text)}
    assert len(texts) >= 11
    found = run(tagger(key, "auto"), list(texts.values()))
    for name, result in zip(texts, found, strict=True):
        named, scores = reference(golden.entities(key)["simple"][name])
        assert spans(result.entities) == named, name
        assert [entity.score for entity in result.entities] == pytest.approx(scores, abs=HALF), name


def tied(model: EncoderModel, text: str) -> bool:
    """Whether a token's two likeliest labels are so near each other that bfloat16 may prefer the other."""
    rows = model.tokenizer.rows([text], model.spec.max_sequence_length)
    (logits,) = model.forward(rows, {"token_logits": [0]})["token_logits"]
    assert isinstance(logits, np.ndarray)
    first, second = np.sort(logits, axis=-1)[:, -1], np.sort(logits, axis=-1)[:, -2]
    return bool((first - second).min() < 0.1)


@pytest.mark.weights
@pytest.mark.parametrize(("precision", "near"), [("float32", REFERENCE), ("auto", HALF)])
@pytest.mark.parametrize("key", [key for key, record in CHECKPOINTS.items() if record.task == "labels"])
def test_classes_equal_the_softmax_of_the_classifier(key: str, precision: str, near: float) -> None:
    stored, texts = golden.arrays(key), golden.messages()
    own = classifier(key, precision)
    assert stored["names"].tolist() == list(texts)
    for result, expected in zip(run(own, list(texts.values())), stored["probabilities"], strict=True):
        likely = {one.label: one.score for one in result.classifications}
        assert [likely[label] for label in own.labels] == pytest.approx(expected, abs=near)
        assert list(likely.values()) == sorted(likely.values(), reverse=True)


# -- random models -----------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> Any:
    root = tmp_path_factory.mktemp("extract")

    @lru_cache
    def folder(kind: str) -> Path:
        return random_models.make(kind, root / kind)

    return folder


def pipeline(task: str, kind: str, folder: Path, **choices: Any) -> Any:
    """transformers' pipeline around a random model."""
    family = tiny_tokenizers.FAMILIES[KINDS[kind].tokenizer]
    types = ["token_type_ids"] if kind.startswith("bert") else []
    tokenizer = transformers.PreTrainedTokenizerFast(
        tokenizer_file=str(folder / "tokenizer.json"),
        unk_token=family.unknown,
        pad_token=family.first[1] if "<s>" in family.first else "[PAD]",
        model_max_length=64,
        model_input_names=["input_ids", "attention_mask", *types],
    )
    return transformers.pipeline(
        task, model=random_models.model(kind, folder), tokenizer=tokenizer, device="cpu", **choices
    )


WORD = st.sampled_from(
    [*tiny_tokenizers.WORDS, "ab", "x", "Hello", "é", "e\u0301a", "日本", "🚀", "½", "?", ",", "a\0b"]
)
TEXT = st.lists(WORD, min_size=1, max_size=12).map(" ".join) | st.lists(WORD, min_size=1, max_size=6).map("".join)


@pytest.mark.parametrize("kind", ["bert-ner", "roberta-ner", "xlm-roberta-ner"])
def test_random_taggers_find_what_the_pipeline_finds(kind: str, folders: Any) -> None:
    """The three kinds of tokenizers: with marked sub-words, by bytes, and with the space before a word in its token."""
    folder = folders(kind)
    theirs = pipeline("token-classification", kind, folder)
    ours = model(folder, kind.removesuffix("-ner"), Extract("entities"), 64)

    @settings(max_examples=60, deadline=None)
    @given(TEXT, st.sampled_from(AGGREGATIONS))
    def same(text: str, aggregation: str) -> None:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # "Tokenizer does not support real words", for two of the kinds
            expected, scores = reference(theirs(text, aggregation_strategy=aggregation))
        (result,) = run(ours, [text], options={"aggregation_strategy": aggregation})
        named = [(bare(text, span), score) for span, score in zip(expected, scores, strict=True)]
        named = [(span, score) for span, score in named if span[1] < span[2]]
        # Parts of one character may be several entities of the pipeline; the engine gives it to one, unless asked.
        assume(aggregation == "none" or all(before[2] <= after[1] for (before, _), (after, _) in pairwise(named)))
        assert spans(result.entities) == [span for span, _ in named]
        found = [entity.score for entity in result.entities]
        assert found == pytest.approx([score for _, score in named], abs=REFERENCE)

    same()


def bare(text: str, span: tuple[str, int, int]) -> tuple[str, int, int]:
    """Without the white space around it, which the pipeline counts to a word where the tokenizer does."""
    label, start, stop = span
    piece = text[start:stop]
    start += len(piece) - len(piece.lstrip())
    return label, start, start + len(piece.strip())


@pytest.mark.parametrize("multi_label", [False, True])
@pytest.mark.parametrize("kind", ["bert-nli", "roberta-nli", "modernbert-nli", "distilbert-nli"])
def test_random_models_classify_like_the_zero_shot_pipeline(kind: str, multi_label: bool, folders: Any) -> None:
    folder = folders(kind)
    theirs = pipeline("zero-shot-classification", kind, folder)
    ours = model(folder, kind.removesuffix("-nli"), Extract("entailment"), 64)
    texts = ["hello world", "ship", "coffee " * 100]
    for labels in (["query", "lighthouse world", "no"], ["yes"]):
        choices = {"multi_label": multi_label, "hypothesis_template": "ship {} query"}
        for text, result in zip(texts, run(ours, texts, labels=labels, options=choices), strict=True):
            expected = theirs(text, candidate_labels=labels, **choices)
            assert [found.label for found in result.classifications] == expected["labels"]
            assert [found.score for found in result.classifications] == pytest.approx(expected["scores"], abs=REFERENCE)


def test_the_labels_of_a_model_are_those_of_its_config(folders: Any) -> None:
    folder = folders("bert-ner")
    config = json.loads((folder / "config.json").read_text())
    ours = model(folder, "bert", Extract("entities"), 64)
    assert ours.labels == tuple(config["id2label"].values())
