"""Any CloudEvents producer can submit over HTTP, and its answers keep a Knative Trigger's contract; on both brokers."""

from __future__ import annotations

import asyncio
import hashlib
import json
import threading
import time
from collections.abc import AsyncIterator
from contextlib import aclosing
from datetime import UTC, datetime, timedelta
from typing import Any

import httpx
import pytest
from cloudevents.core.bindings.http import from_binary_event, to_binary_event, to_structured_event
from cloudevents.core.v1.event import CloudEvent

from sie_broker import process
from sie_broker.contract import Broker
from sie_broker.events import exchange
from sie_broker.events.event_format import BATCH
from sie_broker.records import Queue, Work
from sie_broker.room import Room
from sie_config.registry import lane_of
from sie_ingress import beside
from sie_sdk import results, wire
from sie_sdk.types import Priority
from tests.conftest import eventually
from tests.ingress.any_producer import (
    ROUTE,
    TRACE,
    Office,
    event,
    examples,
    lengths,
    office,
    packed,
    shell,
    until_queued,
)
from tests.ingress.conftest import MODEL, SPEC


@pytest.fixture
async def at(broker: Broker) -> AsyncIterator[Office]:
    async with office(broker) as opened:
        yield opened


async def waiting(at: Office, priority: Priority = "interactive") -> Work:
    """The first work that waits; it is given back."""
    async with aclosing(at.desk.broker.pull(Queue(lane_of(SPEC), MODEL, priority), Room(1), lambda: 0)) as deliveries:
        async for delivery in deliveries:
            await delivery.nak()
            return delivery.work
    raise AssertionError


# -- accepted ----------------------------------------------------------------------------------------------------------


async def test_an_event_is_accepted_without_a_body_and_its_job_has_the_result(at: Office) -> None:
    answer = await at.post(event())
    assert (answer.status_code, answer.content) == (202, b"")
    assert not any(name.startswith("ce-") for name in answer.headers), "what could be an event would be taken for one"
    assert answer.headers["retry-after"] == "3"
    assert await at.queued() == 1
    async with at.desk.worker():
        assert lengths(await at.job(answer)) == [4]
        again = await at.post(event("e 2", "sixsix"))
        assert lengths(await at.job(again)) == [6]
    assert len(at.desk.computed) == 2


@pytest.mark.parametrize("data", [{}, {"data": None, **packed("four")}], ids=["json", "msgpack"])
async def test_structured_mode_is_the_same(at: Office, data: dict[str, Any]) -> None:
    async with at.desk.worker():
        assert lengths(await at.job(await at.structured(event(**data)))) == [4]


async def test_the_job_is_the_events_so_that_who_cannot_be_told_knows_it(at: Office) -> None:
    told = [
        (await at.post(event(source=source, id=event_id, tenant=tenant))).headers["location"].rpartition("/")[2]
        for source, event_id, tenant in (("/a", "1", None), ("/a", "2", None), ("/b", "1", None), ("/a", "1", "shop"))
    ]
    known = [
        hashlib.sha256(identity).hexdigest()[:32] for identity in (b"\n/a\n1", b"\n/a\n2", b"\n/b\n1", b"shop\n/a\n1")
    ]
    assert told == known


@pytest.mark.parametrize("warm", [True, False])
async def test_an_event_that_is_sent_again_is_the_same_job_and_computed_once(at: Office, warm: bool) -> None:
    if not warm:
        cold = [await at.post(event()), await at.structured(event())]
    async with at.desk.worker():
        answers = cold if not warm else await asyncio.gather(*(at.post(event()) for _ in range(4)))
        assert len({answer.headers["location"] for answer in answers}) == 1
        for answer in answers:
            assert lengths(await at.job(answer)) == [4]
        await at.post(event())
        other = await at.post(event(source="/other"))
        await at.job(other)
    assert len(at.desk.computed) == 2


async def test_what_the_event_says_of_its_terms_goes_with_the_work(at: Office) -> None:
    expiry = datetime.now(UTC) + timedelta(seconds=60)
    sent = event(priority="bulk", tenant="shop", expirytime=expiry.isoformat(), traceparent=TRACE, partitionkey="x")
    await at.post(sent, traceparent="00-" + "1" * 32 + "-" + "2" * 16 + "-00")
    work = await waiting(at, "bulk")
    assert (work.tenant, work.priority, work.traceparent, work.cause) == ("shop", "bulk", TRACE, "e 1")
    assert work.deadline == pytest.approx(expiry.timestamp(), abs=1e-3)


async def test_without_a_trace_of_its_own_the_event_has_its_requests(at: Office) -> None:
    await at.post(event(), traceparent=TRACE)
    assert (await waiting(at)).traceparent == TRACE


