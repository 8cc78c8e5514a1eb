"""The engine on every real checkpoint but the extractors: vectors and scores equal the reference libraries'.

In float32 to the last digits; in the precision this machine takes by itself, by the parity that is promised.
"""

from __future__ import annotations

from functools import lru_cache
from pathlib import Path

import msgspec
import numpy as np
import pytest
import torch

from sie_bundle.engine import native
from sie_bundle.engine.row import Row
from sie_bundle.models.checkpoint import Checkpoint
from sie_bundle.models.model import EncoderModel
from sie_bundle.operations import encode, score
from sie_bundle.operations.options import Options
from sie_bundle.operations.tokens import kept
from sie_config.model.model_spec import ModelSpec
from sie_config.model.sources import LocalSource
from sie_config.model.tasks import Dense, Multivector, Score, Tasks
from sie_sdk import results
from sie_sdk.scoring import maxsim
from sie_sdk.types import EncodeParams, EncodeRequest, Item, ScoreRequest, Timing, Usage
from tests.bundle import variants
from tests.golden import golden
from tests.golden.checkpoint_table import CHECKPOINTS
from tests.golden.checkpoints import checkpoint

pytestmark = pytest.mark.weights

DENSE = [key for key, record in CHECKPOINTS.items() if record.task == "dense"]
RERANKERS = [key for key, record in CHECKPOINTS.items() if record.task == "rerank"]
PARITY = 0.9999
"""The cosine to the float32 reference that any precision must keep."""
DEGENERATE = {"mpnet": (0.9995, ("exactly full", "one over full"))}
"""Where it does not in bfloat16: one word 256 times, in which no rounding cancels another. Measured 0.99966."""
COLBERT = Multivector(
    dim=96,
    query_marker="[unused0]",
    document_marker="[unused1]",
    query_length=32,
    skip_punctuation=True,
)


@lru_cache(maxsize=2)
def loaded(key: str, precision: str = "float32", kernels: Path | None = native.KEPT) -> EncoderModel:
    record, folder = CHECKPOINTS[key], checkpoint(key)
    dims = {"mpnet": 768}
    tasks = {
        "dense": Tasks(dense=Dense(dim=dims.get(key, 384), pooling=record.pooling or "mean")),
        "rerank": Tasks(score=Score()),
        "multivector": Tasks(multivector=COLBERT, score=Score(kind="maxsim")),
    }
    spec = ModelSpec(
        id=record.model,
        family="mpnet" if key == "mpnet" else "bert",
        tasks=tasks[record.task],
        sources=(LocalSource(path=str(folder)),),
        max_sequence_length=record.max_length,
        revision="golden",
    )
    model = EncoderModel(Checkpoint(spec, folder), precision_wanted=precision, kernels=kernels)
    model.try_out()
    return model


def prompted(key: str, names: list[str], prompt: str) -> list[Row]:
    model, texts = loaded(key), golden.texts()
    return model.tokenizer.rows([prompt + texts[name] for name in names], model.spec.max_sequence_length)


def matrix(model: EncoderModel, rows: list[Row], head: str = "dense") -> np.ndarray:
    computed = model.forward(rows, {head: range(len(rows))})[head]
    assert isinstance(computed, np.ndarray)
    return computed


@pytest.mark.parametrize("kind", ["", "query_"])
@pytest.mark.parametrize("key", DENSE)
def test_dense_vectors_equal_sentence_transformers(key: str, kind: str) -> None:
    stored, record = golden.arrays(key), CHECKPOINTS[key]
    if f"{kind}vectors" not in stored:
        assert kind and not record.query_prompt
        return
    names = stored[f"{kind}names"].tolist()
    rows = prompted(key, names, record.query_prompt if kind else record.document_prompt)
    for row, ids in zip(rows, golden.rows(stored[f"{kind}tokens"], stored[f"{kind}lengths"]), strict=True):
        assert row.ids.tolist() == ids.tolist()
    vectors = matrix(loaded(key), rows)
    assert np.abs(vectors - stored[f"{kind}vectors"]).max() < 1e-5
    alone = np.concatenate([matrix(loaded(key), [row]) for row in rows[:6]])
    assert np.abs(alone - vectors[:6]).max() < 2e-6


