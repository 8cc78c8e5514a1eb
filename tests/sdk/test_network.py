"""Proxies and certificates: through an httpx client of the caller's own, and from the environment as httpx reads it."""

from __future__ import annotations

import asyncio
import os
import ssl
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
import trustme

from sie_sdk import ConfigurationError, ConnectionFailedError, SIEAsyncClient, SIEClient
from tests.sdk.proxy import Proxy
from tests.sdk.scripted_server import ScriptedServer, vectors

Finished = Callable[[Any], Any]


@pytest.fixture(scope="module")
def authority() -> trustme.CA:
    return trustme.CA()


@pytest.fixture
def secure(authority: trustme.CA) -> Iterator[ScriptedServer]:
    """A server whose certificate only our own authority vouches for."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    authority.issue_cert("127.0.0.1").configure_cert(context)
    with ScriptedServer(context) as running:
        yield running


@pytest.fixture
def trusting(authority: trustme.CA) -> ssl.SSLContext:
    context = ssl.create_default_context()
    authority.configure_trust(context)
    return context


@pytest.fixture
def proxy() -> Iterator[Proxy]:
    with Proxy() as running:
        yield running


@pytest.fixture(params=["sync", "async"])
def encode(request: pytest.FixtureRequest) -> Callable[..., Any]:
    """One text by a client of either kind, with an httpx client made of the keywords, if there are any."""

    def blocking(url: str, **own: Any) -> Any:
        with httpx.Client(**own) as http, SIEClient(url, http_client=http if own else None) as client:
            return client.encode("m", "a", wait_for_capacity=False)

    async def awaiting(url: str, **own: Any) -> Any:
        async with httpx.AsyncClient(**own) as http, SIEAsyncClient(url, http_client=http if own else None) as client:
            return await client.encode("m", "a", wait_for_capacity=False)

    return blocking if request.param == "sync" else lambda url, **own: asyncio.run(awaiting(url, **own))


def test_a_certificate_that_nobody_vouches_for_is_refused(secure: ScriptedServer, encode: Callable[..., Any]) -> None:
    with pytest.raises(ConnectionFailedError, match="CERTIFICATE_VERIFY_FAILED") as caught:
        encode(secure.url)
    assert caught.value.request_id
    assert secure.asked == []


def test_an_authority_of_the_callers_own_is_trusted(
    secure: ScriptedServer, encode: Callable[..., Any], trusting: ssl.SSLContext
) -> None:
    secure.script = [vectors()]
    assert encode(secure.url, verify=trusting, headers={"X-Gateway": "own"}).dense is not None
    assert secure.asked[0].headers["x-gateway"] == "own"
    assert secure.asked[0].headers["accept"] == "application/msgpack"


def test_an_authority_of_the_environment_is_trusted(
    secure: ScriptedServer,
    encode: Callable[..., Any],
    authority: trustme.CA,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    authority.cert_pem.write_to_path(str(tmp_path / "ca.pem"))
    monkeypatch.setenv("SSL_CERT_FILE", str(tmp_path / "ca.pem"))
    secure.script = [vectors()]
    assert encode(secure.url).dense is not None


def test_a_proxy_is_gone_through_by_a_tunnel(
    secure: ScriptedServer, proxy: Proxy, encode: Callable[..., Any], trusting: ssl.SSLContext
) -> None:
    secure.script = [vectors()]
    assert encode(secure.url, verify=trusting, proxy=proxy.url).dense is not None
    assert proxy.asked == [("CONNECT", secure.url.removeprefix("https://"))]


def test_a_proxy_of_the_environment_is_gone_through(
    server: ScriptedServer, proxy: Proxy, encode: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HTTP_PROXY", proxy.url)
    monkeypatch.delenv("NO_PROXY", raising=False)
    monkeypatch.delenv("no_proxy", raising=False)
    server.script = [vectors()]
    assert encode(server.url).dense is not None
    assert proxy.asked == [("POST", f"{server.url}/v1/encode/m")]
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    server.script = [vectors()]
    assert encode(server.url).dense is not None
    assert len(proxy.asked) == 1


def test_a_proxy_that_is_not_there_is_a_failed_connection(server: ScriptedServer, encode: Callable[..., Any]) -> None:
    with pytest.raises(ConnectionFailedError) as caught:
        encode(server.url, proxy="http://127.0.0.1:1")
    assert caught.value.request_id


def test_an_own_client_does_not_go_along_into_a_forked_child(
    server: ScriptedServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    with httpx.Client() as own, SIEClient(server.url, http_client=own) as client:
        parent = os.getpid()
        monkeypatch.setattr(os, "getpid", lambda: parent + 1)
        with pytest.raises(ConfigurationError, match="forked") as caught:
            client.list_models()
        assert caught.value.field == "http_client"
