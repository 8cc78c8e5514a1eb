"""LoRA: low-rank weights on top of a model's own (2106.09685), from a folder as PEFT writes it, merged at load.

Owns what of such a folder is understood, and the sum: W + scale * alpha / r * B A. Layers that were trained whole
beside it, a classifier for instance, take the place of the model's. A model with a LoRA is a model of its own in
memory, so a merged one costs a forward pass nothing, and no batch mixes two of them.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, Final, NamedTuple

import msgspec
import torch
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor

from sie_sdk.errors import ModelLoadFailedError

PREFIX: Final = "base_model.model."
"""What PEFT puts before every name."""

# Starts that leave the model's own weights as they are. What is learned from others is nothing to add to those.
_STARTS: Final = (True, False, "gaussian", "orthogonal", "eva")

# What of adapter_config.json says nothing about the sum, or is told by the tensors themselves.
_ASIDE: Final = {
    *("auto_mapping", "base_model_name_or_path", "ensure_weight_tying", "eva_config", "exclude_modules"),
    *("inference_mode", "layers_pattern", "layers_to_transform", "lora_dropout", "megatron_core", "peft_version"),
    *("qalora_group_size", "rank_pattern", "revision", "runtime_config", "target_modules", "task_type"),
}


class Config(msgspec.Struct, frozen=True):
    """What is read of adapter_config.json."""

    peft_type: str
    r: int
    lora_alpha: float
    use_rslora: bool = False
    bias: str = "none"
    modules_to_save: list[str] | None = None
    init_lora_weights: bool | str = True

    def refused(self, given: Mapping[str, Any]) -> Iterator[str]:
        """What it asks for that is not done here, as its file has it: also what this build never heard of."""
        if self.peft_type != "LORA":
            yield f"peft_type {self.peft_type}"
        if self.bias != "none":
            yield f"bias {self.bias}"
        if self.init_lora_weights not in _STARTS:
            yield f"init_lora_weights {self.init_lora_weights}"
        yield from (name for name in sorted(given.keys() - _ASIDE - {*self.__struct_fields__}) if given[name])


class Delta(NamedTuple):
    """What is added to one weight: ``scale`` times up [out, r] times down [r, in]."""

    up: Tensor
    down: Tensor
    scale: float

    def on(self, weight: Tensor) -> Tensor:
        """The sum, in float32."""
        return torch.addmm(weight.float(), self.up.float(), self.down.float(), alpha=self.scale)


class Merged(Mapping[str, Tensor]):
    """A checkpoint's tensors with a LoRA's added where it has some; each sum is made when it is taken."""

    def __init__(self, tensors: Mapping[str, Tensor], folder: Path, scale: float = 1.0) -> None:
        """Read the folder (adapter_config.json, adapter_model.safetensors).

        Args:
            scale: times the LoRA's own.

        Raises:
            ModelLoadFailedError: a file is missing or damaged, asks for what is not done here, or is for a model with
                other layers.
        """
        self._deltas: dict[str, Delta] = {}
        deltas, whole = _read(folder, scale)
        self._tensors = tensors
        self._whole = {_place(name, tensors): value for name, value in whole.items()}
        for layer, name in matched(deltas, tensors, folder).items():
            delta, weight = deltas[layer], tensors[name]
            if weight.shape != (delta.up.shape[0], delta.down.shape[1]) or delta.up.shape[1] != delta.down.shape[0]:
                sizes = f"{list(delta.up.shape)} by {list(delta.down.shape)}, the model's {list(weight.shape)}"
                raise ModelLoadFailedError(f"{folder} is for another model: its {layer} is {sizes}.")
            self._deltas[name] = delta

    def __getitem__(self, name: str) -> Tensor:
        if name in self._whole:
            return self._whole[name]
        weight = self._tensors[name]
        return self._deltas[name].on(weight) if name in self._deltas else weight

    def __contains__(self, name: object) -> bool:
        return name in self._whole or name in self._tensors  # the usual one would make the sum

    def __iter__(self) -> Iterator[str]:
        return iter(dict.fromkeys([*self._tensors, *self._whole]))

    def __len__(self) -> int:
        return sum(1 for _ in self)


def matched(layers: Iterable[str], names: Iterable[str], folder: Path) -> dict[str, str]:
    """For each layer the name of its weight among ``names``, whichever of the two has a prefix before it.

    Raises:
        ModelLoadFailedError: a layer has none, or several.
    """
    by_end: dict[str, list[str]] = {}
    for name in names:
        if name.endswith(".weight"):
            by_end.setdefault(_end(name), []).append(name)
    found = {}
    for layer in layers:
        wanted = f"{layer}.weight"
        fitting = [
            name
            for name in by_end.get(_end(wanted), ())
            if name == wanted or name.endswith(f".{wanted}") or wanted.endswith(f".{name}")
        ]
        if len(fitting) != 1:
            has = f"no layer {layer}" if not fitting else f"several layers {layer}"
            raise ModelLoadFailedError(f"{folder} is for another model: this one has {has}.")
        found[layer] = fitting[0]
    return found


def _end(name: str) -> str:
    """The last part before ``.weight``: few names share it, so that thousands need not be compared with hundreds."""
    return name.rsplit(".", 2)[-2]


def _place(name: str, names: Iterable[str]) -> str:
    """The name under which the model has a tensor, whichever has a prefix; its own where the model has none."""
    return next((own for own in names if own == name or own.endswith(f".{name}") or name.endswith(f".{own}")), name)


def _read(folder: Path, scale: float) -> tuple[dict[str, Delta], dict[str, Tensor]]:
    """By the layer's name as PEFT has it; and the tensors of layers that were trained whole."""
    try:
        given = msgspec.json.decode((folder / "adapter_config.json").read_bytes(), type=dict[str, Any])
        config = msgspec.convert(given, Config)
        tensors = load_file(folder / "adapter_model.safetensors")
    except (OSError, UnicodeDecodeError, SafetensorError, msgspec.MsgspecError) as error:
        raise ModelLoadFailedError(f"{folder} is no LoRA: {error}.", reason="corrupt") from error
    if refused := [*config.refused(given)]:
        raise ModelLoadFailedError(
            f"{folder} is a LoRA of a kind that is not served here: {', '.join(refused)}.",
            hint="Merge it into its model with PEFT (merge_and_unload), and serve that.",
        )
    whole = {
        name.removeprefix(PREFIX): tensors.pop(name)
        for name in [*tensors]
        if any(
            f".{module}." in name
            or name.rpartition(".")[0].endswith(module)  # as PEFT has it: "norm" is "mlp_norm", too
            for module in config.modules_to_save or ()
        )
    }
    ups = {name: tensors[name] for name in tensors if name.endswith(".lora_B.weight")}
    downs = {name: name.replace(".lora_B.", ".lora_A.") for name in ups}
    if not ups or (strange := sorted(tensors.keys() - ups.keys() - set(downs.values()))):
        first = strange[0] if ups else next(iter(tensors), "nothing")
        raise ModelLoadFailedError(
            f"{folder} holds other tensors than lora_A and lora_B of linear layers: {first}.",
            hint="Merge it into its model with PEFT (merge_and_unload), and serve that.",
        )
    found = {}
    for name, up in ups.items():
        if (down := tensors.get(downs[name])) is None:
            raise ModelLoadFailedError(f"{folder} has no tensor {downs[name]}.", reason="corrupt")
        if down.dim() != 2 or not len(down):
            raise ModelLoadFailedError(f"{folder} has a tensor {downs[name]} without a rank.", reason="corrupt")
        rank = down.shape[0]  # rank_pattern may give each layer another
        own = config.lora_alpha / (math.sqrt(rank) if config.use_rslora else rank)
        found[name.removeprefix(PREFIX).removesuffix(".lora_B.weight")] = Delta(up, down, scale * own)
    return found, whole
