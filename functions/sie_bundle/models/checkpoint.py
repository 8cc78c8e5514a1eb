"""A checkpoint: a model's files on this machine, opened. Its tensors by name, its architecture, its tokenizer.

Owns where a tensor is looked up: the encoder's under whatever prefix they are stored, those of further files under the
file's own, those that a LoRA changes with what it adds (``lora``). Safetensors are mapped, not read, so an open
checkpoint costs no memory of its own: the system keeps its pages as long as it has room, and a model that was evicted
comes back from them.
"""

from __future__ import annotations

import ctypes
import mmap
import sys
import zipfile
from collections.abc import Iterator, Mapping
from functools import cached_property
from pathlib import Path
from typing import Any

import torch
from safetensors import safe_open
from torch import Tensor

from sie_bundle.engine.failure import is_out_of_memory
from sie_bundle.models import architecture, family, gliner, label_tokenizer
from sie_bundle.models.architecture import Architecture
from sie_bundle.models.lora import Merged
from sie_bundle.models.tokenization import Tokenizer
from sie_bundle.weights import layout
from sie_config.model.model_spec import ModelSpec
from sie_sdk.errors import ModelLoadFailedError

_madvise = ctypes.CDLL(None).madvise if sys.platform == "linux" else None


class Tensors(Mapping[str, Tensor]):
    """The tensors of several files; a name says from which file, a read maps it into memory."""

    def __init__(self, folder: Path, files: tuple[str, ...] = ()) -> None:
        """Open the tensors of ``folder``, in whatever layout, and its further ``files``.

        Raises:
            ModelLoadFailedError: one is missing or damaged.
        """
        whole = layout.files(folder) or [layout.WHOLE]
        self._open: dict[str, tuple[Any, str]] = {}
        self._read: dict[str, Tensor] = {}
        for name, prefix in [*((name, "") for name in whole), *((name, _prefix(name)) for name in files)]:
            path = folder / name
            try:
                if path.suffix == ".safetensors":
                    opened: Any = safe_open(path, framework="pt")
                    self._open.update({prefix + tensor: (opened, tensor) for tensor in opened.keys()})  # noqa: SIM118
                else:
                    loaded = torch.load(path, map_location="cpu", weights_only=True, mmap=_can_be_mapped(path))
                    if not isinstance(loaded, dict):
                        raise ValueError("it holds no tensors by their names")
                    # Some are of a training, with its epoch beside the tensors.
                    self._read.update({f"{prefix}{own}": value for own, value in loaded.items() if _is_dense(value)})
            except Exception as error:  # whatever torch's reader trips over in a damaged file
                if is_out_of_memory(error):
                    raise
                said = (str(error).strip() or type(error).__name__).splitlines()[0].rstrip(".")
                raise ModelLoadFailedError(
                    f"{path} cannot be read: {said}.", hint="Delete the file and fetch it again.", reason="corrupt"
                ) from error

    def __getitem__(self, name: str) -> Tensor:
        if name in self._read:
            return self._read[name]
        opened, stored = self._open[name]
        tensor: Tensor = opened.get_tensor(stored)
        return tensor

    def let_go(self, name: str) -> None:
        """Take a mapped tensor out of this process's memory; whoever reads it again gets it from the system's pages.

        Nobody may have written to it: that would be lost (madvise(2), MADV_DONTNEED).
        """
        if _madvise is None or name not in self._open:
            return
        mapped = self[name]
        begin = mapped.data_ptr()
        first = -(-begin // mmap.PAGESIZE) * mmap.PAGESIZE
        last = (begin + mapped.nbytes) // mmap.PAGESIZE * mmap.PAGESIZE
        if first < last:
            _madvise(ctypes.c_void_p(first), ctypes.c_size_t(last - first), mmap.MADV_DONTNEED)

    def __iter__(self) -> Iterator[str]:
        yield from self._open
        yield from self._read

    def __len__(self) -> int:
        return len(self._open) + len(self._read)


class Checkpoint:
    """A model's folder, opened: everything a model is made of, on no device yet."""

    def __init__(
        self, spec: ModelSpec, folder: Path, tokenizer: Tokenizer | None = None, lora: Path | None = None
    ) -> None:
        """Open the folder (config.json, tokenizer.json, tensors and the spec's further files).

        Args:
            tokenizer: the folder's tokenizer, when it is loaded already.
            lora: the folder of the LoRA of the spec's profile, if it has one.

        Raises:
            ModelLoadFailedError: a file is missing, damaged, or contradicts the spec or another.
        """
        self.spec = spec
        self.folder = folder
        self.tokenizer = tokenizer or label_tokenizer.load(spec, folder)
        stored = Tensors(folder, spec.files)
        self.tensors: Mapping[str, Tensor] = stored
        self.let_go = stored.let_go
        """To be told of a tensor that has been copied."""
        self.bytes = sum(tensor.nbytes for tensor in self.tensors.values())
        """Of its tensors as they are stored."""
        if lora is not None and spec.chosen.lora is not None:
            self.tensors = Merged(self.tensors, lora, spec.chosen.lora.scale)
        if spec.family in (*family.FAMILIES, family.GLINER):  # an adapter reads config.json its own way
            self._check()

    @cached_property
    def architecture(self) -> Architecture:
        """The encoder, described.

        Raises:
            ModelLoadFailedError: see `architecture.architecture` and `gliner.architecture`.
        """
        if self.spec.family == family.GLINER:
            return gliner.architecture(self.folder, self.tensors)
        return architecture.architecture(self.spec.family, self.folder)

    @property
    def read_by_transformers(self) -> bool:
        """Whether it reads the body from the folder, and not from `tensors`."""
        described = self.spec.family in family.FAMILIES and not isinstance(self.tensors, Merged)
        return described and self.architecture.family.way != "packed"

    def _check(self) -> None:
        spec, config = self.spec, self.architecture.config
        if (dense := spec.tasks.dense) and not dense.projection and config.hidden_size != dense.dim:
            raise ModelLoadFailedError(
                f"{spec.id} computes {config.hidden_size} dimensions, its spec says {dense.dim}."
            )
        if (sparse := spec.tasks.sparse) and sparse.dim < config.vocab_size:
            raise ModelLoadFailedError(
                f"{spec.id} weighs {config.vocab_size} entries of its vocabulary, its spec says {sparse.dim}."
            )
        if self.architecture.longest < spec.max_sequence_length:
            raise ModelLoadFailedError(
                f"{spec.id} has {self.architecture.longest} positions, its spec wants {spec.max_sequence_length}."
            )
        if (late := spec.tasks.multivector) and not late.attend_to_mask:
            narrowest = min((window for window in config.windows if window is not None), default=late.query_length)
            if late.query_length > narrowest:
                raise ModelLoadFailedError(
                    f"{spec.id} sees {narrowest} tokens to each side, its queries are filled up to {late.query_length}."
                )
            if late.query_length and self.architecture.family.causal:
                raise ModelLoadFailedError(
                    f"{spec.id} sees what stands before each token, its queries are filled up without being seen.",
                    hint="Set attend_to_mask: kernels for GPUs count a causal token's place from the last one seen.",
                )
        # A template of a causal reranker is text with special tokens in it.
        if config.vocab_size < self.tokenizer.vocabulary and (
            spec.tasks.score or not self.tokenizer.confine(config.vocab_size)
        ):
            raise ModelLoadFailedError(
                f"{spec.id} embeds {config.vocab_size} tokens, its tokenizer makes {self.tokenizer.vocabulary}."
            )


def _is_dense(value: object) -> bool:
    return isinstance(value, Tensor) and value.layout is torch.strided and not value.is_quantized


def _can_be_mapped(path: Path) -> bool:
    """torch's files of before 1.6 cannot."""
    return zipfile.is_zipfile(path)


def _prefix(name: str) -> str:
    """``1_Dense/model.safetensors`` stands under ``1_Dense.``, ``sparse_linear.pt`` under ``sparse_linear.``."""
    path = Path(name)
    return f"{path.parent}." if path.stem in ("model", "pytorch_model") else f"{path.stem}."
