"""The bundle as a CloudEvents function: sessions that shape scaling, and single events that are answered."""

from __future__ import annotations

import asyncio
import time
from base64 import b64encode
from datetime import UTC, datetime

import httpx
import msgspec
import numpy as np
import pytest

from sie_broker.ending import end
from sie_broker.events.envelope import AVAILABLE_TYPE
from sie_broker.memory import MemoryBroker
from sie_broker.records import Work
from sie_bundle.door import SESSION, Door
from sie_bundle.presence import Counts, Presence
from sie_config.model.model_spec import Profile
from sie_config.registry import Registry, lane_of
from sie_sdk import replies, results, wire
from sie_sdk.errors import ModelLoadingError
from sie_sdk.outputs import DenseOutput
from sie_sdk.replies import Extracted
from sie_sdk.types import Classification, EncodeRequest, Item, Timing, Usage
from tests.conftest import eventually
from tests.ingress.conftest import MODEL, SPEC

TRACE = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"
EVENT = {"ce-specversion": "1.0", "ce-id": "e%201", "ce-source": "/test"}


class Bundle:
    def __init__(self) -> None:
        self.presence = Presence(MemoryBroker(), lane_of(SPEC), lambda: Counts(completed=7))
        profiled = msgspec.structs.replace(SPEC, profiles={"light": Profile({"normalize": False})})
        self.door = Door(self.presence, Registry([profiled]), self.run, max_body_bytes=100_000)
        self.failure: Exception | None = None
        self.asked: Work | None = None
        self.client = httpx.AsyncClient(transport=httpx.ASGITransport(self.door.app()), base_url="http://bundle")

    async def run(self, work: Work) -> bytes:
        self.asked = work
        if self.failure is not None:
            raise self.failure
        match work.op:
            case "encode":
                encode = wire.parse_encode(work.data, wire.MSGPACK)
                lengths = np.array([[len(item.text or "")] for item in encode.items], dtype=np.float32)
                dense = DenseOutput(lengths, 1, "float32")
                return replies.encode(work.model, [None] * len(lengths), {"dense": dense}, Timing(), Usage())
            case "score":
                score = wire.parse_score(work.data, wire.MSGPACK)
                scores = np.array([len(item.text or "") for item in score.items], np.float32)
                return replies.score(work.model, scores, [None] * len(scores), score.query.id, Timing(), Usage())
            case _:
                extract = wire.parse_extract(work.data, wire.MSGPACK)
                found = [Extracted([], [Classification(item.text or "", 1.0)]) for item in extract.items]
                return replies.extract(work.model, [None] * len(found), found, Timing(), Usage())

    async def infer(self, operation: str, body: object, **headers: str) -> httpx.Response:
        event = EVENT | {"ce-type": f"dev.sie.{operation}.v1", "ce-model": MODEL}
        return await self.client.post("/", json=body, headers=event | headers)

    async def session(self, seconds: float) -> httpx.Response:
        end = datetime.fromtimestamp(time.time() + seconds, UTC).isoformat().replace("+00:00", "Z")
        return await self.client.post("/", headers=EVENT | {"ce-type": AVAILABLE_TYPE, "ce-holduntil": end})


@pytest.fixture
def bundle() -> Bundle:
    return Bundle()


async def test_a_session_is_held_until_its_end_and_answered_with_an_event(bundle: Bundle) -> None:
    until = time.time() + 0.2
    answer = await bundle.session(0.2)
    assert time.time() >= until - 0.01
    assert answer.status_code == 200
    assert answer.headers["ce-type"] == SESSION
    assert answer.headers["ce-specversion"] == "1.0"
    assert answer.json() == {"worker": bundle.presence.worker, "draining": False, "completed": 7}


async def test_a_session_whose_end_has_passed_is_answered_at_once(bundle: Bundle) -> None:
    assert (await bundle.session(-5)).status_code == 200


async def test_a_draining_worker_ends_its_sessions_at_once(bundle: Bundle) -> None:
    held = asyncio.create_task(bundle.session(3600))
    await asyncio.sleep(0)
    bundle.door.draining.set()
    async with asyncio.timeout(5):
        assert (await held).json()["draining"] is True


async def test_a_session_whose_request_is_given_up_leaves_no_task_behind(bundle: Bundle) -> None:
    before = asyncio.all_tasks()
    held = asyncio.create_task(bundle.session(3600))
    await eventually(lambda: len(asyncio.all_tasks() - before) == 3)  # itself, and two that it waits for
    await end(held)
    assert asyncio.all_tasks() == before


async def test_a_session_without_an_end_is_refused(bundle: Bundle) -> None:
    answer = await bundle.client.post("/", headers=EVENT | {"ce-type": AVAILABLE_TYPE})
    assert answer.status_code == 400
    assert answer.json()["error"]["param"] == "holduntil"


