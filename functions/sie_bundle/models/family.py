"""Encoder families as data: where each weight is stored, what each family does its own way, which heads it has.

Owns the names. Computes nothing: ``packed_encoder`` is the one program that runs every family here; families it does
not run name another way in. What a ``config.json`` says by them is ``architecture``'s. A new family is a record here
and a golden vector.
"""

from __future__ import annotations

from typing import Any, Literal

import msgspec

Way = Literal["packed", "transformers", "padded"]
GLINER = "gliner"
"""The family of GLiNERs, whose encoder is one of `FAMILIES` and stands in a config of its own (``gliner``)."""
AUTO = "auto"
"""The family of every model that transformers knows: with the heads of the record of its ``model_type``, if any."""


class Family(msgspec.Struct, frozen=True, kw_only=True):
    """How one encoder family stores its weights and in what it differs from BERT, whose ways are the defaults.

    Names are tensor names without their ``.weight`` or ``.bias``; whether a layer has a bias, the checkpoint says.
    """

    way: Way = "packed"
    """``packed``: the fields below describe it all. Otherwise transformers' own code computes the states."""
    prefixes: tuple[str, ...] = ("",)
    """What may stand before every name: checkpoints with a head on top store the encoder under a prefix."""
    words: str = "embeddings.word_embeddings"
    positions: str = "embeddings.position_embeddings"
    """Empty: positions enter by rotation."""
    first_position: int = 0
    behind_padding: bool = False
    """Positions count from behind the padding's id, by which RoBERTa's ``first_position`` is 2."""
    token_types: str = "embeddings.token_type_embeddings"
    """Empty: none, as where config.json says 0. A checkpoint with one type is treated like one with two of the same."""
    embedding_norm: str = "embeddings.LayerNorm"
    embedding_projection: str = ""
    """From embeddings that are smaller than the states, where the checkpoint has it (ELECTRA, ALBERT)."""
    layer: str = "encoder.layer.{}."
    """What stands before the names below; ``{}`` is the layer's number. Without it, all layers are one (ALBERT)."""
    qkv: tuple[str, ...] = ("attention.self.query", "attention.self.key", "attention.self.value")
    """Three layers, or one with all three side by side."""
    q_norm: str = ""
    k_norm: str = ""
    """Norms over each head's dimensions (Qwen3), or over those of all heads together, as their weights are wide."""
    attention_output: str = "attention.output.dense"
    attention_norm: str = "attention.output.LayerNorm"
    between_norm: str = ""
    """A second norm behind attention, to which the layer's input is added again."""
    up: tuple[str, ...] = ("intermediate.dense",)
    """One layer; or the activated one and the one it is multiplied with, in one tensor or in two."""
    gate: Literal["none", "first", "second"] = "none"
    """Which half of ``up`` is activated and multiplied with the other."""
    down: str = "output.dense"
    output_norm: str = "output.LayerNorm"
    final_norm: str = ""
    norm: Literal["layer", "rms"] = "layer"
    pre_norm: bool = False
    """Norms stand before attention and feed-forward (with ``final_norm`` at the end) instead of after."""
    causal: bool = False
    """Unless ``is_causal`` of config.json says otherwise."""
    may_decode: bool = False
    """Causal where ``is_decoder`` of config.json says so."""
    relative_bias: str = ""
    """A learned bias per head and bucket of distance, added to the attention of every layer (MPNet, T5)."""
    alibi: bool = False
    """A bias by distance that is not learned."""
    model_type: str = ""
    """What config.json says where it is not the family's name."""
    config: dict[str, str] = {}
    """Names in ``config.json`` where they are not BERT's, by our field."""
    constants: dict[str, Any] = {}
    """What ``config.json`` does not say, or means where it does not."""
    only: dict[str, Any] = {}
    """Of what ``config.json`` may say in several ways, the one that is computed here."""
    classifier: str = "bert.pooler.dense tanh classifier"
    """The head over one vector per text: tensor names and activations, in order; see ``Parameters.head``."""
    classifier_pooling: Literal["cls", "mean", "last"] = "cls"
    token_classifier: str = "classifier"
    """The head over every token."""
    masked_lm: str = ""
    """The head over the vocabulary; ``tied`` is the word embeddings with the bias named behind the colon."""
    decoder: str = "lm_head"
    """What stands for ``tied``, with a bias of its own if it has one, in checkpoints where the two are not one."""

    @property
    def rotates(self) -> bool:
        """Whether positions enter by rotation."""
        return not (self.positions or self.relative_bias or self.alibi)


