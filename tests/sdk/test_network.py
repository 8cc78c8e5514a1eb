"""Proxies and certificates: through an httpx client of the caller's own, and from the environment as httpx reads it."""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
import ssl
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import pytest
import trustme

from sie_sdk import ConfigurationError, ConnectionFailedError, SIEAsyncClient, SIEClient
from tests.platform import wait_until
from tests.sdk.conftest import waiting_for_bytes
from tests.sdk.proxy import Proxy
from tests.sdk.scripted_server import ScriptedServer, Silent, vectors

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


@pytest.mark.usefixtures("trusted")
def test_an_authority_of_the_environment_is_trusted(secure: ScriptedServer, encode: Callable[..., Any]) -> None:
    secure.script = [vectors()]
    assert encode(secure.url).dense is not None


@pytest.fixture
def trusted(authority: trustme.CA, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Our own authority is one of the environment's."""
    authority.cert_pem.write_to_path(str(tmp_path / "ca.pem"))
    monkeypatch.setenv("SSL_CERT_FILE", str(tmp_path / "ca.pem"))


@pytest.mark.usefixtures("trusted")
@pytest.mark.parametrize("scheme", ["http", "https"])
@pytest.mark.parametrize("by_proxy", [False, True], ids=["directly", "by proxy"])
def test_closing_a_client_ends_a_call_that_waits_for_its_reply_over_any_connection(
    scheme: str,
    by_proxy: bool,
    request: pytest.FixtureRequest,
    proxy: Proxy,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    far: ScriptedServer = request.getfixturevalue("server" if scheme == "http" else "secure")
    far.computes = silent = Silent()
    if by_proxy:
        monkeypatch.setenv(f"{scheme}_proxy", proxy.url)
        monkeypatch.setenv("no_proxy", "")
        monkeypatch.setenv("NO_PROXY", "")
    with ThreadPoolExecutor(1) as threads, SIEClient(far.url) as client:
        try:
            call = threads.submit(client.encode, "m", "a")
            assert silent.came.wait(30)
            # The proxy of plain requests waits too.
            wait_until(lambda: waiting_for_bytes() == 1 + (by_proxy and scheme == "http"))
            client.close()
            with pytest.raises(ConfigurationError, match="This client is closed"):
                call.result(30)
        finally:
            silent.left.set()
    assert len(far.asked) == 1
    assert len(proxy.asked) == by_proxy


@pytest.mark.usefixtures("trusted")
def test_a_call_whose_connection_is_still_being_made_when_its_client_is_closed_ends_with_that(
    authority: trustme.CA,
) -> None:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    authority.issue_cert("127.0.0.1").configure_cert(context)
    with socket.create_server(("127.0.0.1", 0)) as slow, ThreadPoolExecutor(1) as threads:
        slow.settimeout(30)
        client = SIEClient(f"https://127.0.0.1:{slow.getsockname()[1]}")
        call = threads.submit(client.encode, "m", "a")
        near, _ = slow.accept()
        near.settimeout(30)
        assert near.recv(1, socket.MSG_PEEK)  # its handshake has begun, and has to wait
        client.close()
        with contextlib.suppress(OSError), context.wrap_socket(near, server_side=True) as secured:
            assert secured.recv(1) == b""
        with pytest.raises(ConfigurationError, match="This client is closed"):
            call.result(30)


@pytest.mark.parametrize("kind", [SIEClient, SIEAsyncClient])
async def test_a_connection_that_was_still_being_made_when_its_client_was_closed_does_not_stay_open(
    kind: type[Any], authority: trustme.CA, trusting: ssl.SSLContext
) -> None:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    authority.issue_cert("127.0.0.1").configure_cert(context)
    with socket.create_server(("127.0.0.1", 0)) as slow:
        slow.settimeout(30)
        own = httpx.Client(verify=trusting) if kind is SIEClient else httpx.AsyncClient(verify=trusting)
        client = kind(f"https://127.0.0.1:{slow.getsockname()[1]}", http_client=own)
        if kind is SIEClient:
            call = asyncio.create_task(asyncio.to_thread(client.encode, "m", "a"))
        else:
            call = asyncio.create_task(client.encode("m", "a"))
        near, _ = await asyncio.to_thread(slow.accept)  # its handshake has to wait
        for each in (client.close, own.close if isinstance(own, httpx.Client) else own.aclose):
            if (closing := each()) is not None:
                await closing
        assert await asyncio.to_thread(_answered_to_the_end, context, near) == b""
        assert (await call).dense is not None


def _answered_to_the_end(context: ssl.SSLContext, near: socket.socket) -> bytes:
    """Answer one request, and wait for the end of the connection; returns what came before it."""
    near.settimeout(30)
    with context.wrap_socket(near, server_side=True, suppress_ragged_eofs=True) as secured:
        asked = b""
        while b"\r\n\r\n" not in asked:
            asked += secured.recv(65536)
        length = int(asked.lower().split(b"content-length: ")[1].split(b"\r\n")[0])
        missing = length - len(asked.split(b"\r\n\r\n", 1)[1])
        while missing > 0:
            missing -= len(secured.recv(65536))
        answer = vectors()
        head = (
            f"HTTP/1.1 200 OK\r\nContent-Type: {answer.headers['Content-Type']}\r\nContent-Length: {len(answer.body)}"
        )
        secured.sendall(head.encode() + b"\r\n\r\n" + answer.body)
        return secured.recv(1)


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