async def test_an_inference_event_is_answered_with_the_result_event(bundle: Bundle) -> None:
    answer = await bundle.infer("encode", {"items": [{"text": "four"}]}, **{"ce-traceparent": TRACE})
    assert answer.status_code == 200
    assert answer.json()["items"][0]["dense"]["values"] == [4.0]
    said = {name: answer.headers[f"ce-{name}"] for name in ("id", "type", "status", "causationid", "traceparent")}
    assert said == {
        "id": "e%201",
        "type": "dev.sie.result.v1",
        "status": "200",
        "causationid": "e%201",
        "traceparent": TRACE,
    }
    assert abs(datetime.fromisoformat(answer.headers["ce-time"]).timestamp() - time.time()) < 60


async def test_an_event_of_any_type_is_computed_when_it_names_the_operation(bundle: Bundle) -> None:
    headers = {"ce-type": "dev.knative.sources.ping", "ce-operation": "encode"}
    answer = await bundle.infer("encode", {"items": [{"text": "four"}]}, **headers)
    assert (answer.status_code, answer.headers["ce-type"]) == (200, "dev.sie.result.v1")
    assert answer.json()["items"][0]["dense"]["values"] == [4.0]


async def test_a_profile_is_put_into_the_request_and_does_not_travel_on(bundle: Bundle) -> None:
    body = {"items": [{"text": "a"}], "params": {"options": {"is_query": True}}}
    for answer in (
        await bundle.infer("encode", body, **{"ce-model": f"{MODEL}:light"}),
        await bundle.infer("encode", {**body, "params": {"options": {"is_query": True, "profile": "light"}}}),
    ):
        assert answer.status_code == 200
        assert bundle.asked is not None and bundle.asked.model == MODEL
        assert msgspec.msgpack.decode(bundle.asked.data)["params"]["options"] == {"is_query": True, "normalize": False}


async def test_an_event_in_structured_mode_is_answered_in_structured_mode_to_whoever_accepts_it(bundle: Bundle) -> None:
    data = wire.request_body(EncodeRequest([Item(text="four")]))
    event = {
        "specversion": "1.0",
        "id": "1",
        "source": "/test",
        "type": "dev.sie.encode.v1",
        "model": MODEL,
        "datacontenttype": wire.MSGPACK,
        "data_base64": b64encode(data).decode(),
    }
    headers = {"Content-Type": "application/cloudevents+json; charset=utf-8", "ce-stray": "x"}
    binary = await bundle.client.post("/", json=event, headers=headers)
    assert binary.headers["content-type"] == wire.MSGPACK
    both = headers | {"Accept": "application/cloudevents+json, application/json"}
    structured = await bundle.client.post("/", json=event, headers=both)
    assert structured.headers["content-type"] == "application/cloudevents+json"
    assert structured.json()["data"]["items"][0]["dense"]["values"] == [4.0]
    assert structured.json()["status"] == 200


async def test_a_batch_is_refused(bundle: Bundle) -> None:
    headers = {"Content-Type": "application/cloudevents-batch+json"}
    answer = await bundle.client.post("/", content=b"[]", headers=headers)
    assert answer.status_code == 415
    assert "/v1/events" in answer.json()["error"]["hint"]


async def test_a_request_that_fails_is_answered_with_a_result_event_that_says_so(bundle: Bundle) -> None:
    bundle.failure = ModelLoadingError("Loading.", retry_after=2.0)
    answer = await bundle.infer("encode", {"items": [{"text": "four"}]})
    assert answer.status_code == 503
    assert (answer.headers["ce-status"], answer.headers["retry-after"]) == ("503", "2")
    assert answer.json()["error"]["code"] == answer.headers["x-sie-error-code"] == "MODEL_LOADING"


async def test_an_event_is_computed_before_it_expires_or_not_at_all(bundle: Bundle) -> None:
    soon = datetime.fromtimestamp(time.time() + 60, UTC).isoformat()
    answer = await bundle.infer("encode", {"items": [{"text": "hello"}]}, **{"ce-expirytime": soon})
    assert answer.status_code == 200
    assert bundle.asked is not None and bundle.asked.deadline == datetime.fromisoformat(soon).timestamp()
    late = {"ce-expirytime": "2020-01-01T00:00:00Z"}
    refused = await bundle.infer("encode", {"items": [{"text": "hello"}]}, **late)
    assert (refused.status_code, refused.headers["x-sie-error-code"]) == (400, "DEADLINE_EXCEEDED")


async def test_scores_and_extractions_are_events_of_their_own(bundle: Bundle) -> None:
    scored = await bundle.infer("score", {"query": {"text": "q"}, "items": [{"text": "a"}, {"text": "four"}]})
    assert [entry["score"] for entry in scored.json()["scores"]] == [4.0, 1.0]
    packed = await bundle.infer("extract", {"items": [{"text": "four"}]}, accept=wire.MSGPACK)
    (result,) = results.read_extract(packed.content)
    assert result.classifications == [Classification("four", 1.0)]


