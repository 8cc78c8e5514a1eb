"""Large requests: split and merged without losing order, and answered as one, warm and cold."""

from __future__ import annotations

import asyncio

import msgspec
import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from sie_broker.contract import Reply
from sie_ingress import parts
from sie_sdk import results, wire
from sie_sdk.errors import InvalidInputError
from sie_sdk.types import EncodeParams, EncodeRequest, Item, Timing, Usage
from tests.ingress.conftest import Desk
from tests.ingress.test_requests import lengths

TEXTS = ["x" * (1 + i % 9) for i in range(600)]


def reply(first: int, count: int, total_ms: float = 1.0) -> Reply:
    vectors = np.arange(first, first + count, dtype=np.float32).reshape(-1, 1)
    ids: list[str | None] = [str(i) for i in range(first, first + count)]
    timing, usage = Timing(total_ms=total_ms), Usage(input_tokens=count)
    return Reply(id="p", data=wire.encode_result("m", ids, vectors, "float32", timing, usage), worker="w")


@given(st.lists(st.integers(0, 3000), min_size=1, max_size=700))
def test_splitting_keeps_every_item_in_order_and_every_limit(sizes: list[int]) -> None:
    items = [Item(text="x" * size, id=str(i)) for i, size in enumerate(sizes)]
    request = EncodeRequest(items=items, params=EncodeParams(instruction="i"))
    split = parts.split(request)
    assert [item for part in split for item in part.items] == items
    assert all(part.params == request.params and 0 < len(part.items) <= parts.PART_ITEMS for part in split)
    for part in split:
        cost = sum(len(item.text or "") + len(item.id or "") for item in part.items)
        assert cost <= parts.PART_BYTES or len(part.items) == 1
    assert len(split) > 1 or split[0] is request


def test_merging_keeps_the_order_adds_usage_and_takes_the_slowest_part_s_timing() -> None:
    whole = parts.merge("job", [reply(0, 3, 5.0), reply(3, 2, 9.0)], [3, 2])
    read = results.read_encode(whole.data)
    assert [result.id for result in read] == ["0", "1", "2", "3", "4"]
    assert [float(result.dense[0]) for result in read if result.dense is not None] == [0, 1, 2, 3, 4]
    assert read[0].timing is not None and read[0].timing.total_ms == 9.0
    assert msgspec.msgpack.decode(whole.data)["usage"] == {"input_tokens": 5}
    assert whole.id == "job"


def test_an_error_of_a_part_names_the_item_of_the_request() -> None:
    error = InvalidInputError("Too long.", field="items[1].text")
    failed = Reply(id="p", data=wire.error_body(error), status=400)
    whole = parts.merge("job", [reply(0, 3), failed], [3, 2])
    assert whole.status == 400
    assert msgspec.json.decode(whole.data)["error"]["param"] == "items[4].text"


async def test_a_large_warm_request_is_computed_in_parts_and_answered_as_one(desk: Desk) -> None:
    async with desk.worker():
        answer = await desk.encode(*TEXTS)
    assert lengths(answer.json()) == [len(text) for text in TEXTS]
    assert len(desk.computed) == 3


async def test_a_large_cold_request_is_one_job_and_each_part_is_computed_once(desk: Desk) -> None:
    cold = await desk.encode(*TEXTS, Idempotency_Key="k")
    again = await desk.encode(*TEXTS, Idempotency_Key="k")
    assert cold.status_code == again.status_code == 202
    assert cold.headers["location"] == again.headers["location"]
    assert (await desk.client.get(cold.headers["location"])).status_code == 202
    async with desk.worker():
        done = await desk.client.get(cold.headers["location"], headers={"Prefer": "wait=10"})
    assert lengths(done.json()) == [len(text) for text in TEXTS]
    assert len(desk.computed) == 3


async def test_parts_answered_before_the_hold_ended_are_kept_for_the_job(desk: Desk) -> None:
    first_only = asyncio.Event()

    async def one_then_wait(work: object) -> bytes:
        if desk.computed:
            await first_only.wait()
        return await desk.count(work)  # type: ignore[arg-type]

    async with desk.worker(one_then_wait):
        answer = await desk.encode(*TEXTS, Prefer="wait=0.3")
        assert answer.status_code == 202
        first_only.set()
        done = await desk.client.get(answer.headers["location"], headers={"Prefer": "wait=10"})
    assert lengths(done.json()) == [len(text) for text in TEXTS]
    assert len(desk.computed) == 3
