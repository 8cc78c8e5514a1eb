"""One bundle, put together: engine, worker, presence and door. The same in a process of its own and in ``sie serve``.

Owns the life of a worker: warm the engine while everything else starts, load what is waited for beside it, pull and be
ready when the engine is up, drain with a deadline. Not here: the process (``__main__``), the broker it is given.
"""

from __future__ import annotations

import asyncio
import gc
import importlib
import logging
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path

from sie_broker import process
from sie_broker.contract import Broker
from sie_broker.duties import Duties
from sie_broker.pools.pool import Assignment
from sie_broker.records import Lane, LoadFailure
from sie_bundle import lazy_torch
from sie_bundle.door import Door
from sie_bundle.engine import cores
from sie_bundle.engine.executor import Executor
from sie_bundle.engine.failure import is_sound
from sie_bundle.engine.native import KEPT
from sie_bundle.membership import Membership
from sie_bundle.operations import encode, extract, score
from sie_bundle.operations.aside import GPU_INLINE_BYTES, INLINE_BYTES
from sie_bundle.operations.operation import Operation
from sie_bundle.pins import Pins
from sie_bundle.presence import Counts, Presence
from sie_bundle.residency.memory import Memory, keep_freed
from sie_bundle.residency.residency import Residency
from sie_bundle.settings import Settings
from sie_bundle.worker import Worker
from sie_config.model.variant import name_of
from sie_config.registry import Registry
from sie_sdk.errors import ConfigurationError, QueueUnavailableError, SIEError
from sie_sdk.types import Priority

log = logging.getLogger("sie.bundle")

ENGINE = "sie_bundle.models.model"
"""The module whose import brings torch in; a second of every cold start."""


STREAMS, GPU_STREAMS = 4, 2
"""The most forward passes at a time on a CPU; with more cores, each takes several. And on a GPU, which computes one
after another: while it does, the next is made ready."""

BATCH_TOKENS, GPU_BATCH_TOKENS = 512, 32_768
"""The most tokens of a batch on a CPU, and on a GPU."""
ONE_STREAM = 4
"""So many times as many are in a batch that has the caches to itself, if it is quick nevertheless."""


SWITCH_S, LONG_SWITCH_S = 0.0002, 0.001
"""So long a thread may keep Python's lock from one that waits for it; Python's own choice is 5 ms. A forward pass lets
go of it and must get it back, and its core is idle as long as it waits. Not so where there is but one core, or beside a
GPU, which has the next pass by then: there the switches themselves are what costs, up to half of what texts take."""


AHEAD = 4
"""The most models that are loaded beside the import of the engine because work for them waits."""


LEAVE_S = 5.0
"""So long a drained worker waits for passes whose callers have all left; one that hangs must not keep it from going."""


FAILED, MESSAGE = 16, 300
"""Load failures that a heartbeat tells at most, and characters of each: of its first line, for callers to read."""


