"""What the ingress answers, warm and cold, on the in-memory broker and on a real nats-server."""

from __future__ import annotations

import asyncio
import threading
import uuid
from collections.abc import Callable
from typing import Any

import pytest

from sie_broker.contract import Broker
from sie_broker.records import Lane
from sie_ingress.submit import made_just_now
from sie_sdk import results, wire
from sie_sdk.calls import fresh_key
from sie_sdk.types import EncodeRequest, Item
from tests.conftest import eventually
from tests.ingress.conftest import MODEL, ROUTE, Desk, opened


def lengths(body: dict[str, list[dict[str, dict[str, list[float]]]]]) -> list[float]:
    return [item["dense"]["values"][0] for item in body["items"]]


async def test_a_warm_request_is_answered_with_its_vectors(desk: Desk) -> None:
    async with desk.worker():
        answer = await desk.encode("a", "four", "sixsix")
    assert answer.status_code == 200
    assert lengths(answer.json()) == [1, 4, 6]
    assert answer.headers["x-request-id"] and answer.headers["x-sie-server-version"]


async def test_a_msgpack_request_is_answered_in_msgpack(desk: Desk) -> None:
    body = wire.request_body(EncodeRequest(items=[Item(text="abc", id="x")]))
    async with desk.worker():
        answer = await desk.client.post(ROUTE, content=body, headers={"Content-Type": wire.MSGPACK})
    assert answer.headers["content-type"] == wire.MSGPACK
    (result,) = results.read_encode(answer.content)
    assert result.dense is not None and result.dense.tolist() == [3, 1]
    assert result.id == "x"


async def test_a_cold_request_is_queued_answered_202_and_computed_once_when_a_worker_comes(desk: Desk) -> None:
    cold = await desk.encode("hello")
    assert cold.status_code == 202
    assert int(cold.headers["retry-after"]) == 3
    location = cold.headers["location"]
    assert location == f"/v1/jobs/{cold.json()['job']['id']}"
    assert sum((await desk.broker.backlog()).values()) == 1

    pending = await desk.client.get(location)
    assert pending.status_code == 202
    assert pending.headers["location"] == location

    async with desk.worker():
        done = await desk.client.get(location, headers={"Prefer": "wait=10"})
    assert done.status_code == 200
    assert lengths(done.json()) == [5]
    assert (await desk.client.get(location)).json() == done.json()
    assert len(desk.computed) == 1


async def test_a_cold_request_that_prefers_to_wait_is_held_until_its_answer(desk: Desk) -> None:
    waiting = asyncio.create_task(desk.encode("patience", Prefer="wait=10"))
    await eventually(lambda: desk.lanes._cold_starts._woken != {})
    async with desk.worker():
        answer = await waiting
    assert answer.status_code == 200
    assert lengths(answer.json()) == [8]


@pytest.mark.parametrize("seconds", ["1e12", "1e308"])
async def test_a_request_may_want_its_answer_for_ever(desk: Desk, seconds: str) -> None:
    assert (await desk.encode("cold", X_SIE_Expires_In=seconds)).status_code == 202
    async with desk.worker():
        assert lengths((await desk.encode("warm", X_SIE_Expires_In=seconds)).json()) == [4]


async def test_a_hold_that_ends_without_an_answer_says_that_it_was_honoured(desk: Desk) -> None:
    answer = await desk.encode("impatient", Prefer="wait=0.05")
    assert answer.status_code == 202
    assert answer.headers["preference-applied"] == "wait=0.05"


async def test_a_warm_request_that_outlives_its_hold_becomes_a_job_and_is_computed_once(desk: Desk) -> None:
    async with desk.worker():
        desk.hold.clear()
        answer = await desk.encode("slow", Prefer="wait=0.05")
        assert answer.status_code == 202
        desk.hold.set()
        done = await desk.client.get(answer.headers["location"], headers={"Prefer": "wait=10"})
    assert lengths(done.json()) == [4]
    assert len(desk.computed) == 1


