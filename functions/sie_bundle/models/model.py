"""The model contract, in one screen: made of a checkpoint, rows in, heads' outputs out, and how many bytes it takes.

Importing this module imports torch; whatever needs to be up before that imports it late (see ``residency``). A model
that is no encoder of ``family`` comes from the entry point group ``sie.models`` and keeps to `Model`.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Mapping, Sequence
from importlib.metadata import entry_points
from pathlib import Path
from typing import Protocol, cast

import torch
from torch import Tensor

from sie_bundle import lazy_torch
from sie_bundle.engine import fused, native, pooling
from sie_bundle.engine.cost import Fit, reading
from sie_bundle.engine.outputs import Outputs, SparseRow, first_not_finite
from sie_bundle.engine.packing import Packed, pack
from sie_bundle.engine.precision import precision
from sie_bundle.engine.row import Row, row
from sie_bundle.models import trial
from sie_bundle.models.checkpoint import Checkpoint
from sie_bundle.models.heads import heads
from sie_bundle.models.packed_encoder import PackedEncoder
from sie_bundle.models.parameters import Parameters
from sie_bundle.models.tokenization import Tokenizer
from sie_config.model.model_spec import ModelSpec
from sie_sdk.errors import ModelLoadFailedError, SIEError

log = logging.getLogger("sie.bundle.model")

ADAPTERS = "sie.models"
"""The entry point group of adapters: `Load` under the name that a spec's ``family`` says."""

SHAPES = ((1, 8), (8, 32), (2, 256))
"""Texts and their length of the passes that a new model's cost is first fitted to."""

FITTING_S = 0.1
"""After so long, no further one of them is run."""


class Model(Protocol):
    """What the engine needs of a model. Several threads may call ``forward`` at once."""

    spec: ModelSpec
    tokenizer: Tokenizer
    labels: tuple[str, ...]
    """What the numbers of ``logits`` and ``token_logits`` stand for; empty if it has neither."""
    heads: tuple[str, ...]
    """What ``forward`` may be asked for."""
    bytes: int
    """What its parameters take on the device."""
    fit: Fit
    """What its passes cost, kept by the executor."""

    def forward(self, rows: Sequence[Row], wanted: Mapping[str, Sequence[int]]) -> Mapping[str, Outputs]:
        """Compute rows of token ids (at least one, none empty).

        Args:
            wanted: by the name of a head (see `heads.heads`), which rows want it.

        Returns:
            One output for each row asked for, by head and in the order asked; float32. Of ``dense``, ``logits`` and
            ``yes_no`` as one array [rows, size], of the others as a list.
        """
        ...


class Load(Protocol):
    """What an adapter's entry point leads to: a model of the files a spec names, on a device. It is tried out here.

    ``device``: as torch names it. ``precision``: "auto", "float32", "bfloat16" or "float16".
    """

    def __call__(self, checkpoint: Checkpoint, device: str, precision: str) -> Model: ...


class Encoder(Protocol):
    """One of the ways in: from a batch to the states of the last layer, [T, hidden] in the batch's order."""

    device: torch.device

    def __call__(self, packed: Packed) -> Tensor: ...


