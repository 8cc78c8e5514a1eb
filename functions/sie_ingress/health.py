"""``GET /health``: workers and lanes as the ingress sees them, in the shape of the wire protocol (section 1.7).

``GET /`` is the same for people: a page that looks once a second.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from starlette.requests import Request
from starlette.responses import Response

from sie_broker.demand.lane_status import LaneStatus
from sie_broker.pools.pool import service_of
from sie_broker.records import WorkerState
from sie_config.registry import Registry
from sie_ingress import answer
from sie_ingress.lanes import Lanes

PAGE = (Path(__file__).parent / "status.html").read_bytes()


async def page(request: Request) -> Response:
    """The status page; it holds everything it needs and asks ``/health`` and ``/v1/models``."""
    return Response(PAGE, media_type="text/html")


class Health:
    """The health route."""

    def __init__(self, lanes: Lanes, registry: Registry) -> None:
        self._lanes = lanes
        self._registry = registry

    async def __call__(self, request: Request) -> Response:
        workers = self._lanes.workers()
        return answer.json(
            {
                "status": "healthy",
                "type": "gateway",
                "cluster": {
                    "worker_count": len(workers),
                    "models_loaded": len({model for worker in workers for model in worker.models}),
                },
                "lanes": [self._lane(status) for status in self._lanes.statuses()],
                "workers": [row(worker) for worker in workers],
            }
        )

    def _lane(self, status: LaneStatus) -> dict[str, Any]:
        """One lane; ``rate`` is works a second of one pod, ``measured`` or set."""
        lane = status.lane
        return {
            "pool": lane.pool,
            "bundle": lane.bundle,
            "gpu": lane.profile,
            "waiting": status.waiting,
            "rate": status.rate,
            "measured": status.measured,
            "wanted": status.wanted,
            "live": status.live,
            # A pool's workers have the specs of the default one.
            "bundle_config_hash": self._registry.hash_of(lane) or self._registry.hash_of(service_of(lane)),
        }


def row(worker: WorkerState) -> dict[str, Any]:
    """One worker; ``startup`` is seconds from the decision to start it to each milestone."""
    return {
        "name": worker.worker,
        "gpu": worker.lane.profile,
        "pool": worker.lane.pool,
        "bundle": worker.lane.bundle,
        "healthy": worker.state == "ready",
        "state": worker.state,
        "loaded_models": list(worker.models),
        "queue_depth": worker.in_flight,
        "completed": worker.completed,
        "texts_computed": worker.forwards,
        "memory_used_bytes": worker.memory_bytes,
        "bundle_config_hash": worker.bundle_config_hash,
        "startup": worker.startup,
    }
