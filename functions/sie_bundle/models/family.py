"""Encoder families as data: where each weight is stored, what each family does its own way, which heads it has.

Owns the names and the reading of ``config.json``. Computes nothing: ``packed_encoder`` is the one program that runs
every family here; families it does not run name another way in. A new family is a record here and a golden vector.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any, Literal

import msgspec

from sie_bundle.engine.rope import Rope
from sie_bundle.models.by_layer import by_layer
from sie_sdk.errors import ModelLoadFailedError

Positive = Annotated[int, msgspec.Meta(ge=1)]
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
    """Empty: none. A checkpoint with one type is treated like one with two of the same."""
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
    """The head over one vector per text: tensor names and activations, in order."""
    classifier_pooling: Literal["cls", "mean", "last"] = "cls"
    token_classifier: str = "classifier"
    """The head over every token."""
    masked_lm: str = ""
    """The head over the vocabulary; ``tied`` is the word embeddings with the bias named behind the colon."""

    @property
    def rotates(self) -> bool:
        """Whether positions enter by rotation."""
        return not (self.positions or self.relative_bias or self.alibi)


_ROBERTA = Family(
    prefixes=("roberta.", ""),
    first_position=2,
    behind_padding=True,
    may_decode=True,
    classifier="classifier.dense tanh classifier.out_proj",
    masked_lm="lm_head.dense gelu lm_head.layer_norm tied:lm_head.bias",
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
    constants={"hidden_act": "silu"},
    classifier="score",
    classifier_pooling="last",
    token_classifier="score",
    masked_lm="tied:",
)
_GTE = Family(
    prefixes=("new.", ""),
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
)
_DEBERTA = Family(way="padded", prefixes=("deberta.", ""), classifier="pooler.dense gelu classifier")

FAMILIES = {
    "bert": Family(
        prefixes=("bert.", "", "model."),
        may_decode=True,
        masked_lm="cls.predictions.transform.dense act cls.predictions.transform.LayerNorm tied:cls.predictions.bias",
    ),
    "electra": Family(
        prefixes=("electra.", ""),
        may_decode=True,
        embedding_projection="embeddings_project",
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
        constants={"layer_norm_eps": 1e-12},
        classifier="pre_classifier relu classifier",
        masked_lm="vocab_transform act vocab_layer_norm tied:vocab_projector.bias",
    ),
    "mpnet": Family(
        prefixes=("mpnet.", ""),
        first_position=2,
        token_types="",
        qkv=("attention.attn.q", "attention.attn.k", "attention.attn.v"),
        attention_output="attention.attn.o",
        attention_norm="attention.LayerNorm",
        relative_bias="encoder.relative_attention_bias",
        classifier="classifier.dense tanh classifier.out_proj",
        masked_lm="lm_head.dense gelu lm_head.layer_norm tied:lm_head.bias",
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
        config={"hidden_act": "hidden_activation", "layer_norm_eps": "norm_eps"},
        constants={"global_attn_every_n_layers": 3, "local_attention": 128, "global_rope_theta": 160_000.0},
        classifier="head.dense gelu head.norm classifier",
        token_classifier="head.dense gelu head.norm classifier",
        masked_lm="head.dense gelu head.norm tied:decoder.bias",
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
        constants={"layer_norm_eps": 1e-12, "hidden_act": "gelu_new"},
        only={"num_hidden_groups": 1, "inner_group_num": 1},
        classifier="pooler tanh classifier",
        masked_lm="predictions.dense act predictions.LayerNorm tied:predictions.bias",
    ),
    "new": _GTE,
    "gte": _GTE,
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
        only={"rotary_emb_fraction": 1.0}
        | dict.fromkeys(("prenorm", "parallel_block", "use_rms_norm", "rotary_emb_interleaved"), False),
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
    "gemma2": msgspec.structs.replace(_LLAMA, way="transformers"),
    "gemma3_text": msgspec.structs.replace(_LLAMA, way="transformers"),
    "deberta": _DEBERTA,
    "deberta-v2": _DEBERTA,
    AUTO: Family(way="transformers", words="", classifier="", token_classifier=""),
}


class Config(msgspec.Struct, frozen=True, kw_only=True):
    """What is read of ``config.json``, under BERT's names. Anything else there is ignored.

    ``ropes`` and ``windows``: per layer, the rotation, and how many tokens to each side are seen (None: all).
    """

    model_type: str
    hidden_size: Positive
    vocab_size: Positive
    num_hidden_layers: Positive
    num_attention_heads: Positive
    max_position_embeddings: Positive
    hidden_act: str = "gelu"
    layer_norm_eps: float = 1e-5
    num_key_value_heads: Positive | None = None
    head_dim: Positive | None = None
    id2label: dict[int, str] | None = None
    classifier_pooling: Literal["cls", "mean"] | None = None
    tie_word_embeddings: bool = True
    ropes: tuple[Rope, ...] = ()
    windows: tuple[int | None, ...] = ()

    @property
    def head_size(self) -> int:
        return self.head_dim or self.hidden_size // self.num_attention_heads

    @property
    def key_value_heads(self) -> int:
        return self.num_key_value_heads or self.num_attention_heads

    @property
    def labels(self) -> tuple[str, ...]:
        """The labels of the head on top, in order; empty: none are named."""
        return tuple(label for _, label in sorted((self.id2label or {}).items()))


class Architecture(msgspec.Struct, frozen=True):
    """One encoder, completely described: its family and its sizes."""

    family: Family
    config: Config

    @property
    def longest(self) -> int:
        """How many tokens a text may have."""
        return self.config.max_position_embeddings - (self.family.first_position if self.family.positions else 0)


def architecture(family: str, folder: Path) -> Architecture:
    """Describe the encoder of a model's folder.

    Raises:
        ModelLoadFailedError: the family is unknown, or ``config.json`` is unreadable or of another family.
    """
    if (record := FAMILIES.get(family)) is None:
        raise ModelLoadFailedError(
            f"There is no family {family!r}.", hint=f"Families: {', '.join(FAMILIES)}; or install its adapter."
        )
    path = folder / "config.json"
    try:
        given = msgspec.json.decode(path.read_bytes(), type=dict[str, Any])
    except (OSError, UnicodeDecodeError, msgspec.MsgspecError) as error:
        raise ModelLoadFailedError(f"{path} cannot be used: {error}.", reason="corrupt") from error
    if family == AUTO:
        record, given = _found(folder, given)
    made = described(record, given, path)
    if family != AUTO and made.config.model_type != (record.model_type or family):
        raise ModelLoadFailedError(f"The spec says family {family!r}, config.json says {made.config.model_type!r}.")
    return made


def described(record: Family, given: dict[str, Any], path: Path) -> Architecture:
    """The encoder of a record, by what its config.json says; ``path``: where that was read, for errors.

    Raises:
        ModelLoadFailedError: a size is missing, or is none; or it asks for what is not computed here.
    """
    try:
        named = {ours: given[theirs] for ours, theirs in record.config.items() if theirs in given}
        given = {**record.constants, **given, **named}
        layers = by_layer(given) if record.way == "packed" else {}
        config = msgspec.convert(given | layers, type=Config, str_keys=True)
    except (msgspec.MsgspecError, ValueError, TypeError, KeyError, AttributeError, ArithmeticError) as error:
        raise ModelLoadFailedError(f"{path} cannot be used: {error}.") from error
    if record.way == "packed":
        # null, which publishers write, is what is said by leaving it out.
        said = {name: given[name] for name in record.only if given.get(name) is not None}
        if strange := {name: value for name, value in said.items() if value != record.only[name]}:
            raise ModelLoadFailedError(f"{path} asks for what is not computed here: {strange}.")
        decodes = record.may_decode and bool(given.get("is_decoder"))
        causal = decodes or (record.causal and given.get("is_causal") is not False)
        record = msgspec.structs.replace(record, causal=causal)
    if record.behind_padding and isinstance(padding := given.get("pad_token_id"), int):
        record = msgspec.structs.replace(record, first_position=padding + 1)
    return Architecture(family=record, config=config)


def _found(folder: Path, given: dict[str, Any]) -> tuple[Family, dict[str, Any]]:
    """The record of ``AUTO`` for a folder, and its config.json, in the words of transformers if there is no record."""
    if (known := FAMILIES.get(str(given.get("model_type")))) is not None:
        return msgspec.structs.replace(known, way="padded" if known.way == "padded" else "transformers"), given
    from sie_bundle.models.transformers_library import sizes

    return FAMILIES[AUTO], sizes(folder)
