"""A planned model is told of and served nowhere: whatever way a request comes, it is refused with what is missing."""

from __future__ import annotations

import asyncio
from typing import Any

import msgspec
import pytest

from sie_broker.contract import Broker
from sie_config.registry import Registry
from sie_ingress.models import fleet, info
from sie_sdk.errors import ModelPlannedError
from sie_sdk.refusals import read_error
from sie_sdk.types import ModelLoadError
from tests.conftest import eventually
from tests.ingress.conftest import EVERYTHING, SPEC, Desk, opened

WAITS = "GLiNER's span head"
PLANNED = msgspec.structs.replace(EVERYTHING, id="org/planned", status="planned", blocked_by=WAITS, inputs=("image",))
ITEMS = {"items": [{"text": "a"}]}
EVENT = {"specversion": "1.0", "id": "1", "source": "/me", "type": "dev.sie.encode.v1", "model": PLANNED.id}


@pytest.mark.parametrize(
    ("route", "body", "headers"),
    [
        (f"/v1/encode/{PLANNED.id}", ITEMS, {}),
        (f"/v1/encode/{PLANNED.id}", ITEMS, {"X-SIE-SDK-Version": "0.10.1"}),
        (f"/v1/score/{PLANNED.id}", {"query": {"text": "q"}, **ITEMS}, {}),
        (f"/v1/extract/{PLANNED.id}", ITEMS, {}),
        ("/v1/embeddings", {"model": PLANNED.id, "input": "a"}, {}),
        ("/v2/embed", {"model": PLANNED.id, "texts": ["a"], "input_type": "search_query"}, {}),
        ("/v2/rerank", {"model": PLANNED.id, "query": "q", "documents": ["a"]}, {}),
        ("/embed", {"inputs": "a"}, {"X-SIE-Model": PLANNED.id}),
        (f"/tei/{PLANNED.id}/rerank", {"query": "q", "texts": ["a"]}, {}),
    ],
)
async def test_a_request_is_refused_on_every_route_before_anything_is_queued(
    desk: Desk, route: str, body: dict[str, Any], headers: dict[str, str]
) -> None:
    desk.registry.put(PLANNED)
    answer = await desk.client.post(route, json=body, headers=headers)
    assert (answer.status_code, answer.headers["x-sie-error-code"]) == (501, "MODEL_PLANNED")
    assert WAITS in answer.text
    assert "retry-after" not in answer.headers


async def test_an_event_is_refused_with_a_status_after_which_it_is_not_sent_again(desk: Desk) -> None:
    desk.registry.put(PLANNED)
    headers = {f"ce-{name}": value for name, value in EVENT.items()}
    answer = await desk.client.post("/v1/events", json=ITEMS, headers=headers)
    assert (answer.status_code, answer.headers["x-sie-error-code"]) == (400, "MODEL_PLANNED")
    assert answer.json()["error"]["param"] == "ce-model"


async def test_our_client_takes_the_refusal_for_final(desk: Desk) -> None:
    desk.registry.put(PLANNED)
    answer = await desk.client.post(f"/v1/encode/{PLANNED.id}", json=ITEMS)
    error = read_error(answer.status_code, answer.headers, answer.content)
    assert isinstance(error, ModelPlannedError)
    assert error.details == {"model": PLANNED.id, "blocked_by": WAITS}
    assert error.retry_after is None


async def test_the_catalogue_tells_that_it_is_planned_and_why_and_openai_s_words_leave_it_out(desk: Desk) -> None:
    desk.registry.put(PLANNED)
    body = (await desk.client.get("/v1/models")).json()
    (row,) = [row for row in body["models"] if row["name"] == PLANNED.id]
    assert (row["state"], row["loaded"], row["inputs"]) == ("planned", False, ["image"])
    assert row["last_error"] == {"code": "MODEL_PLANNED", "message": WAITS, "attempts": 0, "permanent": True}
    assert PLANNED.id not in [each["id"] for each in body["data"]] and SPEC.id in [each["id"] for each in body["data"]]
    assert (await desk.client.get(f"/v1/models/{PLANNED.id}")).json()["state"] == "planned"
    assert info(PLANNED, fleet([]), Registry()).last_error == ModelLoadError("MODEL_PLANNED", WAITS, 0, permanent=True)


async def test_the_states_of_the_cluster_are_those_of_models_that_are_served(desk: Desk) -> None:
    desk.registry.put(PLANNED)
    with_planned = (await desk.client.get("/health")).json()
    assert PLANNED.id not in [row["name"] for row in with_planned["models"]]


async def test_a_request_that_names_no_model_never_gets_a_planned_one(broker: Broker) -> None:
    async with opened(broker, default_models=f"{PLANNED.id},{SPEC.id}") as desk, desk.worker():
        desk.registry.put(PLANNED)
        answer = await desk.client.post("/embed", json={"inputs": "abc"})
        assert (answer.status_code, answer.json()) == (200, [[3.0, 1.0]])
    async with opened(broker) as desk:
        desk.registry.replace([PLANNED])
        answer = await desk.client.post("/embed", json={"inputs": "abc"})
        assert "none of those there are by default could do it" in answer.text


async def test_an_answer_of_a_model_that_has_become_planned_meanwhile_is_given_out(desk: Desk) -> None:
    async with desk.worker():
        desk.hold.clear()
        asked = asyncio.create_task(desk.encode("abc"))
        await eventually(lambda: bool(desk.computed))
        desk.registry.put(msgspec.structs.replace(SPEC, status="planned", blocked_by="time"))
        desk.hold.set()
        assert (await asked).status_code == 200