async def test_who_does_not_want_to_wait_gets_a_job_even_where_the_answer_is_known(desk: Desk) -> None:
    async with desk.worker():
        known = await desk.encode("known", Idempotency_Key="k")
        for _ in range(2):
            answer = await desk.encode("known", Idempotency_Key="k", Prefer="wait=0")
            assert (answer.status_code, answer.headers["preference-applied"]) == (202, "wait=0")
            job = await desk.client.get(answer.headers["location"], headers={"Prefer": "wait=10"})
            assert job.json() == known.json()
        assert len(desk.computed) == 1
        other = await desk.encode("other", Prefer="wait=0")
        assert other.status_code == 202
        await desk.client.get(other.headers["location"], headers={"Prefer": "wait=10"})
    assert len(desk.computed) == 2


async def test_the_same_idempotency_key_is_one_job_while_cold(desk: Desk) -> None:
    first = await desk.encode("one", Idempotency_Key="k1")
    again = await desk.encode("one", Idempotency_Key="k1")
    other = await desk.encode("one", Idempotency_Key="k2")
    assert first.headers["location"] == again.headers["location"] != other.headers["location"]
    async with desk.worker():
        done = await desk.encode("one", Idempotency_Key="k1", Prefer="wait=10")
        assert lengths(done.json()) == [3]
        await desk.client.get(other.headers["location"], headers={"Prefer": "wait=10"})
    assert len(desk.computed) == 2


async def test_the_same_idempotency_key_is_computed_once_while_warm(desk: Desk) -> None:
    async with desk.worker():
        desk.hold.clear()
        both = [asyncio.create_task(desk.encode("twin", Idempotency_Key="k")) for _ in range(2)]
        await eventually(lambda: len(desk.computed) == 1)
        desk.hold.set()
        answers = [await each for each in both]
        later = await desk.encode("twin", Idempotency_Key="k")
    assert [lengths(each.json()) for each in [*answers, later]] == [[4]] * 3
    assert len(desk.computed) == 1


async def test_an_error_that_may_pass_is_computed_again_under_the_same_key_however_often(desk: Desk) -> None:
    key = uuid.uuid4().hex
    async with desk.worker():
        refused = await desk.encode("later", Idempotency_Key=key)
        assert (refused.status_code, refused.json()["error"]["code"]) == (503, "RESOURCE_EXHAUSTED")
        async with asyncio.timeout(20):
            answers = await asyncio.gather(*(desk.encode("later", Idempotency_Key=key) for _ in range(3)))
        assert [lengths(answer.json()) for answer in answers] == [[5]] * 3
        assert len(desk.computed) == 2
        assert lengths((await desk.encode("later", Idempotency_Key=key)).json()) == [5]
        assert len(desk.computed) == 2


async def test_a_repeat_that_looks_late_gets_what_another_had_computed_again(
    desk: Desk, monkeypatch: pytest.MonkeyPatch
) -> None:
    key = uuid.uuid4().hex
    looked, go_on = asyncio.Event(), asyncio.Event()
    queued = desk.broker.queued

    async def slowly(lane: Lane, sequence: int) -> bool:
        found = await queued(lane, sequence)
        looked.set()
        await go_on.wait()
        return found

    async with desk.worker():
        assert (await desk.encode("later", Idempotency_Key=key)).status_code == 503
        monkeypatch.setattr(desk.broker, "queued", slowly)
        late = asyncio.create_task(desk.encode("later", Idempotency_Key=key))
        await looked.wait()
        monkeypatch.setattr(desk.broker, "queued", queued)
        assert lengths((await desk.encode("later", Idempotency_Key=key)).json()) == [5]
        go_on.set()
        assert lengths((await late).json()) == [5]
    assert len(desk.computed) == 2


@pytest.mark.parametrize("a_key", [lambda: uuid.uuid4().hex, fresh_key])
async def test_a_job_that_failed_with_an_error_that_may_pass_is_done_anew_when_its_request_is_repeated(
    desk: Desk, a_key: Callable[[], str]
) -> None:
    key = a_key()
    cold = await desk.encode("later", Idempotency_Key=key)
    location = cold.headers["location"]
    async with desk.worker():
        failed = await desk.client.get(location, headers={"Prefer": "wait=10"})
        assert failed.json()["error"]["code"] == "RESOURCE_EXHAUSTED"
        assert (await desk.client.get(location)).status_code == 503
        repeats = [desk.encode("later", Idempotency_Key=key, Prefer="wait=10") for _ in range(2)]
        assert [lengths(answer.json()) for answer in await asyncio.gather(*repeats)] == [[5], [5]]
        assert lengths((await desk.client.get(location)).json()) == [5]
    assert len(desk.computed) == 2


