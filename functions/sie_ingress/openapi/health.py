"""The description of what operators and people look at: health, readiness, metrics and the pages."""

from __future__ import annotations

from typing import Final

from msgspec import Struct

from sie_ingress.openapi.operation import Described, Example, Header, Operation, Parameter, Reply
from sie_sdk.errors import UnavailableError


class Cluster(Struct):
    """Counts."""

    worker_count: int
    models_loaded: int


class LaneRow(Struct):
    """A lane: ``waiting`` works are queued or in hand, of which one pod clears ``rate`` in a second."""

    pool: str
    bundle: str
    gpu: str
    waiting: int
    rate: float
    measured: bool
    wanted: int
    live: int
    bundle_config_hash: str


class WorkerRow(Struct):
    """A worker; ``startup`` is seconds from the decision to start it to each milestone."""

    name: str
    gpu: str
    pool: str
    bundle: str
    healthy: bool
    state: str
    loaded_models: list[str]
    queue_depth: int
    completed: int
    texts_computed: int
    memory_used_bytes: int
    bundle_config_hash: str
    startup: dict[str, float]


class HealthReply(Struct):
    """The lanes and workers as this ingress sees them."""

    status: str
    type: str
    cluster: Cluster
    lanes: list[LaneRow]
    workers: list[WorkerRow]


_ETAG: Final = Header("ETag", "Changes with the document.")
_SEEN: Final = Parameter("If-None-Match", "The ETag of the copy at hand: answered 304 while it is the same.")
_SAME: Final = Reply(304, "The copy at hand is the same.", headers=(_ETAG,))


def _page(id: str, summary: str, *, cached: bool) -> Operation:
    return Operation(
        id=id,
        summary=summary,
        tag="operation",
        parameters=(_SEEN,) if cached else (),
        replies=(
            Reply(200, "The page.", str, ("text/html",), (_ETAG,) if cached else ()),
            *((_SAME,) if cached else ()),
        ),
        examples=(Example("look", 200),),
    )


DESCRIBED: Final[Described] = {
    ("GET", "/health"): Operation(
        id="health",
        summary="Lanes and workers as the ingress sees them",
        tag="operation",
        replies=(Reply(200, "The ingress lives.", HealthReply),),
        examples=(Example("look", 200),),
    ),
    ("GET", "/readyz"): Operation(
        id="ready",
        summary="Whether requests are accepted",
        tag="operation",
        replies=(Reply(200, "They are.", str, ("text/plain",)),),
        errors=(UnavailableError,),
        examples=(Example("look", 200),),
    ),
    ("GET", "/metrics"): Operation(
        id="metrics",
        summary="Metrics for Prometheus",
        tag="operation",
        replies=(Reply(200, "In the text format.", str, ("text/plain",)),),
        examples=(Example("look", 200),),
    ),
    ("GET", "/"): _page("statusPage", "A status page for people", cached=False),
    ("GET", "/docs"): _page("docs", "This document as a page", cached=True),
    ("GET", "/openapi.json"): Operation(
        id="openapi",
        summary="This document",
        tag="operation",
        parameters=(_SEEN,),
        replies=(Reply(200, "OpenAPI 3.1.", dict, headers=(_ETAG,)), _SAME),
        examples=(Example("look", 200),),
    ),
}
