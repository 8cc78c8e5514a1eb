"""Folders of models as their publishers write them, without weights: what proposals are made of in tests."""

from __future__ import annotations

import json
import string
from collections.abc import Mapping
from typing import Any

from sie_config.model.sources import LocalSource
from sie_config.propose import Folder, Proposal, Tensor, spec

ID = "acme/model"
BERT: dict[str, Any] = {
    "architectures": ["BertModel"],
    "model_type": "bert",
    "hidden_size": 384,
    "vocab_size": 30522,
    "max_position_embeddings": 512,
}
ROBERTA = BERT | {"architectures": ["XLMRobertaModel"], "model_type": "xlm-roberta", "max_position_embeddings": 514}
MODERNBERT = BERT | {"model_type": "modernbert", "max_position_embeddings": 8192, "local_attention": 128}
GLINER: dict[str, Any] = {
    "model_name": "microsoft/deberta-v3-small",
    "encoder_config": {"model_type": "deberta-v2", "max_position_embeddings": 512, "position_biased_input": False},
    "max_len": 384,
    "span_mode": "markerV0",
    "subtoken_pooling": "first",
    "fuse_layers": False,
    "labels_encoder": None,
}
TOKENIZER = {"model_max_length": 512, "mask_token": "[MASK]", "cls_token": "[CLS]"}
CARD = "---\nlicense: mit\nlanguage: [en, de]\ntags: [{tags}]\n---\nA model.\n"
WEIGHTS = {"model.safetensors": 90_868_376, "tokenizer.json": 466_247}


def labels(*names: str) -> dict[str, Any]:
    """What config.json says of a classifier's labels."""
    return {"id2label": {str(number): name for number, name in enumerate(names)}}


def chain(*steps: str, package: str = "sentence_transformers.models") -> list[dict[str, Any]]:
    """modules.json: the first step lies at the top, the others in folders of their own."""
    return [
        {"idx": n, "name": str(n), "path": f"{n}_{name}" if n else "", "type": f"{package}.{name}"}
        for n, name in enumerate(steps)
    ]


def folder(
    files: Mapping[str, Any], sizes: Mapping[str, int] = WEIGHTS, tensors: Mapping[str, Tensor] | None = None
) -> Folder:
    """``files``: texts, and mappings or lists that become JSON."""
    written = {name: own if isinstance(own, bytes) else _written(own) for name, own in files.items()}
    return Folder(written, {**sizes, **{name: len(own) for name, own in written.items()}}, tensors)


def _written(own: Any) -> bytes:
    return own.encode() if isinstance(own, str) else json.dumps(own).encode()


def proposed(files: Mapping[str, Any], sizes: Mapping[str, int] = WEIGHTS, **more: Any) -> Proposal:
    """What is proposed for a folder."""
    made = folder({"tokenizer_config.json": TOKENIZER, "README.md": CARD.format(tags="x"), **files}, sizes, **more)
    return spec(made, id=ID, revision="r1", sources=(LocalSource(path="acme/model"),))


def sentence(*steps: str, pooling: Any = None, **files: Any) -> dict[str, Any]:
    """A sentence-transformers folder; ``files``: by their names without the ending."""
    pooled = {"word_embedding_dimension": 384, "pooling_mode_mean_tokens": True} if pooling is None else pooling
    return {
        "config.json": BERT,
        "modules.json": chain("Transformer", *(steps or ("Pooling", "Normalize"))),
        "1_Pooling/config.json": pooled,
        "sentence_bert_config.json": {"max_seq_length": 256, "do_lower_case": False},
        "config_sentence_transformers.json": {"prompts": {}},
        **files,
    }


PYLATE: dict[str, Any] = {
    "config.json": MODERNBERT,
    "modules.json": [
        {"idx": 0, "name": "0", "path": "", "type": "sentence_transformers.models.Transformer.Transformer"},
        {"idx": 1, "name": "1", "path": "1_Dense", "type": "pylate.models.Dense.Dense"},
    ],
    "1_Dense/config.json": {
        "in_features": 384,
        "out_features": 128,
        "bias": False,
        "activation_function": "torch.nn.modules.linear.Identity",
    },
    "config_sentence_transformers.json": {
        "query_prefix": "[Q] ",
        "document_prefix": "[D] ",
        "query_length": 48,
        "document_length": 300,
        "attend_to_expansion_tokens": False,
        "skiplist_words": list(string.punctuation),
        "similarity_fn_name": "MaxSim",
        "prompts": {},
    },
    "tokenizer_config.json": TOKENIZER
    | {"added_tokens_decoder": {"50368": {"content": "[Q] "}, "50369": {"content": "[D] "}}},
}
PYLATE_SIZES = WEIGHTS | {"1_Dense/model.safetensors": 196_704}
