"""Residency: which models are on the device. Loads on first use, once; lets others go when memory is needed.

Three tiers: on the device as a model, in the host's memory as an open checkpoint, on disk as a folder. What is in them
is a variant of a model (``sie_config.model.variant``): with one of its LoRAs or none. Owns the state of each load, and
when what is tried. Not here: the account of a tier (``tier``), who goes first (``eviction``), when freed memory is
returned (``pressure``), what the host's memory keeps (``host``), the threads (``loading``), the pauses after a failure
(``load_failure``).
"""

from __future__ import annotations

import asyncio
import logging
import random
import time
from collections.abc import Callable, Collection
from concurrent.futures import Future
from pathlib import Path
from typing import TYPE_CHECKING

from sie_bundle.engine.executor import LEAVING
from sie_bundle.engine.failure import frameless
from sie_bundle.engine.native import KEPT
from sie_bundle.residency import memory
from sie_bundle.residency.host import Host
from sie_bundle.residency.load_failure import Failure, Failures, too_large
from sie_bundle.residency.loading import Loader, Opened
from sie_bundle.residency.memory import Memory
from sie_bundle.residency.pressure import Pressure
from sie_bundle.residency.tier import Tier, base
from sie_bundle.weights.source import classify
from sie_config.model.model_spec import ModelSpec
from sie_config.model.variant import ids_of, key_of, name_of, variant
from sie_sdk.errors import OutOfMemoryError, SIEError, UnavailableError, WeightsUnavailableError

if TYPE_CHECKING:
    from sie_bundle.models.model import Model

log = logging.getLogger("sie.bundle.residency")

RELEASE_S = 1.0
"""So long a load waits for the requests that still compute with models which were let go for it."""
LOOK_S = 0.005
"""How often it looks whether they have."""

SUPERSEDED_S = 30.0
"""So long a model whose spec was changed stays after its last request: work in flight is computed by it."""

WATCH_S = 1.0
"""How often the machine's memory is looked at."""

HOPELESS_S = 60.0
"""How often a pinned model is asked for whose failure time does not mend."""


