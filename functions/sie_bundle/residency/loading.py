"""Loading: from a spec to an open checkpoint, and from a checkpoint to a model, in threads beside the serving.

Owns the threads and what they may take. While another model serves, a model is made on threads that step back behind
the serving ones: a lower priority, one core each, and rests (``pacing``). What is loaded when is ``residency``.
"""

from __future__ import annotations

import asyncio
import copy
import importlib
import os
import sys
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import cache, partial
from importlib.metadata import entry_points
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import msgspec

from sie_bundle.engine import cores
from sie_bundle.engine.failure import tellably
from sie_bundle.engine.native import KEPT
from sie_bundle.models import label_tokenizer
from sie_bundle.models.tokenization import Tokenizer
from sie_bundle.weights import weights
from sie_bundle.weights.weights import Weights
from sie_config.model.model_spec import ModelSpec

if TYPE_CHECKING:
    from sie_bundle.engine.cost import Fit
    from sie_bundle.models.checkpoint import Checkpoint
    from sie_bundle.models.model import Model

T = TypeVar("T")

THREADS = 4
"""Models made at a time, of those that step back and of those that do not."""

FETCHES, READS = 8, 8
"""Folders fetched at a time, and such that are here found and opened at a time."""

NICENESS = 10
"""How far the threads of a load step back: under full load they get a tenth of a core."""


class Opened(msgspec.Struct, frozen=True, eq=False, weakref=True):
    """A checkpoint kept in host memory, and what its model was found to cost when it was tried out."""

    checkpoint: Checkpoint
    bytes: int
    """What it takes in host memory, and about what on a device: those of its tensors as they are stored or kept."""
    least: int = 0
    """What its model takes on a device whatever else it takes, as far as that is known before it is made."""
    fit: Fit | None = None
    """Of an encoder of this package, which need not be tried out again."""
    kept: bool = False
    """Whether it was found in host memory."""


