"""What POST /v1/events refuses, in terms that a Knative Trigger understands; batches; on both brokers."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import pytest

from sie_broker.contract import Broker
from sie_broker.records import Work
from sie_sdk.errors import QueueFullError, QueueUnavailableError, UnavailableError
from tests.conftest import eventually
from tests.ingress.any_producer import ROUTE, Office, event, lengths, office


@pytest.fixture
async def at(broker: Broker) -> AsyncIterator[Office]:
    async with office(broker) as opened:
        yield opened


RETRIED = {404, 408, 409, 429, *range(500, 600)}
"""What a sender that keeps Knative's contract sends again."""
PAST = "2020-01-01T00:00:00Z"

ATTRIBUTES = {*event(pool="", priority="", tenant="", expirytime="", replyto="")} - {"data"}
FAULTS: list[tuple[dict[str, Any], int, str, str | None]] = [
    ({"id": None}, 400, "INVALID_INPUT", "id"),
    ({"id": "x" * 257}, 400, "INVALID_INPUT", "id"),
    ({"source": None}, 400, "INVALID_INPUT", "source"),
    ({"type": None}, 400, "INVALID_INPUT", "type"),
    ({"specversion": "0.3"}, 400, "INVALID_INPUT", "specversion"),
    ({"type": "dev.sie.invent.v1"}, 400, "INVALID_INPUT", "type"),
    ({"type": "dev.sie.result.v1"}, 400, "INVALID_INPUT", "type"),
    ({"model": None}, 400, "INVALID_INPUT", "model"),
    ({"model": "org/nothing"}, 400, "MODEL_NOT_FOUND", "model"),
    ({"pool": "nowhere"}, 400, "POOL_NOT_FOUND", "pool"),
    ({"priority": "urgent"}, 400, "INVALID_INPUT", "priority"),
    ({"tenant": "a b"}, 400, "INVALID_INPUT", "tenant"),
    ({"expirytime": "tomorrow"}, 400, "INVALID_INPUT", "expirytime"),
    ({"expirytime": PAST}, 400, "DEADLINE_EXCEEDED", "expirytime"),
    ({"replyto": "http://169.254.169.254/latest"}, 400, "INVALID_INPUT", "replyto"),
    ({"replyto": "nats:sie.work.x"}, 400, "INVALID_INPUT", "replyto"),
    ({"data": None}, 400, "INVALID_INPUT", "data"),
    ({"data": {"items": [{"text": 5}]}}, 400, "INVALID_INPUT", "items[0].text"),
    ({"data": {"items": []}}, 400, "INVALID_INPUT", "items"),
    ({"datacontenttype": "text/plain", "data": "four"}, 415, "UNSUPPORTED_MEDIA_TYPE", "Content-Type"),
    ({"data": {"items": [{"text": "x" * 30_000}]}}, 413, "PAYLOAD_TOO_LARGE", "body"),
]


@pytest.mark.parametrize(("wrong", "status", "code", "field"), FAULTS, ids=lambda value: str(value)[:30])
async def test_what_no_retry_can_mend_is_refused_with_a_status_that_is_not_retried(
    at: Office, wrong: dict[str, Any], status: int, code: str, field: str | None
) -> None:
    for mode, named in ((at.structured, field), (at.post, f"ce-{field}" if field in ATTRIBUTES else field)):
        answer = await mode(event(**wrong))
        error = answer.json()["error"]
        assert (answer.status_code, error["code"], error["param"]) == (status, code, named), answer.text
        assert answer.status_code not in RETRIED
        assert answer.headers["x-sie-error-code"] == code
    assert await at.queued() == 0


async def test_what_is_no_event_is_refused(at: Office) -> None:
    plain = await at.desk.client.post(ROUTE, json=event())
    assert (plain.status_code, plain.json()["error"]["param"]) == (400, "ce-specversion")
    assert "application/cloudevents+json" in plain.json()["error"]["hint"]
    avro = await at.desk.client.post(ROUTE, content=b"x", headers={"Content-Type": "application/cloudevents+avro"})
    assert avro.status_code == 415
    assert (await at.structured([1])).status_code == 400
    assert (await at.desk.client.get(ROUTE)).status_code == 405


