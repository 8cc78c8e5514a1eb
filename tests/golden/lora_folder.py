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


def make(folder: Path, layers: Mapping[str, tuple[int, int]], *, rank: int = 4, seed: int = 0, **config: Any) -> Path:
    """Write adapter_config.json and adapter_model.safetensors into ``folder``; returns it.

    The same arguments always give the same numbers, none of them zero, so that every layer matters.

    Args:
        layers: (outputs, inputs) by name, as the model that PEFT wraps has it.
        config: fields of adapter_config.json that are not as they usually are.
    """
    folder.mkdir(parents=True, exist_ok=True)
    random = np.random.RandomState(seed)
    tensors = {}
    for name, (outputs, inputs) in layers.items():
        down, up = random.standard_normal((rank, inputs)), random.standard_normal((outputs, rank))
        tensors[f"base_model.model.{name}.lora_A.weight"] = (down * inputs**-0.5).astype(np.float32)
        tensors[f"base_model.model.{name}.lora_B.weight"] = (up * 0.3 * rank**-0.5).astype(np.float32)
    save_file(tensors, folder / "adapter_model.safetensors")
    written = {
        "peft_type": "LORA",
        "task_type": "FEATURE_EXTRACTION",
        "base_model_name_or_path": "",
        "inference_mode": True,
        "r": rank,
        "lora_alpha": 2 * rank,
        "lora_dropout": 0.1,
        "bias": "none",
        "fan_in_fan_out": False,
        "use_rslora": False,
        "use_dora": False,
        "modules_to_save": None,
        "target_modules": sorted({".".join(name.split(".")[-2:]) for name in layers}),
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