@pytest.mark.parametrize("given", ["spec", "request", "instruction"])
@pytest.mark.parametrize("kind", ["", "query_"])
def test_a_template_gives_what_sentence_transformers_gives_with_that_prompt(kind: str, given: str) -> None:
    stored, record, model = golden.arrays("e5-small"), CHECKPOINTS["e5-small"], loaded("e5-small")
    templates = {"query": record.query_prompt + "{text}", "doc": record.document_prompt + "{text}"}
    params, dense = EncodeParams(options={"is_query": bool(kind)}), Dense(dim=384, query_prompt="wrong: ")
    assert params.options is not None
    if given == "spec":
        task = {"query_template": templates["query"], "document_template": templates["doc"]}
        dense = Dense(dim=384, **task)  # type: ignore[arg-type]
    elif given == "request":
        params.options.update({f"{side}_template": template for side, template in templates.items()})
    else:
        prompt = record.query_prompt if kind else record.document_prompt
        whole = {"query_template": "{instruction}: {text}", "doc_template": "{instruction}: {text}"}
        params.options.update(whole | {"default_instruction": prompt.removesuffix(": ")})
    spec = msgspec.structs.replace(model.spec, tasks=Tasks(dense=dense))
    texts = [golden.texts()[name] for name in stored[f"{kind}names"]]
    plan = encode.plan(model, spec, EncodeRequest([Item(text=text) for text in texts], params))
    ids = golden.rows(stored[f"{kind}tokens"], stored[f"{kind}lengths"])
    assert [row.ids.tolist() for row in plan.rows] == [own.tolist() for own in ids]
    assert np.abs(matrix(model, list(plan.rows)) - stored[f"{kind}vectors"]).max() < 1e-5


@pytest.mark.parametrize("key", DENSE)
def test_the_machines_own_precision_keeps_parity(key: str) -> None:
    stored = golden.arrays(key)
    rows = prompted(key, stored["names"].tolist(), CHECKPOINTS[key].document_prompt)
    cosines = (matrix(loaded(key, "auto"), rows) * stored["vectors"]).sum(axis=1)
    least, spared = DEGENERATE.get(key, (PARITY, ()))
    assert cosines.min() >= least, f"{stored['names'][np.argmin(cosines)]}: {cosines.min():.6f}"
    assert min(cosine for name, cosine in zip(stored["names"], cosines, strict=True) if name not in spared) >= PARITY


@pytest.mark.parametrize("key", ["minilm", "mpnet"])
def test_torchs_steps_keep_parity_where_there_is_no_compiled_code(key: str) -> None:
    stored = golden.arrays(key)
    rows = prompted(key, stored["names"].tolist(), CHECKPOINTS[key].document_prompt)
    cosines = (matrix(loaded(key, "auto", None), rows) * stored["vectors"]).sum(axis=1)
    assert cosines.min() >= DEGENERATE.get(key, (PARITY, ()))[0]


@pytest.mark.parametrize("of", variants.REAL)
@pytest.mark.parametrize("key", ["minilm", "mpnet"])
def test_each_variant_of_the_compiled_code_keeps_parity(key: str, of: str, monkeypatch: pytest.MonkeyPatch) -> None:
    stored = golden.arrays(key)
    rows = prompted(key, stored["names"].tolist(), CHECKPOINTS[key].document_prompt)
    exact, least = variants.dtype(of) is torch.float32, DEGENERATE.get(key, (PARITY, ()))[0]
    monkeypatch.setattr(native, "variant", lambda dtype: of)
    vectors = matrix(loaded.__wrapped__(key, "float32" if exact else "bfloat16"), rows)
    assert (vectors * stored["vectors"]).sum(axis=1).min() >= (0.999999 if exact else least)


@pytest.mark.parametrize("key", RERANKERS)
def test_a_cross_encoders_logits_equal_sentence_transformers(key: str) -> None:
    stored, model, pairs = golden.arrays(key), loaded(key), golden.pairs()
    rows = [model.tokenizer.pairs(query, [document], 512)[0] for query, document in pairs]
    types = golden.rows(stored["token_types"], stored["lengths"])
    for row, ids, own in zip(rows, golden.rows(stored["tokens"], stored["lengths"]), types, strict=True):
        assert row.ids.tolist() == ids.tolist()
        assert (np.arange(len(row)) >= row.second).tolist() == own.astype(bool).tolist()
    logits = stored["logits"].reshape(len(pairs), -1)
    assert np.abs(matrix(model, rows, "logits") - logits).max() < 2e-5
    # Those of MS MARCO run from -12 to 10; what the ranking is made of must not move.
    assert np.abs(matrix(loaded(key, "auto"), rows, "logits") - logits).max() < 0.15


