"""The public methods on pools, each written and documented once, for the blocking and the awaiting client.

Owns signatures and their documentation, as ``methods`` does for the others. What they send is ``pool_calls``.
"""

from __future__ import annotations

from collections.abc import Coroutine, Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypeAlias, TypedDict, TypeVar, Unpack, overload

from sie_sdk import arguments, pool_calls
from sie_sdk.carrier import Carrier, Http
from sie_sdk.pools import DEFAULT_TTL_S, PoolInfo, PoolSpec

if TYPE_CHECKING:
    import httpx

T = TypeVar("T")
Async: TypeAlias = Coroutine[Any, Any, T]
Blocking: TypeAlias = "PoolMethods[httpx.Client]"
Awaited: TypeAlias = "PoolMethods[httpx.AsyncClient]"


class PoolKeywords(TypedDict, total=False):
    """The keywords of ``create_pool`` and ``pool``; the former documents them."""

    gpu_caps: Mapping[str, int] | None
    bundle: str
    minimum_worker_count: int
    ttl_s: float
    pinned_models: Sequence[str]


class PoolMethods(Carrier[Http]):
    """What both clients can do with pools: named capacity with a lease."""

    @overload
    def create_pool(
        self: Blocking, name: str, gpus: Mapping[str, int] | None = None, **keywords: Unpack[PoolKeywords]
    ) -> PoolInfo: ...
    @overload
    def create_pool(
        self: Awaited, name: str, gpus: Mapping[str, int] | None = None, **keywords: Unpack[PoolKeywords]
    ) -> Async[PoolInfo]: ...

    def create_pool(
        self,
        name: str,
        gpus: Mapping[str, int] | None = None,
        *,
        gpu_caps: Mapping[str, int] | None = None,
        bundle: str = "default",
        minimum_worker_count: int = 0,
        ttl_s: float = DEFAULT_TTL_S,
        pinned_models: Sequence[str] = (),
    ) -> Any:
        """Make a pool, or change and renew the one of that name. It ends ``ttl_s`` seconds after its last renewal.

        ``with client.pool(...)`` renews one for you and deletes it at the end.

        Args:
            name: letters, digits and hyphens; what ``pool=`` of ``encode`` then names.
            gpus: machine profiles, and how many workers of each it gets at most: ``{"cpu": 2}``.
            gpu_caps: where these differ from ``gpus``, they are the most it gets.
            bundle: the bundle its workers run.
            minimum_worker_count: workers of each profile that are kept up, whether anybody asks or not.
            ttl_s: at most 3600.
            pinned_models: what its workers load at once and keep.

        Raises:
            InvalidInputError: ``error.field`` names what cannot be.
            PoolForbiddenError: there are as many pools as there may be, or this one may not be changed so.
        """
        spec = pool_spec(
            name,
            gpus,
            gpu_caps=gpu_caps,
            bundle=bundle,
            minimum_worker_count=minimum_worker_count,
            ttl_s=ttl_s,
            pinned_models=pinned_models,
        )
        return self._run(pool_calls.create(spec, self._impatience()))

    @overload
    def list_pools(self: Blocking) -> list[PoolInfo]: ...
    @overload
    def list_pools(self: Awaited) -> Async[list[PoolInfo]]: ...

    def list_pools(self) -> Any:
        """All pools, the default one first."""
        return self._run(pool_calls.every(self._impatience()))

    @overload
    def get_pool(self: Blocking, name: str) -> PoolInfo | None: ...
    @overload
    def get_pool(self: Awaited, name: str) -> Async[PoolInfo | None]: ...

    def get_pool(self, name: str) -> Any:
        """One pool and who works for it; None when there is none of that name."""
        return self._run(pool_calls.one(name, self._impatience()))

    @overload
    def renew_pool(self: Blocking, name: str) -> bool: ...
    @overload
    def renew_pool(self: Awaited, name: str) -> Async[bool]: ...

    def renew_pool(self, name: str) -> Any:
        """Begin a pool's lease anew; False when it has ended already."""
        return self._run(pool_calls.renew(name, self._impatience()))

    @overload
    def delete_pool(self: Blocking, name: str) -> bool: ...
    @overload
    def delete_pool(self: Awaited, name: str) -> Async[bool]: ...

    def delete_pool(self, name: str) -> Any:
        """End a pool; what is queued in it is still done. False when there was none of that name."""
        return self._run(pool_calls.delete(name, self._impatience()))


def pool_spec(name: str, gpus: Mapping[str, int] | None, **keywords: Unpack[PoolKeywords]) -> PoolSpec:
    """The record of what these keywords ask for."""
    return PoolSpec(
        name=name,
        gpus=dict(gpus or {}),
        gpu_caps=dict(keywords.get("gpu_caps") or {}),
        bundle=keywords.get("bundle", "default"),
        ttl_seconds=keywords.get("ttl_s", DEFAULT_TTL_S),
        minimum_worker_count=keywords.get("minimum_worker_count", 0),
        pinned_models=arguments.listed("pinned_models", keywords.get("pinned_models", ())),
    )
