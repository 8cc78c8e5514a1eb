"""Pools on the wire: what is asked for and what is answered, as frozen records used by both ends.

Owns the names, types, defaults and limits of ``/v1/pools``. Not here: who serves one (``sie_broker.pools``), keeping
it alive (``leases``).
"""

from __future__ import annotations

from typing import Literal, TypeAlias, TypeVar

import msgspec

from sie_sdk.refusals import unexpected

T = TypeVar("T")

DEFAULT_TTL_S = 1200.0
MAX_TTL_S = 3600.0
MIN_TTL_S = 1.0
MAX_MINIMUM = 4
"""Workers that may be kept up for one pool, its profiles added up."""
MAX_POOLS = 64
MAX_NAME = 63
MAX_WORKERS = 1024
"""The most workers of one profile a pool may ask for."""
MAX_PINNED = 64

PoolState: TypeAlias = Literal["pending", "active", "expired"]


class PoolSpec(msgspec.Struct, frozen=True):
    """What a pool is to be.

    ``gpus``: machine profiles and how many workers of each it gets at most; where ``gpu_caps`` says otherwise, that is
    the most. ``minimum_worker_count`` workers of each profile are kept up. ``ttl_seconds``: how long it lives after it
    was made or renewed. ``pinned_models``: what its workers load at once and keep.
    """

    name: str
    gpus: dict[str, int] = {}
    gpu_caps: dict[str, int] = {}
    bundle: str = "default"
    queue_pool: str = "default"
    ttl_seconds: float = DEFAULT_TTL_S
    minimum_worker_count: int = 0
    pinned_models: list[str] = []


class AssignedWorker(msgspec.Struct, frozen=True):
    """A worker of a pool. ``gpu`` is its machine profile; ``url`` is empty: it takes its work from the queue."""

    name: str
    url: str = ""
    gpu: str = ""
    bundle: str = ""


class PoolStatus(msgspec.Struct, frozen=True):
    """How a pool is. Times are seconds since the epoch.

    ``pending``: not all of its minimum is ready. ``active``: it is. ``expired``: it takes no more work; the last of its
    work is still done.
    """

    state: PoolState = "pending"
    assigned_workers: list[AssignedWorker] = []
    created_at: float = 0.0
    last_renewed: float = 0.0


class PoolInfo(msgspec.Struct, frozen=True):
    """One pool."""

    spec: PoolSpec
    status: PoolStatus = PoolStatus()


class _PoolList(msgspec.Struct):
    pools: list[PoolInfo]


def read_pool(body: bytes) -> PoolInfo:
    """The pool in the reply to a POST or GET.

    Raises:
        UnexpectedReplyError: the body is none.
    """
    return _read(body, PoolInfo)


def read_pools(body: bytes) -> list[PoolInfo]:
    """The pools in the reply to ``GET /v1/pools``; errors as `read_pool`."""
    return _read(body, _PoolList).pools


def _read(body: bytes, kind: type[T]) -> T:
    try:
        return msgspec.json.decode(body, type=kind)
    except (ValueError, RecursionError) as error:
        raise unexpected(body, "a pool", error) from None