class Residency:
    """The models of one device.

    Args:
        weights_dir: see `weights.resolve`.
        cache_dir: see `weights.resolve`.
        max_bytes: the most bytes of models on the device.
        loaded: told the name of each variant that was loaded.
        host_bytes: the most bytes of checkpoints kept open in the host's memory.
        pressure_percent: with more than this part of its memory in use, the device lets models go below the limit.
        pinned: names of variants that are never let go.
        device: where models run, as torch names it.
        precision: the numbers they compute with, see `precision.precision`.
        kernels: where compiled code is kept, see `native`; None: there is to be none.
        progress: how many forward passes the device has finished, see `loading.Loader`.
        device_found: set once it is known that the device is there; None: it is known. No load fails before that.
        sound: whether the device still computes; asked, in a thread, when a load has failed.
        clock: seconds, for last uses and pauses.
        chance: random numbers in [0, 1), for the pauses' jitter.
        reading: the memory of the device.
        host_reading: the memory of the machine.
    """

    def __init__(
        self,
        weights_dir: Path | None,
        cache_dir: Path,
        max_bytes: int,
        loaded: Callable[[str], None] = lambda _: None,
        *,
        host_bytes: int = 1 << 33,
        pressure_percent: float = 90.0,
        pinned: Collection[str] = (),
        device: str = "cpu",
        precision: str = "auto",
        kernels: Path | None = KEPT,
        progress: Callable[[], int] = lambda: 0,
        device_found: asyncio.Event | None = None,
        sound: Callable[[], bool] = lambda: True,
        clock: Callable[[], float] = time.monotonic,
        chance: Callable[[], float] = random.random,
        reading: Callable[[], Memory] | None = None,
        host_reading: Callable[[], Memory] = memory.machine,
    ) -> None:
        self.lost = Future[None]()
        """Fails when a load found the device lost for good: this worker is to leave."""
        self.lost.set_running_or_notify_cancel()  # no longer cancelled by whoever stops waiting
        self._loaded = loaded
        self._pressure_percent = pressure_percent
        self._device_found = device_found
        self._sound = sound
        self._loader = Loader(weights_dir, cache_dir, device, precision, kernels, progress)
        self._models: Tier[Model] = Tier(max_bytes, pinned, clock)
        self._host = Host(self._loader, host_bytes, pressure_percent, pinned, host_reading, clock)
        reading = reading or memory.of(device)
        self._pressure = Pressure(device, pressure_percent, reading, lambda: self._models.gone, clock)
        self._sizes: dict[str, tuple[str, int]] = {}
        """What variants were found to take on the device: by `name_of`, the `key_of` of the last and its bytes."""
        self._loads: dict[ModelSpec, asyncio.Task[Model]] = {}
        self._failures = Failures(clock, chance)
        self._fetched_anew: dict[str, str] = {}
        """Those that were damaged and have not loaded since: by `name_of`, the `key_of` of the last."""

    def resident(self) -> tuple[str, ...]:
        """The variants that are loaded, by `name_of`, least recently used first."""
        newest_first = dict.fromkeys(base(name) for name in reversed(self._models.names()))
        return tuple(reversed(newest_first))

    def loading(self) -> tuple[str, ...]:
        """Those on their way in."""
        return tuple(map(name_of, self._loads))

    def models(self) -> Collection[str]:
        """The ids of the models that are loaded, with whatever LoRA. Asked for with every request."""
        return ids_of(self._models.known)

    def models_loading(self) -> Collection[str]:
        """Of those on their way in."""
        return ids_of(frozenset(self.loading())) if self._loads else ()

    def is_loading(self) -> bool:
        """Whether any is. May be asked by any thread."""
        return bool(self._loads)

    def failed(self, count: int) -> list[Failure]:
        """The models that did not load when they were last tried, the last ``count`` of them."""
        return self._failures.latest(count)

    def forget_all_but(self, served: Callable[[str], bool]) -> None:
        """Know no more of models that are not served than if they had never been. ``served``: by id."""
        self._failures.forget_all_but(served)
        for known in (self._sizes, self._fetched_anew):
            for name in [name for name in known if not served(name.partition(":")[0])]:
                del known[name]

    def memory(self) -> Memory:
        """Of the device, now. Reading a CUDA device imports torch, makes its context and may wait for the driver."""
        return self._pressure.read()

    @property
    def last_memory(self) -> Memory:
        """Of the device, as it was last read, by whomever; ``watch`` does every second."""
        return self._pressure.last

    @property
    def bytes(self) -> int:
        """What models take on the device: the loaded ones, those on their way in, and those let go but still in use."""
        return self._models.bytes

    async def model(self, spec: ModelSpec, lora: str = "") -> Model:
        """The loaded model; the first request for it loads it, the others wait for the same load.

        Where what loading depends on has changed, it is another one, and the old one goes when nobody has used it for
        a while. Whatever else of the spec changes, it stays: what is read with each request (prompts, for instance) is
        in the caller's ``spec``, not in the model's.

        Args:
            lora: the profile whose LoRA it has.

        Raises:
            ModelLoadFailedError: it does not load; `WeightsUnavailableError` when no source has its weights. The
                details' ``reason`` says why, ``retry_after`` when it is tried again.
            OutOfMemoryError: there is no room for it now.
            UnavailableError: the device is lost, and this worker leaves.
        """
        spec = variant(spec, lora)
        if (model := self._models.find(key_of(spec))) is not None:
            return model
        if spec not in self._loads and (failure := self._failures.pausing(spec)) is not None:
            if not await self._brought(failure):
                raise failure.error
            if (model := self._models.find(key_of(spec))) is not None:
                return model  # others were told so before
        if spec not in self._loads:
            self._loads[spec] = asyncio.create_task(self._load(spec))
            self._loads[spec].add_done_callback(lambda load: self._ended(spec, load))
        # Shielded: a caller that leaves must not stop the load the others wait for.
        return await asyncio.shield(self._loads[spec])

    def free(self) -> None:
        """Return what torch and the C library keep of freed memory to the device. From any thread."""
        self._pressure.free()

    def relieve(self) -> bool:
        """Let a model go because memory of the device ran out; whether there was one. From any thread."""
        name = self._models.relieve()
        if name is not None:
            log.warning("out of memory: let %s go", base(name))
        self.free()
        return name is not None

    def ease(self) -> bool:
        """Let go what is over the limit, and under high pressure one model, unless it is the only one.

        Returns whether the pressure is high.
        """
        self._host.ease()
        self._models.trim()
        if self._pressure.over() <= 0 or not self._models.names() or self._pressure.over_without_kept() <= 0:
            return False
        if len(self._models.names()) > 1 and (name := self._models.relieve()) is not None:
            log.info("let %s go: more than %g %% of the memory is in use", base(name), self._pressure_percent)
        return True

    async def watch(self) -> None:
        """Ease the pressure and let superseded models go, every second, until cancelled."""
        while True:
            await asyncio.sleep(WATCH_S)
            await asyncio.to_thread(self.ease)
            self.retire()

    def retire(self) -> None:
        """Let go the models of specs that were changed, once no request was computed by those for a while."""
        for name in self._models.retire(SUPERSEDED_S):
            log.info("let %s go: its spec was changed", base(name))
        self._host.kept.retire(SUPERSEDED_S)

    def pin(self, names: Collection[str]) -> None:
        """From now on never let exactly these models go."""
        self._models.pin(names)
        self._host.kept.pin(names)

    async def hold(self, spec: ModelSpec) -> None:
        """Load a pinned model, with its profile's LoRA, before anybody asks for it, trying until it is there."""
        while True:
            try:
                await self.model(spec, "" if spec.chosen.lora is None else spec.default_profile)
            except SIEError as error:
                log.warning("pinned model %s is not loaded: %s", name_of(spec), error)
                await asyncio.sleep(error.retry_after or HOPELESS_S)
            else:
                return

    def close(self) -> None:
        """Start no further load."""
        self._loader.close()

    async def _brought(self, failure: Failure) -> bool:
        """Whether weights that were not here have been put here meanwhile."""
        return failure.absent and await asyncio.to_thread(self._loader.here, failure.spec)

    def _ended(self, spec: ModelSpec, load: asyncio.Task[Model]) -> None:
        del self._loads[spec]
        if not load.cancelled():
            load.exception()  # all who waited may have left: then nobody else asks for it

    async def _load(self, spec: ModelSpec) -> Model:
        began = time.monotonic()
        try:
            opened = self._host.kept.find(key_of(spec))
            model = await (self._bring(spec) if opened is None else self._make(opened, behind=False))
        except Exception as error:
            if not isinstance(error, SIEError):
                log.exception("loading %s failed", name_of(spec))
            if self._device_found is not None:  # else the cause may be that it is not there: nothing against the model
                await self._device_found.wait()
            if classify(error) != "memory":  # for which the checkpoint can do nothing
                self._host.kept.let_go(key_of(spec))
            told = await self._failed(spec, error)
        else:
            self._came(spec, model, began, "disk" if opened is None else "host memory")
            return model
        # Out here, since what is raised in there holds on to the error, and with it to all that the load had made.
        try:
            raise told
        finally:
            del told  # it holds on to this frame

    async def _failed(self, spec: ModelSpec, error: Exception) -> SIEError:
        """What the callers of a load are told. That the device is lost is nothing against the model."""
        if not await asyncio.to_thread(self._sound):
            log.critical("the device is lost, and this worker leaves", exc_info=error)
            if not self.lost.done():
                self.lost.set_exception(frameless(error))
            return UnavailableError(LEAVING, retry_after=1.0)
        absent = isinstance(error, WeightsUnavailableError) and not await asyncio.to_thread(self._loader.here, spec)
        return self._failures.note(spec, error, absent=absent)

    def _came(self, spec: ModelSpec, model: Model, began: float, origin: str) -> None:
        """It is loaded: the next failure is a first one."""
        self._failures.forget(spec)
        self._fetched_anew.pop(name_of(spec), None)
        took = time.monotonic() - began
        log.info("loaded %s (%.0f MB) from %s in %.3f s", name_of(spec), model.bytes / 1e6, origin, took)
        self._loaded(name_of(spec))

    async def _bring(self, spec: ModelSpec) -> Model:
        """From disk or a source. Damaged files that were fetched are fetched once more."""
        behind = bool(self._models.names())
        try:
            opened = await self._loader.open(spec)
            model = await self._make(opened, behind)
        except SIEError as error:
            if classify(error) != "corrupt" or self._fetched_anew.get(name_of(spec)) == key_of(spec):
                raise
            if not await asyncio.to_thread(self._loader.fetched, spec):
                raise
            log.warning("%s is damaged and fetched again: %s", name_of(spec), error)
            frameless(error)  # else what was made of them stays on the device, where nobody counts it any more
            opened = await self._anew(spec)
            model = await self._make(opened, behind)
        self._host.keep(opened, model)
        return model

    async def _anew(self, spec: ModelSpec) -> Opened:
        """Fetched once more and opened. Where no source gave any, the damaged ones stay, and are worth another try."""
        self._fetched_anew[name_of(spec)] = key_of(spec)
        try:
            return await self._loader.open(spec, anew=True)
        except Exception as error:
            if classify(error) != "corrupt":
                self._fetched_anew.pop(name_of(spec), None)
            raise

    async def _make(self, opened: Opened, behind: bool) -> Model:
        """The model on the device, with the room it needs."""
        spec = opened.checkpoint.spec
        name = key_of(spec)
        await self._room(spec, opened)
        try:
            model = await self._made(opened, behind)
            self._sizes[name_of(spec)] = (name, model.bytes)
            if model.bytes > (most := self._models.most(name)):
                raise too_large(spec, model.bytes, most, self._models.limit)
            self._models.put(name, model, model.bytes)
            self._models.make_room(name, 0)  # where it takes more than its files
        finally:
            self._models.release(name)
        return model

    async def _made(self, opened: Opened, behind: bool) -> Model:
        """Try as long as running out of memory can be helped by letting another go."""
        while True:
            try:
                return await self._loader.make(opened, behind=behind)
            except Exception as error:
                if classify(error) != "memory" or not await asyncio.to_thread(self.relieve):
                    raise

    async def _room(self, spec: ModelSpec, opened: Opened) -> None:
        """Reserve what the model takes; how much that is, is known once it was loaded, and before that the least.

        Raises:
            ModelLoadFailedError: it is over the limit alone.
            OutOfMemoryError: it is over what pins leave, or those let go stay in use and memory is scarce.
        """
        name = key_of(spec)
        most = self._models.most(name)
        known, size = self._sizes.get(name_of(spec), ("", 0))
        need = size if known == name else max(opened.least, min(opened.bytes, most))
        if need > most:
            raise too_large(spec, need, most, self._models.limit)
        now = asyncio.get_running_loop().time
        until = now() + RELEASE_S
        scarce = min(need, max(0, await asyncio.to_thread(self._pressure.over, need)))
        while not self._models.make_room(name, need, scarce=scarce):
            scarce = 0 if self._models.may_fit(name, need) else scarce  # else nobody has gone for it yet
            if self._models.arriving:
                until = now() + RELEASE_S  # they arrive, and then they can be let go
            elif now() > until:
                if await asyncio.to_thread(self._pressure.over, need) > 0:
                    told = f"There is no room for {name_of(spec)} while others are in use."
                    raise OutOfMemoryError(told, reason="memory")
                log.warning("those let go for %s are still in use; loaded over the limit", name_of(spec))
                self._models.reserve(name, need)
                return
            await asyncio.sleep(LOOK_S)
