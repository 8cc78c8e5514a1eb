"""The description of what operators and people look at: health, readiness, metrics and the pages."""

from __future__ import annotations

from typing import Final

from sie_ingress.cluster import Cluster
from sie_ingress.openapi.operation import Described, Example, Header, Operation, Parameter, Reply
from sie_sdk.errors import UnavailableError

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
        open=True,
    )


DESCRIBED: Final[Described] = {
    ("GET", "/health"): Operation(
        id="health",
        summary="Lanes and workers as the ingress sees them",
        tag="operation",
        replies=(Reply(200, "The ingress lives.", Cluster),),
        examples=(Example("look", 200),),
    ),
    ("GET", "/ws/cluster-status"): Operation(
        id="watchCluster",
        summary="The cluster, every second",
        tag="operation",
        description="Text frames, each as `GET /health` answers. Who reads too slowly misses frames. Ends with code "
        "1001 when the server goes away; 403 while it does, or while too many watch.",
        replies=(Reply(101, "Frames follow."),),
        socket=True,
    ),
    ("GET", "/ws/status"): Operation(
        id="watchWorker",
        summary="The server as one worker, five times a second",
        tag="operation",
        description="For clients that watch a worker: all workers as if they were one. Otherwise as the cluster's.",
        replies=(Reply(101, "Frames follow."),),
        socket=True,
    ),
    **{
        ("GET", f"/{path}"): Operation(
            id=path,
            summary="That the process lives",
            tag="operation",
            replies=(Reply(200, "It does.", str, ("text/plain",)),),
            examples=(Example("look", 200),),
            open=True,
        )
        for path in ("healthz", "livez")
    },
    ("GET", "/readyz"): Operation(
        id="ready",
        summary="Whether requests are accepted",
        tag="operation",
        replies=(Reply(200, "They are.", str, ("text/plain",)),),
        errors=(UnavailableError,),
        examples=(Example("look", 200),),
        open=True,
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
        open=True,
    ),
}
