"""What runs right now and how a client waits for it: ``GET /health`` as records, and the calls on them.

Owns what is read of the cluster, of our servers and the published ones, and how a model is made to come up. Not here:
the public methods (``capacity_methods``), pools themselves (``pools``).
"""

from __future__ import annotations

from collections.abc import Iterator

import msgspec

from sie_sdk import calls, formats, pool_calls, results
from sie_sdk.effects import Call, Patience, Report, Send, Terms, Wait
from sie_sdk.errors import (
    CancelledByCallerError,
    DeadlineExceededError,
    InvalidInputError,
    PoolNotFoundError,
    UnexpectedReplyError,
)
from sie_sdk.settle import read, settle
from sie_sdk.types import ModelInfo, Progress

DEFAULT_POOL = "default"
LOOK_EVERY_S = 1.0
"""The pause between two looks at a pool that has no worker yet."""
TOLD_WITHIN = 5
"""Looks within which a worker that has computed with a model has told of it: workers tell once a second."""
WORD = "warm"
"""What a model is given to compute so that it comes up."""


class WorkerInfo(msgspec.Struct, frozen=True):
    """A worker. ``gpu`` is its machine profile; ``healthy``: it takes work; ``queue_depth`` works are in its hands."""

    name: str
    gpu: str = ""
    pool: str = DEFAULT_POOL
    bundle: str = ""
    healthy: bool = False
    state: str = ""
    loaded_models: list[str] = []
    queue_depth: int = 0
    memory_used_bytes: int = 0
    memory_total_bytes: int = 0


class LaneInfo(msgspec.Struct, frozen=True):
    """What scales: a bundle on a machine profile, for a pool.

    ``waiting`` works are queued or in hand, of which one worker clears ``rate`` in a second; ``wanted`` workers are to
    be there, ``live`` are. ``failure``: why none comes, when that is given up.
    """

    pool: str = DEFAULT_POOL
    bundle: str = ""
    gpu: str = ""
    waiting: int = 0
    rate: float = 0.0
    wanted: int = 0
    live: int = 0
    failure: str = ""


class Capacity(msgspec.Struct, frozen=True):
    """The cluster as the server saw it at ``timestamp``, in seconds since the epoch."""

    type: str
    status: str = ""
    timestamp: float = 0.0
    configured_gpu_types: list[str] = []
    live_gpu_types: list[str] = []
    lanes: list[LaneInfo] = []
    workers: list[WorkerInfo] = []

    def ready(self, *, pool: str | None = None, model: str | None = None) -> list[WorkerInfo]:
        """The workers that take work: all of them, or those of a pool, or those that have a model loaded.

        ``model`` may leave out the organisation, and its case does not matter.
        """
        return [
            worker
            for worker in self.workers
            if worker.healthy
            and pool in (None, worker.pool)
            and (model is None or any(_is(model, loaded) for loaded in worker.loaded_models))
        ]


def _is(asked: str, loaded: str) -> bool:
    return asked.lower() in (loaded.lower(), loaded.lower().rpartition("/")[2])


def get(patience: Patience) -> Call[Capacity]:
    """``GET /health``."""
    send = Send("GET", "/health", calls.request_headers(formats.JSON), timeout_s=patience.timeout_s)
    return read((yield from settle(send, patience)), _read)


def _read(body: bytes, content_type: str | None) -> Capacity:
    capacity = results.read_any(body, content_type, Capacity)
    if capacity.type != "gateway":
        raise UnexpectedReplyError(
            f"This server tells of itself as a {capacity.type}, not of a cluster.",
            hint="Use the address of the gateway.",
        )
    return capacity


def watch(interval_s: float, patience: Patience) -> Iterator[Call[list[Capacity]]]:
    """One look after the other, without end."""
    yield _after(0.0, patience)
    while True:
        yield _after(interval_s, patience)


def _after(seconds: float, patience: Patience) -> Call[list[Capacity]]:
    if seconds > 0:
        yield Wait(seconds)
    return [(yield from get(patience))]


def wait(model: str | None, pool: str | None, patience: Patience) -> Call[Capacity]:
    """Wait until a worker is there: one that has computed something with ``model``, or any of ``pool``."""
    patience = msgspec.structs.replace(patience, started=patience.now())
    if model is not None:
        name = yield from _warm_up(model, pool, patience)
        for _ in range(TOLD_WITHIN):
            seen = yield from get(_for_a_look(patience))
            if seen.ready(pool=pool, model=name) or (left := _left(patience)) <= 0:
                break
            yield Wait(min(LOOK_EVERY_S, left), patience.cancel)
        return seen
    if pool is None:
        raise InvalidInputError(
            "There is nothing to wait for.", field="model", hint="Pass the model you need, or a pool whose workers."
        )
    if pool != DEFAULT_POOL and (yield from pool_calls.one(pool, patience)) is None:
        raise PoolNotFoundError(f"There is no pool {pool}.", field="pool", hint="client.list_pools() lists them.")
    while not (seen := (yield from get(_for_a_look(patience)))).ready(pool=pool):
        yield from _pause(pool, patience)
    yield Report(Progress("done", elapsed_s=_elapsed(patience)))
    return seen


def _warm_up(model: str, pool: str | None, patience: Patience) -> Call[str]:
    """Have a word computed, by the operation the model is for: nothing else makes a worker load it. Its whole name."""
    info = yield from calls.get_model(model, patience)
    try:
        yield from _compute(info, model, pool, patience, None)
    except InvalidInputError as error:
        # Only the server knows which models have labels of their own.
        if error.field != "params.labels":
            raise
        yield from _compute(info, model, pool, patience, [WORD])
    return info.name


def _compute(info: ModelInfo, model: str, pool: str | None, patience: Patience, labels: list[str] | None) -> Call[None]:
    terms = Terms(pool=pool)
    if {"dense", "sparse", "multivector"} & {*info.outputs}:
        order = calls.encode(model, patience, terms)
    elif "score" in info.outputs:
        order = calls.score(model, patience, terms, query=WORD)
    else:
        order = calls.extract(model, patience, terms, labels=labels)
    yield from calls.ask(order, [WORD], 1)


def _pause(pool: str, patience: Patience) -> Call[None]:
    if patience.cancel is not None and patience.cancel.is_set():
        raise CancelledByCallerError("The wait was cancelled.")
    if (left := _left(patience)) <= 0:
        raise DeadlineExceededError(
            f"Pool {pool} had no worker within the deadline of {patience.deadline_s:g} s.",
            limit=patience.deadline_s,
            hint="Its workers come with work, or with minimum_worker_count; name a model to have one come.",
        )
    yield Report(Progress("provisioning", None, _elapsed(patience), LOOK_EVERY_S, f"Pool {pool} has no worker yet."))
    yield Wait(min(LOOK_EVERY_S, left), patience.cancel)


def _for_a_look(patience: Patience) -> Patience:
    """A look may take a second however late it is: what it finds says more than that it was cut short."""
    return msgspec.structs.replace(patience, started=None, deadline_s=max(1.0, _left(patience)))


def _left(patience: Patience) -> float:
    return patience.deadline_s - _elapsed(patience)


def _elapsed(patience: Patience) -> float:
    return patience.now() - (patience.started or 0.0)
