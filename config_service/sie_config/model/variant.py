"""Variants of a model: what of a spec its loading depends on, with the weights of one LoRA or none. Pure.

Owns which fields those are: what is loaded is told nothing else, so a change of any other field reloads nothing. A
request names a LoRA by the profile that declares it (``options.lora_id``); which is in which memory is the bundle's.
"""

from __future__ import annotations

import hashlib
from functools import lru_cache
from typing import Any

import msgspec

from sie_config.model.model_spec import ModelSpec, Profile
from sie_config.model.tasks import Tasks

LATER: dict[str, tuple[str, ...]] = {
    "dense": ("query_prompt", "document_prompt", "query_template", "document_template", "instruction", "dims"),
    "sparse": (),
    "multivector": ("query_marker", "document_marker", "document_length", "mask", "skip_punctuation", "skip_first"),
    "score": ("activation", "template", "prefix", "suffix", "instruction"),
    "extract": ("aggregation", "overlap", "multi_label", "hypothesis"),
}
"""By task, the fields that are read with each request, and not when the model is made."""


@lru_cache(maxsize=4096)
def variant(spec: ModelSpec, lora: str = "") -> ModelSpec:
    """The spec as far as loading depends on it, with the LoRA of the profile ``lora`` and nothing else of it.

    Equal for two specs whose models are the same in memory.
    """
    chosen: dict[str, Any] = {}
    if lora:
        chosen = {"default_profile": lora, "profiles": {lora: Profile(lora=spec.profiles[lora].lora)}}
    return ModelSpec(
        id=spec.id,
        family=spec.family,
        tasks=_loaded(spec.tasks),
        sources=spec.sources,
        revision=spec.revision,
        max_sequence_length=spec.max_sequence_length,
        files=spec.files,
        tokenizer=spec.tokenizer,
        truncation_side=spec.truncation_side,
        precision=spec.precision,
        **chosen,
    )


def loras(spec: ModelSpec) -> list[str]:
    """The names of its LoRAs: those of the profiles that declare one, in order."""
    return [name for name, profile in spec.profiles.items() if profile.lora is not None]


def name_of(spec: ModelSpec) -> str:
    """What the variant is called where models in memory are listed: ``org/model``, or ``org/model:lora``."""
    return spec.id if spec.chosen.lora is None else f"{spec.id}:{spec.default_profile}"


@lru_cache(maxsize=4096)
def key_of(variant: ModelSpec) -> str:
    """Its name and, behind an ``@``, 16 hex digits of all else that loading depends on."""
    written = msgspec.json.encode(variant, order="deterministic")
    return f"{name_of(variant)}@{hashlib.blake2b(written, digest_size=8).hexdigest()}"


def _loaded(tasks: Tasks) -> Tasks:
    return Tasks(**{name: _without(getattr(tasks, name), fields) for name, fields in LATER.items()})


def _without(task: Any, fields: tuple[str, ...]) -> Any:
    """The task with those fields as they are by default."""
    if task is None or not fields:
        return task
    defaults = {field.name: field.default for field in msgspec.structs.fields(task) if field.name in fields}
    return msgspec.structs.replace(task, **defaults)


@lru_cache(maxsize=64)
def ids_of(names: frozenset[str]) -> frozenset[str]:
    """The models that variants are of, by `name_of` or `key_of`."""
    return frozenset(name.partition("@")[0].partition(":")[0] for name in names)