ABSOLUTE = {"position_embedding_type": "absolute"}
"""The ``only`` of families whose distances transformers 4 could have learned as well (relative_key). 5 ignores that a
config asks for it, and computes something else."""

_ROBERTA = Family(
    prefixes=("roberta.", ""),
    first_position=2,
    behind_padding=True,
    may_decode=True,
    classifier="classifier.dense tanh classifier.out_proj",
    masked_lm="lm_head.dense gelu lm_head.layer_norm tied:lm_head.bias",
    decoder="lm_head.decoder",
    only=ABSOLUTE,
)
_LLAMA = Family(
    prefixes=("model.", ""),
    words="embed_tokens",
    positions="",
    token_types="",
    embedding_norm="",
    layer="layers.{}.",
    qkv=("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj"),
    attention_output="self_attn.o_proj",
    attention_norm="input_layernorm",
    up=("mlp.gate_proj", "mlp.up_proj"),
    gate="first",
    down="mlp.down_proj",
    output_norm="post_attention_layernorm",
    final_norm="norm",
    norm="rms",
    pre_norm=True,
    causal=True,
    config={"layer_norm_eps": "rms_norm_eps"},
    constants={"hidden_act": "silu", "layer_norm_eps": 1e-6},
    classifier="score",
    classifier_pooling="last",
    token_classifier="score",
    masked_lm="tied:",
)
_GTE = Family(
    prefixes=("new.", "gte.", ""),
    positions="",
    qkv=("attention.qkv_proj",),
    attention_output="attention.o_proj",
    attention_norm="attn_ln",
    up=("mlp.up_gate_proj",),
    gate="second",
    down="mlp.down_proj",
    output_norm="mlp_ln",
    only={"position_embedding_type": "rope", "layer_norm_type": "layer_norm", "logn_attention_scale": False},
    classifier="pooler.dense tanh classifier",
)
_JINA_BERT = Family(
    model_type="bert",
    prefixes=("bert.", ""),
    positions="",
    alibi=True,
    up=("mlp.gated_layers",),
    gate="first",
    down="mlp.wo",
    output_norm="mlp.layernorm",
    only={"position_embedding_type": "alibi", "feed_forward_type": "geglu"},
)
_DEBERTA = Family(
    way="padded",
    prefixes=("deberta.", ""),
    config={"head_act": "pooler_hidden_act"},
    constants={"layer_norm_eps": 1e-7},
    classifier="pooler.dense head_act classifier",
)

