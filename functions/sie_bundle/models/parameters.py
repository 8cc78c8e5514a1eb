"""A model's parameters on their way from a checkpoint to a device: found by name, cast, moved and counted.

Owns the prefix the names are stored under, the numbers' types on the device, and what a head's description in the
family's record stands for. Not here: files (``checkpoint``), what is computed (``packed_encoder``, ``heads``).

Mixed precision: matrix products take the device's fast type, while the states between them, norms and heads stay in
float32 on a CPU, which costs a hundredth of the time there and halves the distance to the float32 model.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import torch
from torch import Tensor

from sie_bundle.engine import buffers
from sie_bundle.engine.layer import Norm
from sie_bundle.engine.linear import ACTIVATIONS, Activation, LayOut, Linear, Product, linear
from sie_bundle.engine.precision import FLOATS, arithmetic
from sie_bundle.models.activations import activation
from sie_bundle.models.architecture import Architecture
from sie_sdk.errors import ModelLoadFailedError

STORED = (*FLOATS, torch.float64)
"""What a tensor may be stored as: numbers that stand for themselves."""

PIECE = 1 << 24
"""Numbers that are cast at a time on a device, which has to have them in both types meanwhile."""


class Parameters:
    """A checkpoint's parameters for one device.

    ``dtype``: of linear layers' weights; ``computed``: of products with them; ``stream``: of the states between.
    ``bytes``: what has been taken so far. ``let_go`` is told of a tensor that is not looked at any more, for it has
    been copied: a file's pages need not stay in memory beside what was made of them.
    """

    def __init__(
        self,
        architecture: Architecture,
        tensors: Mapping[str, Tensor],
        device: torch.device,
        dtype: torch.dtype,
        let_go: Callable[[str], object] = lambda name: None,
    ) -> None:
        self.device = device
        self.dtype = dtype
        self.computed = arithmetic(device, dtype)
        self.stream = torch.float32 if device.type == "cpu" else dtype
        self.bytes = 0
        self._architecture = architecture
        self._tensors = tensors
        self._let_go = let_go
        probe = f"{architecture.family.words}.weight"
        self.prefix = next((prefix for prefix in architecture.family.prefixes if prefix + probe in tensors), "")

    def __contains__(self, name: str) -> bool:
        return name in self._tensors

    def take(self, name: str, dtype: torch.dtype) -> Tensor:
        """A tensor by its whole name, on the device; not copied where it is there in that type.

        Raises:
            ModelLoadFailedError: the checkpoint has none of that name, or one of quantised numbers.
        """
        return self._taken(name, dtype)[0]

    def _stored(self, name: str) -> Tensor:
        """A tensor as the checkpoint has it; raises as `take`."""
        try:
            tensor = self._tensors[name]
        except KeyError:
            raise ModelLoadFailedError(f"The checkpoint has no tensor {name}.", reason="corrupt") from None
        if tensor.dtype not in STORED:
            raise ModelLoadFailedError(
                f"The tensor {name} is stored as {str(tensor.dtype).removeprefix('torch.')}, by a scale not read here.",
                hint="Serve the checkpoint that it was quantised from.",
            )
        return tensor

    def _taken(self, name: str, dtype: torch.dtype) -> tuple[Tensor, bool]:
        """Also whether it was copied."""
        tensor = self._stored(name)
        if self.device.type == "cpu" and tensor.dtype is not dtype:
            moved = buffers.empty(tensor.shape, dtype).copy_(tensor)
        else:
            moved = self._moved(tensor, dtype)
        self.bytes += moved.nbytes
        if copied := moved is not tensor:
            self._let_go(name)
        return moved, copied

    def _moved(self, tensor: Tensor, dtype: torch.dtype) -> Tensor:
        """On the device. From pinned memory nothing waits for it, which its owner has to do, and it is cast there.

        torch by itself would cast it on the CPU, into memory that is not pinned, and wait for that.
        """
        if not tensor.is_pinned():
            return tensor.to(device=self.device, dtype=dtype)
        if tensor.dtype is dtype:
            return tensor.to(self.device, non_blocking=True)
        moved = torch.empty(tensor.shape, dtype=dtype, device=self.device)
        stored, cast = tensor.reshape(-1), moved.view(-1)
        for start in range(0, len(stored), PIECE):
            cast[start : start + PIECE].copy_(stored[start : start + PIECE].to(self.device, non_blocking=True))
        return moved

    def table(self, name: str, rows: int = 1) -> Tensor:
        """An embedding table. On a CPU as it is stored, so that only the rows in use are ever read from the file.

        Raises:
            ModelLoadFailedError: there is none of that name, or it has fewer rows, of which a text would ask.
        """
        stored = self._tensors.get(name)
        as_stored = self.device.type == "cpu" and stored is not None and stored.dtype in FLOATS
        taken = self.take(name, stored.dtype if as_stored and stored is not None else self.stream)
        return _of_rows(name, taken, rows)

    def rows(self, name: str, numbers: Sequence[int]) -> Tensor:
        """[numbers, hidden]: some rows of a table, in float32; of a whole vocabulary nothing else is moved or counted.

        Raises:
            ModelLoadFailedError: as `table`.
        """
        some = _of_rows(name, self._stored(name), max(numbers) + 1)[list(numbers)].to(self.device, torch.float32)
        self.bytes += some.nbytes
        return some

    @property
    def vocabulary(self) -> str:
        """The whole name of the weight over the vocabulary: the decoder's, or if it is tied the word embeddings'.

        As transformers 5 has it, a decoder that is stored all the same is taken; where it is equal, nothing differs.
        """
        family = self._architecture.family
        own = f"{family.decoder}.weight"
        tied = self._architecture.config.tie_word_embeddings and own not in self
        return f"{self.prefix}{family.words}.weight" if tied else own

    def norm(self, name: str) -> Norm:
        """The norm layer of that whole name."""
        bias = self.take(f"{name}.bias", self.stream) if f"{name}.bias" in self else None
        rms = self._architecture.family.norm == "rms"
        weight = self.take(f"{name}.weight", self.stream)
        return Norm(weight, bias, self._architecture.config.layer_norm_eps, rms)

    def linear(
        self,
        names: Sequence[str],
        activation: Activation = "none",
        *,
        dtype: torch.dtype | None = None,
        lay_out: LayOut = linear,
    ) -> Product:
        """One linear layer from the named ones, side by side. ``dtype``: another than ``self.dtype``."""
        kind = dtype or self.dtype
        weight = self._copied([f"{name}.weight" for name in names], kind)
        biases = [self.take(f"{name}.bias", kind) for name in names if f"{name}.bias" in self]
        if biases and len(biases) < len(names):
            raise ModelLoadFailedError(f"Of {', '.join(names)} only some have a bias.", reason="corrupt")
        if any(bias.dim() != 1 for bias in biases):
            raise _contradicting(names)
        bias = torch.cat(biases) if biases else None
        return lay_out(weight, bias, activation)

    def _copied(self, names: Sequence[str], dtype: torch.dtype) -> Tensor:
        """The named weights [out, in], one below the other, of which nothing is the file's any more."""
        taken = [self._taken(name, dtype) for name in names]
        weights = [weight for weight, _ in taken]
        if any(weight.dim() != 2 or weight.shape[1] != weights[0].shape[1] for weight in weights):
            raise _contradicting(names)
        if len(taken) == 1 and taken[0][1]:
            return weights[0]
        if self.device.type != "cpu":
            return torch.cat(weights)
        shape = (sum(map(len, weights)), *weights[0].shape[1:])
        together = torch.cat(weights, out=buffers.empty(shape, dtype))
        for name in names:  # those of that type already were not copied until now
            self._let_go(name)
        return together

    def halves(
        self, names: Sequence[str], activations: tuple[Activation, Activation], lay_out: LayOut
    ) -> tuple[Product, Product]:
        """Two linear layers of one size: named one by one, or stored in one tensor with the first on top."""
        if len(names) == 2:
            one, other = (
                self.linear([name], act, lay_out=lay_out) for name, act in zip(names, activations, strict=True)
            )
            return one, other
        weights = self._copied([f"{names[0]}.weight"], self.dtype).chunk(2)
        bias = f"{names[0]}.bias"
        biases = self.take(bias, self.dtype).chunk(2) if bias in self else (None, None)
        first, second = (lay_out(*layer) for layer in zip(weights, biases, activations, strict=True))
        return first, second

    def head(self, description: str, *, vocabulary: bool = False) -> list[Linear]:
        """A head as its family describes it: tensor names and activations in order.

        ``act`` is the model's own activation, ``head_act`` that of its heads. A name whose weight has one dimension is
        a norm; ``tied:NAME`` is `vocabulary` with the bias NAME. In float32, which heads can afford, but for those over
        the whole ``vocabulary``.
        """
        dtype = self.dtype if vocabulary else torch.float32
        steps: list[Linear] = []
        for step in description.split():
            if step in ("act", "head_act"):
                config = self._architecture.config
                steps.append(ACTIVATIONS[activation(config.hidden_act if step == "act" else config.head_act)])
            elif step in ACTIVATIONS:
                steps.append(ACTIVATIONS[step])
            elif step.startswith("tied:"):
                steps.append(self._tied(step.removeprefix("tied:")))
            elif (name := self._find(step)) and self._tensors[f"{name}.weight"].dim() == 1:
                norm = self.norm(name)
                steps.append(lambda x, norm=norm: norm(x.to(norm.weight.dtype)))
            else:
                steps.append(self.linear([name], dtype=dtype))
        return steps

    def _find(self, name: str) -> str:
        """A head's layer stands beside the encoder, or under its prefix."""
        found = next((found for found in (name, self.prefix + name) if f"{found}.weight" in self), None)
        if found is None:
            raise ModelLoadFailedError(f"The checkpoint has no tensor {name}.weight.", reason="corrupt")
        return found

    def _tied(self, bias: str) -> Product:
        # Where both are stored it is the decoder's that is added; releases before transformers 5 leave it out as tied.
        own = f"{self._architecture.family.decoder}.bias"
        bias = own if own in self else bias
        weight = self.take(self.vocabulary, self.dtype)
        return linear(weight, self.take(bias, self.dtype) if bias in self else None)


def _of_rows(name: str, table: Tensor, rows: int) -> Tensor:
    """The table, which has so many rows, or more."""
    if table.dim() != 2 or len(table) < rows:
        shape = " by ".join(map(str, table.shape))
        raise ModelLoadFailedError(f"The tensor {name} is {shape}, and not of {rows} rows.", reason="corrupt")
    return table


def _contradicting(names: Sequence[str]) -> ModelLoadFailedError:
    return ModelLoadFailedError(f"The shapes of {', '.join(names)} are not those of one layer.", reason="corrupt")


def run(head: Sequence[Linear], x: Tensor) -> Tensor:
    """All steps of a head, one after the other."""
    for step in head:
        x = step(x)
    return x
