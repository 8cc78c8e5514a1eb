"""Machine profiles: the kinds of machine that bundles run on, as data (``machine_profiles.yaml``).

Owns the record and the reading of the file. Which of them are deployed an operator says (``SIE_MACHINE_PROFILES``);
what may run on which is ``placement``'s. The names for Kubernetes are facts of the clouds, read by whoever renders
Services.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Annotated, Final, Literal

import msgspec

from sie_config.model import faults
from sie_config.model.model_spec import Name
from sie_sdk.errors import ConfigurationError

PACKAGED: Final = Path(__file__).parent / "machine_profiles.yaml"
SETTING: Final = "SIE_MACHINE_PROFILES"
GIB: Final = 1024**3
GPU_RESOURCE: Final = "nvidia.com/gpu"

RESERVED_BYTES: Final = GIB
"""Of a GPU, for what is there before any model: the CUDA context, kernels, the allocator's rest."""
MODELS_SHARE: Final = 0.8
"""Of the rest, for weights; what remains holds the tensors of a forward pass."""

Quantity = Annotated[str, msgspec.Meta(pattern=r"^[0-9]+(\.[0-9]+)?(m|k|M|G|T|Ki|Mi|Gi|Ti)?$", max_length=20)]
_UNITS: Final = {
    "": 1,
    "m": 1e-3,
    "k": 10**3,
    "M": 10**6,
    "G": 10**9,
    "T": 10**12,
    "Ki": 2**10,
    "Mi": 2**20,
    "Gi": 2**30,
    "Ti": 2**40,
}
Precision = Literal["auto", "float32", "bfloat16", "float16"]
Bytes = Annotated[int, msgspec.Meta(ge=0)]


class Toleration(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A taint of its nodes that a pod accepts, in Kubernetes' words."""

    key: str
    operator: Literal["Exists", "Equal"] = "Exists"
    value: str = ""
    effect: Literal["NoSchedule", "PreferNoSchedule", "NoExecute"] = "NoSchedule"


class Nodes(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Such machines in one cloud: what to rent, and how pods find them."""

    machine_type: str
    node_selector: dict[str, str] = {}
    tolerations: tuple[Toleration, ...] = ()


class MachineProfile(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A kind of machine."""

    name: Name
    device: Annotated[str, msgspec.Meta(pattern=r"^(cpu|cuda(:[0-9]+)?)$")]
    """Where models run, as torch names it (``SIE_DEVICE`` of its workers)."""
    requests: dict[str, Quantity]
    limits: dict[str, Quantity]
    """What a pod asks for and gets at most: cpu, memory, and of ``nvidia.com/gpu`` as many as ``gpus``."""
    precision: Precision = "auto"
    """The numbers of models that leave it to the machine (``SIE_PRECISION`` of its workers)."""
    memory_bytes: Bytes = 0
    """Of one accelerator, as its driver tells; 0: models share the host's memory, and nobody counts."""
    gpu: str = ""
    """The accelerator as ``nvidia.com/gpu.product`` names it."""
    gpus: Annotated[int, msgspec.Meta(ge=0, le=16)] = 0
    spot: bool = False
    """Cheap, and may be taken away at any time."""
    comfortable_bytes: Bytes = 0
    """Models whose weights take more run here only where no other machine is deployed that holds them; 0: no limit."""
    nodes: dict[Literal["gke", "eks"], Nodes] = {}
    """By cloud; one without an entry has no such machine."""

    @property
    def model_bytes(self) -> int:
        """What models may take of the accelerator (``SIE_MODEL_BYTES`` of its workers); 0: not counted."""
        return int(max(0, self.memory_bytes - RESERVED_BYTES) * MODELS_SHARE)

    @property
    def environment(self) -> dict[str, str]:
        """The settings of a worker on it."""
        told = {"SIE_PROFILE": self.name, "SIE_DEVICE": self.device, "SIE_PRECISION": self.precision}
        return told | ({"SIE_MODEL_BYTES": str(self.model_bytes)} if self.model_bytes else {})


def amount(quantity: str) -> float:
    """A quantity in Kubernetes' words as a number."""
    number, unit = re.fullmatch(r"([0-9.]+)([A-Za-z]*)", quantity).groups()  # type: ignore[union-attr]
    return float(number) * _UNITS[unit]


def load(path: Path = PACKAGED) -> tuple[MachineProfile, ...]:
    """All that are known, the cheapest first.

    Raises:
        ConfigurationError: lists the faults of all of them.
    """
    told = faults.from_yaml(path)
    if not isinstance(told, list):
        raise ConfigurationError(f"{path.name} is not a list of machine profiles.", field=path.name)
    read: list[MachineProfile] = []
    wrong: list[str] = []
    for number, each in enumerate(told):
        try:
            read.append(profile := faults.checked(each, MachineProfile, origin=f"{path.name}[{number}]"))
        except ConfigurationError as error:
            wrong.append(error.message)
        else:
            wrong.extend(f"{path.name}: {profile.name}.{fault}." for fault in _mismatches(profile))
    names = [profile.name for profile in read]
    wrong.extend(
        f"{path.name} defines {name} a second time." for name in sorted({n for n in names if names.count(n) > 1})
    )
    if wrong:
        raise ConfigurationError(" ".join(wrong), field=path.name, faults=wrong)
    return tuple(read)


def _mismatches(profile: MachineProfile) -> list[str]:
    on_gpu = profile.device != "cpu"
    wrong = []
    if on_gpu != bool(profile.gpus):
        wrong.append(f"gpus: {profile.gpus} do not go with device {profile.device}")
    if on_gpu != bool(profile.memory_bytes):
        wrong.append(f"memory_bytes: {profile.memory_bytes} do not go with device {profile.device}")
    if profile.limits.get(GPU_RESOURCE, "0") != str(profile.gpus):
        wrong.append(f"limits.{GPU_RESOURCE}: not {profile.gpus}, as gpus says")
    return wrong


def deployed(names: str, known: tuple[MachineProfile, ...]) -> tuple[str, ...]:
    """What ``SIE_MACHINE_PROFILES`` means: names separated by commas, in any order; the cheapest first.

    Raises:
        ConfigurationError: one is not known, or there is none.
    """
    asked = {name.strip().lower() for name in names.split(",") if name.strip()}
    every = ", ".join(profile.name for profile in known)
    if unknown := sorted(asked - {profile.name for profile in known}):
        raise ConfigurationError(
            f"{SETTING} names {', '.join(unknown)}, which is no machine profile.",
            field=SETTING,
            limit=every,
            hint=f"There is {every}.",
        )
    if not asked:
        raise ConfigurationError(
            f"{SETTING} names no machine profile.", field=SETTING, limit=every, hint=f"There is {every}."
        )
    return tuple(profile.name for profile in known if profile.name in asked)
