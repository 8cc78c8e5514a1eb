"""``GET /health``: the cluster as this ingress sees it, in the shape of the wire protocol (section 1.7).

``GET /`` is the same for people: a page that watches; ``GET /healthz`` and ``/livez`` say that there is somebody. What
there is to tell stands in ``cluster``.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from starlette.requests import Request
from starlette.responses import Response

from sie_broker import clock
from sie_config.registry import Registry
from sie_ingress import answer, cluster
from sie_ingress.cluster import Cluster
from sie_ingress.lanes import Lanes

PAGE = (Path(__file__).parent / "status.html").read_bytes()


async def page(request: Request) -> Response:
    """The status page; it holds everything it needs and asks ``/ws/cluster-status`` or ``/health``."""
    return Response(PAGE, media_type="text/html")


async def alive(request: Request) -> Response:
    """200 as long as this process answers at all: it lives, whatever it can reach."""
    return Response(b"ok", media_type="text/plain")


class Health:
    """The health route. ``clock``: seconds since the epoch."""

    def __init__(self, lanes: Lanes, registry: Registry, clock: Callable[[], float] = clock.now) -> None:
        self._lanes = lanes
        self._registry = registry
        self._clock = clock

    def seen(self) -> Cluster:
        """The cluster now."""
        lanes = self._lanes
        return cluster.seen(self._registry, lanes.workers(), lanes.statuses(), lanes.throughput(), self._clock())

    async def __call__(self, request: Request) -> Response:
        return answer.json(self.seen())
