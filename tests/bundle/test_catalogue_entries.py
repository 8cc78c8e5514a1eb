"""Every ready entry of the packaged catalogue that scores, extracts, or encodes to sparse or token vectors, computed.

Its spec as it is, but for the sources: a small model with random weights of the same family, laid out as the published
one, with as many positions and vocabulary entries. A request goes the whole way, and transformers computes what should
come out, from token ids that are put together here. So each field of the spec has to be read: markers, projection,
template, hypothesis, labels.
"""

from __future__ import annotations

import dataclasses
import json
import re
import string
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
import numpy as np
import numpy.typing as npt
import pytest
import tokenizers
import torch
from safetensors.torch import load_file, save_file

from sie_broker.records import Work
from sie_bundle.engine.executor import Executor
from sie_bundle.operations import encode, extract, score
from sie_bundle.operations.operation import Operation
from sie_bundle.residency.residency import Residency
from sie_config import catalog
from sie_config.model.model_spec import ModelSpec
from sie_config.model.sources import LocalSource
from sie_config.model.tasks import Multivector
from sie_config.registry import Registry, lane_of
from sie_sdk import results, wire
from sie_sdk.types import EncodeParams, EncodeRequest, ExtractParams, ExtractRequest, Item, Priority, ScoreRequest
from tests.golden import random_models
from tests.golden.checkpoint_schema import labels
from tests.golden.random_kinds import KINDS, Kind

Array = npt.NDArray[np.float32]
QUERY, DOCUMENT = "hello lighthouse", "ship, lighthouse world hello"
CLOSE = 2e-5
KIND_OF = {
    ("bert", "sparse"): "bert-splade",
    ("distilbert", "sparse"): "distilbert-splade",
    ("roberta", "sparse"): "roberta-splade",
    ("bert", "multivector"): "bert",
    ("modernbert", "multivector"): "modernbert",
    ("bert", "cross_encoder"): "bert-reranker",
    ("xlm-roberta", "cross_encoder"): "xlm-roberta-reranker",
    ("modernbert", "cross_encoder"): "modernbert-reranker",
    ("deberta-v2", "cross_encoder"): "deberta-v2-nli",
    ("qwen2", "yes_no"): "qwen2",
    ("qwen3", "yes_no"): "qwen3-reranker",
    ("distilbert", "entities"): "distilbert-ner",
    ("deberta-v2", "entities"): "deberta-v2-ner",
    ("roberta", "classes"): "roberta-nli",
    ("xlm-roberta", "classes"): "xlm-roberta-reranker",
    ("deberta-v2", "classes"): "deberta-v2-nli",
    ("deberta-v2", "entailment"): "deberta-v2-nli",
    ("modernbert", "entailment"): "modernbert-nli",
}
"""By family and task: the kind that stands for it. A new family of the catalogue needs a row."""
LABELS = {
    "cross_encoder": ("LABEL_0",),
    "entities": ("B-PER", "I-PER", "O", "B-LOC", "I-LOC"),
    "classes": ("good", "bad", "neither"),
    "entailment": ("not_entailment", "entailment"),
}
"""What config.json names where the entry does not."""


def kind_of_task(spec: ModelSpec) -> str:
    """sparse, multivector, or the kind of its score or extract task."""
    tasks = spec.tasks
    if tasks.dense:
        return "dense"
    if tasks.extract:
        return tasks.extract.kind
    if tasks.score and tasks.score.kind != "maxsim":
        return tasks.score.kind
    return "multivector" if tasks.multivector else "sparse"


def entries(*tasks: str) -> list[Any]:
    ready = [spec for spec in catalog.load().values() if spec.status == "ready"]
    return [pytest.param(spec, id=spec.id) for spec in ready if kind_of_task(spec) in tasks]


class Entry(NamedTuple):
    """An entry with a model to run: what transformers is asked by, and the entry's spec over the model's folder."""

    kind: str
    folder: Path
    spec: ModelSpec

    @property
    def tokenizer(self) -> tokenizers.Tokenizer:
        return tokenizers.Tokenizer.from_file(str(self.folder / "tokenizer.json"))

    def number(self, token: str) -> int:
        """The id of one token of the vocabulary."""
        return self.tokenizer.get_vocab()[token]

    def reference(self, ids: list[int], types: list[int] | None = None) -> dict[str, Array]:
        return random_models.reference(self.kind, self.folder, ids, types)