class EncoderModel:
    """A model of the catalogue: one encoder, one or several heads."""

    def __init__(
        self,
        checkpoint: Checkpoint,
        device: str = "cpu",
        precision_wanted: str = "auto",
        kernels: Path | None = native.KEPT,
    ) -> None:
        """Read and lay out its parameters.

        Args:
            checkpoint: its files.
            device: as torch names it.
            precision_wanted: "auto", "float32", "bfloat16" or "float16".
            kernels: where compiled code for this CPU is kept (``native``); None: torch computes each step.

        Raises:
            ModelLoadFailedError: files that contradict the spec or each other.
        """
        architecture, extract = checkpoint.architecture, checkpoint.spec.tasks.extract
        on = torch.device(device)
        self.spec = checkpoint.spec
        self.tokenizer = checkpoint.tokenizer
        if kernels and self.tokenizer.plain and (words := native.library(native.WORDS, kernels)):
            self.tokenizer.plain.compile(words)
        self.labels = (extract.labels if extract else ()) or architecture.config.labels
        self.fit = Fit()
        with torch.inference_mode():
            kept = precision(on, precision_wanted)
            parameters = Parameters(architecture, checkpoint.tensors, on, kept, checkpoint.let_go)
            library = _library(checkpoint, parameters, kernels)
            self._encoder = _encoder(checkpoint, parameters, library)
            self._heads = heads(checkpoint, parameters, pooling.by(library) if library else pooling.pool)
        self.heads = tuple(self._heads)
        self.bytes = parameters.bytes

    def forward(self, rows: Sequence[Row], wanted: Mapping[str, Sequence[int]]) -> dict[str, Outputs]:
        """See `Model.forward`."""
        with torch.inference_mode():
            packed = pack(rows, self._encoder.device)
            states = self._encoder(packed)
            return {name: self._heads[name](states, packed, texts) for name, texts in wanted.items()}

    def try_out(self) -> None:
        """Compute a first text with every head, then fit the cost.

        Raises:
            ModelLoadFailedError: it fails, or gives what is not finite or not what the spec says.
        """
        first = trial.first_rows(self.tokenizer, self.spec, ["a"])
        try:
            outputs = self.forward(first, {head: [0] for head in self._heads})
        except SIEError:
            raise
        except Exception as error:
            raise ModelLoadFailedError(f"A first forward pass of {self.spec.id} failed: {error}.") from error
        for name, output in outputs.items():
            if first_not_finite({name: output}) is not None:
                raise ModelLoadFailedError(f"A first forward pass of {self.spec.id} gave {name} that is not finite.")
            task = getattr(self.spec.tasks, name, None)
            if task is not None and not isinstance(first_output := output[0], SparseRow):
                if first_output.shape[-1] == task.dim:
                    continue
                raise ModelLoadFailedError(
                    f"{self.spec.id} computes {first_output.shape[-1]} {name} dimensions, its spec says {task.dim}."
                )
        self._fit_cost(first[0])

    def _fit_cost(self, first: Row) -> None:
        """Every pass of the ones in `SHAPES` that there is time for; the executor's own readings follow."""
        began = time.monotonic()
        for texts, length in SHAPES:
            if time.monotonic() - began > FITTING_S or length > self.spec.max_sequence_length:
                return
            some = [row([*first.ids, *[int(first.ids[-1])] * (length - len(first))])] * texts
            started = time.monotonic()
            self.forward(some, {})
            if self._encoder.device.type == "cuda":
                torch.cuda.synchronize(self._encoder.device)  # until here it was only asked for
            self.fit.observe(reading([length] * texts, time.monotonic() - started))


def _encoder(checkpoint: Checkpoint, parameters: Parameters, library: native.Library | None) -> Encoder:
    """The family's way in; where texts cannot be packed, they are padded."""
    way = checkpoint.architecture.family.way
    if way == "packed":
        return PackedEncoder(checkpoint.architecture, parameters, library)
    from sie_bundle.models.padded_encoder import PaddedEncoder
    from sie_bundle.models.transformers_encoder import Body, NotPackable, TransformersEncoder

    body = Body(checkpoint, parameters)
    encoder: Encoder | None = None
    if way == "transformers":
        try:
            encoder = TransformersEncoder(body, checkpoint.spec)
        except NotPackable as reason:
            log.warning("%s is padded instead of packed: %s", checkpoint.spec.id, reason)
    encoder = encoder or PaddedEncoder(body, checkpoint.spec)
    parameters.bytes += body.bytes
    return encoder


def _library(checkpoint: Checkpoint, parameters: Parameters, kernels: Path | None) -> native.Library | None:
    """The compiled code of a pass, where this device, its arithmetic and the family have any."""
    architecture = checkpoint.architecture
    packed = architecture.family.way == "packed"
    packed = packed and fused.fits(architecture.config.head_size, architecture.config.key_value_heads)
    if not packed or parameters.device.type != "cpu" or kernels is None:
        return None
    variant = native.variant(parameters.computed)
    return native.library(variant, kernels) if variant else None


def load(
    checkpoint: Checkpoint, device: str = "cpu", precision: str = "auto", kernels: Path | None = native.KEPT
) -> Model:
    """The checkpoint's model on a device, by its family or by an adapter, after a first forward pass.

    Args as of `EncoderModel`.

    Raises:
        ModelLoadFailedError: files that contradict the spec or each other, or a forward pass that is not finite; or
            what an adapter made does not keep to `Model` and its spec.
    """
    precision = precision_of(checkpoint.spec, precision)
    for entry in entry_points(group=ADAPTERS, name=checkpoint.spec.family):
        lazy_torch.whole()
        made = cast("Load", entry.load())(checkpoint, device, precision)
        lacking = [name for name in (*Model.__annotations__, "forward") if getattr(made, name, None) is None]
        trial.try_out(made, checkpoint.spec, lacking)
        return made
    model = EncoderModel(checkpoint, device, precision, kernels)
    model.try_out()
    return model


def precision_of(spec: ModelSpec, wanted: str) -> str:
    """What a model computes with: what its spec says, else what is wanted of all."""
    return wanted if spec.precision == "auto" else spec.precision
