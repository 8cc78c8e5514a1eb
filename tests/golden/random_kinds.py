"""The kinds of models ``random_models`` makes: their sizes, in config.json as the publishers of each family write it.

Data only. Odd sizes on purpose: 48 is no multiple of 32, key heads differ from heads, a window is shorter than a text.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from tests.golden.checkpoint_schema import labels

Config = dict[str, Any]


@dataclass(frozen=True)
class Kind:
    """One kind of model."""

    architecture: str
    """The class of transformers."""
    config: Config
    """config.json, but for the architecture."""
    tokenizer: str
    """One of ``tiny_tokenizers.FAMILIES``."""
    published: str = ""
    """The architecture that config.json names, where it is another one."""
    native: Mapping[str, Any] | None = None
    """The same config in the words of transformers, which cannot read what the publishers write."""
    prefix: tuple[str, str] = ("", "")
    """What the names of the body's tensors begin with: in transformers, and as published."""
    norms_around: float = 1.0
    """Gemma's norms multiply by one plus the weight."""


_SIZES: Config = {
    "hidden_size": 32,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "intermediate_size": 48,
    "vocab_size": 80,
}
_BYTES: Config = {"vocab_size": 320}
_NLI: Config = labels("entailment", "neutral", "contradiction")
_SCORE: Config = labels("LABEL_0")
_NER: Config = labels("O", "B-PER", "I-PER", "B-LOC", "I-LOC")

_BERT: Config = {
    **_SIZES,
    "model_type": "bert",
    "hidden_act": "gelu",
    "max_position_embeddings": 64,
    "type_vocab_size": 2,
    "layer_norm_eps": 1e-12,
    "pad_token_id": 0,
    "position_embedding_type": "absolute",
}
# Positions count from the padding's id plus one: 66 are 64.
_ROBERTA = _BERT | _BYTES
_ROBERTA |= {"model_type": "roberta", "max_position_embeddings": 66, "type_vocab_size": 1}
_ROBERTA |= {"layer_norm_eps": 1e-5, "pad_token_id": 1, "bos_token_id": 0, "eos_token_id": 2}
_XLM_ROBERTA = _ROBERTA | {"model_type": "xlm-roberta", "vocab_size": 80}
_DISTILBERT: Config = {
    "model_type": "distilbert",
    "dim": 32,
    "n_layers": 3,
    "n_heads": 4,
    "hidden_dim": 48,
    "vocab_size": 80,
    "max_position_embeddings": 64,
    "activation": "gelu",
    "sinusoidal_pos_embds": False,
    "tie_weights_": True,
    "pad_token_id": 0,
}
_MPNET = _BERT | {"model_type": "mpnet", "max_position_embeddings": 66, "relative_attention_num_buckets": 32}
_MPNET |= {"layer_norm_eps": 1e-5, "pad_token_id": 1, "bos_token_id": 0, "eos_token_id": 2}
_MODERNBERT: Config = {
    **_SIZES,
    **_BYTES,
    "model_type": "modernbert",
    # The first and the last see everything, those between four tokens to each side.
    "num_hidden_layers": 4,
    "global_attn_every_n_layers": 3,
    "local_attention": 8,
    "global_rope_theta": 160000.0,
    "local_rope_theta": 10000.0,
    "hidden_activation": "gelu",
    "max_position_embeddings": 128,
    "norm_eps": 1e-5,
    "norm_bias": False,
    "attention_bias": False,
    "mlp_bias": False,
    "decoder_bias": True,
    "classifier_bias": False,
    "classifier_activation": "gelu",
    "classifier_pooling": "cls",
}
_MODERNBERT |= {"pad_token_id": 3, "cls_token_id": 1, "bos_token_id": 1, "sep_token_id": 2, "eos_token_id": 2}
_NOMIC_BERT: Config = {
    "model_type": "nomic_bert",
    "n_embd": 32,
    "n_layer": 3,
    "n_head": 4,
    "n_inner": 48,
    "n_positions": 64,
    "vocab_size": 80,
    "type_vocab_size": 2,
    "activation_function": "swiglu",
    "layer_norm_epsilon": 1e-12,
    "rotary_emb_base": 1000,
    "rotary_emb_fraction": 1.0,
    "rotary_emb_interleaved": False,
    "rotary_scaling_factor": None,
    "prenorm": False,
    "use_rms_norm": False,
    "qkv_proj_bias": False,
    "mlp_fc1_bias": False,
    "mlp_fc2_bias": False,
    "causal": False,
    "parallel_block": False,
    "pad_token_id": 0,
}
_NOMIC_BERT_NATIVE: Config = {
    **_SIZES,
    "model_type": "nomic_bert",
    "hidden_act": "silu",
    "max_position_embeddings": 64,
    "layer_norm_eps": 1e-12,
    "rope_parameters": {"rope_type": "default", "rope_theta": 1000.0},
}
_GTE = _BERT | {
    "model_type": "new",
    "type_vocab_size": 1,
    "position_embedding_type": "rope",
    "rope_theta": 20000.0,
    "rope_scaling": None,
    "layer_norm_type": "layer_norm",
    "logn_attention_scale": False,
    "pack_qkv": True,
    "pad_token_id": 1,
}


