"""Requests that come before the ingress knows the catalogue wait for it; none is told that its model does not exist."""

from __future__ import annotations

import asyncio

import httpx
import pytest
from starlette.requests import Request
from starlette.responses import PlainTextResponse

from sie_ingress.readiness import ALWAYS, Begun, Readiness
from sie_sdk.errors import UnavailableError


async def served(scope: object, receive: object, send: object) -> None:
    """The ingress behind the door: it answers at once."""
    request = Request(scope)  # type: ignore[arg-type]  # the scope is one
    await PlainTextResponse(f"{request.method} {request.url.path}")(scope, receive, send)  # type: ignore[arg-type]


def client_of(readiness: Readiness) -> httpx.AsyncClient:
    return httpx.AsyncClient(transport=httpx.ASGITransport(Begun(served, readiness)), base_url="http://ingress")


async def some_turns() -> None:
    for _ in range(20):
        await asyncio.sleep(0)


async def test_a_request_before_the_catalogue_is_read_is_answered_once_it_is() -> None:
    readiness = Readiness()
    async with client_of(readiness) as client:
        asked = [
            asyncio.create_task(client.request(method, path))
            for method, path in [("POST", "/v1/encode/org/model"), ("GET", "/v1/models"), ("POST", "/")]
        ]
        await some_turns()
        assert not any(each.done() for each in asked)
        readiness.begin()
        answers = await asyncio.gather(*asked)
    assert [each.text for each in answers] == ["POST /v1/encode/org/model", "GET /v1/models", "POST /"]


@pytest.mark.parametrize("path", sorted(ALWAYS))
async def test_what_tells_of_the_process_is_answered_before_the_catalogue_is_read(path: str) -> None:
    async with client_of(Readiness()) as client:
        assert (await client.get(path)).text == f"GET {path}"


async def test_an_ingress_that_leaves_before_it_was_ready_refuses_who_waits_and_who_comes() -> None:
    readiness = Readiness()
    async with client_of(readiness) as client:
        waiting = asyncio.create_task(client.get("/v1/models/org/model"))
        await some_turns()
        readiness.leave()
        for answer in [await waiting, await client.get("/v1/models/org/model")]:
            assert answer.status_code == 503
            assert answer.headers["x-sie-error-code"] == "UNAVAILABLE"
            assert answer.headers["retry-after"] == "1"


async def test_the_wait_for_a_catalogue_that_does_not_come_has_an_end() -> None:
    with pytest.raises(UnavailableError, match="has not read the catalogue yet"):
        await Readiness().accept(patience_s=0.01)


async def test_an_ingress_that_leaves_still_serves_who_is_there_but_says_that_it_is_not_ready() -> None:
    readiness = Readiness()
    readiness.begin()
    assert readiness.ready
    readiness.leave()
    assert not readiness.ready
    assert readiness.held.left
    async with client_of(readiness) as client:
        assert (await client.get("/v1/models")).status_code == 200
