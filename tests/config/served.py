"""A config service in this process for tests: a leading writer, its application and a client with the admin token."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import httpx
from starlette.applications import Starlette

from sie_broker.contract import Broker
from sie_broker.memory import MemoryBroker
from sie_config.api.app import app
from sie_config.api.auth import Access
from sie_config.deployment.placement import Deployment
from sie_config.epochs.writer import Writer
from sie_config.model.model_spec import ModelSpec
from sie_config.registry import Registry
from tests.config.writing import writing

ADMIN, READER = "the-admin", "the-reader"
NAME = "sie-config-test"


class Service:
    """A config service and its client, which is who keeps the catalogue."""

    def __init__(self, app: Starlette, client: httpx.AsyncClient, writer: Writer, registry: Registry) -> None:
        self.app = app
        self.client = client
        self.writer = writer
        self.registry = registry

    @property
    def epoch(self) -> int:
        """Of the catalogue now."""
        return self.writer.state.epoch

    async def send(self, method: str, path: str, body: object = None, **headers: str) -> httpx.Response:
        """One request under ``/v1/configs``, in JSON; header names with underscores."""
        named = {name.replace("_", "-"): value for name, value in headers.items()}
        return await self.client.request(method, f"/v1/configs{path}", json=body, headers=named)

    def specs(self) -> dict[str, ModelSpec]:
        """The catalogue by id."""
        return {spec.id: spec for spec in self.writer.state.specs()}


@asynccontextmanager
async def served(
    *baseline: ModelSpec,
    broker: Broker | None = None,
    admin: str = ADMIN,
    read: str = "",
    deployment: Deployment | None = None,
) -> AsyncIterator[Service]:
    """A config service that came with ``baseline``, and whose tokens these are."""
    registry = Registry(deployment=deployment)
    async with writing(broker or MemoryBroker(), *baseline, registry=registry) as writer:
        service = app(registry, writer, Access(admin, read), NAME)
        transport = httpx.ASGITransport(service, raise_app_exceptions=False)
        headers = {"Authorization": f"Bearer {ADMIN}"}
        async with httpx.AsyncClient(transport=transport, base_url="http://config", headers=headers) as client:
            yield Service(service, client, writer, registry)


def error(answer: httpx.Response) -> Any:
    """The error of an answer."""
    return answer.json()["error"]