async def test_an_event_whose_body_is_not_of_its_operation_is_refused(bundle: Bundle) -> None:
    answer = await bundle.infer("score", {"items": [{"text": "a"}]})
    assert answer.status_code == 400
    assert "query" in answer.json()["error"]["message"]


@pytest.mark.parametrize(
    ("headers", "field"),
    [
        ({}, "ce-specversion"),
        (EVENT, "ce-type"),
        (EVENT | {"ce-type": "dev.sie.encode.v1"}, "ce-model"),
        (EVENT | {"ce-type": "dev.sie.invent.v1", "ce-model": MODEL}, "ce-type"),
        # Senders of events come again after a 404, and the model will still not be there.
        (EVENT | {"ce-type": "dev.sie.encode.v1", "ce-model": "nope"}, "ce-model"),
    ],
)
async def test_what_is_no_inference_event_is_refused(bundle: Bundle, headers: dict[str, str], field: str) -> None:
    answer = await bundle.client.post("/", json={"items": [{"text": "a"}]}, headers=headers)
    assert answer.status_code == 400
    assert answer.json()["error"]["param"] == field
    assert answer.json()["error"]["code"] == answer.headers["x-sie-error-code"]


async def test_it_is_ready_only_while_it_pulls(bundle: Bundle) -> None:
    assert (await bundle.client.get("/readyz")).status_code == 503
    bundle.presence.became("ready")
    assert (await bundle.client.get("/readyz")).status_code == 200
    bundle.presence.became("draining")
    assert (await bundle.client.get("/readyz")).status_code == 503


async def test_an_event_over_the_limit_is_refused_with_the_limit(bundle: Bundle) -> None:
    answer = await bundle.infer("encode", {"items": [{"text": "a" * 100_000}]})
    assert answer.status_code == 413
    assert answer.json()["error"]["code"] == "PAYLOAD_TOO_LARGE" and answer.json()["error"]["limit"] == 100_000
    assert bundle.asked is None


async def test_what_its_sender_has_hung_up_on_is_not_computed_any_further(
    bundle: Bundle, monkeypatch: pytest.MonkeyPatch
) -> None:
    begun, ended = asyncio.Event(), asyncio.Event()

    async def endless(work: Work) -> bytes:
        begun.set()
        try:
            return await asyncio.Future()
        finally:
            ended.set()

    async def receive() -> dict[str, object]:
        if not begun.is_set() and not sent:
            sent.append(True)
            return {"type": "http.request", "body": b'{"items": [{"text": "four"}]}', "more_body": False}
        await begun.wait()
        return {"type": "http.disconnect"}

    async def send(_: object) -> None:
        """Nobody listens."""

    sent: list[bool] = []
    headers = EVENT | {"ce-type": "dev.sie.encode.v1", "ce-model": MODEL, "content-type": "application/json"}
    raw = [(name.encode(), value.encode()) for name, value in headers.items()]
    scope = {"type": "http", "method": "POST", "path": "/", "query_string": b"", "headers": raw}
    monkeypatch.setattr(bundle.door, "_run", endless)
    async with asyncio.timeout(10):
        await bundle.door.app()(scope, receive, send)
    assert ended.is_set()


async def test_a_worker_that_leaves_refuses_what_it_has_no_time_for_and_takes_nothing_more(
    bundle: Bundle, monkeypatch: pytest.MonkeyPatch
) -> None:
    begun = list[Work]()

    async def endless(work: Work) -> bytes:
        begun.append(work)
        return await asyncio.Future()

    monkeypatch.setattr(bundle.door, "_run", endless)
    asked = asyncio.create_task(bundle.infer("encode", {"items": [{"text": "a"}]}))
    await eventually(lambda: bool(begun))
    async with asyncio.timeout(10):
        await bundle.door.drain(0.0)
        for answer in (await asked, await bundle.infer("encode", {"items": [{"text": "b"}]})):
            assert (answer.status_code, answer.headers["retry-after"]) == (503, "1")
            assert answer.json()["error"]["code"] == "UNAVAILABLE"
    assert len(begun) == 1


async def test_an_error_that_nobody_expected_is_answered_as_through_the_queue_and_told_to_the_log_alone(
    bundle: Bundle, caplog: pytest.LogCaptureFixture
) -> None:
    bundle.failure = RuntimeError("secret")
    answer = await bundle.infer("encode", {"items": [{"text": "a"}]})
    assert (answer.status_code, answer.headers["x-sie-error-code"]) == (500, "INTERNAL_ERROR")
    assert answer.json()["error"]["code"] == "INTERNAL_ERROR" and answer.headers["ce-causationid"] == "e%201"
    assert "secret" in caplog.text and "secret" not in answer.text
