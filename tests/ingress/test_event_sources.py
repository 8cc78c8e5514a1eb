"""Events of sources that choose neither their type nor a path: Knative's, whose sink is a Service; on both brokers."""

from __future__ import annotations

import hashlib
from collections.abc import AsyncIterator
from typing import Any

import pytest

from sie_broker.contract import Broker
from sie_broker.events.event_format import BATCH, STRUCTURED
from sie_sdk import wire
from tests.conftest import eventually
from tests.ingress.any_producer import ROUTE, Office, binary, event, lengths, office
from tests.ingress.conftest import MODEL

PING = {"type": "dev.knative.sources.ping", "source": "/apis/v1/namespaces/shop/pingsources/tick"}


@pytest.fixture
async def at(broker: Broker) -> AsyncIterator[Office]:
    async with office(broker) as opened:
        yield opened


def ping(**attributes: Any) -> dict[str, Any]:
    """What a PingSource with ``ceOverrides`` sends: no content type."""
    return event(**(PING | {"operation": "encode", "datacontenttype": None} | attributes))


@pytest.mark.parametrize("mode", ["post", "structured"])
async def test_an_event_of_any_type_is_a_request_when_it_names_the_operation(at: Office, mode: str) -> None:
    answer = await getattr(at, mode)(ping())
    job = hashlib.sha256(f"\n{PING['source']}\ne 1".encode()).hexdigest()[:32]
    assert (answer.status_code, answer.headers["location"]) == (202, f"/v1/jobs/{job}")
    async with at.desk.worker():
        assert lengths(await at.job(answer)) == [4]


@pytest.mark.parametrize(("named", "field"), [("invent", "operation"), (None, "type"), ("", "type")])
async def test_what_names_no_operation_that_there_is_is_refused_for_good(at: Office, named: str, field: str) -> None:
    answer = await at.structured(ping(operation=named))
    assert (answer.status_code, answer.json()["error"]["param"]) == (400, field)
    assert "encode" in str(answer.json()["error"])


async def test_a_type_of_ours_decides_whatever_else_is_named(at: Office) -> None:
    answer = await at.post(event(operation="score"))
    async with at.desk.worker():
        assert lengths(await at.job(answer)) == [4]


async def test_what_kn_event_can_say_is_enough(at: Office) -> None:
    said = {"model": MODEL, "items": {"text": "four"}, "params": {"output_types": ["dense"]}}
    answer = await at.post(event(model=None, data=said))
    listed = await at.structured(event("e 2", model=None, data=said | {"items": [{"text": "a"}, {"text": "bb"}]}))
    async with at.desk.worker():
        assert lengths(await at.job(answer)) == [4]
        assert lengths(await at.job(listed)) == [1, 2]


@pytest.mark.parametrize("data", [{"items": [{"text": "a"}]}, {"model": 5, "items": []}, [], "text"])
async def test_data_that_names_no_model_leaves_it_missing(at: Office, data: object) -> None:
    answer = await at.post(event(model=None, data=data))
    assert (answer.status_code, answer.json()["error"]["param"]) == (400, "ce-model")


async def test_an_event_that_is_posted_to_the_service_itself_is_taken_as_at_its_route(at: Office) -> None:
    headers, body = binary(ping())
    told = [
        await at.desk.client.post("/", content=body, headers=headers),
        await at.desk.client.post("/", json=ping(id="e 2"), headers={"Content-Type": STRUCTURED}),
        await at.desk.client.post("/", json=[ping(id="e 3")], headers={"Content-Type": BATCH}),
    ]
    assert [answer.status_code for answer in told] == [202, 202, 202]
    assert await at.queued() == 3
    counted = (await at.desk.client.get("/metrics")).text
    assert 'operation="events"' in counted and 'operation="tei"' not in counted


async def test_what_is_no_event_there_is_another_clients_request(at: Office) -> None:
    answer = await at.desk.client.post("/", json={"inputs": ""}, headers={"X-SIE-Model": MODEL})
    assert "error_type" in answer.json(), "as text-embeddings-inference has it"
    assert (await at.desk.client.get("/")).headers["content-type"].startswith("text/html")


async def test_the_address_of_a_subscriber_may_say_where_results_go(at: Office) -> None:
    headers, body = binary(event())
    answer = await at.desk.client.post("/", params={"replyto": at.sink.url}, content=body, headers=headers)
    assert answer.status_code == 202
    own, body = binary(event("e 2", "sixsix", replyto=f"{at.sink.url}/own"))
    held = await at.desk.client.post(
        ROUTE, params={"replyto": at.sink.url}, content=body, headers={**own, "Prefer": "reply"}
    )
    assert held.status_code == 202, "who has a sink is not held"
    async with at.desk.worker():
        await eventually(lambda: len(at.sink.received) == 2)
    assert {each.path: lengths(each) for each in at.sink.received} == {"/": [4], "/own": [6]}
    refused = await at.desk.client.post(
        "/", params={"replyto": "http://elsewhere.example/"}, content=body, headers=binary(event("e 3"))[0]
    )
    assert (refused.status_code, refused.json()["error"]["param"]) == (400, "replyto")
    assert refused.headers["content-type"] == wire.JSON


async def test_the_result_of_an_event_that_is_sent_again_is_not(at: Office) -> None:
    async with at.desk.worker():
        await at.post(event(replyto=at.sink.url))
        await eventually(lambda: len(at.sink.received) == 1)
        again = await at.post(event(replyto=at.sink.url))
        assert again.status_code == 202 and lengths(await at.job(again)) == [4]
        await at.post(event("e 2", "sixsix", replyto=at.sink.url))
        await eventually(lambda: len(at.sink.received) == 2)
    assert [lengths(each) for each in at.sink.received] == [[4], [6]]
