"""Every family of the packed encoder, with every head, against transformers on models with random weights.

One text at a time there, mixed batches here. The real checkpoints are ``tests/golden``; these are architectures whose
trained weights no registry has.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from sie_bundle.engine import native
from sie_bundle.engine.outputs import Outputs, SparseRow
from sie_bundle.engine.row import Row, row
from sie_bundle.models.architecture import described
from sie_bundle.models.checkpoint import Checkpoint
from sie_bundle.models.family import FAMILIES
from sie_bundle.models.model import EncoderModel
from sie_bundle.residency.loading import Loader
from sie_config.model.model_spec import ModelSpec
from sie_config.model.sources import LocalSource
from sie_config.model.tasks import Dense, Extract, Multivector, Score, Sparse, Tasks
from sie_sdk.errors import ModelLoadFailedError
from tests.golden import random_models
from tests.golden.random_kinds import KINDS

HIDDEN = 32
LENGTHS = (1, 3, 17, 40, 40, 2)
PACKED = [
    kind
    for kind, record in KINDS.items()
    if (family := FAMILIES.get(str(record.config["model_type"]))) and family.way == "packed"
]


def tasks_of(kind: str) -> Tasks:
    """Every head the kind's checkpoint has."""
    head = KINDS[kind].architecture.rpartition("For")[2]
    dense = Dense(dim=HIDDEN, pooling="mean")
    if kind == "bge-m3":
        multivector = Multivector(dim=HIDDEN, projection="colbert_linear", skip_first=True)
        sparse = Sparse(dim=int(KINDS[kind].config["vocab_size"]), kind="lexical")
        return Tasks(dense=Dense(dim=HIDDEN, pooling="cls"), sparse=sparse, multivector=multivector)
    match head:
        case "MaskedLM":
            return Tasks(dense=dense, sparse=Sparse(dim=int(KINDS[kind].config["vocab_size"])))
        case "SequenceClassification":
            return Tasks(dense=dense, extract=Extract(kind="classes"))
        case "TokenClassification":
            return Tasks(dense=dense, extract=Extract(kind="entities"))
        case "CausalLM":
            return Tasks(dense=dense, score=Score(kind="yes_no"))
        case _:
            return Tasks(dense=dense)


WAYS = {"compiled": native.KEPT, "torch": None}
"""Where compiled code is kept, or that there is to be none."""


def load(kind: str, folder: Path, precision: str = "float32", kernels: Path | None = native.KEPT) -> EncoderModel:
    random_models.make(kind, folder)
    spec = ModelSpec(
        id=f"random-init/{kind}",
        family=str(KINDS[kind].config["model_type"]),
        tasks=tasks_of(kind),
        sources=(LocalSource(path=str(folder)),),
        max_sequence_length=40,
        revision="random",
        files=("sparse_linear.pt", "colbert_linear.pt") if kind == "bge-m3" else (),
    )
    model = EncoderModel(Checkpoint(spec, folder), precision_wanted=precision, kernels=kernels)
    model.try_out()
    return model


def rows_of(kind: str, folder: Path) -> list[Row]:
    random = np.random.default_rng(7)
    # Ids of padding are among none of them: transformers counts RoBERTa's positions by what is not padding.
    return [row(random.integers(5, int(KINDS[kind].config["vocab_size"]), size=length)) for length in LENGTHS]


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("kind", PACKED)
def test_every_head_of_every_family_equals_transformers(kind: str, way: str, tmp_path: Path) -> None:
    equals_transformers(kind, load(kind, tmp_path, kernels=WAYS[way]), tmp_path, rows_of(kind, tmp_path))


@pytest.mark.parametrize("kind", PACKED)
async def test_a_model_takes_no_less_than_is_known_before_it_is_made(kind: str, tmp_path: Path) -> None:
    for precision in ("float32", "auto", "float16"):
        loader = Loader(None, tmp_path, "cpu", precision)
        model = load(kind, tmp_path, precision)
        least = (await loader.open(model.spec)).least
        assert model.bytes / 4 < least <= model.bytes
        loader.close()