async def test_a_reused_idempotency_key_with_another_request_is_refused(desk: Desk) -> None:
    await desk.encode("one", Idempotency_Key="k")
    answer = await desk.encode("two", Idempotency_Key="k")
    assert answer.status_code == 422
    assert answer.json()["error"]["code"] == "IDEMPOTENCY_MISMATCH"


async def test_published_clients_get_503_and_nothing_is_queued_while_cold(desk: Desk) -> None:
    answer = await desk.encode("old", X_SIE_SDK_Version="0.10.1")
    assert answer.status_code == 503
    assert answer.json()["error"]["code"] == answer.headers["x-sie-error-code"] == "PROVISIONING"
    assert float(answer.headers["retry-after"]) > 0
    assert await desk.broker.backlog() == {}


async def test_published_clients_never_get_a_202_when_a_warm_request_takes_too_long(desk: Desk) -> None:
    async with desk.worker():
        desk.hold.clear()
        answer = await desk.encode("slow", Prefer="wait=0.05", X_SIE_SDK_Version="0.10.1")
        assert answer.status_code == 504
        assert answer.headers["x-sie-error-code"] == "DEADLINE_EXCEEDED"


async def test_bad_input_found_by_the_worker_reaches_the_caller_and_the_next_request_works(desk: Desk) -> None:
    async with desk.worker():
        refused = await desk.encode("refuse")
        crashed = await desk.encode("crash")
        fine = await desk.encode("fine")
    assert refused.status_code == 400
    assert refused.json()["error"]["param"] == "items[0].text"
    assert crashed.status_code == 500
    assert "secret" not in crashed.text
    assert fine.status_code == 200


@pytest.mark.parametrize(
    ("body", "code", "field"),
    [
        (b"{", "INVALID_INPUT", "body"),
        (b'{"items": []}', "INVALID_INPUT", "items"),
        (b'{"items": [{}]}', "INVALID_INPUT", "items[0]"),
        (b'{"items": [{"text": 3}]}', "INVALID_INPUT", "items[0].text"),
        (b'{"items": [{"text": "a"}], "params": {"output_types": ["fuzzy"]}}', "INVALID_INPUT", "params.output_types"),
        (b'{"items": [{"text": "' + b"x" * 30_000 + b'"}]}', "PAYLOAD_TOO_LARGE", "body"),
    ],
)
async def test_bad_bodies_get_a_typed_error_that_names_the_field(
    desk: Desk, body: bytes, code: str, field: str
) -> None:
    answer = await desk.client.post(ROUTE, content=body, headers={"Content-Type": wire.JSON})
    error = answer.json()["error"]
    assert error["code"] == code == answer.headers["x-sie-error-code"]
    assert error["param"].startswith(field)
    assert error["hint"]
    assert 400 <= answer.status_code < 500
    assert await desk.broker.backlog() == {}


async def test_a_body_that_grows_over_the_limit_without_saying_so_is_refused_on_the_way(desk: Desk) -> None:
    sent = 0

    async def endless() -> object:
        nonlocal sent
        while True:
            sent += 1000
            yield b"x" * 1000

    answer = await desk.client.post(ROUTE, content=endless(), headers={"Content-Type": wire.JSON})  # type: ignore[arg-type]
    assert answer.status_code == 413
    assert answer.json()["error"]["limit"] == 20_000
    assert sent < 40_000


async def test_an_unknown_model_is_404_with_the_nearest_name(desk: Desk) -> None:
    answer = await desk.client.post("/v1/encode/org/counting-modle", json={"items": [{"text": "a"}]})
    assert answer.status_code == 404
    assert answer.json()["error"]["nearest"][0] == MODEL
    assert MODEL in answer.json()["error"]["hint"]


