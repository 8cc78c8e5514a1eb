"""Small GLiNERs with random weights, in folders as their library writes them.

No trained one can be had without a model hub under a licence that allows it (``weights.md``). The library itself is the
judge: ``make_gliner_golden`` has it load these folders, save them again, and extract; ``gliner.json`` holds what it
said, the gliner_config.json that it wrote included.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
from safetensors.numpy import save_file

from tests.golden import tiny_tokenizers

HIDDEN, LAYERS, HEADS, INNER, POSITIONS = 32, 2, 4, 48, 512
ADDED = ("[FLERT]", "<<ENT>>", "<<SEP>>")
"""The tokens that the library adds, in its order."""
ENCODER = "token_rep_layer.bert_layer.model."

QUIET = {"prompt_rep_layer.3": 0.05, "scorer.out_mlp.3": 0.35}
"""By so much the last layers are drawn smaller, so that scores are neither 0 nor 1."""

Arrays = dict[str, npt.NDArray[np.float32]]
Shapes = dict[str, tuple[int, ...]]


class Kind(NamedTuple):
    """What one of them is made of. ``hidden``: of words and labels."""

    tokenizer: str
    encoder: dict[str, Any]
    hidden: int
    config: dict[str, Any]


_SIZES = {
    "hidden_size": HIDDEN,
    "intermediate_size": INNER,
    "max_position_embeddings": POSITIONS,
    "num_attention_heads": HEADS,
    "num_hidden_layers": LAYERS,
}
_DEBERTA = {
    "model_type": "deberta-v2",
    "layer_norm_eps": 1e-7,
    "max_relative_positions": -1,
    "norm_rel_ebd": "layer_norm",
    "pad_token_id": 0,
    "pos_att_type": ["p2c", "c2p"],
    "position_biased_input": False,
    "position_buckets": 16,
    "relative_attention": True,
    "share_att_key": True,
    "type_vocab_size": 0,
}
_MODERNBERT = {
    "model_type": "modernbert",
    "global_attn_every_n_layers": 2,
    "local_attention": 16,
    "pad_token_id": 3,
    "bos_token_id": 1,
    "cls_token_id": 1,
    "eos_token_id": 2,
    "sep_token_id": 2,
}
KINDS = {
    "deberta": Kind("deberta", _SIZES | _DEBERTA, 24, {"span_mode": "markerV0", "max_width": 5, "max_len": 60}),
    "bert": Kind(
        "bert",
        _SIZES | {"model_type": "bert", "type_vocab_size": 2},
        HIDDEN,
        {"span_mode": "marker", "max_width": 4, "max_len": 384, "num_rnn_layers": 0, "embed_ent_token": False},
    ),
    "modernbert": Kind("modernbert", _SIZES | _MODERNBERT, HIDDEN, {"span_mode": "token_level", "max_len": 384}),
}


def make(kind: str, folder: Path, config: dict[str, Any] | None = None) -> Path:
    """Write gliner_config.json, tokenizer.json, tokenizer_config.json and the weights into ``folder``; returns it.

    The same kind always gives the same numbers. The weights of ``bert`` are a pytorch_model.bin.

    Args:
        config: the gliner_config.json; None: what is needed of one.
    """
    record = KINDS[kind]
    folder.mkdir(parents=True, exist_ok=True)
    tokenizer = tiny_tokenizers.make(record.tokenizer)
    tokenizer.add_special_tokens(list(ADDED))
    tokenizer.save(str(folder / "tokenizer.json"))
    of_family = tiny_tokenizers.FAMILIES[record.tokenizer]
    (folder / "tokenizer_config.json").write_text(
        json.dumps(
            {
                "tokenizer_class": "PreTrainedTokenizerFast",
                "unk_token": of_family.unknown,
                "pad_token": "[PAD]",
                "cls_token": "[CLS]",
                "sep_token": "[SEP]",
            }
        )
    )
    size = tokenizer.get_vocab_size(with_added_tokens=True)
    written = config or {
        "model_name": f"random-init/{kind}",
        "encoder_config": {**record.encoder, "vocab_size": size},
        "hidden_size": record.hidden,
        "vocab_size": size,
        "class_token_index": size - 2,
        **record.config,
    }
    (folder / "gliner_config.json").write_text(json.dumps(written))
    tensors = _tensors(kind, size)
    if kind == "bert":
        import torch

        torch.save({name: torch.from_numpy(value) for name, value in tensors.items()}, folder / "pytorch_model.bin")
    else:
        save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    return folder


def _tensors(kind: str, size: int) -> Arrays:
    record = KINDS[kind]
    shapes = {f"{ENCODER}{name}": shape for name, shape in _ENCODERS[record.encoder["model_type"]](size).items()}
    shapes |= _on_top(record)
    random = np.random.RandomState(7)
    return {name: _values(name, shape, random) for name, shape in shapes.items()}


def _values(name: str, shape: tuple[int, ...], random: np.random.RandomState) -> npt.NDArray[np.float32]:
    drawn = random.standard_normal(shape)
    if len(shape) == 1:
        drawn = 0.3 * drawn + (1.0 if "norm" in name.lower() and name.endswith("weight") else 0.0)
    elif "embeddings" not in name:
        drawn *= 2.0 * shape[-1] ** -0.5
    if name.startswith(tuple(QUIET)):
        drawn *= next(factor for layer, factor in QUIET.items() if name.startswith(layer))
    return (drawn + (1.8 if name == "scorer.out_mlp.3.bias" else 0.0)).astype(np.float32)


def _linear(name: str, inputs: int, outputs: int, *, bias: bool = True) -> Shapes:
    return _with_bias(name, (outputs, inputs), outputs if bias else 0)


def _norm(name: str, *, bias: bool = True) -> Shapes:
    return _with_bias(name, (HIDDEN,), HIDDEN if bias else 0)


def _with_bias(name: str, weight: tuple[int, ...], bias: int) -> Shapes:
    shapes: Shapes = {f"{name}.weight": weight}
    return {**shapes, f"{name}.bias": (bias,)} if bias else shapes


def _layers(projections: tuple[str, str, str]) -> Shapes:
    shapes: Shapes = {}
    for number in range(LAYERS):
        prefix = f"encoder.layer.{number}."
        for name in projections:
            shapes |= _linear(f"{prefix}attention.self.{name}", HIDDEN, HIDDEN)
        shapes |= _linear(f"{prefix}attention.output.dense", HIDDEN, HIDDEN)
        shapes |= _norm(f"{prefix}attention.output.LayerNorm")
        shapes |= _linear(f"{prefix}intermediate.dense", HIDDEN, INNER)
        shapes |= _linear(f"{prefix}output.dense", INNER, HIDDEN)
        shapes |= _norm(f"{prefix}output.LayerNorm")
    return shapes


def _bert(size: int) -> Shapes:
    return {
        "embeddings.word_embeddings.weight": (size, HIDDEN),
        "embeddings.position_embeddings.weight": (POSITIONS, HIDDEN),
        "embeddings.token_type_embeddings.weight": (2, HIDDEN),
        **_norm("embeddings.LayerNorm"),
        **_layers(("query", "key", "value")),
        **_linear("pooler.dense", HIDDEN, HIDDEN),
    }


def _deberta(size: int) -> Shapes:
    return {
        "embeddings.word_embeddings.weight": (size, HIDDEN),
        **_norm("embeddings.LayerNorm"),
        **_layers(("query_proj", "key_proj", "value_proj")),
        "encoder.rel_embeddings.weight": (32, HIDDEN),
        **_norm("encoder.LayerNorm"),
    }


def _modernbert(size: int) -> Shapes:
    shapes: Shapes = {"embeddings.tok_embeddings.weight": (size, HIDDEN), **_norm("embeddings.norm", bias=False)}
    for number in range(LAYERS):
        prefix = f"layers.{number}."
        if number:
            shapes |= _norm(f"{prefix}attn_norm", bias=False)
        shapes |= _linear(f"{prefix}attn.Wqkv", HIDDEN, 3 * HIDDEN, bias=False)
        shapes |= _linear(f"{prefix}attn.Wo", HIDDEN, HIDDEN, bias=False)
        shapes |= _norm(f"{prefix}mlp_norm", bias=False)
        shapes |= _linear(f"{prefix}mlp.Wi", HIDDEN, 2 * INNER, bias=False)
        shapes |= _linear(f"{prefix}mlp.Wo", INNER, HIDDEN, bias=False)
    return shapes | _norm("final_norm", bias=False)


_ENCODERS = {"bert": _bert, "deberta-v2": _deberta, "modernbert": _modernbert}


def _on_top(record: Kind) -> Shapes:
    size = record.hidden
    shapes: Shapes = {}
    if size != HIDDEN:
        shapes |= _linear("token_rep_layer.projection", HIDDEN, size)
    if record.config.get("num_rnn_layers", 1):
        for way in ("", "_reverse"):
            shapes |= {
                f"rnn.lstm.weight_ih_l0{way}": (2 * size, size),
                f"rnn.lstm.weight_hh_l0{way}": (2 * size, size // 2),
                f"rnn.lstm.bias_ih_l0{way}": (2 * size,),
                f"rnn.lstm.bias_hh_l0{way}": (2 * size,),
            }
    if record.config["span_mode"] == "token_level":
        shapes |= _linear("scorer.proj_token", size, 2 * size)
        shapes |= _linear("scorer.proj_label", size, 2 * size)
        shapes |= _linear("scorer.out_mlp.0", 3 * size, 4 * size)
        return shapes | _linear("scorer.out_mlp.3", 4 * size, 3)
    prefix, deep = "span_rep_layer.span_rep_layer", record.config["span_mode"] == "markerV0"
    for end in ("start", "end"):
        inner = 4 * size if deep else 2 * size
        shapes |= _linear(f"{prefix}.project_{end}.0", size, inner)
        shapes |= _linear(f"{prefix}.project_{end}.3", inner, size)
    if deep:
        shapes |= _linear(f"{prefix}.out_project.0", 2 * size, 4 * size)
        shapes |= _linear(f"{prefix}.out_project.3", 4 * size, size)
    else:
        shapes |= _linear(f"{prefix}.out_project", 2 * size, size)
    shapes |= _linear("prompt_rep_layer.0", size, 4 * size)
    return shapes | _linear("prompt_rep_layer.3", 4 * size, size)