def test_of_two_logits_the_score_is_their_difference() -> None:
    stored, model, pairs = golden.arrays("two-logit-reranker"), loaded("two-logit-reranker"), golden.pairs()
    for (query, document), logits in zip(pairs, stored["logits"], strict=True):
        plan = score.plan(model, model.spec, ScoreRequest(query=Item(text=query), items=[Item(text=document)]))
        outputs = model.forward(plan.rows, {"logits": range(1)})
        found = results.read_score(plan.finish(outputs, Timing(), Usage())).scores[0].score
        assert found == pytest.approx(logits[1] - logits[0], abs=5e-5)


def test_a_score_request_gives_the_same_logits_as_the_pairs_one_by_one() -> None:
    model = loaded("msmarco-reranker")
    query = golden.pairs()[0][0]
    items = [Item(text=document) for _, document in golden.pairs()]
    plan = score.plan(model, model.spec, ScoreRequest(query=Item(text=query), items=items))
    one_by_one = [model.tokenizer.pairs(query, [item.text or ""], 512)[0] for item in items]
    assert [row.ids.tolist() for row in plan.rows] == [row.ids.tolist() for row in one_by_one]
    together = matrix(model, list(plan.rows), "logits")
    assert np.abs(together - np.concatenate([matrix(model, [row], "logits") for row in one_by_one])).max() < 2e-5


@pytest.mark.parametrize(("kind", "is_query"), [("query", True), ("document", False)])
def test_token_vectors_equal_colberts(kind: str, is_query: bool) -> None:
    stored, model = golden.arrays("answerai-colbert"), loaded("answerai-colbert")
    rows, vectors = colbert(model, stored[f"{kind}_names"].tolist(), is_query)
    for row, ids in zip(rows, golden.rows(stored[f"{kind}_tokens"], stored[f"{kind}_lengths"]), strict=True):
        assert row.ids.tolist() == ids.tolist()
    assert np.abs(np.concatenate(vectors) - stored[f"{kind}_vectors"]).max() < 2e-5


def test_token_vectors_in_this_machines_own_precision_point_where_colberts_do() -> None:
    stored, model = golden.arrays("answerai-colbert"), loaded("answerai-colbert", "auto")
    for kind in ("query", "document"):
        _, vectors = colbert(model, stored[f"{kind}_names"].tolist(), kind == "query")
        # One token is rounded by itself, which no mean evens out; measured 0.9999 in bfloat16.
        assert (np.concatenate(vectors) * stored[f"{kind}_vectors"]).sum(axis=1).min() > 0.9995


def test_maxsim_scores_equal_colberts() -> None:
    stored, model = golden.arrays("answerai-colbert"), loaded("answerai-colbert")
    _, queries = colbert(model, stored["query_names"].tolist(), is_query=True)
    _, documents = colbert(model, stored["document_names"].tolist(), is_query=False)
    scores = np.stack([maxsim(query, documents) for query in queries])
    assert np.abs(scores - stored["scores"]).max() < 2e-4


def test_a_query_may_see_its_own_augmentation() -> None:
    stored, model = golden.arrays("answerai-colbert"), loaded("answerai-colbert")
    ids = golden.rows(stored["attended_query_tokens"], stored["attended_query_lengths"])
    rows = [Row(own.astype(np.int64), len(own), len(own)) for own in ids]
    vectors = model.forward(rows, {"multivector": range(len(rows))})["multivector"]
    assert np.abs(np.concatenate(list(vectors)) - stored["attended_query_vectors"]).max() < 2e-5


def colbert(model: EncoderModel, names: list[str], is_query: bool) -> tuple[list[Row], list[np.ndarray]]:
    texts = golden.texts()
    options = Options({}, (), "options")
    asked = [texts[name] for name in names]
    rows = encode.encode_rows(model, model.spec, asked, options, ["multivector"], is_query)
    vectors = model.forward(rows, {"multivector": range(len(rows))})["multivector"]
    assert isinstance(vectors, list)
    return rows, kept(msgspec.convert(vectors, list), rows, model.tokenizer, COLBERT, is_query)