async def test_model_names_are_found_in_any_case(desk: Desk) -> None:
    answer = await desk.client.get(f"/v1/models/{MODEL.upper()}")
    assert answer.json()["name"] == MODEL


async def test_a_slash_too_many_is_no_redirect_but_a_typed_error(desk: Desk) -> None:
    answer = await desk.client.post("/v1/pools/", json={})
    assert answer.status_code == 404
    assert answer.json()["error"]["code"] == "NOT_FOUND"


async def test_a_refused_method_is_told_of_all_that_are_allowed_there(desk: Desk) -> None:
    wrong = await desk.client.options("/v1/pools/team-a")
    assert wrong.status_code == 405
    assert wrong.headers["allow"] == "DELETE, GET, HEAD"


async def test_wrong_methods_and_routes_get_typed_errors(desk: Desk) -> None:
    wrong = await desk.client.get(ROUTE)
    assert wrong.status_code == 405
    assert wrong.headers["allow"] == "POST"
    assert wrong.json()["error"]["code"] == "METHOD_NOT_ALLOWED"
    nowhere = await desk.client.get("/v2/nothing")
    assert (nowhere.status_code, nowhere.json()["error"]["code"]) == (404, "NOT_FOUND")
    no_job = await desk.client.get("/v1/jobs/nope")
    assert (no_job.status_code, no_job.json()["error"]["code"]) == (404, "JOB_NOT_FOUND")


async def test_a_form_body_is_refused_with_the_types_that_are_read(desk: Desk) -> None:
    answer = await desk.client.post(ROUTE, data={"a": "b"})
    assert answer.status_code == 415
    assert "application/json" in answer.json()["error"]["hint"]


async def test_a_request_id_is_echoed(desk: Desk) -> None:
    answer = await desk.client.get("/v1/models", headers={"X-Request-ID": "abc123"})
    assert answer.headers["x-request-id"] == "abc123"


async def test_a_preference_that_is_no_number_is_refused(desk: Desk) -> None:
    answer = await desk.encode("a", Prefer="wait=soon")
    assert answer.status_code == 400
    assert answer.json()["error"]["param"] == "Prefer"


async def test_a_key_that_is_no_fresh_uuid7_is_looked_up_and_a_fresh_one_is_still_computed_once(desk: Desk) -> None:
    now = 1_800_000_000.0
    fresh = f"{int(now * 1000) << 80 | 0x7 << 76 | 0x2 << 62:032x}"
    assert made_just_now(fresh, now + 59)
    assert not made_just_now(fresh, now + 61)
    assert not made_just_now(fresh, now - 1)
    assert not made_just_now("my-key", now)
    assert not made_just_now(uuid.uuid4().hex, now)
    key = fresh_key()
    async with desk.worker():
        answers = [await desk.encode("twin", Idempotency_Key=key) for _ in range(2)]
    assert [lengths(each.json()) for each in answers] == [[4], [4]]
    assert len(desk.computed) == 1


async def test_the_status_page_is_served_and_says_what_it_is(desk: Desk) -> None:
    answer = await desk.client.get("/")
    assert answer.status_code == 200
    assert answer.headers["content-type"].startswith("text/html")
    assert "<title>sie-knative</title>" in answer.text


@pytest.mark.parametrize(("length", "on_the_loop"), [(10, True), (200_000, False)])
async def test_a_large_body_is_read_beside_the_event_loop(
    broker: Broker, monkeypatch: pytest.MonkeyPatch, length: int, on_the_loop: bool
) -> None:
    threads: list[threading.Thread] = []
    read = wire.PARSERS["encode"]

    def noted(*arguments: Any, **limits: Any) -> Any:
        threads.append(threading.current_thread())
        return read(*arguments, **limits)

    monkeypatch.setitem(wire.PARSERS, "encode", noted)
    async with opened(broker, max_body_bytes=2_000_000) as desk:
        assert (await desk.encode("a" * length, Prefer="wait=0")).status_code == 202
    assert [thread is threading.main_thread() for thread in threads] == [on_the_loop]