class Loader:
    """Loads for one device.

    Args:
        weights_dir: see `weights.resolve`.
        cache_dir: see `weights.resolve`.
        device: see `model.load`.
        precision: see `model.load`.
        kernels: likewise.
        progress: how many forward passes the device has finished; while it grows, models are made at a slow pace.
    """

    def __init__(
        self,
        weights_dir: Path | None,
        cache_dir: Path,
        device: str,
        precision: str,
        kernels: Path | None = KEPT,
        progress: Callable[[], int] = lambda: 0,
    ) -> None:
        self._weights_dir = weights_dir
        self._cache_dir = cache_dir
        self._device = device
        self._precision = precision
        self._kernels = kernels
        self._progress = progress
        self.pins = device.split(":")[0] == "cuda"
        """Whether checkpoints are copied to the host's memory; else they are mapped, in pages the system keeps."""
        # Threads of their own, so that fetches that take minutes are in the way of no model whose files are here. They
        # do not step back: reading a tokenizer holds Python's lock from start to end, and whoever holds it should be
        # done with it soon.
        self._fetches = ThreadPoolExecutor(FETCHES, thread_name_prefix="fetch")
        self._reads = ThreadPoolExecutor(READS, thread_name_prefix="read")
        self._at_once = asyncio.Semaphore(THREADS)

    def here(self, spec: ModelSpec) -> bool:
        """Whether the weights are on this machine, ready to be opened."""
        return weights.here(spec, self._weights_dir, self._cache_dir) is not None

    def fetched(self, spec: ModelSpec) -> bool:
        """Whether they are here because they were fetched: then they may be deleted and fetched again."""
        found = weights.here(spec, self._weights_dir, self._cache_dir)
        return found is not None and any(folder.is_relative_to(self._cache_dir) for folder in found.folders)

    async def open(self, spec: ModelSpec, *, anew: bool = False) -> Opened:
        """Find or fetch the files and open them.

        Args:
            anew: fetch them again, because what is here is damaged.

        Raises:
            WeightsUnavailableError: no source has them.
            ModelLoadFailedError: they are damaged, or contradict the spec.
        """

        def resolved() -> Weights:
            return weights.resolve(spec, self._weights_dir, self._cache_dir, anew=anew)

        def read(found: Weights) -> Tokenizer:
            return label_tokenizer.load(spec, found.folder, found.tokenizer and found.tokenizer.folder)

        in_threads = asyncio.get_running_loop().run_in_executor
        run = partial(in_threads, self._reads)

        async def files() -> tuple[Weights, Tokenizer]:
            here = not anew and await run(self.here, spec)
            found = await in_threads(self._reads if here else self._fetches, tellably, resolved)
            return found, await run(tellably, partial(read, found))

        # torch takes longest at a cold start: imported beside the fetch.
        (found, tokenizer), _ = await asyncio.gather(files(), run(importlib.import_module, "sie_bundle.models.model"))

        def opened() -> Opened:
            from sie_bundle.models.checkpoint import Checkpoint

            checkpoint = Checkpoint(spec, found.folder, tokenizer, found.lora.folder if found.lora else None)
            return Opened(checkpoint, checkpoint.bytes, self._least(checkpoint))

        return await run(tellably, opened)

    async def make(self, opened: Opened, *, behind: bool) -> Model:
        """The model on the device.

        Args:
            behind: step back behind the models that serve.

        Raises:
            ModelLoadFailedError: see `model.load`.
        """
        # Made before there is any model whose forward passes their settings could reach.
        beside, stepped_back = _one_core(0), _one_core(NICENESS)
        # Not the thread's result: one that stepped back may not come to let go of it while others are busy, and until
        # then the model would count as in use.
        made: list[Model] = []

        async def run(threads: ThreadPoolExecutor) -> None:
            making = partial(tellably, lambda: made.append(self._made(opened, behind)))
            await asyncio.get_running_loop().run_in_executor(threads, making)

        if behind or opened.kept:
            await run(stepped_back if behind else beside)
            return made.pop()
        # On all cores only the first one: several threads that wait for each other are many times slower where others
        # take one of their cores. Its thread ends with it: OpenMP counts those that helped it for as long as it lives.
        async with self._at_once:
            # By itself it would take as many as the pass did that began last, which is one as a rule.
            fresh = ThreadPoolExecutor(1, "load", initializer=cores.take, initargs=(cores.available(),))
            try:
                await run(fresh)
            finally:
                fresh.shutdown(wait=False)
        return made.pop()

    def keeps(self, opened: Opened) -> bool:
        """Whether a model is made of its checkpoint in the host's memory, or that costs nothing: it is mapped."""
        return not (self.pins and opened.checkpoint.read_by_transformers)

    def fit_of(self, model: Model) -> Fit | None:
        """What is known of a model of this package, and is true of it once more when it is made again."""
        from sie_bundle.models.model import EncoderModel

        return model.fit if type(model) is EncoderModel else None

    async def keep(self, opened: Opened, fit: Fit | None) -> Opened:
        """The checkpoint as the host's memory holds it: mapped for a CPU, copied to pinned pages for a CUDA device.

        ``fit``: see `Opened`.
        """
        from sie_bundle.residency.pinned import pin

        size = opened.bytes
        if self.pins:
            size = await asyncio.get_running_loop().run_in_executor(_one_core(NICENESS), pin, opened.checkpoint)
        return Opened(opened.checkpoint, size, opened.least, fit, kept=True)

    def unpin(self) -> None:
        """Return to the system what checkpoints that were copied to its pages have left there."""
        from sie_bundle.residency.pinned import unpin

        unpin()

    def close(self) -> None:
        """Start no further load: this process is about to leave."""
        for threads in (self._fetches, self._reads):
            threads.shutdown(wait=False, cancel_futures=True)
        weights.stop()

    def _made(self, opened: Opened, behind: bool) -> Model:
        from sie_bundle.models.model import EncoderModel, load, precision_of
        from sie_bundle.residency.pacing import Pace, Paced

        checkpoint = copy.copy(opened.checkpoint)
        if behind:
            checkpoint.tensors = Paced(checkpoint.tensors, Pace(self._progress))
        with _own_stream(self._device):
            if opened.fit is None:
                return load(checkpoint, self._device, self._precision, self._kernels)
            model = EncoderModel(
                checkpoint, self._device, precision_of(checkpoint.spec, self._precision), self._kernels
            )
            model.fit = opened.fit
            return model

    def _least(self, checkpoint: Checkpoint) -> int:
        """What the layers of a packed encoder take; 0 of others.

        Of what stands beside the layers a model may take less than is stored, or nothing.
        """
        from sie_bundle.models.model import ADAPTERS, precision_of

        spec, tensors = checkpoint.spec, checkpoint.tensors
        # A LoRA's sums are made when they are looked at, and how an adapter keeps numbers is its own affair.
        if spec.chosen.lora is not None or entry_points(group=ADAPTERS, name=spec.family):
            return 0
        family = checkpoint.architecture.family
        if family.way != "packed":
            return 0
        layers = range(min(checkpoint.architecture.config.num_hidden_layers, len(tensors)))
        stems = tuple(prefix + family.layer.format(i) for prefix in family.prefixes for i in layers)
        width = 4 if precision_of(spec, self._precision) == "float32" else 2
        return sum(width * tensors[name].numel() for name in tensors if name.startswith(stems))


@cache
def _one_core(niceness: int) -> ThreadPoolExecutor:
    """Threads that compute on one core each; the same for the whole process, as torch's settings are.

    torch notes the number set last for threads that have not asked yet. So all of these threads start at once, before
    there is a model to serve, and a fresh thread then sets the number back for those to come.
    """
    import torch

    began = threading.Barrier(THREADS + 1)

    def step_back() -> None:
        began.wait()
        if niceness and sys.platform == "linux":  # elsewhere the priority is the whole process's
            own = os.getpriority(os.PRIO_PROCESS, 0)
            os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), own + niceness)

    usual = _in_fresh_thread(torch.get_num_threads)
    threads = ThreadPoolExecutor(THREADS, thread_name_prefix="load-one-core", initializer=cores.take, initargs=(1,))
    for _ in range(THREADS):
        threads.submit(step_back)
    began.wait()
    _in_fresh_thread(lambda: torch.set_num_threads(usual))
    return threads


def _in_fresh_thread(run: Callable[[], T]) -> T:
    with ThreadPoolExecutor(1) as fresh:
        return fresh.submit(run).result()


@contextmanager
def _own_stream(device: str) -> Iterator[None]:
    """On a CUDA device: copies do not queue behind forward passes, nor these behind copies. Finished at the end.

    What is freed goes to the next load, while forward passes run on another stream. That is safe because each of them
    ends with its outputs on the host: whoever lets go of a model has waited for its last kernel.
    """
    if device.split(":")[0] != "cuda":
        yield
        return
    import torch

    stream = _stream(device)
    with torch.cuda.stream(stream):
        yield
    stream.synchronize()


@cache
def _stream(device: str) -> Any:
    import torch

    return torch.cuda.Stream(device)  # type: ignore[no-untyped-call]