def equals_transformers(kind: str, model: EncoderModel, folder: Path, rows: list[Row]) -> None:
    """Every head of every row."""
    outputs = model.forward(rows, {head: range(len(rows)) for head in model.heads})
    for i, each in enumerate(rows):
        wanted = random_models.reference(kind, folder, each.ids.tolist())
        for head in model.heads:
            expected, got = expectation(head, wanted, each, model), numbers(outputs[head], i, model)
            if head == "multivector":  # the reference leaves the first out, which here is done after the head
                got = got[1:]
            assert got.shape == expected.shape, head
            assert np.abs(got - expected).max(initial=0) < 2e-5 * max(1.0, np.abs(expected).max(initial=0)), (
                head,
                len(each),
            )


def expectation(head: str, wanted: dict[str, np.ndarray], each: Row, model: EncoderModel) -> np.ndarray:
    """What a head gives for one text, out of what transformers gives."""
    head, _, pooling = head.partition(":")
    if pooling:
        pooled = POOLED[pooling](wanted["states"])
        return np.asarray(pooled / np.linalg.norm(pooled) if head == "dense" else pooled)
    match head:
        case "dense" if "dense" in wanted:
            return wanted["dense"]
        case "dense":
            mean = wanted["states"].mean(axis=0)
            return np.asarray(mean / np.linalg.norm(mean))
        case "pooled" if "dense" in wanted:
            return np.asarray(wanted["states"][0])
        case "pooled":
            return np.asarray(wanted["states"].mean(axis=0))
        case "sparse" if "splade" in wanted:
            return wanted["splade"]
        case "sparse":
            weights = np.zeros(model.spec.tasks.sparse.dim if model.spec.tasks.sparse else 0, dtype=np.float32)
            np.maximum.at(weights, each.ids, wanted["sparse"])
            weights[list(model.tokenizer.special)] = 0
            return weights
        case "multivector":
            return wanted["multivector"]
        case "yes_no":
            last = wanted["logits"][-1]
            return np.asarray(last[[model.tokenizer.id("yes")]] - last[[model.tokenizer.id("no")]])
        case _:
            return wanted["logits"]


POOLED: dict[str, Callable[[np.ndarray], np.ndarray]] = {
    "cls": lambda states: states[0],
    "mean": lambda states: states.mean(axis=0),
    "last": lambda states: states[-1],
    "weighted_mean": lambda states: np.average(states, axis=0, weights=np.arange(1, len(states) + 1)),
}
"""What each pooling makes of a text's states."""


def numbers(outputs: Outputs, i: int, model: EncoderModel) -> np.ndarray:
    output = outputs[i]
    if isinstance(output, SparseRow):
        assert model.spec.tasks.sparse
        weights = np.zeros(model.spec.tasks.sparse.dim, dtype=np.float32)
        weights[output.indices] = output.values
        return weights
    return output


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("kind", PACKED)
def test_a_text_alone_equals_the_same_text_in_a_batch(kind: str, way: str, tmp_path: Path) -> None:
    model = load(kind, tmp_path, kernels=WAYS[way])
    rows = rows_of(kind, tmp_path)
    together = model.forward(rows, {"dense": range(len(rows))})["dense"]
    for i, each in enumerate(rows):
        alone = model.forward([each], {"dense": [0]})["dense"]
        assert np.abs(numbers(alone, 0, model) - numbers(together, i, model)).max() < 1e-6


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("kind", ["roberta", "xlm-roberta", "camembert", "mpnet"])
def test_the_paddings_id_inside_a_text_has_the_position_that_transformers_gives_it(
    kind: str, way: str, tmp_path: Path
) -> None:
    model = load(kind, tmp_path, kernels=WAYS[way])
    rows, padding = rows_of(kind, tmp_path), int(KINDS[kind].config["pad_token_id"])
    for i, places in {1: [0], 2: [3, 4, 9], 3: [39], 5: [0, 1]}.items():
        rows[i].ids[places] = padding
    equals_transformers(kind, model, tmp_path, rows)


