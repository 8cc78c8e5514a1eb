"""Pools: named capacity with a lease, as records. Pure, the clock passed in.

Owns the records of the pools bucket, their keys and bytes, and when a lease has ended. Who serves a pool is decided in
``assignment``, who reads the bucket is ``pool_table``. Times are wall-clock seconds: every process judges alike.
"""

from __future__ import annotations

import msgspec

from sie_broker.records import Lane
from sie_broker.subjects import name_of, token

DEFAULT = "default"
"""The pool that workers come from and return to. It is not in the bucket and never ends."""

POOL, QUEUES, WORKER, HOME = "pool.", "queues.", "worker.", "home."


class Pool(msgspec.Struct, frozen=True):
    """A lease on workers of one bundle. It lives until ``last_renewed + ttl_s``, or until it is deleted."""

    name: str
    gpus: dict[str, int]
    """Machine profiles, and how many workers of each it gets at most."""
    created_at: float
    last_renewed: float
    ttl_s: float
    bundle: str = "default"
    gpu_caps: dict[str, int] = {}
    """Where these differ from ``gpus``, they are the most it gets."""
    minimum: int = 0
    """Workers of each profile that are kept up for it, whether anybody asks or not."""
    pinned_models: tuple[str, ...] = ()
    """Ids of models its workers load at once and keep."""
    deleted: bool = False

    def living(self, now: float) -> bool:
        """Whether it takes work; one that does not is still served until nothing of it waits."""
        return not self.deleted and now < self.last_renewed + self.ttl_s

    def most(self, profile: str) -> int:
        """Workers of ``profile`` it gets at most."""
        return self.gpu_caps.get(profile, self.gpus.get(profile, 0))

    @property
    def profiles(self) -> list[str]:
        """Its machine profiles, by name."""
        return sorted(self.gpus.keys() | self.gpu_caps.keys())

    def lanes(self) -> list[Lane]:
        """Where its work waits: one lane a profile."""
        return [Lane(pool=self.name, bundle=self.bundle, profile=profile) for profile in self.profiles]

    @property
    def shape(self) -> str:
        """What its queues depend on; written beside it once they exist."""
        return f"{self.created_at!r} {self.bundle} {','.join(self.profiles)}"


class Assignment(msgspec.Struct, frozen=True):
    """What one worker is told: whom it works for, and what to keep loaded for it."""

    pool: str
    pinned_models: tuple[str, ...] = ()


_encoder = msgspec.json.Encoder()
_pools = msgspec.json.Decoder(Pool)
_assignments = msgspec.json.Decoder(Assignment)


def encode(record: Pool | Assignment) -> bytes:
    """A record as it is kept."""
    return _encoder.encode(record)


def read_pool(value: bytes) -> Pool:
    """The pool of an entry.

    Raises:
        msgspec.DecodeError: written by a newer or broken writer.
    """
    return _pools.decode(value)


def read_assignment(value: bytes) -> Assignment:
    """The assignment of an entry; errors as `read_pool`."""
    return _assignments.decode(value)


def pool_key(name: str) -> str:
    """Where the pool's record is kept."""
    return POOL + token(name)


def queues_key(name: str) -> str:
    """Where the config service notes for which `Pool.shape` the pool's queues exist."""
    return QUEUES + token(name)


def worker_key(worker: str) -> str:
    """Where a worker finds its assignment; without one it works for the pool it was started in."""
    return WORKER + token(worker)


def home_key(name: str) -> str:
    """Stands where the catalogue has models in a pool of that name: it scales by itself."""
    return HOME + token(name)


def named(key: str, prefix: str) -> str | None:
    """The name in a key of that prefix; None for other keys."""
    return name_of(key.removeprefix(prefix)) if key.startswith(prefix) else None


def service_of(lane: Lane) -> Lane:
    """What scales for a lane of such a pool: the same bundle and profile in the default pool."""
    return msgspec.structs.replace(lane, pool=DEFAULT)