Make = Callable[[ModelSpec], Entry]


@pytest.fixture
def make(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Make:
    """The small model of an entry."""

    def made(spec: ModelSpec) -> Entry:
        name = f"entry of {spec.id}"
        monkeypatch.setitem(KINDS, name, kind_for(spec))
        folder = random_models.make(name, tmp_path / "model")
        if spec.tasks.multivector:
            lay_out_colbert(spec.tasks.multivector, spec.files, folder)
        return Entry(name, folder, msgspec.structs.replace(spec, sources=(LocalSource(path=str(folder)),)))

    return made


def kind_for(spec: ModelSpec) -> Kind:
    """A kind as small as ever, but with the entry's positions, vocabulary and number of labels."""
    task = kind_of_task(spec)
    kind = KINDS[KIND_OF[spec.family, task]]
    behind_padding = 2 if spec.family in ("roberta", "xlm-roberta") else 0
    config = kind.config | {"max_position_embeddings": spec.max_sequence_length + behind_padding}
    if spec.tasks.sparse:
        config |= {"vocab_size": spec.tasks.sparse.dim}
    if spec.tasks.multivector:
        config |= {"vocab_size": 400, "local_attention": 128}
    if own := spec.tasks.extract and spec.tasks.extract.labels:  # config.json does not name them
        config |= labels(*(f"LABEL_{number}" for number in range(len(own))))
    elif task in LABELS:
        config |= labels(*LABELS[task])
    architecture = "Qwen2ForCausalLM" if spec.family == "qwen2" else kind.architecture
    return dataclasses.replace(kind, architecture=architecture, published="", config=config)


def lay_out_colbert(task: Multivector, files: tuple[str, ...], folder: Path) -> None:
    """Add the markers to the tokenizer, and the projection where the entry says it lies."""
    made = tokenizers.Tokenizer.from_file(str(folder / "tokenizer.json"))
    made.add_tokens([task.query_marker, task.document_marker, ","])
    made.save(str(folder / "tokenizer.json"))
    weight = torch.randn((task.dim, 32), generator=torch.Generator().manual_seed(1))
    body = load_file(folder / "model.safetensors")
    if files:
        ((name,), layer) = files, task.projection.partition(".")[2]
        (folder / name).parent.mkdir()
        save_file({f"{layer}.weight": weight}, folder / name)
    else:  # as HF_ColBERT: the layer beside the body
        named = {f"bert.{name}": tensor for name, tensor in body.items()}
        save_file({**named, f"{task.projection}.weight": weight}, folder / "model.safetensors")
    np.save(folder / "projection.npy", weight.numpy())


@pytest.fixture
def threads() -> Iterator[ThreadPoolExecutor]:
    with ThreadPoolExecutor(1) as pool:
        yield pool


class Asking(NamedTuple):
    """Sends requests through a bundle's operations."""

    cache: Path
    threads: ThreadPoolExecutor

    async def __call__(self, entry: Entry, request: EncodeRequest | ScoreRequest | ExtractRequest) -> bytes:
        module = {EncodeRequest: encode, ScoreRequest: score, ExtractRequest: extract}[type(request)]
        executor = Executor()
        pool: dict[Priority, ThreadPoolExecutor] = {"interactive": self.threads, "bulk": self.threads}
        residency = Residency(None, self.cache, 1 << 30, precision="float32")
        operation: Any = Operation(module.parse, module.plan, Registry([entry.spec]), residency, executor, pool)
        lane, name = lane_of(entry.spec), module.__name__.rpartition(".")[2]
        work = Work("1", name, lane, entry.spec.id, wire.request_body(request), time.time())
        try:
            return bytes(await operation(work))
        finally:
            executor.close()


@pytest.fixture
def ask(tmp_path: Path, threads: ThreadPoolExecutor) -> Asking:
    return Asking(tmp_path / "cache", threads)


# -- sparse ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("spec", entries("sparse"))
async def test_a_sparse_entry_weighs_the_vocabulary_as_transformers(spec: ModelSpec, make: Make, ask: Asking) -> None:
    entry = make(spec)
    (found,) = results.read_encode(await ask(entry, EncodeRequest([Item(text=DOCUMENT)])))
    wanted = entry.reference(entry.tokenizer.encode(DOCUMENT).ids)["splade"]
    assert spec.tasks.sparse and found.sparse is not None
    weights = np.zeros(spec.tasks.sparse.dim, dtype=np.float32)
    weights[found.sparse.indices] = found.sparse.values
    assert wanted.shape == weights.shape and np.abs(weights - wanted).max() < CLOSE
    assert len(found.sparse.indices) > 1


# -- multivector -------------------------------------------------------------------------------------------------------


def late(entry: Entry, text: str, *, is_query: bool) -> Array:
    """ColBERT's vectors by transformers: marker, augmentation that nobody attends to, projection, skip list."""
    task, tokenizer = entry.spec.tasks.multivector, entry.tokenizer
    assert task is not None
    first, *ids = tokenizer.encode(text).ids
    ids = [first, entry.number(task.query_marker if is_query else task.document_marker), *ids]
    seen = len(ids)
    if is_query:
        ids += [entry.number(task.mask)] * (task.query_length - seen)
    loaded = plain(entry)
    mask = torch.arange(len(ids)) < (len(ids) if task.attend_to_mask else seen)
    with torch.inference_mode():
        states = loaded(input_ids=torch.tensor([ids]), attention_mask=mask[None].long()).last_hidden_state[0].numpy()
    vectors = states @ np.load(entry.folder / "projection.npy").T
    vectors /= np.linalg.norm(vectors, axis=1, keepdims=True)
    punctuation = {tokenizer.token_to_id(sign) for sign in string.punctuation} if task.skip_punctuation else set()
    return np.asarray(vectors[[is_query or number not in punctuation for number in ids]], dtype=np.float32)


def plain(entry: Entry) -> Any:
    """The body in transformers, without the projection that may lie in the same file."""
    config = json.loads((entry.folder / "config.json").read_text())
    body = {
        name.removeprefix("bert."): tensor
        for name, tensor in load_file(entry.folder / "model.safetensors").items()
        if not name.startswith("linear.")
    }
    library = random_models.transformers
    loaded = library.AutoModel.from_config(library.AutoConfig.for_model(**config), attn_implementation="eager")
    loaded.load_state_dict({name.removeprefix("model."): tensor for name, tensor in body.items()})
    return loaded.eval()


@pytest.mark.parametrize("spec", entries("multivector"))
async def test_a_late_interaction_entry_has_transformers_vectors(spec: ModelSpec, make: Make, ask: Asking) -> None:
    entry = make(spec)
    params = EncodeParams(options={"is_query": True})
    (query,) = results.read_encode(await ask(entry, EncodeRequest([Item(text=QUERY)], params)))
    (document,) = results.read_encode(await ask(entry, EncodeRequest([Item(text=DOCUMENT)])))
    assert spec.tasks.multivector and query.multivector is not None and document.multivector is not None
    wanted = late(entry, QUERY, is_query=True), late(entry, DOCUMENT, is_query=False)
    for vectors, expected in zip((query.multivector, document.multivector), wanted, strict=True):
        assert vectors.shape == expected.shape == (len(expected), spec.tasks.multivector.dim)
        assert np.abs(vectors - expected).max() < CLOSE
    assert len(query.multivector) == max(spec.tasks.multivector.query_length, 5)

    scores = results.read_score(await ask(entry, ScoreRequest(Item(text=QUERY), [Item(text=DOCUMENT)]))).scores
    assert scores[0].score == pytest.approx(float((wanted[0] @ wanted[1].T).max(axis=1).sum()), abs=1e-4)


# -- score -------------------------------------------------------------------------------------------------------------


def activated(spec: ModelSpec, logit: float) -> float:
    assert spec.tasks.score is not None
    return 1 / (1 + np.exp(-logit)) if spec.tasks.score.activation == "sigmoid" else logit


def by_document(body: bytes) -> list[float]:
    return [entry.score for entry in sorted(results.read_score(body).scores, key=lambda entry: entry.index)]


@pytest.mark.parametrize("spec", entries("cross_encoder"))
async def test_a_cross_encoder_entry_has_transformers_logits(spec: ModelSpec, make: Make, ask: Asking) -> None:
    entry = make(spec)
    items = [Item(text=DOCUMENT), Item(text="coffee")]
    found = by_document(await ask(entry, ScoreRequest(Item(text=QUERY), items)))
    for item, value in zip(items, found, strict=True):
        assert item.text is not None
        pair = entry.tokenizer.encode(QUERY, item.text)
        logits = entry.reference(pair.ids, pair.type_ids if spec.family == "bert" else None)["logits"]
        assert value == pytest.approx(activated(spec, float(logits[0])), abs=CLOSE)


@pytest.mark.parametrize("spec", entries("yes_no"))
async def test_a_judging_entry_asks_by_its_prompt(spec: ModelSpec, make: Make, ask: Asking) -> None:
    entry, task = make(spec), spec.tasks.score
    assert task is not None and task.prefix and task.suffix
    tokenizer = entry.tokenizer
    for instruction in (None, "hello world") if "{instruction}" in task.template else (None,):
        found = by_document(await ask(entry, ScoreRequest(Item(text=QUERY), [Item(text=DOCUMENT)], instruction)))
        text = task.template.replace("{query}", QUERY).replace("{document}", DOCUMENT)
        text = text.replace("{instruction}", instruction or task.instruction)
        texts = re.split("(\n)", text) if task.by_line else [text]
        parts = [(task.prefix, False), *((part, not task.by_line) for part in texts), (task.suffix, False)]
        ids = [number for part, special in parts for number in tokenizer.encode(part, add_special_tokens=special).ids]
        last = entry.reference(ids)["logits"][-1]
        logit = float(last[entry.number(task.yes)] - last[entry.number(task.no)])
        assert found == [pytest.approx(activated(spec, logit), abs=1e-4)]


# -- extract -----------------------------------------------------------------------------------------------------------


def softmax(logits: Array) -> Array:
    powers = np.exp(logits - logits.max(axis=-1, keepdims=True))
    return np.asarray(powers / powers.sum(axis=-1, keepdims=True))


def names(entry: Entry) -> list[str]:
    """What the logits stand for: the spec's, else config.json's."""
    assert entry.spec.tasks.extract is not None
    given = json.loads((entry.folder / "config.json").read_text())["id2label"]
    return list(entry.spec.tasks.extract.labels) or [given[str(number)] for number in range(len(given))]


@pytest.mark.parametrize("spec", entries("entities"))
async def test_a_tagging_entry_has_transformers_labels(spec: ModelSpec, make: Make, ask: Asking) -> None:
    entry, text = make(spec), "hello world ship lighthouse coffee query"
    params = ExtractParams(options={"aggregation_strategy": "none"})
    (found,) = results.read_extract(await ask(entry, ExtractRequest([Item(text=text)], params)))
    tokens = entry.tokenizer.encode(text)
    scores = softmax(entry.reference(tokens.ids)["logits"])
    own, wanted = names(entry), list[Any]()
    for row, special in zip(scores, tokens.special_tokens_mask, strict=True):
        if not special and own[row.argmax()] != "O":
            wanted.append((own[row.argmax()], pytest.approx(float(row.max()), abs=CLOSE)))
    assert [(entity.label, entity.score) for entity in found.entities] == wanted
    assert wanted


@pytest.mark.parametrize("spec", entries("classes"))
async def test_a_classifying_entry_has_transformers_scores(spec: ModelSpec, make: Make, ask: Asking) -> None:
    entry = make(spec)
    (found,) = results.read_extract(await ask(entry, ExtractRequest([Item(text=DOCUMENT)])))
    logits = entry.reference(entry.tokenizer.encode(DOCUMENT).ids)["logits"]
    assert spec.tasks.extract is not None
    scores = 1 / (1 + np.exp(-logits)) if spec.tasks.extract.multi_label else softmax(logits)
    wanted = dict(zip(names(entry), scores.tolist(), strict=True))
    assert {each.label: each.score for each in found.classifications} == pytest.approx(wanted, abs=CLOSE)


@pytest.mark.parametrize("spec", entries("entailment"))
async def test_an_entailing_entry_makes_its_hypotheses(spec: ModelSpec, make: Make, ask: Asking) -> None:
    entry, asked = make(spec), ["ship", "coffee"]
    (found,) = results.read_extract(
        await ask(entry, ExtractRequest([Item(text=DOCUMENT)], ExtractParams(labels=asked)))
    )
    assert spec.tasks.extract is not None
    entailed = names(entry).index("entailment")
    logits = [
        entry.reference(entry.tokenizer.encode(DOCUMENT, spec.tasks.extract.hypothesis.replace("{}", label)).ids)
        for label in asked
    ]
    scores = softmax(np.array([own["logits"][entailed] for own in logits]))
    wanted = dict(zip(asked, scores.tolist(), strict=True))
    assert {each.label: each.score for each in found.classifications} == pytest.approx(wanted, abs=CLOSE)