# Heads of 8 dimensions: the base times the factor, and every step shorter by the factor's fourth root.
_NTK: Config = {"type": "ntk", "factor": 8.0}
_NTK_NATIVE: Config = {"rope_type": "linear", "rope_theta": 160000.0, "factor": 8.0 ** (2 / 8)}


def _gte_native(**more: Any) -> Config:
    rope = {"rope_type": "default", "rope_theta": 20000.0}
    kept = ("layer_norm_eps", "max_position_embeddings", "pad_token_id", "type_vocab_size", "hidden_act")
    return {**_SIZES, **{name: _GTE[name] for name in kept}, "model_type": "gte", "rope_parameters": rope} | more


# As transformers reads and writes it itself: without a word on rotation, which has a base of its own then.
_GTE_OWN = _gte_native()
del _GTE_OWN["rope_parameters"]

_DECODER: Config = {
    **_SIZES,
    "hidden_act": "silu",
    "num_key_value_heads": 2,
    "max_position_embeddings": 128,
    "rms_norm_eps": 1e-6,
    "rope_theta": 1000000.0,
    "rope_scaling": None,
    "attention_bias": False,
    "tie_word_embeddings": True,
}
_QWEN2 = _DECODER | _BYTES | {"model_type": "qwen2", "use_sliding_window": False, "sliding_window": None}
_QWEN3 = _QWEN2 | {"model_type": "qwen3", "head_dim": 12}
# All layers but the first see eight tokens to one side, or to both.
_WINDOW: Config = {"use_sliding_window": True, "sliding_window": 8, "max_window_layers": 1}
_LLAMA = _DECODER | {"model_type": "llama", "mlp_bias": False, "rope_theta": 500000.0, "rms_norm_eps": 1e-5}
# Heads of 8 dimensions turn some 26, 1, 0.04 and 0.001 times within 160 tokens: one as before, one between, two slower.
_LLAMA3: Config = {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 0.5, "high_freq_factor": 4.0}
_LLAMA3 |= {"original_max_position_embeddings": 160}
_LLAMA_BIDIREC = _LLAMA | {"model_type": "llama_bidirec", "rope_scaling": _LLAMA3}
_MISTRAL = _DECODER | {"model_type": "mistral", "sliding_window": 8, "rope_theta": 10000.0, "rms_norm_eps": 1e-5}
_GEMMA2 = _DECODER | {
    "model_type": "gemma2",
    "head_dim": 12,
    "hidden_activation": "gelu_pytorch_tanh",
    "hidden_act": "gelu_pytorch_tanh",
    "sliding_window": 8,
    "query_pre_attn_scalar": 16,
    "attn_logit_softcapping": 5.0,
    "final_logit_softcapping": 30.0,
    "rope_theta": 10000.0,
}
_GEMMA2 |= {"pad_token_id": 0, "eos_token_id": 1, "bos_token_id": 2}
_EMBEDDING_GEMMA = _GEMMA2 | {
    "model_type": "gemma3_text",
    "attn_logit_softcapping": None,
    "final_logit_softcapping": None,
    "use_bidirectional_attention": True,
    "layer_types": ["sliding_attention", "full_attention", "sliding_attention"],
    "rope_theta": 1000000.0,
    "rope_local_base_freq": 10000.0,
}
_DEBERTA = _BERT | {
    "model_type": "deberta-v2",
    "layer_norm_eps": 1e-7,
    "type_vocab_size": 0,
    "relative_attention": True,
    "max_relative_positions": -1,
    # Distances up to four have a bucket each, longer ones share.
    "position_buckets": 8,
    "norm_rel_ebd": "layer_norm",
    "share_att_key": True,
    "pos_att_type": "p2c|c2p",
    "position_biased_input": False,
    "pooler_hidden_size": 32,
    "pooler_hidden_act": "gelu",
    "pooler_dropout": 0,
}
_ELECTRA = _BERT | {"model_type": "electra", "embedding_size": 16}
_ALBERT = _BERT | {"model_type": "albert", "embedding_size": 16, "hidden_act": "gelu_new"}
_ALBERT |= {"num_hidden_groups": 1, "inner_group_num": 1, "bos_token_id": 2, "eos_token_id": 3}

