"""Residency: which models are on the device. Loads on first use, once; drops the least recently used over a limit.

Owns the table of models and the state of each load. Loading runs in threads and holds up nobody but its own callers.
A failed load is told to all who waited and tried again by the next request after a short pause, never given up.
"""

from __future__ import annotations

import asyncio
import importlib
import logging
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from sie_bundle import weights
from sie_bundle.tokenization import Tokenizer
from sie_config.model_spec import ModelSpec
from sie_sdk.errors import ModelLoadFailedError, SIEError

if TYPE_CHECKING:
    from sie_bundle.model import Model

log = logging.getLogger("sie.bundle.residency")

RETRY_S = 2.0
"""A load that failed is not tried again before this many seconds have passed."""


class Residency:
    """The models of one device.

    Args:
        weights_dir: see `weights.resolve`.
        cache_dir: see `weights.resolve`.
        max_bytes: bytes of weights kept; the model used last stays, however large.
        loaded: told the id of each model that was loaded.
        device: where models run, as torch names it.
        precision: the numbers they compute with, see `precision.precision`.
        clock: seconds, for the pause after a failure.
    """

    def __init__(
        self,
        weights_dir: Path | None,
        cache_dir: Path,
        max_bytes: int,
        loaded: Callable[[str], None] = lambda _: None,
        *,
        device: str = "cpu",
        precision: str = "auto",
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._weights_dir = weights_dir
        self._cache_dir = cache_dir
        self._max_bytes = max_bytes
        self._loaded = loaded
        self._device = device
        self._precision = precision
        self._clock = clock
        self._models: dict[str, Model] = {}
        """Least recently used first."""
        self._loads: dict[ModelSpec, asyncio.Task[Model]] = {}
        self._failures: dict[ModelSpec, tuple[float, SIEError]] = {}

    def resident(self) -> tuple[str, ...]:
        """The models that are loaded, least recently used first."""
        return tuple(self._models)

    @property
    def bytes(self) -> int:
        """What the weights of all loaded models take."""
        return sum(model.bytes for model in self._models.values())

    async def model(self, spec: ModelSpec) -> Model:
        """The loaded model; the first request for it loads it, the others wait for the same load.

        Raises:
            ModelLoadFailedError: it does not load; `WeightsUnavailableError` when no source has its weights.
        """
        if (model := self._models.get(spec.id)) is not None and model.spec == spec:
            self._models[spec.id] = self._models.pop(spec.id)
            return model
        if (failed := self._failures.get(spec)) is not None:
            again_at, error = failed
            if self._clock() < again_at:
                raise error.with_traceback(None)
        if spec not in self._loads:
            self._loads[spec] = asyncio.create_task(self._load(spec))
            self._loads[spec].add_done_callback(lambda _: self._loads.pop(spec))
        # Shielded: a caller that leaves must not stop the load the others wait for.
        return await asyncio.shield(self._loads[spec])

    async def _load(self, spec: ModelSpec) -> Model:
        began = time.monotonic()
        self._failures.pop(spec, None)
        try:
            model = await self._read(spec)
        except SIEError as error:
            raise self._failed(spec, error) from None
        except Exception as error:
            log.exception("loading %s failed", spec.id)
            failure = ModelLoadFailedError(f"{spec.id} could not be loaded.", hint="The worker's log says why.")
            raise self._failed(spec, failure) from error
        self._models.pop(spec.id, None)  # an older spec's
        self._models[spec.id] = model
        self._evict()
        log.info("loaded %s (%.0f MB) in %.2f s", spec.id, model.bytes / 1e6, time.monotonic() - began)
        self._loaded(spec.id)
        return model

    async def _read(self, spec: ModelSpec) -> Model:
        """Weights and tokenizer beside the import of torch, which takes longest at a cold start; then the model."""

        def files() -> tuple[Path, Tokenizer]:
            folder = weights.resolve(spec, self._weights_dir, self._cache_dir).folder
            return folder, Tokenizer.load(folder)

        (folder, tokenizer), _ = await asyncio.gather(
            asyncio.to_thread(files), asyncio.to_thread(importlib.import_module, "sie_bundle.model")
        )

        def made() -> Model:
            from sie_bundle.checkpoint import Checkpoint
            from sie_bundle.model import load

            return load(Checkpoint(spec, folder, tokenizer), self._device, self._precision)

        return await asyncio.to_thread(made)

    def _failed(self, spec: ModelSpec, error: SIEError) -> SIEError:
        error.retry_after = RETRY_S
        self._failures[spec] = (self._clock() + RETRY_S, error)
        return error

    def _evict(self) -> None:
        while self.bytes > self._max_bytes and len(self._models) > 1:
            oldest = next(iter(self._models))
            log.info("dropped %s, the least recently used", oldest)
            del self._models[oldest]