async def test_an_event_expires_by_the_deployments_clock_and_not_by_this_machines(
    at: Office, monkeypatch: pytest.MonkeyPatch
) -> None:
    now, expiry = time.time, datetime.now(UTC) + timedelta(seconds=60)
    async with at.desk.worker():
        with monkeypatch.context() as ahead:
            ahead.setattr(time, "time", lambda: now() + 300)
            answer = await at.post(event(expirytime=expiry.isoformat()), Prefer="wait=10")
            batch = json.dumps([event("batched", expirytime=expiry.isoformat())])
            later = await at.desk.client.post(ROUTE, content=batch, headers={"Content-Type": BATCH})
        assert later.status_code == 202
        assert answer.status_code == 200
        assert datetime.fromisoformat(answer.headers["ce-time"]) < expiry


# -- answered ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("preference", ["wait=10", "reply", "respond-async, Reply"])
@pytest.mark.parametrize("warm", [True, False])
async def test_a_sender_that_takes_an_answer_gets_the_result_event(at: Office, preference: str, warm: bool) -> None:
    if warm:
        async with at.desk.worker():
            answer = await at.post(event(traceparent=TRACE), Prefer=preference)
    else:
        asked = asyncio.create_task(at.post(event(traceparent=TRACE), Prefer=preference))
        await until_queued(at)
        async with at.desk.worker():
            answer = await asked
    assert answer.status_code == 200
    assert lengths(answer) == [4]
    said = {name.removeprefix("ce-"): value for name, value in answer.headers.items() if name.startswith("ce-")}
    assert datetime.fromisoformat(said.pop("time")).timestamp() == pytest.approx(time.time(), abs=60)
    job = hashlib.sha256(b"\n/producer\ne 1").hexdigest()[:32]
    assert said == {
        "specversion": "1.0",
        "id": job,
        "source": f"/v1/jobs/{job}",
        "type": "dev.sie.result.v1",
        "status": "200",
        "causationid": "e%201",
        "traceparent": TRACE,
    }
    assert answer.headers["content-type"] == wire.JSON
    assert answer.headers["x-sie-worker"] and answer.headers["x-total-time"]


async def test_the_answer_has_the_format_of_the_event_or_the_one_that_is_accepted(at: Office) -> None:
    async with at.desk.worker():
        own = await at.structured(event(data=None, **packed("four")), Prefer="reply")
        (result,) = results.read_encode(own.content)
        assert result.dense is not None and result.dense.tolist() == [4, 1]
        asked = await at.structured(event("2", data=None, **packed("four")), Prefer="reply", Accept=wire.JSON)
        assert lengths(asked) == [4]
        whole = await at.post(event("3"), Prefer="reply", Accept="application/cloudevents+json")
    assert whole.headers["content-type"] == "application/cloudevents+json"
    assert whole.json()["data"]["items"][0]["dense"]["values"] == [4, 1]
    assert whole.json()["causationid"] == "3"


async def test_a_large_answer_becomes_an_event_beside_the_event_loop(
    at: Office, monkeypatch: pytest.MonkeyPatch
) -> None:
    threads: list[threading.Thread] = []
    written = exchange.result

    def noted(*arguments: Any) -> CloudEvent:
        threads.append(threading.current_thread())
        return written(*arguments)

    monkeypatch.setattr(exchange, "result", noted)
    async with at.desk.worker():
        assert lengths(await at.post(event("small"), Prefer="reply")) == [4]
        monkeypatch.setattr(beside, "LARGE_BYTES", 10)
        assert lengths(await at.post(event("large"), Prefer="reply")) == [4]
    assert [thread is threading.main_thread() for thread in threads] == [True, False]


async def test_an_answer_that_does_not_come_in_time_is_a_job(at: Office) -> None:
    answer = await at.post(event(), Prefer="wait=0.05")
    assert (answer.status_code, answer.content) == (202, b"")
    assert answer.headers["preference-applied"] == "wait=0.05"
    async with at.desk.worker():
        assert lengths(await at.job(answer)) == [4]


async def test_a_repeat_of_what_was_answered_gets_the_same_answer(at: Office) -> None:
    async with at.desk.worker():
        first, second = [await at.post(event(), Prefer="reply") for _ in range(2)]
    assert first.content == second.content
    assert (first.headers["ce-source"], first.headers["ce-id"]) == (
        second.headers["ce-source"],
        second.headers["ce-id"],
    )
    assert len(at.desk.computed) == 1


@pytest.mark.parametrize(
    ("text", "status", "code"), [("refuse", 400, "INVALID_INPUT"), ("crash", 500, "INTERNAL_ERROR")]
)
async def test_a_failure_is_a_result_event_whose_status_http_says_too(
    at: Office, text: str, status: int, code: str
) -> None:
    async with at.desk.worker():
        answer = await at.post(event("e 1", text), Prefer="reply")
    assert (answer.status_code, answer.headers["ce-status"]) == (status, str(status))
    assert answer.json()["error"]["code"] == answer.headers["x-sie-error-code"] == code
    assert answer.headers["ce-causationid"] == "e%201"


