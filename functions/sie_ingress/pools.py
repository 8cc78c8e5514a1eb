"""``/v1/pools``: made, renewed, listed and deleted; and the lane of a request that asks for a pool.

Owns the routes and what a pool's state is said to be. What may be asked for is ``pool_requests``, who serves a pool is
decided by ``sie_broker.pools.assigner``, its queues are the config service's.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping

import msgspec
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from sie_broker import clock
from sie_broker.pools.pool import DEFAULT, Pool
from sie_broker.pools.pool_table import PoolTable
from sie_broker.records import Lane, WorkerState
from sie_config.model.model_spec import ModelSpec
from sie_config.registry import Registry, lanes_of
from sie_ingress import answer, pool_requests
from sie_ingress.body import read_body
from sie_ingress.lanes import Lanes
from sie_sdk import wire
from sie_sdk.errors import (
    DefaultPoolError,
    PoolForbiddenError,
    PoolNotFoundError,
    PoolNotReadyError,
    PoolsUnsupportedError,
)
from sie_sdk.pools import MAX_POOLS, AssignedWorker, PoolInfo, PoolSpec, PoolState, PoolStatus

READY_S = 2.0
"""How long a request waits for the queues of a pool that was made a moment ago."""
MAX_BODY_BYTES = 64 * 1024


class Pools:
    """The pools routes.

    Args:
        table: the pools; this follows it.
        assigns: whether somebody assigns workers to pools; ``sie serve`` has nobody.
        clock: seconds since the epoch.
    """

    def __init__(
        self,
        registry: Registry,
        lanes: Lanes,
        table: PoolTable,
        *,
        assigns: bool = True,
        clock: Callable[[], float] = clock.now,
    ) -> None:
        self._registry = registry
        self._lanes = lanes
        self._table = table
        self.assigns = assigns
        self._clock = clock
        self._changed = asyncio.Event()
        self._making = asyncio.Lock()

    def routes(self) -> list[Route]:
        """All of them."""
        return [
            Route("/v1/pools", self.every, methods=["GET"]),
            Route("/v1/pools", self.create, methods=["POST"]),
            Route("/v1/pools/{pool}", self.one, methods=["GET"]),
            Route("/v1/pools/{pool}", self.delete, methods=["DELETE"]),
            Route("/v1/pools/{pool}/renew", self.renew, methods=["POST"]),
        ]

    async def follow(self) -> None:
        """Keep the table up to date until cancelled."""
        await self._table.follow(self._told)

    def _told(self) -> None:
        self._changed.set()
        self._changed = asyncio.Event()

    async def lane(self, headers: Mapping[str, str], spec: ModelSpec) -> Lane:
        """Where the work of a request for this model waits: in its own pool, or the one its headers name.

        On the machine profile that they ask for, if the model is placed there. Header names are lower case.

        Raises:
            PoolNotFoundError: no living pool has that name.
            PoolCapacityError: the pool's workers do not serve the model.
            PoolNotReadyError: the pool has no queues yet.
        """
        name = pool_requests.named(headers)
        if name in ("", DEFAULT, spec.pool):
            return pool_requests.chosen(headers, lanes_of(spec))
        if not pool_requests.is_name(name):
            raise _not_found(name, "X-SIE-Pool")  # an event may say megabytes
        pool = self._table.pools.get(name)
        if pool is None or not pool.living(self._clock()):
            pool = await self._table.look_up(name)  # made or renewed through another ingress, just now
        if pool is None or not pool.living(self._clock()):
            raise _not_found(name, "X-SIE-Pool")
        lanes = pool_requests.lanes_for(pool, spec)
        if not await self._has_queues(pool):
            raise PoolNotReadyError(f"Pool {name} has no queues yet.", retry_after=1.0)
        return pool_requests.chosen(headers, lanes)

    async def _has_queues(self, pool: Pool) -> bool:
        """Wait a moment for them, if need be."""
        if self._table.ready(pool):
            return True
        await self._table.look_up(pool.name)
        try:
            async with asyncio.timeout(READY_S):
                while not self._table.ready(pool):
                    await self._changed.wait()
        except TimeoutError:
            return self._table.ready(pool)
        return True

    async def create(self, request: Request) -> Response:
        """Make a pool, or change and renew the living one of that name."""
        self._refuse_in_one_process()
        spec = pool_requests.read_spec(await read_body(request, MAX_BODY_BYTES), request.headers.get("content-type"))
        self._refuse_own(spec.name, "changed")
        now = self._clock()
        wanted = pool_requests.to_pool(spec, pool_requests.check_catalogue(spec, self._registry), now)
        async with self._making:  # else many look for the last place before any has taken it
            made = await self._make(wanted, now)
        await self._has_queues(made)
        return Response(msgspec.json.encode(self._info(made)), 201, media_type=wire.JSON)

    async def _make(self, wanted: Pool, now: float) -> Pool:
        """Write the pool, if it is not one too many; looked at again afterwards, for other ingresses make pools too.

        Of several that take the last place at a time each may be refused, but never is one kept too many: who writes
        last sees all the others.
        """
        before: Pool | None = None

        def decide(found: Pool | None) -> Pool:
            nonlocal before
            before = found
            if found is None or not found.living(now):
                self._refuse_more_than(MAX_POOLS - 1, now)
            return pool_requests.succeeded(found, wanted, now)

        made = await self._table.change(wanted.name, decide)
        assert made is not None
        if before is None or not before.living(now):
            await self._table.look_all_up()
            try:
                self._refuse_more_than(MAX_POOLS, now)
            except PoolForbiddenError:
                back = before or msgspec.structs.replace(made, deleted=True)
                await self._table.change(wanted.name, lambda found: back if found == made else found)
                raise
        return made

    async def every(self, request: Request) -> Response:
        """All pools, by name; the default pool first."""
        pools = [pool for _, pool in sorted(self._table.pools.items()) if not pool.deleted]
        return answer.json({"pools": [self._default(), *map(self._info, pools)]})

    async def one(self, request: Request) -> Response:
        """One pool; 404 once it was deleted, or its lease has ended and the last of its work is done."""
        name = _name(request)
        if name == DEFAULT:
            return answer.json(self._default())
        pool = self._table.pools.get(name) or await self._table.look_up(name)
        if pool is None or pool.deleted:
            raise _not_found(name)
        return answer.json(self._info(pool))

    async def renew(self, request: Request) -> Response:
        """Start a living pool's lease anew."""
        name, now = _name(request), self._clock()
        if name == DEFAULT:
            return answer.json({"message": "The default pool needs no renewal."})
        self._refuse_in_one_process()

        def decide(before: Pool | None) -> Pool:
            if before is None or not before.living(now):
                raise _not_found(name)
            return msgspec.structs.replace(before, last_renewed=now)

        await self._table.change(name, decide)
        return answer.json({"message": f"Pool {name} is renewed."})

    async def delete(self, request: Request) -> Response:
        """End a pool; its workers go home once the last of its work is done."""
        name = _name(request)
        if name == DEFAULT:
            raise DefaultPoolError("The default pool cannot be deleted.", field="pool")
        self._refuse_in_one_process()
        self._refuse_own(name, "deleted")

        def decide(before: Pool | None) -> Pool:
            if before is None or before.deleted:
                raise _not_found(name)
            return msgspec.structs.replace(before, deleted=True)

        await self._table.change(name, decide)
        return answer.json({"message": f"Pool {name} is deleted."})

    def _refuse_in_one_process(self) -> None:
        if not self.assigns:
            raise PoolsUnsupportedError(
                "This server is one process and has no workers to assign.",
                hint="Start the platform with `sie up`, or leave the pool out.",
            )

    def _refuse_own(self, name: str, what: str) -> None:
        if name == DEFAULT or name in {spec.pool for spec in self._registry.specs()}:
            raise PoolForbiddenError(
                f"Pool {name} belongs to the catalogue and cannot be {what}.", field="name", hint="Choose another name."
            )

    def _refuse_more_than(self, number: int, now: float) -> None:
        if sum(pool.living(now) for pool in self._table.pools.values()) > number:
            raise PoolForbiddenError(
                f"There are {MAX_POOLS} pools.", field="name", limit=MAX_POOLS, hint="Delete one or let one expire."
            )

    def _info(self, pool: Pool) -> PoolInfo:
        workers = self._workers(pool.name)
        spec = PoolSpec(
            name=pool.name,
            gpus=pool.gpus,
            gpu_caps=pool.gpu_caps,
            bundle=pool.bundle,
            ttl_seconds=pool.ttl_s,
            minimum_worker_count=pool.minimum,
            pinned_models=[*pool.pinned_models],
        )
        return PoolInfo(
            spec, PoolStatus(self._state(pool, workers), _assigned(workers), pool.created_at, pool.last_renewed)
        )

    def _state(self, pool: Pool, workers: list[WorkerState]) -> PoolState:
        if not pool.living(self._clock()):
            return "expired"
        ready = [worker.lane for worker in workers if worker.state == "ready"]
        served = all(ready.count(lane) >= pool.minimum for lane in pool.lanes())
        return "active" if served and self._table.ready(pool) else "pending"

    def _default(self) -> PoolInfo:
        return PoolInfo(PoolSpec(DEFAULT, ttl_seconds=0.0), PoolStatus("active", _assigned(self._workers(DEFAULT))))

    def _workers(self, pool: str) -> list[WorkerState]:
        here = [worker for worker in self._lanes.workers() if worker.lane.pool == pool and worker.state != "draining"]
        return sorted(here, key=lambda worker: worker.worker)


def _assigned(workers: list[WorkerState]) -> list[AssignedWorker]:
    return [AssignedWorker(worker.worker, gpu=worker.lane.profile, bundle=worker.lane.bundle) for worker in workers]


def _name(request: Request) -> str:
    name: str = request.path_params["pool"]
    return name.lower()


def _not_found(name: str, field: str = "pool") -> PoolNotFoundError:
    return PoolNotFoundError(
        f"There is no pool {name[:64]!r}.", field=field, hint="Its lease may have ended; POST /v1/pools makes it again."
    )
