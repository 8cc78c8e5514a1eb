"""Tokens for everything: who is let in, who is refused and in whose words, and what stays open."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import pytest
from openapi_spec_validator import validate
from websockets.asyncio.client import connect
from websockets.exceptions import InvalidStatus

from sie_broker import process
from sie_broker.memory import MemoryBroker
from sie_config.deployment import placement
from sie_ingress import authorization
from sie_ingress.authorization import OPEN, Authorized
from sie_ingress.settings import Settings
from sie_sdk.errors import ConfigurationError
from tests.ingress.conftest import MODEL, ROUTE, SPEC, Desk, opened
from tests.openapi_examples import examples_of, failures

TOKEN = {"Authorization": "Bearer two"}
ITEMS = {"items": [{"text": "hello"}]}


@pytest.fixture
async def guarded() -> AsyncIterator[Desk]:
    """A desk that asks for a token."""
    async with opened(MemoryBroker(), auth_tokens="one, two,", admin_token="admin") as desk:
        desk.registry.deploy(placement.deployment("cpu"))
        yield desk


@pytest.mark.parametrize("token", ["one", "two", "admin"])
@pytest.mark.parametrize("scheme", ["Bearer", "bearer"])
async def test_every_token_of_the_setting_and_of_admins_is_let_in(guarded: Desk, scheme: str, token: str) -> None:
    async with guarded.worker():
        answer = await guarded.post(ROUTE, ITEMS, Authorization=f"{scheme} {token}")
    assert answer.status_code == 200


@pytest.mark.parametrize(
    "sent",
    [None, "", "Bearer", "Bearer ", "Bearer three", "Basic one", "one", "Bearer one,two", "Bearer ä", b"\xff\xfe"],
)
async def test_whatever_is_no_token_is_refused_with_a_challenge(guarded: Desk, sent: str | bytes | None) -> None:
    raw = sent.encode() if isinstance(sent, str) else sent
    headers = [] if raw is None else [(b"authorization", raw)]
    answer = await guarded.client.post(ROUTE, json=ITEMS, headers=headers)
    assert (answer.status_code, answer.headers["x-sie-error-code"]) == (401, "UNAUTHORIZED")
    assert answer.headers["www-authenticate"].startswith("Bearer")
    assert answer.headers["x-request-id"]
    error = answer.json()["error"]
    assert (error["code"], error["param"]) == ("UNAUTHORIZED", "Authorization")
    assert "SIE_AUTH_TOKENS" in error["hint"] and "two" not in answer.text


async def test_a_token_of_any_letters_is_known_by_its_bytes() -> None:
    async with opened(MemoryBroker(), auth_tokens="voilà,été") as desk:
        for token, status in (("voilà", 200), ("été", 200), ("voil", 401), ("voilá", 401)):
            headers = [(b"authorization", f"Bearer {token}".encode())]
            assert (await desk.client.get("/v1/models", headers=headers)).status_code == status, token


async def test_every_route_that_is_not_open_asks_for_a_token_and_refuses_as_the_document_says(guarded: Desk) -> None:
    described = (await guarded.client.get("/openapi.json")).json()
    validate(described)
    wrong: list[str] = []
    for sent in examples_of(described):
        answer = await guarded.client.request(
            sent.method, sent.target, params=sent.query, headers=sent.headers, content=sent.content
        )
        is_open = sent.operation.get("security") == []
        assert is_open == (sent.target in OPEN and sent.method == "GET"), sent.name
        wrong += failures(described, sent if is_open else sent._replace(status=401), answer)
    assert wrong == []


async def test_with_a_token_every_example_is_answered_as_ever(guarded: Desk) -> None:
    described = (await guarded.client.get("/openapi.json")).json()
    wrong: list[str] = []
    async with guarded.worker():
        for sent in examples_of(described):
            answer = await guarded.client.request(
                sent.method, sent.target, params=sent.query, headers={**sent.headers, **TOKEN}, content=sent.content
            )
            wrong += failures(described, sent, answer)
    assert wrong == []


@pytest.mark.parametrize("path", sorted(OPEN))
async def test_probes_and_pages_are_open_to_get_and_head_alone(guarded: Desk, path: str) -> None:
    for method in ("GET", "HEAD"):
        assert (await guarded.client.request(method, path)).status_code == 200
    assert (await guarded.client.post(path, json=ITEMS)).status_code == 401


@pytest.mark.parametrize(
    ("path", "where"),
    [
        ("/v1/embeddings", ("error", "message")),
        ("/v2/rerank", ("message",)),
        ("/v1/embed", ("message",)),
        ("/embed", ("error",)),
        ("/", ("error",)),
        (f"/tei/{MODEL}/rerank", ("error",)),
        (f"/tei/{MODEL}/v1/embeddings", ("error", "message")),
        (f"/tei/{MODEL}/tokenize", ("error",)),
    ],
)
async def test_who_speaks_another_s_dialect_is_refused_in_it(guarded: Desk, path: str, where: tuple[str, ...]) -> None:
    answer = await guarded.post(path, {"input": "a"})
    said: Any = answer.json()
    for step in where:
        said = said[step]
    assert isinstance(said, str) and "A token is needed" in said
    assert (answer.status_code, answer.headers["www-authenticate"]) == (401, 'Bearer realm="sie"')
    assert answer.headers["x-should-retry"] == "false"


async def test_an_event_is_refused_with_a_status_after_which_its_sender_gives_up(guarded: Desk) -> None:
    event = {
        "ce-specversion": "1.0",
        "ce-id": "1",
        "ce-source": "/me",
        "ce-type": "dev.sie.encode.v1",
        "ce-model": MODEL,
    }
    for path in ("/", "/v1/events"):
        answer = await guarded.client.post(path, json=ITEMS, headers=event)
        assert (answer.status_code, answer.json()["error"]["code"]) == (401, "UNAUTHORIZED")
        answer = await guarded.client.post(path, json=ITEMS, headers=event | TOKEN)
        assert answer.status_code == 202


async def test_the_catalogue_s_readers_have_a_token_that_is_good_for_it_alone_and_no_other_reads_it() -> None:
    async with opened(MemoryBroker(), auth_tokens="one", admin_token="a", config_read_token="r") as desk:
        for token, reads, asks in (("one", 401, 200), ("a", 200, 200), ("r", 200, 401), ("x", 401, 401)):
            headers = {"Authorization": f"Bearer {token}"}
            for path in ("/models", f"/models/{SPEC.id}", "/export", "/epoch", f"/models/{SPEC.id}/status"):
                assert (await desk.client.get(f"/v1/configs{path}", headers=headers)).status_code == reads, (
                    token,
                    path,
                )
            assert (await desk.client.get("/v1/models", headers=headers)).status_code == asks, token
        assert (await desk.client.post("/v1/configs/apply")).status_code == 401
        written = await desk.client.post("/v1/configs/apply", headers={"Authorization": "Bearer a"})
        assert written.status_code == 405


async def test_without_readers_of_its_own_the_catalogue_asks_for_the_token_of_everything_else(guarded: Desk) -> None:
    assert (await guarded.client.get("/v1/configs/models")).status_code == 401
    assert (await guarded.client.get("/v1/configs/models", headers=TOKEN)).status_code == 200


async def test_sockets_ask_for_a_token_too(guarded: Desk) -> None:
    async with process.serving(guarded.ingress, "127.0.0.1", 0, drain_s=1, websockets=True) as port:
        for path in ("/ws/cluster-status", "/ws/status", "/ws/nowhere"):
            for headers in ({}, {"Authorization": "Bearer three"}):
                with pytest.raises(InvalidStatus) as refused:
                    await connect(f"ws://127.0.0.1:{port}{path}", additional_headers=headers, proxy=None)
                response = refused.value.response
                assert (response.status_code, response.headers["x-sie-error-code"]) == (401, "UNAUTHORIZED")
                assert response.headers["www-authenticate"].startswith("Bearer")
        async with connect(f"ws://127.0.0.1:{port}/ws/status", additional_headers=TOKEN, proxy=None) as socket:
            assert "sie-knative" in str(await socket.recv())
        await guarded.ingress.state.watch.leave()


async def test_a_server_that_cannot_refuse_a_socket_in_words_closes_it() -> None:
    sent: list[Any] = []

    async def served(*_: object) -> None:
        raise AssertionError("it was let in")

    async def send(message: Any) -> None:
        sent.append(message)

    def refused(*_: object) -> Any:
        raise AssertionError("there are no words for it")

    door = Authorized(served, Settings(auth_tokens="one"), refused)
    await door({"type": "websocket", "path": "/ws/status", "headers": []}, served, send)  # type: ignore[arg-type]
    assert sent == [{"type": "websocket.close", "code": 1008}]


async def test_where_no_token_is_asked_for_nothing_stands_in_a_request_s_way() -> None:
    async with opened(MemoryBroker(), admin_token="a", config_read_token="r") as desk:
        assert Authorized.__name__ not in [getattr(each.cls, "__name__", "") for each in desk.ingress.user_middleware]
        assert (await desk.client.get("/v1/models")).status_code == 200


async def test_refusals_are_counted(guarded: Desk) -> None:
    await guarded.post(ROUTE, ITEMS)
    seen = (await guarded.client.get("/metrics", headers=TOKEN)).text
    assert 'sie_ingress_requests_total{code="UNAUTHORIZED",operation="encode"} 1.0' in seen


@pytest.mark.parametrize("value", [" ", ",", " , \n"])
def test_a_setting_that_holds_no_token_stops_the_start_instead_of_letting_everybody_in(value: str) -> None:
    with pytest.raises(ConfigurationError, match="SIE_AUTH_TOKENS holds no token"):
        authorization.asks(Settings(auth_tokens=value))