# -- sent --------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("warm", [True, False])
async def test_a_result_goes_to_the_sink_that_the_event_names_and_stays_at_its_job(at: Office, warm: bool) -> None:
    async with at.desk.worker():
        if warm:
            answer = await at.post(event(replyto=f"{at.sink.url}/in", traceparent=TRACE), Prefer="reply")
    if not warm:
        answer = await at.structured(event(replyto=f"{at.sink.url}/in", traceparent=TRACE))
    assert (answer.status_code, answer.content) == (202, b""), "nothing is held for an answer that goes elsewhere"
    async with at.desk.worker():
        await eventually(lambda: bool(at.sink.accepted))
        assert lengths(await at.job(answer)) == [4]
        await at.post(event(replyto=f"{at.sink.url}/in"))
        await at.post(event("last", replyto=f"{at.sink.url}/in"))
        await eventually(lambda: len(at.sink.accepted) == 2)
    received, _ = at.sink.received
    assert lengths(received) == [4]
    assert received.path == "/in"
    assert [each.headers["ce-causationid"] for each in at.sink.received] == ["e%201", "last"]
    assert received.headers["ce-traceparent"] == TRACE
    assert received.headers["ce-source"] == answer.headers["location"]


async def test_a_request_that_is_split_comes_to_its_sink_whole(broker: Broker) -> None:
    texts = ["x" * (1 + i % 9) for i in range(600)]
    async with office(broker, max_body_bytes=1 << 20) as at, at.desk.worker():
        answer = await at.post(event("big", *texts, replyto=at.sink.url))
        await eventually(lambda: bool(at.sink.accepted))
        assert lengths(await at.job(answer)) == list(map(len, texts))
    assert len(at.desk.computed) == 3
    (received,) = at.sink.received
    assert lengths(received) == list(map(len, texts))
    assert received.headers["ce-causationid"] == "big"


async def test_an_error_goes_to_the_sink_as_well(at: Office) -> None:
    async with at.desk.worker():
        await at.post(event("e 1", "refuse", replyto=at.sink.url))
        await eventually(lambda: bool(at.sink.accepted))
    (received,) = at.sink.received
    assert received.headers["ce-status"] == "400"
    assert json.loads(received.body)["error"]["code"] == "INVALID_INPUT"


# -- other people's programs -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("write", [to_binary_event, to_structured_event])
async def test_the_cloudevents_package_can_ask_and_read_the_answer(at: Office, write: Any) -> None:
    attributes = {"id": "p 1", "source": "/python", "type": "dev.sie.encode.v1", "model": MODEL}
    sent = CloudEvent(attributes | {"datacontenttype": wire.JSON, "specversion": "1.0"}, {"items": [{"text": "four"}]})
    message = write(sent)
    async with at.desk.worker():
        answer = await at.desk.client.post(ROUTE, content=message.body, headers={**message.headers, "Prefer": "reply"})
    assert answer.status_code == 200, answer.text
    received = from_binary_event(type(message)(dict(answer.headers), answer.content))
    assert received.get_type() == "dev.sie.result.v1"
    assert received.get_extension("causationid") == "p 1"
    data: Any = received.get_data()
    assert data["items"][0]["dense"]["values"] == [4, 1]


async def test_the_curl_commands_of_the_page_do_what_it_says(at: Office) -> None:
    async with process.serving(at.desk.ingress, "127.0.0.1", 0) as port, at.desk.worker():

        async def run(command: str) -> tuple[httpx.Response, str]:
            printed = await shell(command.replace("127.0.0.1:8080", f"127.0.0.1:{port}"))
            head, _, body = printed.replace("\r\n", "\n").partition("\n\n")
            status, *lines = head.splitlines()
            headers = dict(line.split(": ", 1) for line in lines)
            return httpx.Response(int(status.split()[1]), headers=headers, text=body), body

        (one, nothing), (held, _), (batch, _) = [await run(each) for each in examples("curl -i http://127.0.0.1:8080")]
        assert (one.status_code, nothing) == (202, "")
        assert lengths(await at.job(one)) == [5]
        assert (held.status_code, lengths(held), held.headers["ce-causationid"]) == (200, [5], "2")
        assert batch.status_code == 202
        done = [
            await at.desk.client.get(job["location"], headers={"Prefer": "wait=10"}) for job in batch.json()["jobs"]
        ]
        assert list(map(lengths, done)) == [[1], [1]]
    (known,) = examples("printf")
    printed = await shell(f"tenant= source=/me id=1; {known}")
    assert one.headers["location"] == f"/v1/jobs/{printed.strip()}"
