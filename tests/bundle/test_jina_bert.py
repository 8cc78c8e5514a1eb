"""JinaBERT, BERT with ALiBi and a gated feed-forward, against the formulas written out; transformers has no code of it.

Names of tensors, the order of steps and the slopes are those of jinaai/jina-bert-implementation, and for the kind that
norms queries and keys those of jinaai/jina-bert-v2-qk-post-norm, as text-embeddings-inference computes both.
"""

from __future__ import annotations

import json
import math
from pathlib import Path

import msgspec
import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor
from torch.nn.functional import gelu, layer_norm, linear

from sie_bundle.engine.positions import slopes
from sie_bundle.engine.row import row
from sie_config.model.model_spec import ModelSpec
from sie_config.model.tasks import Dense, Tasks
from sie_sdk.errors import ModelLoadFailedError
from tests import tiny_model

HIDDEN, LAYERS, INNER, POSITIONS = 48, 3, 40, 400
LENGTHS = (1, 3, 17, 40, 40, 2, 150, 300)
KNOWN = {
    8: [1 / 2, 1 / 4, 1 / 8, 1 / 16, 1 / 32, 1 / 64, 1 / 128, 1 / 256],
    12: [*(2.0**-i for i in range(1, 9)), 2**-0.5, 2**-1.5, 2**-2.5, 2**-3.5],
}
"""As the paper has them for 8 heads, and the published code for 12."""


def make(folder: Path, heads: int, qk: bool = False) -> Path:
    """A folder as published, with random weights of which everything matters."""
    tiny_model.make(folder)
    vocabulary = len(load_file(folder / "model.safetensors")["embeddings.word_embeddings.weight"])
    config = {"model_type": "bert", "hidden_size": HIDDEN, "num_hidden_layers": LAYERS, "num_attention_heads": heads}
    config |= {"vocab_size": vocabulary, "max_position_embeddings": POSITIONS, "hidden_act": "gelu"}
    config |= {"layer_norm_eps": 1e-12, "position_embedding_type": "alibi", "feed_forward_type": "geglu"}
    (folder / "config.json").write_text(json.dumps(config))
    torch.manual_seed(heads)
    shapes = {"embeddings.word_embeddings": (vocabulary, HIDDEN), "embeddings.token_type_embeddings": (2, HIDDEN)}
    norms = ["embeddings.LayerNorm"]
    for i in range(LAYERS):
        layer = f"encoder.layer.{i}"
        parts = ("attention.self.query", "attention.self.key", "attention.self.value", "attention.output.dense")
        shapes |= {f"{layer}.{part}": (HIDDEN, HIDDEN) for part in parts}
        up, down = ("up_gated_layer", "down_layer") if qk else ("gated_layers", "wo")
        shapes |= {f"{layer}.mlp.{up}": (2 * INNER, HIDDEN), f"{layer}.mlp.{down}": (HIDDEN, INNER)}
        more = ("layer_norm_1", "layer_norm_2", "attention.self.layer_norm_q", "attention.self.layer_norm_k")
        norms += [f"{layer}.{name}" for name in ("attention.output.LayerNorm", *(more if qk else ["mlp.layernorm"]))]
    tensors = {f"{name}.weight": torch.randn(shape) / shape[1] ** 0.5 for name, shape in shapes.items()}
    with_biases = [name for name in shapes if name.startswith("encoder") and "gated_layer" not in name]
    tensors |= {f"{name}.bias": torch.randn(HIDDEN) / 2 for name in (*with_biases, *norms)}
    tensors |= {f"{name}.weight": 1 + torch.randn(HIDDEN) / 2 for name in norms}
    save_file(tensors, folder / "model.safetensors")
    return folder


def spec(folder: Path, family: str) -> ModelSpec:
    return msgspec.structs.replace(
        tiny_model.spec(folder),
        family=family,
        tasks=Tasks(dense=Dense(dim=HIDDEN, normalize=False)),
        max_sequence_length=POSITIONS,
    )


def reference(folder: Path, ids: list[int], heads: int, qk: bool = False) -> np.ndarray:
    """The mean of the states of one text."""
    t = load_file(folder / "model.safetensors")

    def apply(name: str, x: Tensor) -> Tensor:
        return linear(x, t[f"{name}.weight"], t.get(f"{name}.bias"))

    def norm(name: str, x: Tensor) -> Tensor:
        return layer_norm(x, (HIDDEN,), t[f"{name}.weight"], t[f"{name}.bias"], 1e-12)

    x = t["embeddings.word_embeddings.weight"][ids] + t["embeddings.token_type_embeddings.weight"][0]
    x = norm("embeddings.LayerNorm", x)
    place = torch.arange(len(ids))
    bias = -torch.tensor(KNOWN[heads])[:, None, None] * (place[:, None] - place[None]).abs()
    for i in range(LAYERS):
        own = f"encoder.layer.{i}."
        q, k, v = (apply(f"{own}attention.self.{name}", x) for name in ("query", "key", "value"))
        if qk:
            q, k = norm(f"{own}attention.self.layer_norm_q", q), norm(f"{own}attention.self.layer_norm_k", k)
        q, k, v = (part.view(len(ids), heads, -1).transpose(0, 1) for part in (q, k, v))
        weights = torch.softmax(q @ k.transpose(1, 2) / math.sqrt(HIDDEN // heads) + bias, dim=-1)
        attended = (weights @ v).transpose(0, 1).reshape(len(ids), HIDDEN)
        inner = norm(f"{own}attention.output.LayerNorm", x + apply(f"{own}attention.output.dense", attended))
        if qk:
            x = norm(f"{own}layer_norm_1", x + inner)
            plain, gated = apply(f"{own}mlp.up_gated_layer", x).chunk(2, dim=-1)
            x = norm(f"{own}layer_norm_2", x + apply(f"{own}mlp.down_layer", plain * gelu(gated)))
        else:
            gated, plain = apply(f"{own}mlp.gated_layers", inner).chunk(2, dim=-1)
            x = norm(f"{own}mlp.layernorm", inner + apply(f"{own}mlp.wo", gelu(gated) * plain))
    return x.mean(dim=0).numpy()


@pytest.mark.parametrize("family", ["jina_bert", "jina_bert_qk"])
@pytest.mark.parametrize("heads", KNOWN)
def test_a_mixed_batch_equals_the_formulas_text_by_text(heads: int, family: str, tmp_path: Path) -> None:
    qk = family == "jina_bert_qk"
    folder = make(tmp_path, heads, qk)
    model, random = tiny_model.load(spec(folder, family), folder), np.random.default_rng(3)
    rows = [row(random.integers(4, 40, size=length)) for length in LENGTHS]
    for each, vector in zip(rows, tiny_model.vectors(model, rows), strict=True):
        wanted = reference(folder, each.ids.tolist(), heads, qk)
        assert np.abs(vector - wanted).max() < 2e-5 * max(1.0, np.abs(wanted).max()), len(each)


@pytest.mark.parametrize("family", ["jina_bert", "jina_bert_qk"])
def test_another_feed_forward_is_refused(family: str, tmp_path: Path) -> None:
    folder = make(tmp_path, 4, family == "jina_bert_qk")
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | {"feed_forward_type": "reglu"}))
    with pytest.raises(ModelLoadFailedError, match="reglu"):
        tiny_model.load(spec(folder, family), folder)


@pytest.mark.parametrize("heads", KNOWN)
def test_the_slopes_are_those_of_the_paper(heads: int) -> None:
    made = -slopes(heads, torch.device("cpu"))
    assert made.tolist() == pytest.approx(KNOWN[heads])
