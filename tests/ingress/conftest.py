"""An ingress over either broker, and workers that compute something cheap: counts of texts, without an engine."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any

import httpx
import msgspec
import numpy as np
import pytest
from starlette.applications import Starlette

from sie_broker.contract import Broker
from sie_broker.pools.pool_table import PoolTable
from sie_broker.records import Work
from sie_bundle.presence import Counts, Presence
from sie_bundle.worker import Worker
from sie_config import aliases
from sie_config.model.model_spec import ModelSpec
from sie_config.model.sources import LocalSource
from sie_config.model.tasks import Dense, Extract, Multivector, Score, Sparse, Tasks
from sie_config.registry import Registry, lane_of
from sie_ingress.app import app
from sie_ingress.lanes import Lanes
from sie_ingress.pools import Pools
from sie_ingress.readiness import Readiness
from sie_ingress.settings import Settings
from sie_sdk import replies, wire
from sie_sdk.errors import InvalidInputError, OutOfMemoryError
from sie_sdk.outputs import DenseOutput, MultivectorOutput, Output, SparseOutput
from sie_sdk.replies import Extracted
from sie_sdk.types import Classification, Entity, OutputType, Timing, Usage
from tests.conftest import eventually

SPEC = ModelSpec(
    id="org/counting-model",
    family="bert",
    tasks=Tasks(dense=Dense(dim=2)),
    sources=(LocalSource(path="nowhere"),),
    max_sequence_length=16,
    revision="0",
    bundle="default",
)
MODEL = SPEC.id
ROUTE = f"/v1/encode/{MODEL}"
EVERYTHING = msgspec.structs.replace(
    SPEC,
    id="org/everything",
    revision="7",
    tasks=Tasks(Dense(dim=2), Sparse(dim=100), Multivector(dim=4), Score(kind="maxsim")),
)
RERANKER = msgspec.structs.replace(SPEC, id="org/reranker", tasks=Tasks(score=Score()))
TAGGER = msgspec.structs.replace(SPEC, id="org/tagger", tasks=Tasks(extract=Extract("entities")))
ZERO_SHOT = msgspec.structs.replace(SPEC, id="org/nli", tasks=Tasks(extract=Extract("entailment")))
SPECS = (SPEC, EVERYTHING, RERANKER, TAGGER, ZERO_SHOT)
TIMING = Timing(
    queue_ms=1.5, tokenization_ms=0.25, batch_wait_ms=0.125, inference_ms=3.0, postprocessing_ms=0.5, total_ms=5.375
)


class Desk:
    """An ingress in this process, its client, and as many workers as a test wants."""

    def __init__(
        self,
        broker: Broker,
        client: httpx.AsyncClient,
        lanes: Lanes,
        registry: Registry,
        readiness: Readiness,
        ingress: Starlette,
    ) -> None:
        self.ingress = ingress
        self.readiness = readiness
        self.broker = broker
        self.client = client
        self.lanes = lanes
        self.registry = registry
        self.computed: list[str] = []
        self.hold = asyncio.Event()
        self.hold.set()

    async def count(self, work: Work) -> bytes:
        """The stand-in for encode: each text becomes [its length, 1]; the text "refuse" is bad input."""
        await self._begin(work)
        request = wire.parse_encode(work.data, wire.MSGPACK)
        texts = [item.text or "" for item in request.items]
        if "refuse" in texts:
            raise InvalidInputError("Refused.", field="items[0].text")
        if "crash" in texts:
            raise RuntimeError("secret")
        if "later" in texts and len(self.computed) == 1:
            raise OutOfMemoryError("Not now.", retry_after=1.0)
        lengths = [len(text) for text in texts]
        every: dict[OutputType, Output] = {
            "dense": DenseOutput(np.array([[length, 1] for length in lengths], "<f4"), 2, "float32"),
            "sparse": SparseOutput([(np.arange(k, dtype="i4"), np.ones(k, "<f4")) for k in lengths], 100, "float32"),
            "multivector": MultivectorOutput([np.ones((length, 4), "<f4") for length in lengths], 4, "float32"),
        }
        outputs = {name: every[name] for name in request.params.output_types or ["dense"]}
        return replies.encode(work.model, [item.id for item in request.items], outputs, TIMING, Usage(input_tokens=1))

    async def rank(self, work: Work) -> bytes:
        """The stand-in for score: a text's length, less the query's; a multivector's sum."""
        await self._begin(work)
        request = wire.parse_score(work.data, wire.MSGPACK)
        texts = [
            item.multivector.sum() if item.multivector is not None else len(item.text or "") for item in request.items
        ]
        scores = np.array(texts, np.float32) - len(request.query.text or "")
        ids = [item.id for item in request.items]
        return replies.score(work.model, scores, ids, request.query.id, TIMING, Usage(input_tokens=1))

    async def tag(self, work: Work) -> bytes:
        """The stand-in for extract: each text is one entity of the first label, and one class."""
        await self._begin(work)
        request = wire.parse_extract(work.data, wire.MSGPACK)
        label = (request.params.labels or ["thing"])[0]
        texts = [item.text or "" for item in request.items]
        found = [Extracted([Entity(text, label, 1.0, 0, len(text))], [Classification(label, 0.5)]) for text in texts]
        return replies.extract(work.model, [item.id for item in request.items], found, TIMING, Usage(input_tokens=1))

    async def _begin(self, work: Work) -> None:
        self.computed.append(work.id)
        await self.hold.wait()

    @asynccontextmanager
    async def worker(
        self, operation: Callable[[Work], Awaitable[bytes]] | None = None, pool: str = "default"
    ) -> AsyncIterator[Worker]:
        """A live worker that the ingress has heard of; one that was given to another pool, perhaps."""
        lane = lane_of(SPEC)
        presence = Presence(self.broker, lane, Counts)
        worker = Worker(
            self.broker,
            self.registry,
            lane,
            presence.worker,
            operations={"encode": operation or self.count, "score": self.rank, "extract": self.tag},
            loaded=lambda: [spec.id for spec in SPECS],
            max_in_hand=8,
        )
        beating = asyncio.create_task(presence.beat())
        worker.start()
        worker.move(pool)
        presence.move(pool)
        presence.became("ready")
        lane = msgspec.structs.replace(lane, pool=pool)
        await eventually(lambda: self.lanes.live(lane))
        try:
            yield worker
        finally:
            beating.cancel()
            self.hold.set()
            await worker.drain(5)
            await presence.goodbye()
            await eventually(lambda: not self.lanes.live(lane))

    async def encode(self, *texts: str, **headers: str) -> httpx.Response:
        """One encode in JSON; header names with underscores."""
        return await self.post(ROUTE, {"items": [{"text": text} for text in texts]}, **headers)

    async def post(self, route: str, body: object, **headers: str) -> httpx.Response:
        """One request in JSON; header names with underscores."""
        named = {name.replace("_", "-"): value for name, value in headers.items()}
        return await self.client.post(route, json=body, headers=named)


