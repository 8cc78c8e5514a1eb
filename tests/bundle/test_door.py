"""The bundle as a CloudEvents function: sessions that shape scaling, and single events that are answered."""

from __future__ import annotations

import asyncio
import time
from datetime import UTC, datetime

import httpx
import numpy as np
import pytest

from sie_broker.contract import Work
from sie_broker.memory import MemoryBroker
from sie_bundle.door import DEMAND, SESSION, Door
from sie_bundle.presence import Presence
from sie_config.registry import Registry, lane_of
from sie_sdk import replies, results, wire
from sie_sdk.outputs import DenseOutput
from sie_sdk.replies import Extracted
from sie_sdk.types import Classification, Timing, Usage
from tests.ingress.conftest import MODEL, SPEC


class Bundle:
    def __init__(self) -> None:
        self.presence = Presence(MemoryBroker(), lane_of(SPEC), lambda: ((), 0, 7, 0))
        self.door = Door(self.presence, Registry([SPEC]), self.run)
        self.client = httpx.AsyncClient(transport=httpx.ASGITransport(self.door.app()), base_url="http://bundle")

    async def run(self, work: Work) -> bytes:
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
        event = {"ce-specversion": "1.0", "ce-type": f"dev.sie.{operation}.v1", "ce-id": "e 1", "ce-model": MODEL}
        return await self.client.post("/", json=body, headers=event | headers)

    async def session(self, seconds: float) -> httpx.Response:
        end = datetime.fromtimestamp(time.time() + seconds, UTC).isoformat().replace("+00:00", "Z")
        return await self.client.post("/", headers={"ce-type": DEMAND, "ce-id": "1", "ce-holduntil": end})


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


async def test_a_session_without_an_end_is_refused(bundle: Bundle) -> None:
    answer = await bundle.client.post("/", headers={"ce-type": DEMAND, "ce-id": "1"})
    assert answer.status_code == 400
    assert answer.json()["error"]["param"] == "holduntil"


async def test_an_inference_event_is_answered_with_the_result_event(bundle: Bundle) -> None:
    answer = await bundle.infer("encode", {"items": [{"text": "four"}]})
    assert answer.status_code == 200
    assert answer.headers["ce-type"] == "dev.sie.result.v1"
    assert answer.headers["ce-id"] == "e%201"
    assert answer.json()["items"][0]["dense"]["values"] == [4.0]


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
    ("headers", "status"),
    [
        ({}, 400),
        ({"ce-type": "dev.sie.encode.v1"}, 400),
        ({"ce-type": "dev.sie.invent.v1", "ce-id": "1", "ce-model": MODEL}, 400),
        ({"ce-type": "dev.sie.encode.v1", "ce-id": "1", "ce-model": "nope"}, 404),
    ],
)
async def test_what_is_no_inference_event_is_refused(bundle: Bundle, headers: dict[str, str], status: int) -> None:
    answer = await bundle.client.post("/", json={"items": [{"text": "a"}]}, headers=headers)
    assert answer.status_code == status
    assert answer.json()["error"]["code"] == answer.headers["x-sie-error-code"]


async def test_it_is_ready_only_while_it_pulls(bundle: Bundle) -> None:
    assert (await bundle.client.get("/readyz")).status_code == 503
    bundle.presence.became("ready")
    assert (await bundle.client.get("/readyz")).status_code == 200
    bundle.presence.became("draining")
    assert (await bundle.client.get("/readyz")).status_code == 503
