"""What every answer carries: ids, versions, the caller's trace, and a Retry-After its reader can read."""

from __future__ import annotations

import asyncio

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sie_broker.records import Work
from sie_ingress import trace_context
from sie_ingress.trace_context import STATE_CHARACTERS, Trace
from sie_sdk.version import PROTOCOL_VERSION, __version__
from tests.conftest import eventually
from tests.ingress.conftest import MODEL, ROUTE, Desk

ID = "4bf92f3577b34da6a3ce929d0e0e4736"
TRACE = f"00-{ID}-00f067aa0ba902b7-01"
SDK = {"X_SIE_SDK_Version": "0.10.1"}
INVALID = (
    "",
    "garbage",
    TRACE.upper(),
    TRACE + "-more",
    TRACE.replace("00-", "ff-", 1),
    TRACE.replace(ID, "0" * 32),
    TRACE.replace("00f067aa0ba902b7", "0" * 16),
    f"{TRACE}, {TRACE}",
)


async def test_answers_of_every_kind_name_the_request_both_versions_and_the_trace(desk: Desk) -> None:
    async with desk.worker():
        result = await desk.encode("a", traceparent=TRACE)
    cold = await desk.encode("b", traceparent=TRACE)
    job = await desk.client.get(cold.headers["location"], headers={"traceparent": TRACE})
    async with desk.worker():
        done = await desk.client.get(cold.headers["location"], headers={"traceparent": TRACE, "Prefer": "wait=10"})
    wrong = await desk.client.get("/nowhere", headers={"traceparent": TRACE})
    method = await desk.client.put(ROUTE, headers={"traceparent": TRACE})
    refused = await desk.post(ROUTE, {"items": []}, traceparent=TRACE)
    answers = [result, cold, job, done, wrong, method, refused]
    assert [answer.status_code for answer in answers] == [200, 202, 202, 200, 404, 405, 400]
    for answer in (result, done):
        assert answer.headers["x-sie-worker"] and answer.headers["x-sie-model-revision"] == "0"
        assert float(answer.headers["x-total-time"]) == 5.375
        assert answer.headers["x-sie-units-input-tokens"] == "1"
    for answer in answers:
        assert answer.headers["x-request-id"] == answer.headers["x-sie-request-id"]
        assert answer.headers["x-sie-server-version"] == PROTOCOL_VERSION
        assert answer.headers["x-sie-version"] == __version__
        assert answer.headers["traceparent"] == TRACE
        assert answer.headers["x-trace-id"] == ID
    assert len({answer.headers["x-request-id"] for answer in answers}) == len(answers)


async def test_a_failed_request_is_found_in_both_logs_by_what_its_caller_was_told(
    desk: Desk, caplog: pytest.LogCaptureFixture
) -> None:
    async with desk.worker():
        answer = await desk.encode("crash", X_Request_ID="mine-1")
        embedded = await desk.post("/v1/embeddings", {"input": "crash", "model": MODEL}, X_Request_ID="mine-2")
        await desk.encode("refuse", X_Request_ID="mine-3")
    assert (answer.status_code, embedded.status_code, answer.headers["x-request-id"]) == (500, 500, "mine-1")
    ingress = [record.getMessage() for record in caplog.records if record.name == "sie.ingress.identity"]
    worker = [record.getMessage() for record in caplog.records if record.name == "sie.bundle.worker"]
    for line, name, work in zip(ingress, ("mine-1", "mine-2"), worker, strict=True):
        assert f"request {name} failed" in line and "500 INTERNAL_ERROR" in line
        assert line.rpartition(" ")[2] in work
    assert ingress[0].rpartition(" ")[2] in answer.json()["error"]["hint"]