KINDS: dict[str, Kind] = {
    "bert": Kind("BertModel", _BERT, "bert"),
    "bert-splade": Kind("BertForMaskedLM", _BERT, "bert"),
    "bert-nli": Kind("BertForSequenceClassification", _BERT | _NLI, "bert"),
    "bert-reranker": Kind("BertForSequenceClassification", _BERT | _SCORE, "bert"),
    "bert-ner": Kind("BertForTokenClassification", _BERT | _NER, "bert"),
    "roberta": Kind("RobertaModel", _ROBERTA, "roberta"),
    "roberta-splade": Kind("RobertaForMaskedLM", _ROBERTA, "roberta"),
    "roberta-nli": Kind("RobertaForSequenceClassification", _ROBERTA | _NLI, "roberta"),
    "roberta-ner": Kind("RobertaForTokenClassification", _ROBERTA | _NER, "roberta"),
    "camembert": Kind("CamembertModel", _XLM_ROBERTA | {"model_type": "camembert"}, "xlm-roberta"),
    "xlm-roberta": Kind("XLMRobertaModel", _XLM_ROBERTA, "xlm-roberta"),
    "xlm-roberta-reranker": Kind("XLMRobertaForSequenceClassification", _XLM_ROBERTA | _SCORE, "xlm-roberta"),
    "xlm-roberta-ner": Kind("XLMRobertaForTokenClassification", _XLM_ROBERTA | _NER, "xlm-roberta"),
    "bge-m3": Kind("XLMRobertaModel", _XLM_ROBERTA, "xlm-roberta"),
    "distilbert": Kind("DistilBertModel", _DISTILBERT, "bert"),
    "distilbert-splade": Kind("DistilBertForMaskedLM", _DISTILBERT, "bert"),
    "distilbert-nli": Kind("DistilBertForSequenceClassification", _DISTILBERT | _NLI, "bert"),
    "distilbert-ner": Kind("DistilBertForTokenClassification", _DISTILBERT | _NER, "bert"),
    "mpnet": Kind("MPNetModel", _MPNET, "mpnet"),
    "mpnet-nli": Kind("MPNetForSequenceClassification", _MPNET | _NLI, "mpnet"),
    "modernbert": Kind("ModernBertModel", _MODERNBERT, "modernbert"),
    "modernbert-splade": Kind("ModernBertForMaskedLM", _MODERNBERT, "modernbert"),
    "modernbert-nli": Kind("ModernBertForSequenceClassification", _MODERNBERT | _NLI, "modernbert"),
    "modernbert-reranker": Kind(
        *("ModernBertForSequenceClassification", _MODERNBERT | _SCORE | {"classifier_pooling": "mean"}, "modernbert")
    ),
    "modernbert-ner": Kind("ModernBertForTokenClassification", _MODERNBERT | _NER, "modernbert"),
    "nomic-bert": Kind(
        *("NomicBertModel", _NOMIC_BERT, "bert"),
        native=_NOMIC_BERT_NATIVE,
    ),
    "nomic-bert-nli": Kind("NomicBertForSequenceClassification", _NOMIC_BERT_NATIVE | _NLI, "bert"),
    "gte": Kind("GteModel", _GTE, "xlm-roberta", published="NewModel", native=_gte_native()),
    "gte-reranker": Kind(
        *("GteForSequenceClassification", _GTE | _SCORE, "xlm-roberta", "NewForSequenceClassification"),
        native=_gte_native(num_labels=1),
        prefix=("gte.", "new."),
    ),
    "gte-ntk": Kind(
        *("GteModel", _GTE | {"rope_scaling": _NTK}, "xlm-roberta"),
        published="NewModel",
        native=_gte_native(rope_parameters=_NTK_NATIVE),
    ),
    "gte-own-type": Kind("GteModel", _GTE | {"model_type": "gte"}, "xlm-roberta", native=_gte_native()),
    "gte-own-nli": Kind("GteForSequenceClassification", _GTE_OWN | _NLI, "xlm-roberta"),
    "gte-untyped": Kind(
        *("GteModel", _GTE | {"type_vocab_size": 0}, "xlm-roberta"),
        published="NewModel",
        native=_gte_native(type_vocab_size=0),
    ),
    "qwen2": Kind("Qwen2Model", _QWEN2, "qwen", published="Qwen2ForCausalLM"),
    "qwen2-bidirectional": Kind("Qwen2Model", _QWEN2 | {"is_causal": False}, "qwen"),
    "qwen3-bidirectional": Kind("Qwen3Model", _QWEN3 | _WINDOW | {"is_causal": False}, "qwen"),
    "qwen3": Kind("Qwen3Model", _QWEN3, "qwen", published="Qwen3ForCausalLM"),
    "qwen3-nli": Kind("Qwen3ForSequenceClassification", _QWEN3 | _NLI | {"pad_token_id": 7}, "qwen"),
    "qwen3-reranker": Kind("Qwen3ForCausalLM", _QWEN3, "qwen"),
    "llama": Kind("LlamaModel", _LLAMA, "llama"),
    "llama-bidirectional": Kind(
        *("LlamaModel", _LLAMA_BIDIREC, "llama"),
        published="LlamaBidirectionalModel",
        native=_LLAMA_BIDIREC
        | {"model_type": "llama", "is_causal": False, "rope_scaling": None}
        | {"rope_parameters": _LLAMA3 | {"rope_theta": 500000.0}},
    ),
    "mistral": Kind("MistralModel", _MISTRAL, "llama"),
    "gemma2": Kind("Gemma2Model", _GEMMA2, "gemma", norms_around=0.0),
    "embedding-gemma": Kind("Gemma3TextModel", _EMBEDDING_GEMMA, "gemma", norms_around=0.0),
    "deberta-v2": Kind("DebertaV2Model", _DEBERTA, "deberta"),
    "deberta-v2-nli": Kind("DebertaV2ForSequenceClassification", _DEBERTA | _NLI, "deberta"),
    "deberta-v2-ner": Kind("DebertaV2ForTokenClassification", _DEBERTA | _NER, "deberta"),
    "electra": Kind("ElectraModel", _ELECTRA, "bert"),
    "electra-nli": Kind("ElectraForSequenceClassification", _ELECTRA | _NLI, "bert"),
    "electra-ner": Kind("ElectraForTokenClassification", _ELECTRA | _NER, "bert"),
    "albert": Kind("AlbertModel", _ALBERT, "albert"),
    "albert-nli": Kind("AlbertForSequenceClassification", _ALBERT | _NLI, "albert"),
    "albert-splade": Kind("AlbertForMaskedLM", _ALBERT, "albert"),
}
