"""Pages of other origins read answers where their origin is allowed, refusals too; over real HTTP."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import httpx
import pytest
from starlette.middleware.cors import CORSMiddleware

from sie_broker import process
from sie_broker.memory import MemoryBroker
from sie_ingress import cross_origin
from sie_sdk.errors import ConfigurationError
from tests.ingress.conftest import MODEL, ROUTE, Desk, opened

PAGE = "https://app.example.org"
ITEMS = {"items": [{"text": "hello"}]}
PREFLIGHT = {
    "Origin": PAGE,
    "Access-Control-Request-Method": "POST",
    "Access-Control-Request-Headers": "authorization,content-type,x-sie-tenant",
}


@asynccontextmanager
async def served(**settings: Any) -> AsyncIterator[tuple[Desk, httpx.AsyncClient]]:
    """A desk and a client that reaches it over HTTP."""
    async with (
        opened(MemoryBroker(), **settings) as desk,
        process.serving(desk.ingress, "127.0.0.1", 0, drain_s=1, websockets=True) as port,
        httpx.AsyncClient(base_url=f"http://127.0.0.1:{port}") as client,
    ):
        yield desk, client


async def test_a_preflight_is_answered_without_a_token_and_then_the_request_itself() -> None:
    async with served(cors_origins=f"http://localhost:3000, {PAGE}/", auth_tokens="one") as (desk, client):
        before = await client.options(ROUTE, headers=PREFLIGHT)
        assert before.status_code == 200
        assert before.headers["access-control-allow-origin"] == PAGE
        assert "POST" in before.headers["access-control-allow-methods"]
        assert before.headers["access-control-allow-headers"] == PREFLIGHT["Access-Control-Request-Headers"]
        assert "access-control-allow-credentials" not in before.headers
        async with desk.worker():
            answer = await client.post(ROUTE, json=ITEMS, headers={"Origin": PAGE, "Authorization": "Bearer one"})
        assert answer.status_code == 200
        assert (answer.headers["access-control-allow-origin"], answer.headers["vary"]) == (PAGE, "Origin")
        assert answer.headers["access-control-expose-headers"] == "*"


@pytest.mark.parametrize("path", [ROUTE, "/v1/embeddings", f"/tei/{MODEL}/embed", "/v1/configs/models"])
async def test_a_page_reads_why_it_was_refused(path: str) -> None:
    async with served(cors_origins=PAGE, auth_tokens="one") as (_, client):
        for token, statuses in (("two", [401]), ("one", [400, 405, 422])):
            headers = {"Origin": PAGE, "Authorization": f"Bearer {token}"}
            answer = await client.post(path, json={}, headers=headers)
            assert answer.status_code in statuses
            assert answer.headers["access-control-allow-origin"] == PAGE
            assert answer.headers["x-request-id"] and answer.headers["x-sie-error-code"]


async def test_a_page_reads_the_answer_to_an_exception_too(monkeypatch: pytest.MonkeyPatch) -> None:
    async with opened(MemoryBroker(), cors_origins=PAGE) as desk:
        monkeypatch.setattr(type(desk.registry), "specs", lambda self: 1 / 0)
        answer = await desk.client.get("/v1/models", headers={"Origin": PAGE})
        assert (answer.status_code, answer.headers["access-control-allow-origin"]) == (500, PAGE)


async def test_no_other_page_is_let_in() -> None:
    async with served(cors_origins=PAGE) as (_, client):
        for origin in ("https://evil.example.org", "http://app.example.org", f"{PAGE}.evil.org", "null"):
            refused = await client.options(ROUTE, headers=PREFLIGHT | {"Origin": origin})
            assert refused.status_code == 400
            answer = await client.get("/v1/models", headers={"Origin": origin})
            assert "access-control-allow-origin" not in answer.headers


async def test_every_page_is_let_in_where_the_setting_says_so() -> None:
    async with served(cors_origins="*") as (_, client):
        for answer in (
            await client.get("/v1/models", headers={"Origin": "https://anywhere.example.org"}),
            await client.options(ROUTE, headers=PREFLIGHT),
        ):
            assert (answer.status_code, answer.headers["access-control-allow-origin"]) == (200, "*")


async def test_where_no_origin_is_named_nothing_is_said_of_them_and_nothing_stands_in_a_request_s_way() -> None:
    async with served() as (desk, client):
        answer = await client.get("/v1/models", headers={"Origin": PAGE})
        assert not [name for name in answer.headers if name.startswith("access-control")]
        assert (await client.options(ROUTE, headers=PREFLIGHT)).status_code == 405
        assert not isinstance(desk.ingress.middleware_stack, CORSMiddleware)


@pytest.mark.parametrize("wrong", ["app.example.org", "https://app.example.org/path", "https://", "*.example.org"])
def test_what_is_no_origin_stops_the_start(wrong: str) -> None:
    with pytest.raises(ConfigurationError, match="is no origin"):
        cross_origin.origins(f"{PAGE},{wrong}")


def test_origins_are_compared_as_browsers_write_them() -> None:
    assert cross_origin.origins(" HTTPS://App.Example.org/ ,http://localhost:3000,") == (PAGE, "http://localhost:3000")
    assert cross_origin.origins(" , ") == ()
