"""What differs from layer to layer, from the several ways there are to write it in config.json: rotation and window.

Owns which layers see a window only, and how far. How a rotation is described is ``rope``'s. Pure.
"""

from __future__ import annotations

from typing import Any

from sie_bundle.engine.rope import ropes


def by_layer(given: dict[str, Any]) -> dict[str, Any]:
    """``ropes`` and ``windows`` of ``family.Config``.

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
    """How many tokens to one side are seen: ModernBERT counts both sides, a causal window the token itself too."""
    if "local_attention" in given:
        return int(given["local_attention"]) // 2
    return int(given["sliding_window"]) - 1
