"""What a checkpoint record says, and the pieces its JSON files are made of. The records: ``checkpoint_table``."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal, NamedTuple

from tests.golden.archives import Archive

Task = Literal["dense", "rerank", "multivector", "tokens", "labels"]
Json = Mapping[str, object]


class Inner(NamedTuple):
    """An archive in the archive, and the files wanted out of it."""

    name: str
    """A NAME.tar.gz, or a NAME.zip that is cut into NAME.zip.001, NAME.zip.002, ..."""
    folder: str
    files: tuple[str, ...]


@dataclass(frozen=True)
class Checkpoint:
    """One checkpoint. The folder gets config.json, tokenizer.json, model.safetensors and the JSON ``documents``."""

    model: str
    """As published, or as its package calls it."""
    task: Task
    architecture: str
    """The class of transformers that loads it."""
    licence: str
    archives: tuple[Archive, ...]
    max_length: int
    """Tokens, special tokens included, at which its users truncate."""
    weights: str = ""
    """The ONNX file to convert; empty: the archive has model.safetensors and config.json itself."""
    fingerprint: str = ""
    """``checkpoints.fingerprint`` of the converted tensors."""
    config: Json | None = None
    """What becomes config.json, the architecture added."""
    inner: Inner | None = None
    layout: Literal["plain", "dense layers", "colbert"] = "plain"
    """How the export's tensors are laid out in the folder; see ``checkpoints``."""
    documents: Json = field(default_factory=dict)
    """Further JSON files: path -> content."""
    pooling: Literal["mean", "cls", ""] = ""
    query_prompt: str = ""
    document_prompt: str = ""
    dequantised: bool = False
    """The archive has int8 weights; the folder has them in float32, equal to those and not to the published ones."""
    note: str = ""


def bert(hidden: int, layers: int, heads: int, intermediate: int, vocabulary: int, **more: object) -> dict[str, object]:
    """The config.json of a BERT."""
    return {
        "model_type": "bert",
        "hidden_size": hidden,
        "num_hidden_layers": layers,
        "num_attention_heads": heads,
        "intermediate_size": intermediate,
        "vocab_size": vocabulary,
        "max_position_embeddings": 512,
        "type_vocab_size": 2,
        "hidden_act": "gelu",
        "layer_norm_eps": 1e-12,
        "pad_token_id": 0,
        **more,
    }


def labels(*names: str) -> dict[str, object]:
    """What config.json says of a classifier's labels."""
    return {
        "id2label": {str(i): name for i, name in enumerate(names)},
        "label2id": {name: i for i, name in enumerate(names)},
    }


def sentence_transformer(pooling: str, max_length: int, *dense: Json) -> dict[str, object]:
    """The files by which sentence-transformers knows the steps after the transformer: pooling, then norm or dense."""
    steps = ["Transformer", "Pooling", *(["Dense"] * len(dense) or ["Normalize"])]
    paths = ["", *(f"{i}_{name}" for i, name in enumerate(steps) if i)]
    return {
        "modules.json": [
            {"idx": i, "name": str(i), "path": path, "type": f"sentence_transformers.models.{name}"}
            for i, (name, path) in enumerate(zip(steps, paths, strict=True))
        ],
        "sentence_bert_config.json": {"max_seq_length": max_length, "do_lower_case": False},
        "1_Pooling/config.json": {
            "word_embedding_dimension": 384,
            "pooling_mode_cls_token": pooling == "cls",
            "pooling_mode_mean_tokens": pooling == "mean",
            "pooling_mode_max_tokens": False,
            "pooling_mode_mean_sqrt_len_tokens": False,
        },
        **{f"{i + 2}_Dense/config.json": config for i, config in enumerate(dense)},
    }


def tokenizer(*inputs: str, max_length: int = 512) -> dict[str, object]:
    """For packages that have tokenizer.json alone: it is used as it is."""
    tokens = {f"{name}_token": f"[{name.upper()}]" for name in ("pad", "unk", "cls", "sep", "mask")}
    names = ["input_ids", *inputs, "attention_mask"]
    made = {"tokenizer_class": "PreTrainedTokenizerFast", "model_max_length": max_length, "model_input_names": names}
    return {"tokenizer_config.json": made | tokens}
