"""Which family of the engine computes a model, or what it waits for. Pure.

Owns the reading of ``model_type``, of code that a repository brings, and of what packed families do not compute. What
the model's heads are stands in ``heads``, ``chain`` and ``late``.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import msgspec

from sie_config.propose import gliner
from sie_config.propose.draft import Draft
from sie_config.propose.families import ACTIVATIONS, AUTO, FAMILIES, OF_TRANSFORMERS, ROTATIONS, Known
from sie_config.propose.papers import Config, Papers


class Family(msgspec.Struct, frozen=True):
    """The family of a proposal. ``known``: what there is to know of it; None: of ``auto`` without a record."""

    name: str
    known: Known | None = None
    source: str = "config.json: model_type"


def family(papers: Papers, draft: Draft) -> Family:
    """Choose the family; what keeps it from running is noted as a block."""
    config = papers.config
    chosen = _chosen(papers, draft)
    draft.put("family", chosen.name, chosen.source)
    if config.vision_config is not None or config.audio_config is not None:
        media = ["image"] * (config.vision_config is not None) + ["audio"] * (config.audio_config is not None)
        draft.put("inputs", ["text", *media], "config.json: vision_config, audio_config")
        draft.block(f"inputs other than text ({_class(config)})")
    return chosen


def _chosen(papers: Papers, draft: Draft) -> Family:
    config, kind = papers.config, papers.config.model_type
    if gliner.FILE in papers.folder.files:
        return Family(gliner.family(papers, draft), source=gliner.FILE)
    if "config.json" not in papers.folder.files:
        draft.block("models without a transformer (there is no config.json)")
        return Family("unknown", source="")
    if not kind:
        draft.block("an architecture that config.json names (model_type)")
        return Family("unknown", source="")
    if kind == "bert" and config.architecture.startswith("JinaBert") and config.position_embedding_type == "alibi":
        return _jina_bert(papers, draft)
    if (known := FAMILIES.get(kind)) is not None:
        if config.auto_map and not known.published_code:
            draft.block(f"the repository's own code of {_class(config)} (config.json: auto_map)")
        return _packed(config, kind, known, draft)
    if config.is_encoder_decoder:
        draft.block(f"encoders of encoder-decoder models ({_class(config)})")
        return Family(kind)
    if kind in OF_TRANSFORMERS:
        if config.auto_map:
            draft.doubt(
                "family",
                f"the repository brings code of its own for {kind}, and transformers' code is what `auto` runs: "
                "compare one vector with the model card's",
            )
        return Family(AUTO)
    draft.block(f"the architecture {_class(config)}")
    return Family(kind if kind.isascii() else "unknown")


def _jina_bert(papers: Papers, draft: Draft) -> Family:
    """JinaBERT calls itself BERT; two kinds of it go by one name, told apart by their tensors and their code's name."""
    code = " ".join(own for own in papers.config.auto_map.values() if isinstance(own, str))
    norms = "qk-post-norm" in code or any("layer_norm_q." in name for name in papers.folder.tensors or ())
    name = "jina_bert_qk" if norms else "jina_bert"
    if papers.config.feed_forward_type not in ("", "geglu"):
        draft.block(f"JinaBERT's layers of type {papers.config.feed_forward_type} (config.json: feed_forward_type)")
    return Family(name, FAMILIES[name], "config.json: architectures, position_embedding_type")


def _packed(config: Config, kind: str, known: Known, draft: Draft) -> Family:
    """A known family in the way that computes this config.json."""
    if config.position_embedding_type not in ("absolute", "rope", "rotary"):
        draft.block(f"positions of type {config.position_embedding_type!r} in {_class(config)}")
    if config.num_experts:
        draft.block(f"the {config.num_experts} experts of {_class(config)}")
    unpacked = "" if known.packed else kind
    if rotation := _rotation(config):
        unpacked = f"a rotation of type {rotation}"
    elif (act := config.hidden_act or config.hidden_activation or config.activation) and act not in ACTIVATIONS:
        unpacked = f"the activation {act}"
    if not unpacked:
        return Family(kind, known)
    if known.decoder and not config.is_causal:
        draft.block(f"attention to both sides in {_class(config)}, with {unpacked} (config.json: is_causal)")
    if not known.packed:
        return Family(kind, known)
    if known.published_code:
        draft.block(f"{unpacked} in {_class(config)} (config.json)")
    return Family(AUTO, known, f"transformers' own code, for {unpacked} (config.json)")


def _rotation(config: Config) -> str:
    """A way to stretch positions that is not packed; empty: there is none."""
    for kind, rope in _ropes(config):
        if kind not in ROTATIONS or (kind == "ntk" and rope.get("mixed_b") is not None):
            return kind
    return ""


def _ropes(config: Config) -> Iterator[tuple[str, dict[str, Any]]]:
    """Every rotation that is described, behind its type: of all layers, or of those of one kind."""
    by_kind = [own for own in config.rope_parameters.values() if isinstance(own, dict)]
    for rope in (config.rope_parameters, *by_kind, config.rope_scaling):
        yield str(rope.get("rope_type", rope.get("type", "default"))), rope


def _class(config: Config) -> str:
    return config.architecture or config.model_type or "no named class"


def hidden(papers: Papers, family: Family) -> int:
    """The numbers of a state; 0: no file says."""
    known = family.known or Known()
    inner = papers.config.text_config.get("hidden_size")
    said = getattr(papers.config, known.hidden) or papers.config.hidden_size
    return said or (inner if isinstance(inner, int) and inner > 0 else 0)


def unturned(config: Config) -> int:
    """The tokens up to which longrope, which goes by a call's longest text, turns all alike; 0: another rotation."""
    for kind, rope in _ropes(config):
        if kind == "longrope":
            own = rope.get("original_max_position_embeddings")
            return own if isinstance(own, int) and own > 0 else config.original_max_position_embeddings
    return 0


def longest(papers: Papers, family: Family) -> int:
    """The tokens that have a position; 0: no file says, or any number has."""
    known = family.known or Known()
    said = getattr(papers.config, known.longest) or papers.config.max_position_embeddings
    return max(0, said - known.first_position)
