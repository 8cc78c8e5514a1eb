"""What differs from layer to layer, from the several ways there are to write it in config.json: rotation and window.

Owns which layers see a window only, and how far; the base of each layer's rotation, and how it is stretched. Pure.
"""

from __future__ import annotations

from typing import Any

from sie_bundle.engine.rope import Rope


class UnsupportedRope(ValueError):  # noqa: N818
    """A rotation that nothing here computes. Never leaves ``architecture``."""


def by_layer(given: dict[str, Any]) -> dict[str, Any]:
    """``ropes`` and ``windows`` of ``architecture.Config``.

    Raises:
        ValueError: fewer layers are described than there are, or one sees what is not computed here. Others, where
            what config.json says is no such thing at all.
    """
    layers = int(given.get("num_hidden_layers", 0))
    kinds = given.get("layer_types") or _kinds(given, layers)
    if len(kinds) < layers or not {*kinds} <= {"full_attention", "sliding_attention"}:
        raise ValueError(f"layer_types {kinds!r:.80} are not what {layers} layers see")
    head_size = given.get("head_dim") or given.get("hidden_size", 0) // max(1, given.get("num_attention_heads", 1))
    return {
        "ropes": ropes(given, kinds, head_size),
        "windows": [_side(given) if kind == "sliding_attention" else None for kind in kinds],
    }


def _kinds(given: dict[str, Any], layers: int) -> list[str]:
    """Which layers see a window only, where ``layer_types`` does not say."""
    if (every := given.get("global_attn_every_n_layers")) is not None:
        return ["sliding_attention" if layer % every else "full_attention" for layer in range(layers)]
    first = layers
    if given.get("sliding_window") and given.get("model_type") == "mistral":
        first = 0
    elif given.get("sliding_window") and given.get("use_sliding_window"):
        first = given.get("max_window_layers", 28)
    return ["sliding_attention" if layer >= first else "full_attention" for layer in range(layers)]


def _side(given: dict[str, Any]) -> int:
    """How many tokens to one side are seen: ModernBERT counts both sides, a causal window the token itself too; one
    that is made bidirectional goes as far as it says to both.

    Raises:
        ValueError: fewer than none, by which some libraries mean all, and transformers nothing that can be computed.
    """
    name = "local_attention" if "local_attention" in given else "sliding_window"
    said, causal = int(given[name]), given.get("is_causal") is not False
    side = said // 2 if name == "local_attention" else said - causal
    if side < 0:
        raise ValueError(f"{name} is {given[name]}")
    return side


def ropes(given: dict[str, Any], kinds: list[str], head_size: int) -> list[Rope]:
    """The rotation of each layer, ``kinds`` being what each sees: full_attention or sliding_attention.

    Raises:
        UnsupportedRope: a kind of stretching that is not here.
    """
    described = given.get("rope_parameters") or given.get("rope_scaling") or {}
    plain = float(given.get("rope_theta", 10_000.0))
    published = {
        "full_attention": float(given.get("global_rope_theta", plain)),
        "sliding_attention": float(given.get("local_rope_theta", plain)),
    }
    by_kind = {
        kind: _rope(described.get(kind) or described, published.get(kind, plain), head_size) for kind in set(kinds)
    }
    return [by_kind[kind] for kind in kinds]


def _rope(described: dict[str, Any], theta: float, head_size: int) -> Rope:
    theta = float(described.get("rope_theta", theta))
    factor = float(described.get("factor", 1.0))
    match described.get("rope_type", described.get("type", "default")):
        case "default":
            return Rope(theta)
        case "linear":
            return Rope(theta, divisor=factor)
        case "ntk" if described.get("mixed_b") is None:
            # Of GTE: the base times the factor, and every pair slower by a root of it (https://kexue.fm/archives/9706).
            return Rope(theta * factor, divisor=factor ** (2 / head_size))
        case "llama3":
            return Rope(
                theta,
                trained=int(described["original_max_position_embeddings"]),
                factor=factor,
                low=float(described["low_freq_factor"]),
                high=float(described["high_freq_factor"]),
            )
        case kind:
            raise UnsupportedRope(f"rotation of type {kind!r} is not supported")
