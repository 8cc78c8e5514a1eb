"""Residency: which models are on the device. Loads on first use, once; drops the least recently used over a limit.

Owns the table of models and the state of each load. Loading runs in a thread and holds up nobody but its own callers.
A failed load is told to all who waited and tried again by the next request after a short pause, never given up.
"""

from __future__ import annotations

import asyncio
import importlib
import logging
import time
from collections import OrderedDict
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from sie_bundle import weights
from sie_bundle.tokenization import Tokenizer
from sie_config.model_spec import ModelSpec
from sie_sdk.errors import ModelLoadFailedError, SIEError

if TYPE_CHECKING:
    from sie_bundle.model import EncoderModel

log = logging.getLogger("sie.bundle.residency")

RETRY_S = 2.0
"""A load that failed is not tried again before this many seconds have passed."""


class Residency:
    """The models of one device.

    Args:
        weights_dir: see `weights.resolve`.
        cache_dir: see `weights.resolve`.
        max_bytes: bytes of weights kept; a single model may be larger.
        loaded: told the id of each model that was loaded.
    """

    def __init__(
        self,
        weights_dir: Path | None,
        cache_dir: Path,
        max_bytes: int,
        loaded: Callable[[str], None] = lambda _: None,
    ) -> None:
        self._weights_dir = weights_dir
        self._cache_dir = cache_dir
        self._max_bytes = max_bytes
        self._loaded = loaded
        self._models: OrderedDict[str, EncoderModel] = OrderedDict()
        self._loads: dict[str, asyncio.Task[EncoderModel]] = {}
        self._failures: dict[str, tuple[float, SIEError]] = {}

    def resident(self) -> tuple[str, ...]:
        """The models that are loaded, least recently used first."""
        return tuple(self._models)

    async def model(self, spec: ModelSpec) -> EncoderModel:
        """The loaded model; the first request for it loads it, the others wait for the same load.

        Raises:
            ModelLoadFailedError: it does not load; `WeightsUnavailableError` when no source has its weights.
        """
        if (model := self._models.get(spec.id)) is not None and model.spec == spec:
            self._models.move_to_end(spec.id)
            return model
        failed_at, failure = self._failures.get(spec.id, (0.0, None))
        if failure is not None and time.monotonic() - failed_at < RETRY_S:
            raise failure
        if spec.id not in self._loads:
            load = self._loads[spec.id] = asyncio.create_task(self._load(spec))
            load.add_done_callback(lambda _: self._loads.pop(spec.id, None))
        # Shielded: a caller that leaves must not stop the load the others wait for.
        return await asyncio.shield(self._loads[spec.id])

    async def _load(self, spec: ModelSpec) -> EncoderModel:
        began = time.monotonic()
        try:
            model = await asyncio.to_thread(self._load_now, spec)
        except SIEError as error:
            self._failures[spec.id] = (time.monotonic(), error)
            raise
        except Exception as error:
            log.exception("loading %s failed", spec.id)
            failure = ModelLoadFailedError(f"{spec.id} could not be loaded.", hint="The worker's log says why.")
            self._failures[spec.id] = (time.monotonic(), failure)
            raise failure from error
        self._failures.pop(spec.id, None)
        self._models[spec.id] = model
        self._evict(keep=spec.id)
        log.info("loaded %s (%.0f MB) in %.2f s", spec.id, model.bytes / 1e6, time.monotonic() - began)
        self._loaded(spec.id)
        return model

    def _load_now(self, spec: ModelSpec) -> EncoderModel:
        folder = weights.resolve(spec, self._weights_dir, self._cache_dir).folder
        tokenizer = Tokenizer.load(folder)
        # Imported here, not above: at a cold start the weights and the tokenizer are ready before torch is.
        engine = importlib.import_module("sie_bundle.model")
        model: EncoderModel = engine.EncoderModel.load(spec, folder, tokenizer=tokenizer)
        return model

    def _evict(self, keep: str) -> None:
        while sum(model.bytes for model in self._models.values()) > self._max_bytes and len(self._models) > 1:
            oldest = next(name for name in self._models if name != keep)
            log.info("dropped %s, the least recently used", oldest)
            del self._models[oldest]
