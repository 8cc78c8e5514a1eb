"""What this ingress counts and times, for Prometheus: ``GET /metrics``. Each metric has its line in docs/metrics.md.

Owns the names, labels and buckets, and the middleware that sees every answer. Labels are operations, error codes,
stages and models of the catalogue: never anything a caller can make up.
"""

from __future__ import annotations

import math
import time
from collections import Counter as Counts
from collections import OrderedDict
from collections.abc import Awaitable, Callable
from functools import cache

import prometheus_client
from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from sie_sdk.errors import QueueUnavailableError, SIEError
from sie_sdk.results import Head
from sie_sdk.types import Timing

STAGES = {name: name.removesuffix("_ms") for name in Timing.__struct_fields__}
OPERATIONS = ("encode", "score", "extract", "embeddings", "rerank", "embed", "events", "jobs", "models", "pools")
TEI = ("embed", "embed_sparse", "rerank", "predict", "similarity", "info", "tei")
BUCKETS_S = (0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120)
REMEMBERED = 4096

# A gauge of its birth beside every counter and histogram would double the series for nothing.
prometheus_client.disable_created_metrics()  # type: ignore[no-untyped-call]


class Metrics:
    """The metrics of one ingress, in a registry of their own. ``dead_letters``: how many there are."""

    def __init__(self, dead_letters: Callable[[], Awaitable[int]]) -> None:
        self.registry = CollectorRegistry()
        self._count_dead_letters = dead_letters
        self._requests = Counter(
            "sie_ingress_requests", "HTTP requests answered.", ["operation", "code"], registry=self.registry
        )
        self._seconds = Histogram(
            "sie_ingress_request_seconds",
            "From a request's arrival to its answer.",
            ["operation"],
            buckets=BUCKETS_S,
            registry=self.registry,
        )
        self.in_flight: Counts[str] = Counts()
        """Requests that wait for their answer, by operation."""
        self._in_flight = Gauge(
            "sie_ingress_requests_in_flight", "Requests not yet answered.", ["operation"], registry=self.registry
        )
        self._stages = Histogram(
            "sie_stage_seconds",
            "Stages of an inference, as the worker timed them.",
            ["model", "stage"],
            buckets=BUCKETS_S,
            registry=self.registry,
        )
        self._tokens = Counter(
            "sie_input_tokens", "Tokens computed, special tokens included.", ["model"], registry=self.registry
        )
        self._pairs = Counter("sie_pairs", "Pairs of query and item scored.", ["model"], registry=self.registry)
        self._dead_letters = Gauge("sie_dead_letters", "Work and results that were given up.", registry=self.registry)
        self._stages_of: dict[str, list[tuple[str, Histogram]]] = {}
        self._seen: OrderedDict[str, None] = OrderedDict()

    def computed(self, reply_id: str, head: Head) -> None:
        """Take in what a result says of itself; once, however often the same result is asked for."""
        if reply_id in self._seen:
            return
        self._seen[reply_id] = None
        if len(self._seen) > REMEMBERED:
            self._seen.popitem(last=False)
        if head.model not in self._stages_of:
            self._stages_of[head.model] = [(name, self._stages.labels(head.model, STAGES[name])) for name in STAGES]
        for name, stage in self._stages_of[head.model]:
            stage.observe(getattr(head.timing, name) / 1000)
        self._tokens.labels(head.model).inc(head.usage.input_tokens)
        if head.usage.pairs:
            self._pairs.labels(head.model).inc(head.usage.pairs)

    @cache  # noqa: B019 - as many as there are operations and codes; and there is one ingress
    def counter(self, operation: str, code: str) -> Counter:
        """Answers to ``operation`` with ``code``. Looked up once: the library's own look-up is not free."""
        return self._requests.labels(operation, code)

    @cache  # noqa: B019
    def seconds(self, operation: str) -> Histogram:
        """How long requests of ``operation`` took."""
        return self._seconds.labels(operation)

    async def page(self, request: Request) -> Response:
        """The metrics in Prometheus' text format."""
        try:
            self._dead_letters.set(await self._count_dead_letters())
        except QueueUnavailableError:
            self._dead_letters.set(math.nan)  # compares with nothing, so that no alert fires or ends by it
        for operation, count in self.in_flight.items():
            self._in_flight.labels(operation).set(count)
        text = prometheus_client.generate_latest(self.registry)
        return Response(text, media_type=prometheus_client.CONTENT_TYPE_LATEST)


class Counted:
    """ASGI middleware: every answer is counted by operation and code."""

    def __init__(self, app: ASGIApp, metrics: Metrics) -> None:
        self._app = app
        self._metrics = metrics

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return await self._app(scope, receive, send)
        operation, began = operation_of(scope["path"]), time.perf_counter()
        code = SIEError.code  # what is answered, outside of this, when an exception comes out here

        async def counted(message: Message) -> None:
            nonlocal code
            if message["type"] == "http.response.start":
                code = code_of(message)
            await send(message)

        self._metrics.in_flight[operation] += 1
        try:
            await self._app(scope, receive, counted)
        finally:
            self._metrics.in_flight[operation] -= 1
            self._metrics.counter(operation, code).inc()
            self._metrics.seconds(operation).observe(time.perf_counter() - began)


def operation_of(path: str) -> str:
    """What a path is counted as, in a few words: the one behind ``/v1/`` or ``/v2/``; ``tei`` for that dialect's."""
    _, first, name, *_ = f"{path}//".split("/", 3)
    if first in ("v1", "v2"):
        return name if name in OPERATIONS else "other"
    return "tei" if first in TEI and (first == "tei" or not name) else "other"


def code_of(start: Message) -> str:
    """``OK``, ``JOB`` for a 202, or the error's code of an answer that begins with ``start``."""
    if start["status"] < 400:
        return "JOB" if start["status"] == 202 else "OK"
    named = next((value for name, value in start["headers"] if name.lower() == b"x-sie-error-code"), b"")
    return named.decode() or SIEError.code