@pytest.fixture
async def desk(broker: Broker) -> AsyncIterator[Desk]:
    async with opened(broker) as desk:
        yield desk


@asynccontextmanager
async def opened(broker: Broker, **changed: Any) -> AsyncIterator[Desk]:
    """A desk whose ingress has these settings."""
    await broker.provision([(lane_of(spec), spec.id) for spec in SPECS])
    configured = Settings(**{"max_body_bytes": 20_000, "request_timeout_s": 10, "cold_start_s": 3.0, **changed})
    registry = Registry(SPECS, aliases.read(configured.model_aliases))
    readiness = Readiness()
    readiness.begin()
    lanes = Lanes(broker, configured.cold_start_s)
    following = asyncio.create_task(lanes.follow())
    pools = Pools(registry, lanes, PoolTable(broker.pools))
    following_pools = asyncio.create_task(pools.follow())
    ingress = app(broker, registry, lanes, pools, configured, readiness)
    transport = httpx.ASGITransport(ingress, raise_app_exceptions=False)
    async with AsyncExitStack() as stack:
        client = await stack.enter_async_context(httpx.AsyncClient(transport=transport, base_url="http://ingress"))
        try:
            yield Desk(broker, client, lanes, registry, readiness, ingress)
        finally:
            following.cancel()
            following_pools.cancel()