async def test_an_identity_that_came_before_with_something_else_is_refused_for_good(at: Office) -> None:
    await at.post(event("e 1", "one"))
    answer = await at.post(event("e 1", "two"))
    assert (answer.status_code, answer.json()["error"]["code"]) == (422, "IDEMPOTENCY_MISMATCH")
    assert answer.json()["error"]["param"] == "id"


async def test_a_tenant_with_too_much_in_flight_is_told_when_to_come_again(broker: Broker) -> None:
    async with office(broker, tenant_in_flight=1) as at:
        assert (await at.post(event("1", tenant="shop"))).status_code == 202
        answer = await at.post(event("2", tenant="shop"))
        assert (answer.status_code, answer.json()["error"]["param"]) == (429, "tenant")
        assert int(answer.headers["retry-after"]) >= 1
        assert (await at.post(event("3", tenant="other"))).status_code == 202


@pytest.mark.parametrize("refusal", [QueueFullError, QueueUnavailableError])
async def test_overload_is_503_with_retry_after_and_no_event_is_accepted_before_it_is_durable(
    at: Office, monkeypatch: pytest.MonkeyPatch, refusal: type[UnavailableError]
) -> None:
    async def refuse(work: Work, after: int = 0) -> None:
        raise refusal("No.", retry_after=7.0)

    monkeypatch.setattr(at.desk.broker, "submit", refuse)
    for sent in (event("1"), event("2", replyto=at.sink.url)):
        answer = await at.post(sent, Prefer="reply")
        assert answer.status_code == 503
        assert int(answer.headers["retry-after"]) >= 1
    assert (await at.batch(event("3"))).status_code == 503
    monkeypatch.undo()
    async with at.desk.worker():
        assert lengths(await at.job(await at.post(event("1")))) == [4]


# -- batches -----------------------------------------------------------------------------------------------------------


async def test_a_batch_is_accepted_whole_with_a_job_for_each_event(at: Office) -> None:
    answer = await at.batch(event("1", "a"), event("2", "bb", replyto=at.sink.url), event("3", "ccc"), event("1", "a"))
    assert answer.status_code == 202
    jobs = answer.json()["jobs"]
    assert [job["location"] for job in jobs] == [f"/v1/jobs/{job['id']}" for job in jobs]
    assert jobs[0] == jobs[3]
    async with at.desk.worker():
        done = [await at.desk.client.get(job["location"], headers={"Prefer": "wait=10"}) for job in jobs]
        await eventually(lambda: bool(at.sink.accepted))
    assert [lengths(each) for each in done] == [[1], [2], [3], [1]]
    assert len(at.desk.computed) == 3


async def test_a_batch_with_one_event_at_fault_is_refused_whole_and_names_it(at: Office) -> None:
    for wrong, field in (
        ({"id": None}, "[1].id"),
        ({"model": "nothing"}, "[1].model"),
        ({"replyto": "http://evil.test"}, "[1].replyto"),
        ({"data": {"items": [{"text": 5}]}}, "[1].data.items[0].text"),
    ):
        answer = await at.batch(event("1"), event("2", **wrong))
        assert (answer.status_code, answer.json()["error"]["param"]) == (400, field)
    assert await at.queued() == 0


async def test_a_batch_that_was_accepted_in_part_is_completed_by_its_repeat(
    at: Office, monkeypatch: pytest.MonkeyPatch
) -> None:
    submit, left = at.desk.broker.submit, [2]

    async def some(work: Work, after: int = 0) -> Any:
        if not left[0]:
            raise QueueFullError("Full.", retry_after=1.0)
        left[0] -= 1
        return await submit(work, after)

    monkeypatch.setattr(at.desk.broker, "submit", some)
    sent = [event(str(number)) for number in range(5)]
    assert (await at.batch(*sent)).status_code == 503
    assert await at.queued() == 2
    monkeypatch.undo()
    answer = await at.batch(*sent)
    assert answer.status_code == 202
    assert await at.queued() == 5


async def test_a_batch_may_be_empty_but_not_without_end(broker: Broker, monkeypatch: pytest.MonkeyPatch) -> None:
    async with office(broker, max_body_bytes=1 << 20) as at:
        assert (await at.batch()).json() == {"jobs": []}
        monkeypatch.setattr("sie_broker.events.event_format.MAX_BATCH", 2)
        answer = await at.batch(*(event(str(number)) for number in range(3)))
        assert (answer.status_code, answer.json()["error"]["limit"]) == (413, 2)