REWRITTEN: list[tuple[str, dict[str, object]]] = [
    ("bert", {"is_decoder": True}),
    ("roberta", {"is_decoder": True}),
    ("roberta", {"pad_token_id": 0}),
    ("xlm-roberta", {"pad_token_id": 3}),
    ("mpnet", {"pad_token_id": 0}),
    ("modernbert", {"global_attn_every_n_layers": None}),
    ("modernbert", {"global_rope_theta": None}),
    ("modernbert", {"local_attention": None}),
    ("llama", {"hidden_act": None}),
    ("albert", {"hidden_act": None}),
    ("qwen2", {"use_sliding_window": True, "sliding_window": 8}),
    ("qwen2", {"use_sliding_window": True, "sliding_window": 8, "max_window_layers": 1}),
    ("mistral", {"use_sliding_window": False, "max_window_layers": 1}),
    ("mistral", {"is_causal": False}),
]
"""Other things that config.json may say of a kind; None: it does not say it."""


@pytest.mark.parametrize(("kind", "changes"), REWRITTEN, ids=str)
def test_what_a_config_says_otherwise_or_not_at_all_means_what_it_means_to_transformers(
    kind: str, changes: dict[str, object], tmp_path: Path
) -> None:
    model = load(kind, tmp_path)
    path = tmp_path / "config.json"
    said = json.loads(path.read_text()) | changes
    path.write_text(json.dumps({name: value for name, value in said.items() if changes.get(name, value) is not None}))
    os.utime(path, (1, 1))  # random_models tells models apart by it
    model = EncoderModel(Checkpoint(model.spec, tmp_path), precision_wanted="float32")
    (own,) = rows_of(kind, tmp_path)[3:4]
    states = random_models.reference(kind, tmp_path, own.ids.tolist())["states"]
    assert np.abs(model.forward([own], {"pooled": [0]})["pooled"][0] - states.mean(axis=0)).max() < 2e-5


@pytest.mark.parametrize(
    ("kind", "name", "value"),
    [
        ("albert", "num_hidden_groups", 3),
        ("mpnet", "relative_attention_num_buckets", 64),
        ("nomic-bert", "rotary_emb_interleaved", True),
        ("nomic-bert", "rotary_scaling_factor", 2.0),
        ("nomic-bert", "rotary_emb_scale_base", 512.0),
        ("nomic-bert", "causal", True),
        ("bert", "position_embedding_type", "relative_key"),
        ("xlm-roberta", "position_embedding_type", "relative_key_query"),
        ("electra", "position_embedding_type", "relative_key"),
        ("albert", "position_embedding_type", "relative_key"),
        ("modernbert", "local_attention", -1),
        ("mistral", "sliding_window", -1),
        ("gte", "position_embedding_type", "absolute"),
        ("qwen2", "layer_types", ["full_attention", "chunked_attention", "full_attention"]),
    ],
)
def test_a_config_that_asks_for_what_is_not_computed_is_refused(
    kind: str, name: str, value: object, tmp_path: Path
) -> None:
    spec = load(kind, tmp_path).spec
    path = tmp_path / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {name: value}))
    with pytest.raises(ModelLoadFailedError, match=name):
        Checkpoint(spec, tmp_path)


@pytest.mark.parametrize("name", [name for name, record in FAMILIES.items() if record.words])
def test_a_config_that_leaves_the_norms_epsilon_out_means_its_familys(name: str) -> None:
    sizes = {"hidden_size": 8, "num_hidden_layers": 1, "num_attention_heads": 1, "max_position_embeddings": 8}
    record, said = FAMILIES[name], sizes | {"vocab_size": 8, "model_type": name}
    given = {record.config.get(field, field): value for field, value in said.items()}
    # What transformers has no class of is published with code whose own is that of the family it comes from.
    known = {"new": "gte", "jina_bert": "bert", "jina_bert_qk": "bert", "llama_bidirec": "llama"}.get(name, name)
    theirs = random_models.transformers.AutoConfig.for_model(known)
    wanted = [getattr(theirs, own) for own in ("layer_norm_eps", "rms_norm_eps", "norm_eps") if hasattr(theirs, own)]
    # DistilBERT's is fixed in its code.
    assert described(record, given, Path("config.json")).config.layer_norm_eps == (wanted or [1e-12])[0]


@pytest.mark.parametrize(("kind", "name"), [("nomic-bert", "use_rms_norm"), ("modernbert", "classifier_activation")])
def test_null_in_a_config_asks_for_nothing(kind: str, name: str, tmp_path: Path) -> None:
    spec = load(kind, tmp_path).spec
    path = tmp_path / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {name: None}))
    Checkpoint(spec, tmp_path)
