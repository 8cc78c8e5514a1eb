"""The ingress as one ASGI application: which route leads where. Everything it needs is handed in."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from functools import partial

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.routing import BaseRoute, Route
from starlette.types import ExceptionHandler

from sie_broker.contract import Broker
from sie_broker.events.allow_list import AllowList
from sie_config.api.auth import Access
from sie_config.epochs.state import State
from sie_config.registry import Registry
from sie_ingress import answer, authorization, cross_origin
from sie_ingress.admission import Admission
from sie_ingress.answer import Answers
from sie_ingress.applied import Applied
from sie_ingress.authorization import Authorized
from sie_ingress.cluster_metrics import ClusterGauges
from sie_ingress.compression import Compressed
from sie_ingress.configs import Configs
from sie_ingress.dialects.speaking import Dialects
from sie_ingress.event_requests import EventRequests
from sie_ingress.events import ROUTE, Events, EventsAtRoot
from sie_ingress.express import Express
from sie_ingress.health import Health, alive, page
from sie_ingress.identity import Identified
from sie_ingress.inference import Inference
from sie_ingress.jobs import Jobs
from sie_ingress.lanes import Lanes
from sie_ingress.memory import Bounded, Memory
from sie_ingress.metrics import Counted, Metrics
from sie_ingress.models import Models
from sie_ingress.openapi.routes import OpenApi
from sie_ingress.operations import CHECKS
from sie_ingress.pools import Pools
from sie_ingress.readiness import Begun, Readiness
from sie_ingress.settings import Settings
from sie_ingress.submit import Submitter
from sie_ingress.watch import Watch
from sie_sdk.errors import PoolsUnsupportedError, SIEError

REFUSALS: dict[object, ExceptionHandler] = {
    SIEError: answer.refuse_typed,
    HTTPException: answer.refuse_http,
    Exception: answer.refuse_unknown,
}
"""How a request that fails is answered, by what was raised."""


def app(
    broker: Broker,
    registry: Registry,
    lanes: Lanes,
    pools: Pools,
    settings: Settings,
    readiness: Readiness,
    state: Callable[[], State] | None = None,
    ingresses: Callable[[], Sequence[Applied]] = lambda: (),
) -> Starlette:
    """The ASGI application. Its ``state`` has who takes events that come otherwise, and what lets watchers go.

    ``state``: the catalogue as it was written; None: nobody writes it. ``ingresses``: how far each is with it.

    Raises:
        ConfigurationError: a setting is wrong; ``field`` names it.
    """
    metrics = Metrics(broker.dead.count)
    answers = Answers(registry, metrics, settings.max_json_bytes)
    admission = Admission(settings.tenant_in_flight)
    lanes.on_drained(admission.drained)
    submitter = Submitter(broker, lanes, readiness.held, settings.max_reply_bytes)
    inference = Inference(registry, lanes, pools, admission, submitter, answers, settings)
    allowed = AllowList(settings.reply_sinks, settings.reply_subjects)
    requests = EventRequests(broker, registry, inference, allowed, settings.max_body_bytes)
    events = Events(requests, lanes, answers, settings)
    dialects = Dialects(inference, registry, lanes, answers, settings)
    models, health = Models(registry, lanes), Health(lanes, registry)
    metrics.registry.register(ClusterGauges(health.seen))
    watch = Watch(registry, health.seen, lambda: readiness.ready)
    configs = Configs(registry, state, lanes, ingresses, Access(settings.admin_token, settings.config_read_token))
    jobs = Jobs(broker, lanes, admission, readiness.held, answers, settings)

    # Starlette takes an instance for a bare ASGI app, so its __call__ is named.
    ingress = Starlette(
        routes=[
            *(Route(f"/v1/{name}/{{model:path}}", partial(inference.serve, name), methods=["POST"]) for name in CHECKS),
            Route(ROUTE, events.serve, methods=["POST"]),
            Route("/v1/jobs/{job}", jobs.__call__, methods=["GET"]),
            Route("/v1/models", models.list, methods=["GET"]),
            Route("/v1/models/{model:path}", models.one, methods=["GET"]),
            *pools.routes(),
            *dialects.routes(),
            *configs.routes(settings.config_url),
            Route("/", page, methods=["GET"]),
            Route("/health", health.__call__, methods=["GET"]),
            *watch.routes(),
            *(Route(path, alive, methods=["GET"]) for path in ("/healthz", "/livez")),
            Route("/readyz", readiness.__call__, methods=["GET"]),
            Route("/metrics", metrics.page, methods=["GET"]),
            *OpenApi(registry, settings, () if pools.assigns else (PoolsUnsupportedError,)).routes(),
        ],
        middleware=_middleware(metrics, readiness, settings, inference, dialects),
        exception_handlers=REFUSALS,
    )
    _to_the_end(ingress.routes)
    ingress.router.redirect_slashes = False  # published clients follow no redirect, and know no error without a code
    cross_origin.make_readable(ingress, settings.cors_origins)
    ingress.state.event_requests, ingress.state.watch, ingress.state.configs = requests, watch, configs
    return ingress


def _to_the_end(routes: Sequence[BaseRoute]) -> None:
    """Have routes match whole paths: Starlette drops a line feed at their end."""
    for route in routes:
        if isinstance(route, Route):
            route.path_regex = re.compile(route.path_regex.pattern.removesuffix("$") + r"\Z", re.DOTALL)


def _middleware(
    metrics: Metrics, readiness: Readiness, settings: Settings, inference: Inference, dialects: Dialects
) -> list[Middleware]:
    """What every request goes through, the outermost first."""
    # Enough for the largest request, packed, and its answer.
    room = 2 * settings.max_body_bytes + settings.max_reply_bytes
    # Not there at all where everybody may ask: it would cost each request some microseconds.
    door = [Middleware(Authorized, settings, dialects.refused)] if authorization.asks(settings) else []
    return [
        Middleware(EventsAtRoot),
        Middleware(Counted, metrics),
        Middleware(Identified),
        *door,
        Middleware(Begun, readiness),
        Middleware(Bounded, Memory(room)),
        Middleware(Compressed),
        Middleware(Express, inference.serve, dialects.by_path()),
    ]