def text_threads() -> int:
    """Threads that tokenize and write replies beside the event loop, for interactive requests."""
    return max(4, min(8, cores.available() // 2))


class Warming(threading.Thread):
    """Imports the engine beside the rest of the start-up. Started first, because it takes longest."""

    def __init__(self) -> None:
        super().__init__(name="warm-engine", daemon=True)
        self.failure: Exception | None = None
        self.start()

    def run(self) -> None:
        # What is imported stays: looking through it again and again while it grows takes a seventh of the import.
        gc.disable()
        try:
            cores.keep_awake()
            lazy_torch.begin()
            importlib.import_module(ENGINE)
            # numpy's own threads would compete with the forward passes for the cores; its products here are small.
            importlib.import_module("threadpoolctl").threadpool_limits(1, user_api="blas")
            process.collect_less()
        except Exception as error:
            self.failure = error
        finally:
            gc.enable()

    async def done(self) -> None:
        """Return when the engine is there; raise what its import raised."""
        await asyncio.to_thread(self.join)
        if self.failure is not None:
            raise self.failure


class Bundle:
    """A worker for one lane. Its broker is connected, its registry filled; ``stop`` is set when a part of it fails."""

    def __init__(self, broker: Broker, registry: Registry, settings: Settings, stop: asyncio.Event) -> None:
        self._settings = settings
        lane = Lane(pool=settings.pool, bundle=settings.bundle, profile=settings.profile)
        keep_freed()
        self._device_found = asyncio.Event()
        self.residency = Residency(
            weights_dir=Path(settings.weights_dir) if settings.weights_dir else None,
            cache_dir=Path(settings.cache_dir),
            max_bytes=settings.model_bytes,
            loaded=self._model_loaded,
            host_bytes=settings.host_bytes,
            pressure_percent=settings.memory_pressure_percent,
            device=settings.device,
            precision=settings.precision,
            kernels=KEPT if settings.kernels == "auto" else None,
            progress=lambda: self.executor.batches,
            device_found=self._device_found,
            sound=self._sound,
        )
        self.executor = self._executor(settings)
        self.presence = Presence(broker, lane, self._counts, settings.spawned_at)
        # Tokenizing and serialising; the forward pass has a thread of its own.
        self._threads: dict[Priority, ThreadPoolExecutor] = {
            "interactive": ThreadPoolExecutor(max_workers=text_threads(), thread_name_prefix="text"),
            "bulk": ThreadPoolExecutor(max_workers=2, thread_name_prefix="bulk"),
        }
        parts = (
            registry,
            self.residency,
            self.executor,
            self._threads,
            GPU_INLINE_BYTES if self._on_gpu else INLINE_BYTES,
        )
        self.worker = Worker(
            broker,
            registry,
            lane,
            self.presence.worker,
            operations={
                "encode": Operation(encode.parse, encode.plan, *parts, encode.repeated),
                "score": Operation(score.parse, score.plan, *parts, score.repeated),
                "extract": Operation(extract.parse, extract.plan, *parts, extract.repeated),
            },
            loaded=self.residency.models,
            max_in_hand=settings.max_in_hand,
            max_reply_bytes=settings.max_reply_bytes,
            loading=self.residency.models_loading,
        )
        self.door = Door(self.presence, registry, self.worker.run, settings.max_body_bytes)
        self._membership = Membership(broker.pools, self.presence.worker, self._told)
        self._broker, self._registry, self._home = broker, registry, lane
        self._duties = Duties(stop)
        self._pins = Pins(registry, self.residency, lane, settings.pinned_models.split(","), self._duties)

    async def start(self, warming: Warming) -> None:
        """Pull once the engine is there, and have the weights and tokenizer of the first request by then.

        Not before: what is taken by a worker that then cannot start has lost one of its deliveries, and it is started
        again and again.

        Raises:
            ConfigurationError: torch does not find the device.
        """
        duties = (
            self.presence.beat(),
            self._pins.follow(),
            self._membership.follow(),
            self._load_ahead(),
            self._device(),
        )
        for duty in duties:
            self._duties.begin(duty)
        await warming.done()
        await asyncio.to_thread(self._find_device)
        sys.setswitchinterval(LONG_SWITCH_S if self._on_gpu or cores.available() == 1 else SWITCH_S)
        self._device_found.set()
        self._duties.begin(self.residency.watch())
        self.presence.milestone("engine")
        self.worker.start()
        self.presence.milestone("pulling")
        self.presence.became("ready")
        log.info("ready: %s", self.presence.startup)

    async def _load_ahead(self) -> None:
        """Load the models for which work waits, without taking it."""
        with suppress(QueueUnavailableError):  # the worker finds them when it pulls
            models = sorted({queue.model for queue in await self._broker.waiting(self._home)})
            await asyncio.gather(*(self._load(model) for model in models[:AHEAD]))

    async def _load(self, model: str) -> None:
        with suppress(SIEError):  # whoever asks for the model is told
            await self.residency.model(self._registry.resolve(model))

    async def cannot_start(self, error: Exception) -> None:
        """Say why. Nothing was pulled yet, and what waits stays for workers that can."""
        await self.presence.cannot_start(error)
        self.door.draining.set()
        await self._duties.end()

    async def drain(self) -> None:
        """End the demand sessions, stop pulling, finish what is in hand, say goodbye; raise what a part failed with."""
        log.info("draining: %d requests in hand", self.worker.in_hand)
        self.presence.became("draining")
        within_s = self._settings.drain_s
        await asyncio.gather(self.door.drain(within_s), self.worker.drain(within_s))
        await self._duties.end()
        await self.presence.goodbye()
        await asyncio.to_thread(self.executor.close, LEAVE_S)
        self.residency.close()
        for threads in self._threads.values():
            threads.shutdown(wait=False, cancel_futures=True)
        log.info("drained: %d requests answered in all", self.worker.completed)
        self._duties.check()

    def catalogue_changed(self) -> None:
        """To be told whenever the registry has changed."""
        self.worker.update_pulls()
        self._pins.changed()
        self.residency.forget_all_but(lambda model: self._registry.serves(model, self._home))

    def _executor(self, settings: Settings) -> Executor:
        # A pass of one thread waits for no other: beside an event loop on the same cores, that is worth more than the
        # second thread of a short batch.
        count = cores.available()
        streams = settings.streams or (GPU_STREAMS if self._on_gpu else min(count, STREAMS))
        threads = settings.threads or (1 if self._on_gpu else max(1, count // streams))
        tokens = settings.batch_tokens or (GPU_BATCH_TOKENS if self._on_gpu else BATCH_TOKENS)
        one = streams == 1 and not self._on_gpu and not settings.batch_tokens
        return Executor(
            max_batch_tokens=tokens * (ONE_STREAM if one else 1),
            max_batch_s=settings.batch_s,
            few_tokens=tokens if one else float("inf"),
            streams=streams,
            threads=threads,
            alone=count if threads == 1 and count == streams else threads,
            count=None if self._on_gpu else count,
            loading=self.residency.is_loading,
            free=self.residency.free,
            relieve=self.residency.relieve,
            sound=self._sound,
        )

    def _sound(self) -> bool:
        return is_sound(self._settings.device)

    def _find_device(self) -> None:
        """Refuse a GPU that torch does not find, and read one that it does, which makes its context: half a second."""
        check_device(self._settings.device)
        if self._on_gpu:
            self.residency.memory()

    async def _device(self) -> None:
        """Fail when a pass or a load found the device lost: this process computes nothing any more, another may."""
        await asyncio.gather(*(asyncio.wrap_future(each.lost) for each in (self.executor, self.residency)))

    def _told(self, assignment: Assignment | None) -> None:
        """Work for whom the assigner says, and keep loaded what that pool has pinned."""
        pool = self._settings.pool if assignment is None else assignment.pool
        log.info("working for pool %s", pool)
        self.worker.move(pool)
        self.presence.move(pool)
        self._pins.of_pool(() if assignment is None else assignment.pinned_models)

    def _model_loaded(self, model: str) -> None:
        self.presence.milestone("first model")
        self.presence.changed()
        self.worker.update_pulls()

    def _counts(self) -> Counts:
        worker, memory = self.worker, self._memory()
        return Counts(
            models=self.residency.resident(),
            in_flight=worker.in_hand,
            completed=worker.completed,
            forwards=self.executor.texts_computed,
            busy_s=worker.busy.seconds,
            full_s=worker.full.seconds,
            bundle_config_hash=self._registry.hash_of(self._home),
            loading=self.residency.loading(),
            failed={
                name_of(each.spec): LoadFailure(
                    each.reason, each.error.message.partition("\n")[0].rstrip(":")[:MESSAGE], each.in_a_row
                )
                for each in self.residency.failed(FAILED)
                if self._registry.serves(each.spec.id, self._home)  # what is no more is nobody's worry
            },
            device=self._settings.device,
            device_bytes=memory.used if self._on_gpu else 0,
            total_bytes=memory.total,
            batches=self.executor.running,
            waiting_tokens=self.executor.waiting_tokens,
        )

    @property
    def _on_gpu(self) -> bool:
        return self._settings.device.startswith("cuda")

    def _memory(self) -> Memory:
        """Of the device; of a GPU as it was last read: to ask it may wait, and needs the engine."""
        return self.residency.last_memory if self._on_gpu else self.residency.memory()


def check_device(device: str) -> None:
    """Refuse a GPU that torch does not find; to be called when torch is there."""
    kind, _, index = device.partition(":")
    if kind == "cpu":
        return
    import torch

    if int(index or 0) >= (count := torch.cuda.device_count()):
        raise ConfigurationError(
            f"SIE_DEVICE={device} is wrong: torch finds {count} CUDA devices.",
            field="SIE_DEVICE",
            limit=count,
            hint="Use cpu, or check that the driver and a CUDA build of torch are installed.",
        )