FAMILIES = {
    "bert": Family(
        prefixes=("bert.", "", "model."),
        may_decode=True,
        masked_lm="cls.predictions.transform.dense act cls.predictions.transform.LayerNorm tied:cls.predictions.bias",
        decoder="cls.predictions.decoder",
        only=ABSOLUTE,
    ),
    "electra": Family(
        prefixes=("electra.", ""),
        may_decode=True,
        embedding_projection="embeddings_project",
        only=ABSOLUTE,
        classifier="classifier.dense gelu classifier.out_proj",
    ),
    "roberta": _ROBERTA,
    "xlm-roberta": _ROBERTA,
    "camembert": _ROBERTA,
    "distilbert": Family(
        prefixes=("distilbert.", ""),
        token_types="",
        layer="transformer.layer.{}.",
        qkv=("attention.q_lin", "attention.k_lin", "attention.v_lin"),
        attention_output="attention.out_lin",
        attention_norm="sa_layer_norm",
        up=("ffn.lin1",),
        down="ffn.lin2",
        output_norm="output_layer_norm",
        config={
            "hidden_size": "dim",
            "num_hidden_layers": "n_layers",
            "num_attention_heads": "n_heads",
            "hidden_act": "activation",
        },
        classifier="pre_classifier relu classifier",
        masked_lm="vocab_transform act vocab_layer_norm tied:vocab_projector.bias",
        decoder="vocab_projector",
    ),
    "mpnet": Family(
        prefixes=("mpnet.", ""),
        first_position=2,
        token_types="",
        qkv=("attention.attn.q", "attention.attn.k", "attention.attn.v"),
        attention_output="attention.attn.o",
        attention_norm="attention.LayerNorm",
        relative_bias="encoder.relative_attention_bias",
        only={"relative_attention_num_buckets": 32},
        classifier="classifier.dense tanh classifier.out_proj",
        masked_lm="lm_head.dense gelu lm_head.layer_norm tied:lm_head.bias",
        decoder="lm_head.decoder",
    ),
    "modernbert": Family(
        prefixes=("model.", ""),
        words="embeddings.tok_embeddings",
        positions="",
        token_types="",
        embedding_norm="embeddings.norm",
        layer="layers.{}.",
        qkv=("attn.Wqkv",),
        attention_output="attn.Wo",
        attention_norm="attn_norm",
        up=("mlp.Wi",),
        gate="first",
        down="mlp.Wo",
        output_norm="mlp_norm",
        final_norm="final_norm",
        pre_norm=True,
        config={
            "hidden_act": "hidden_activation",
            "layer_norm_eps": "norm_eps",
            "head_act": "classifier_activation",
        },
        constants={
            "layer_norm_eps": 1e-5,
            "global_attn_every_n_layers": 3,
            "local_attention": 128,
            "global_rope_theta": 160_000.0,
        },
        classifier="head.dense head_act head.norm classifier",
        token_classifier="head.dense head_act head.norm classifier",
        masked_lm="head.dense head_act head.norm tied:decoder.bias",
        decoder="decoder",
    ),
    "albert": Family(
        prefixes=("albert.", ""),
        embedding_projection="encoder.embedding_hidden_mapping_in",
        layer="encoder.albert_layer_groups.0.albert_layers.0.",
        qkv=("attention.query", "attention.key", "attention.value"),
        attention_output="attention.dense",
        attention_norm="attention.LayerNorm",
        up=("ffn",),
        down="ffn_output",
        output_norm="full_layer_layer_norm",
        constants={"hidden_act": "gelu_new"},
        only={"num_hidden_groups": 1, "inner_group_num": 1, **ABSOLUTE},
        classifier="pooler tanh classifier",
        masked_lm="predictions.dense act predictions.LayerNorm tied:predictions.bias",
        decoder="predictions.decoder",
    ),
    "new": _GTE,
    "gte": msgspec.structs.replace(_GTE, constants={"rope_theta": 160_000.0}),
    "nomic_bert": Family(
        prefixes=("nomic_bert.", "bert.", ""),
        positions="",
        embedding_norm="emb_ln",
        layer="encoder.layers.{}.",
        qkv=("attn.Wqkv",),
        attention_output="attn.out_proj",
        attention_norm="norm1",
        up=("mlp.fc11", "mlp.fc12"),
        gate="second",
        down="mlp.fc2",
        output_norm="norm2",
        config={
            "hidden_size": "n_embd",
            "num_hidden_layers": "n_layer",
            "num_attention_heads": "n_head",
            "max_position_embeddings": "n_positions",
            "hidden_act": "activation_function",
            "layer_norm_eps": "layer_norm_epsilon",
            "rope_theta": "rotary_emb_base",
        },
        only={"rotary_emb_fraction": 1.0, "rotary_scaling_factor": None, "rotary_emb_scale_base": None}
        | dict.fromkeys(("prenorm", "parallel_block", "use_rms_norm", "rotary_emb_interleaved", "causal"), False),
        classifier="pooler.dense tanh classifier",
    ),
    "jina_bert": _JINA_BERT,
    "jina_bert_qk": msgspec.structs.replace(
        _JINA_BERT,
        q_norm="attention.self.layer_norm_q",
        k_norm="attention.self.layer_norm_k",
        between_norm="layer_norm_1",
        up=("mlp.up_gated_layer",),
        gate="second",
        down="mlp.down_layer",
        output_norm="layer_norm_2",
    ),
    "qwen2": _LLAMA,
    "llama": _LLAMA,
    "llama_bidirec": msgspec.structs.replace(_LLAMA, causal=False),
    "mistral": _LLAMA,
    "qwen3": msgspec.structs.replace(_LLAMA, q_norm="self_attn.q_norm", k_norm="self_attn.k_norm"),
    "gemma2": msgspec.structs.replace(
        _LLAMA, way="transformers", constants={**_LLAMA.constants, "final_logit_softcapping": 30.0}
    ),
    "gemma3_text": msgspec.structs.replace(_LLAMA, way="transformers"),
    "deberta": _DEBERTA,
    "deberta-v2": _DEBERTA,
    AUTO: Family(way="transformers", words="", classifier="", token_classifier=""),
}