async def test_what_nobody_expected_of_the_ingress_is_logged_under_the_request_s_id(
    desk: Desk, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(desk.registry, "specs", lambda: 1 / 0)
    answer = await desk.client.get("/v1/models", headers={"X-Request-ID": "mine-4"})
    assert answer.status_code == 500
    assert "request mine-4 failed: ZeroDivisionError" in caplog.text


@pytest.mark.parametrize("sent", [{"traceparent": TRACE, "tracestate": "vendor=1"}, {"tracestate": "vendor=1"}, {}])
async def test_a_trace_and_its_state_reach_the_worker_and_no_state_does_alone(desk: Desk, sent: dict[str, str]) -> None:
    seen: list[Work] = []

    async def look(work: Work) -> bytes:
        seen.append(work)
        return await desk.count(work)

    async with desk.worker(look):
        assert (await desk.encode("a", **sent)).status_code == 200
    expected = (TRACE, "vendor=1") if "traceparent" in sent else (None, None)
    assert (seen[0].traceparent, seen[0].tracestate) == expected


@pytest.mark.parametrize("wrong", INVALID)
async def test_an_invalid_trace_is_ignored_and_none_is_begun(desk: Desk, wrong: str) -> None:
    answer = await desk.encode("a", traceparent=wrong)
    assert answer.status_code == 202
    assert "traceparent" not in answer.headers and "x-trace-id" not in answer.headers


@given(st.lists(st.text(max_size=80), max_size=3), st.lists(st.text(max_size=80), max_size=3))
def test_whatever_is_sent_as_a_trace_is_a_valid_one_or_none(parents: list[str], states: list[str]) -> None:
    found = trace_context.read(parents, states)
    assert found is None or (len(parents) == 1 and parents[0].strip() == found.parent)


def test_a_later_version_of_the_header_is_carried_on_as_it_is() -> None:
    later = TRACE.replace("00-", "cc-", 1) + "-what-the-future-brings"
    assert trace_context.read([later]) == Trace(later)
    assert Trace(later).id == ID


def test_a_later_version_of_more_than_256_characters_counts_as_none() -> None:
    longest = TRACE.replace("00-", "cc-", 1) + "-" + "x" * 200
    assert len(longest) == 256 and trace_context.read([longest]) == Trace(longest)
    assert trace_context.read([longest + "x"]) is None


def test_a_state_is_one_list_of_all_its_headers_and_left_out_when_it_is_too_long_or_not_text() -> None:
    assert trace_context.read([TRACE], ["a=1 ", " b=2", ""]) == Trace(TRACE, "a=1,b=2")
    assert trace_context.read([TRACE], ["a=" + "x" * STATE_CHARACTERS]) == Trace(TRACE)
    assert trace_context.read([TRACE], ["a=\x00"]) == Trace(TRACE)
    assert trace_context.read([TRACE, TRACE]) is None
    assert trace_context.read(["broken"], ["a=1"]) is None


async def test_only_clients_that_read_fractions_get_them_in_retry_after(desk: Desk) -> None:
    for _ in range(2):
        whole = await desk.encode("a")
        assert whole.headers["retry-after"] == "3"
    ours = await desk.encode("a", User_Agent="sie-knative/0.1.0")
    assert 0 < float(ours.headers["retry-after"]) <= 3 and ours.status_code == 202
    theirs = await desk.encode("a", **SDK)
    assert theirs.status_code == 503 and theirs.json()["error"]["code"] == "PROVISIONING"
    # Half of what is left of the cold start that is expected to take three seconds.
    assert 0.25 <= float(theirs.headers["retry-after"]) <= 1.5


async def test_a_published_client_is_told_to_come_back_when_the_server_leaves_while_it_waits(desk: Desk) -> None:
    desk.hold.clear()
    async with desk.worker():
        asked = asyncio.create_task(desk.encode("a", **SDK))
        await eventually(lambda: bool(desk.computed))
        desk.readiness.leave()
        told = await asked
    assert (told.status_code, told.headers["x-sie-error-code"]) == (503, "PROVISIONING")
    assert float(told.headers["retry-after"]) == 0.5
