"""An ingress over either broker, and workers that compute something cheap: counts of texts, without an engine."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack, asynccontextmanager

import httpx
import numpy as np
import pytest

from sie_broker.contract import Broker, Work
from sie_bundle.presence import Presence
from sie_bundle.worker import Worker
from sie_config.model_spec import Dense, LocalSource, ModelSpec, Tasks
from sie_config.registry import Registry, lane_of
from sie_ingress.app import Readiness, app
from sie_ingress.lanes import Lanes
from sie_ingress.settings import Settings
from sie_sdk import wire
from sie_sdk.errors import InvalidInputError
from sie_sdk.types import Timing, Usage
from tests.conftest import eventually

SPEC = ModelSpec(
    id="org/counting-model",
    family="bert",
    tasks=Tasks(dense=Dense(dim=2)),
    sources=(LocalSource(path="nowhere"),),
    max_sequence_length=16,
    revision="0",
)
MODEL = SPEC.id
ROUTE = f"/v1/encode/{MODEL}"


class Desk:
    """An ingress in this process, its client, and as many workers as a test wants."""

    def __init__(self, broker: Broker, client: httpx.AsyncClient, lanes: Lanes, registry: Registry) -> None:
        self.broker = broker
        self.client = client
        self.lanes = lanes
        self.registry = registry
        self.computed: list[str] = []
        self.hold = asyncio.Event()
        self.hold.set()

    async def count(self, work: Work) -> bytes:
        """The stand-in operation: each text becomes [its length, 1]; the text "refuse" is bad input."""
        self.computed.append(work.id)
        await self.hold.wait()
        request = wire.parse_encode(work.data, wire.MSGPACK)
        texts = [item.text or "" for item in request.items]
        if "refuse" in texts:
            raise InvalidInputError("Refused.", field="items[0].text")
        if "crash" in texts:
            raise RuntimeError("secret")
        vectors = np.array([[len(text), 1] for text in texts], dtype=np.float32)
        ids = [item.id for item in request.items]
        return wire.encode_result(work.model, ids, vectors, "float32", Timing(), Usage(input_tokens=1))

    @asynccontextmanager
    async def worker(self, operation: Callable[[Work], Awaitable[bytes]] | None = None) -> AsyncIterator[Worker]:
        """A live worker that the ingress has heard of."""
        lane = lane_of(SPEC)
        presence = Presence(self.broker, lane, lambda: ((), 0, 0, 0))
        worker = Worker(
            self.broker,
            self.registry,
            lane,
            presence.worker,
            operations={"encode": operation or self.count},
            holds=lambda _: True,
            max_in_hand=8,
        )
        beating = asyncio.create_task(presence.beat())
        worker.update_pulls()
        presence.became("ready")
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
        named = {name.replace("_", "-"): value for name, value in headers.items()}
        return await self.client.post(ROUTE, json={"items": [{"text": text} for text in texts]}, headers=named)


@pytest.fixture
async def desk(broker: Broker) -> AsyncIterator[Desk]:
    registry = Registry([SPEC])
    await broker.provision([(lane_of(SPEC), MODEL)])
    settings, readiness = Settings(max_body_bytes=20_000, request_timeout_s=10, cold_start_s=3.0), Readiness()
    readiness.ready = True
    lanes = Lanes(broker, settings.cold_start_s)
    following = asyncio.create_task(lanes.follow())
    transport = httpx.ASGITransport(app(broker, registry, lanes, settings, readiness), raise_app_exceptions=False)
    async with AsyncExitStack() as stack:
        client = await stack.enter_async_context(httpx.AsyncClient(transport=transport, base_url="http://ingress"))
        yield Desk(broker, client, lanes, registry)
        following.cancel()
