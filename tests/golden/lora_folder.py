"""LoRA adapters with random weights, in folders as PEFT writes them.

For the checkpoints that can be fetched no encoder's LoRA can (``weights.md``). PEFT itself is the judge: it loads these
folders in ``make_lora_golden``.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from safetensors import safe_open
from safetensors.numpy import save_file

# What PEFT 0.21.2 writes of a plain LoRA.
_NOTHING = (
    *("alora_invocation_tokens", "arrow_config", "corda_config", "eva_config", "exclude_modules", "kasa_config"),
    *("layer_replication", "layers_pattern", "layers_to_transform", "lora_ga_config", "megatron_config"),
    *("monteclora_config", "revision", "target_parameters", "trainable_token_indices", "use_bdlora", "velora_config"),
)
_FALSE = ("ensure_weight_tying", "fan_in_fan_out", "lora_bias", "use_dora", "use_qalora", "use_rslora")
_WRITTEN: dict[str, Any] = {
    **dict.fromkeys(_NOTHING),
    **dict.fromkeys(_FALSE, False),
    "alpha_pattern": {},
    "auto_mapping": {"base_model_class": "BertModel", "parent_library": "transformers.models.bert.modeling_bert"},
    "base_model_name_or_path": "",
    "bias": "none",
    "inference_mode": True,
    "init_lora_weights": True,
    "loftq_config": {},
    "lora_dropout": 0.1,
    "megatron_core": "megatron.core",
    "peft_type": "LORA",
    "peft_version": "0.21.2",
    "qalora_group_size": 16,
    "rank_pattern": {},
    "task_type": "FEATURE_EXTRACTION",
}


def make(
    folder: Path,
    layers: Mapping[str, tuple[int, int]],
    *,
    rank: int = 4,
    seed: int = 0,
    whole: Mapping[str, tuple[int, ...]] | None = None,
    **config: Any,
) -> Path:
    """Write adapter_config.json and adapter_model.safetensors into ``folder``; returns it.

    The same arguments always give the same numbers, none of them zero, so that every layer matters.

    Args:
        layers: (outputs, inputs) by name, as the model that PEFT wraps has it.
        whole: the shape, by name, of tensors that were trained whole (``modules_to_save``).
        config: fields of adapter_config.json that are not as they usually are.
    """
    folder.mkdir(parents=True, exist_ok=True)
    random = np.random.RandomState(seed)
    tensors = {}
    for name, (outputs, inputs) in layers.items():
        down, up = random.standard_normal((rank, inputs)), random.standard_normal((outputs, rank))
        tensors[f"base_model.model.{name}.lora_A.weight"] = (down * inputs**-0.5).astype(np.float32)
        tensors[f"base_model.model.{name}.lora_B.weight"] = (up * 0.3 * rank**-0.5).astype(np.float32)
    for name, shape in (whole or {}).items():
        tensors[f"base_model.model.{name}"] = random.standard_normal(shape).astype(np.float32)
    save_file(tensors, folder / "adapter_model.safetensors")
    written = _WRITTEN | {
        "r": rank,
        "lora_alpha": 2 * rank,
        "target_modules": sorted({".".join(name.split(".")[-2:]) for name in layers}),
        "modules_to_save": sorted({name.split(".")[0] for name in whole}) if whole else None,
    }
    (folder / "adapter_config.json").write_text(json.dumps({**written, **config}))
    return folder


def names(folder: Path) -> set[str]:
    """The names of an adapter's tensors."""
    with safe_open(folder / "adapter_model.safetensors", framework="np") as file:
        return set(file.keys())


def bert(hidden: int, inner: int, layers: int, parts: Sequence[str] = ("query", "value")) -> dict[str, tuple[int, int]]:
    """BERT's layers of those names: ``query``, ``key``, ``value``, ``intermediate``."""
    shapes = {"intermediate": (inner, hidden)}
    places = {"intermediate": "intermediate.dense"}
    return {
        f"encoder.layer.{layer}.{places.get(part, f'attention.self.{part}')}": shapes.get(part, (hidden, hidden))
        for layer in range(layers)
        for part in parts
    }


MINILM: dict[str, Any] = {"layers": bert(384, 1536, 6, ("query", "value", "intermediate")), "rank": 8, "lora_alpha": 24}
"""The adapter of ``minilm-lora.npz``, as `make` takes it."""
