"""The model spec: what a model is and how it runs, as one frozen record per model.

Owns the schema and the validation of one document. What a model can do is written in ``tasks``, where its weights are
in ``sources``. Finding the documents is ``catalog``; weights are fetched by the bundle. A new model of a known
architecture needs a YAML file and a golden vector, nothing else.
"""

from __future__ import annotations

import hashlib
from functools import cache
from typing import Annotated, Any, Literal

import msgspec

from sie_config.model.runtime_options import Option, Options
from sie_config.model.sources import Source, Text
from sie_config.model.tasks import Tasks, outputs
from sie_config.model_name import DEFAULT
from sie_sdk.errors import ConfigurationError, UnknownProfileError


class Lora(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A low-rank adapter (2106.09685): a folder with adapter_config.json and adapter_model.safetensors, PEFT's."""

    sources: Annotated[tuple[Source, ...], msgspec.Meta(min_length=1)]
    """Where it is, tried in order."""
    scale: float = 1.0
    """Times the adapter's own alpha / r."""


class Profile(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A named way to ask the model: what a request that chooses it leaves out, it says."""

    options: Annotated[dict[str, Any], msgspec.Meta(extra={"fields": Options})] = {}
    """Options of requests; each operation takes those that it reads."""
    lora: Lora | None = None
    """Weights that this profile adds to the model's."""


class Parity(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What shows that this model computes here what it does at home."""

    reference: str
    """The library it was compared with, and its version: ``sentence-transformers 6.2.0``."""
    weights: Literal["real", "random"]
    """Whether it was this checkpoint, or the same architecture with random weights."""
    test: str
    """Where the comparison stands: a path under ``tests/``."""
    cosine: Annotated[float, msgspec.Meta(ge=-1, le=1)] | None = None
    """The smallest seen; for scores and spans none."""


ProfileName = Annotated[
    str,
    msgspec.Meta(
        pattern=r"^[a-z0-9][a-z0-9._-]*$",
        max_length=64,
        description="a name: at most 64 of small letters, digits and ._-, a letter or digit first",
    ),
]
Name = Annotated[
    str,
    msgspec.Meta(
        pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]*$",
        max_length=64,
        description="a name: at most 64 of letters, digits and ._-, a letter or digit first",
    ),
]
Input = Literal["text", "image", "document", "audio", "video"]


class ModelSpec(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One model of the catalogue."""

    id: Annotated[
        str,
        msgspec.Meta(
            pattern=r"^[A-Za-z0-9][A-Za-z0-9._/-]*$",
            max_length=200,
            description="a name: at most 200 of letters, digits and ._-/, a letter or digit first",
        ),
    ]
    """How requests name it, whatever its case: ``org/model``. Not with ``__``, ``..`` or ``//`` in it, nor ``/`` or
    ``/status`` at its end."""
    family: Text
    """Its architecture: a record of the packed encoder, ``auto`` for what transformers knows, or an adapter's name."""
    tasks: Tasks
    """What it can do."""
    sources: Annotated[tuple[Source, ...], msgspec.Meta(min_length=1)]
    """Where its weights are, tried in order."""
    revision: Text
    """The commit of the weights, or whatever else names their version."""
    max_sequence_length: Annotated[int, msgspec.Meta(ge=0)] = 0
    """Tokens, special tokens included; longer texts are truncated or refused (``options.overflow_policy``). 0: not
    known, which only a planned model may be."""
    truncation_side: Literal["auto", "left", "right"] = "auto"
    """Where a text that is too long loses tokens; ``auto``: where tokenizer.json cuts, or on the right."""
    status: Literal["ready", "planned"] = "ready"
    """``planned``: described, and refused with an error that says what is missing (``blocked_by``)."""
    blocked_by: str = ""
    """What a planned model waits for, as a caller reads it: "boxes in images"."""
    inputs: Annotated[tuple[Input, ...], msgspec.Meta(min_length=1)] = ("text",)
    """What it reads. A ready model reads text."""
    files: tuple[str, ...] = ()
    """Files of the model's folder beside config.json, tokenizer.json and model.safetensors: tensors of further layers,
    ``1_Dense/model.safetensors`` or ``sparse_linear.pt``, whose names then begin with the folder or the file's stem."""
    tokenizer: tuple[Source, ...] = ()
    """Where its tokenizer.json is, tried in order, if its publisher left it with the model it was trained from; empty:
    in the model's folder."""
    precision: Literal["auto", "float32", "bfloat16", "float16"] = "auto"
    """The numbers it is computed with; ``auto`` leaves it to the worker (``SIE_PRECISION``) and its hardware."""
    bundle: Annotated[
        str,
        msgspec.Meta(
            pattern=r"^([A-Za-z0-9][A-Za-z0-9._-]*)?$",
            max_length=64,
            description="a name: at most 64 of letters, digits and ._-, a letter or digit first; or empty",
        ),
    ] = ""
    """What serves it. Empty: the bundle that runs its family and tasks (``placement``)."""
    machine_profiles: tuple[Name, ...] = ()
    """What it may run on, the best first: ``cpu``, ``l4``. Empty: whatever its bundle runs on here and fits it."""
    pool: Name = "default"
    """Whose workers compute it for requests that name no pool."""
    licence: str = "unknown"
    """As the model card's metadata has it: ``apache-2.0``, ``mit``, ``cc-by-nc-4.0``."""
    parameters: Annotated[int, msgspec.Meta(ge=0)] = 0
    """How many it has; 0: not known."""
    bytes: Annotated[int, msgspec.Meta(ge=0)] = 0
    """Of the weights' files; 0: not known."""
    options: tuple[Option, ...] = ()
    """The options that requests may give; empty: all that its operations read."""
    profiles: dict[ProfileName, Profile] = {}
    """By name; ``org/model:name`` or ``options.profile`` chooses one."""
    default_profile: ProfileName = DEFAULT
    """The one of a request that chooses none; the name ``default`` needs no entry in ``profiles``."""
    parity: tuple[Parity, ...] = ()
    """What shows that it computes here what it does at home."""
    owner: Annotated[str, msgspec.Meta(max_length=64)] = ""
    """Whose it is: the repository or team that applies it. Only its owner's ``--prune`` removes it."""

    def __hash__(self) -> int:
        # A profile holds what cannot be hashed; the field that no two specs of one catalogue share is enough.
        return hash((self.id, self.revision))

    @property
    def chosen(self) -> Profile:
        """The profile of a request that chooses none."""
        return self.profiles.get(self.default_profile, Profile())

    @property
    def profile_names(self) -> list[str]:
        """Every name that a request may choose, the model's own first."""
        return list(dict.fromkeys((self.default_profile, *sorted(self.profiles))))

    def with_profile(self, name: str, field: str = "model") -> ModelSpec:
        """The model for a request that chose this profile, by its name in lower case; ``default`` is no choice.

        Raises:
            UnknownProfileError: it has no such profile; lists those it has.
        """
        if name in (DEFAULT, self.default_profile):
            return self
        if name not in self.profiles:
            names = self.profile_names
            raise UnknownProfileError(
                f"{self.id} has no profile {name[:64]!r}.",
                field=field,
                limit=", ".join(names),
                hint=f"Its profiles: {', '.join(names)}.",
                profiles=names,
            )
        return msgspec.structs.replace(self, default_profile=name)

    @property
    def outputs(self) -> tuple[str, ...]:
        """What the model offers, in the protocol's words: dense, sparse, multivector, score, json."""
        return outputs(self.tasks)


def parse(document: Any, *, origin: str) -> ModelSpec:
    """Validate one document (a mapping from YAML or JSON).

    Raises:
        ConfigurationError: names the origin and **all** faults; ``details["faults"]`` has each as a `Finding`'s fields.
    """
    from sie_config.model import validation  # its rules are about the records above

    if faults := validation.faults(document):
        raise ConfigurationError(
            f"{origin} is not a valid model spec: {'; '.join(map(str, faults))}.",
            field=origin,
            faults=msgspec.to_builtins(faults),
        )
    return msgspec.convert(document, type=ModelSpec)


def document(spec: ModelSpec) -> dict[str, Any]:
    """The spec as one would write it: what is as by default is left out; `parse` reads it back."""
    written = _written(spec)
    assert isinstance(written, dict)
    return written


def etag(spec: ModelSpec) -> str:
    """16 hex digits that are the same wherever the spec is: two specs that differ in anything differ here."""
    return hashlib.blake2b(msgspec.json.encode(spec, order="deterministic"), digest_size=8).hexdigest()


def _written(value: Any) -> Any:
    if isinstance(value, msgspec.Struct):
        config = value.__struct_config__
        told = {config.tag_field: config.tag} if config.tag_field else {}
        for name, written, default in _fields(type(value)):
            if (held := getattr(value, name)) != default:
                told[written] = _written(held)
        return told
    if isinstance(value, dict):
        return {name: _written(held) for name, held in value.items()}
    return [_written(held) for held in value] if isinstance(value, tuple | list) else value


@cache
def _fields(kind: type[msgspec.Struct]) -> list[tuple[str, str, Any]]:
    """Name, name as written and default of each field; to look them up takes longer than to write a spec."""
    return [
        (
            field.name,
            field.encode_name,
            field.default if field.default_factory is msgspec.NODEFAULT else field.default_factory(),
        )
        for field in msgspec.structs.fields(kind)
    ]
