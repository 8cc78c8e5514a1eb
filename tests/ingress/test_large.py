"""Requests and answers larger than a NATS message, from HTTP to HTTP, with a worker that computes something cheap."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import httpx
import numpy as np
import pytest

from sie_broker import claim, jobs
from sie_broker.contract import Broker
from sie_broker.merge import part_id
from sie_broker.records import Reply, Work
from sie_sdk import replies, results, wire
from sie_sdk.calls import fresh_key
from sie_sdk.outputs import MultivectorOutput
from sie_sdk.types import EncodeRequest, Item, Usage
from tests.congruence.test_payloads import MIB, eventually_empty, held
from tests.ingress.conftest import EVERYTHING, ROUTE, TIMING, Desk, opened

LIMITS = {"max_body_bytes": 64 * MIB, "max_reply_bytes": 64 * MIB, "request_timeout_s": 60}
MULTIVECTORS = f"/v1/encode/{EVERYTHING.id}"


class Large:
    """The stand-in for encode: a multivector of ``tokens`` rows of 4 for each text; the first value is its length."""

    def __init__(self, tokens: int) -> None:
        self.tokens = tokens
        self.computed: list[str] = []

    async def __call__(self, work: Work) -> bytes:
        self.computed.append(work.id)
        items = wire.parse_encode(work.data, wire.MSGPACK).items
        arrays = [np.full((self.tokens, 4), len(item.text or ""), "<f4") for item in items]
        output = MultivectorOutput(arrays, 4, "float32")
        ids = [item.id for item in items]
        return replies.encode(work.model, ids, {"multivector": output}, TIMING, Usage(input_tokens=len(items)))


@pytest.fixture
async def desk(broker: Broker) -> AsyncIterator[Desk]:
    async with opened(broker, **LIMITS) as desk:
        yield desk


def body(texts: list[str]) -> bytes:
    request = EncodeRequest(items=[Item(text=text, id=str(place)) for place, text in enumerate(texts)])
    return wire.request_body(request)


async def post(desk: Desk, texts: list[str], **headers: str) -> httpx.Response:
    named = {name.replace("_", "-"): value for name, value in headers.items()} | {"Content-Type": wire.MSGPACK}
    return await desk.client.post(MULTIVECTORS, content=body(texts), headers=named, timeout=60)


def lengths(answer: httpx.Response) -> list[int]:
    """The texts' lengths, of an answer whose items are all in their places."""
    read = results.read_encode(answer.content)
    assert [result.id for result in read] == [str(place) for place in range(len(read))]
    return [int(result.multivector[0, 0]) for result in read if result.multivector is not None]


async def test_4096_items_with_large_answers_come_back_whole_and_leave_nothing_behind(desk: Desk) -> None:
    operation, texts = Large(500), ["x" * (place % 97 + 1) for place in range(4096)]
    async with desk.worker(operation):
        answer = await post(desk, texts)
    assert answer.status_code == 200
    assert len(answer.content) > 31 * MIB
    assert lengths(answer) == [len(text) for text in texts]
    assert len(operation.computed) == 16
    await eventually_empty(desk.broker, "work")
    await eventually_empty(desk.broker, "result")


async def test_large_texts_come_in(desk: Desk) -> None:
    texts = ["x" * (2 * MIB - place) for place in range(10)]
    async with desk.worker(Large(1)):
        answer = await post(desk, texts)
    assert lengths(answer) == [len(text) for text in texts]
    await eventually_empty(desk.broker, "work")


async def test_a_large_answer_of_a_job_is_there_as_long_as_the_job(desk: Desk) -> None:
    texts = ["x" * (place + 1) for place in range(200)]
    cold = await post(desk, texts)
    assert cold.status_code == 202
    operation = Large(30 * MIB // 16 // len(texts))
    async with desk.worker(operation):
        for prefer in ({"Prefer": "wait=30"}, {}):
            done = await desk.client.get(cold.headers["location"], headers={"Accept": wire.MSGPACK, **prefer})
            assert done.status_code == 200
            assert len(done.content) > 29 * MIB
            assert lengths(done) == [len(text) for text in texts]
    assert len(operation.computed) == 1
    assert await held(desk.broker, "result") > 29 * MIB


async def test_a_job_in_parts_is_answered_without_a_wait_once_all_are_there(desk: Desk) -> None:
    cold = await post(desk, ["x"] * 1000)
    assert cold.status_code == 202
    operation = Large(500)
    async with desk.worker(operation):
        for part in range(4):
            assert await jobs.wait_result(desk.broker.jobs, part_id(cold.json()["job"]["id"], part), 20)
    done = await desk.client.get(cold.headers["location"], headers={"Accept": wire.MSGPACK})
    assert done.status_code == 200
    assert lengths(done) == [1] * 1000


async def test_a_large_answer_comes_in_json_to_who_asks_for_it(desk: Desk) -> None:
    async with desk.worker(Large(30_000)):
        answer = await post(desk, ["a", "bb", "ccc"], Accept=wire.JSON)
    assert answer.status_code == 200
    firsts = [item["multivector"]["values"][0][0] for item in answer.json()["items"]]
    assert firsts == [1.0, 2.0, 3.0]


async def test_a_large_answer_is_given_again_to_a_caller_that_asks_again(desk: Desk) -> None:
    operation, key = Large(100_000), fresh_key()
    async with desk.worker(operation):
        first = await post(desk, ["a", "bb", "ccc"], Idempotency_Key=key)
        again = await post(desk, ["a", "bb", "ccc"], Idempotency_Key=key)
    assert lengths(first) == lengths(again) == [1, 2, 3]
    assert first.content == again.content
    assert len(operation.computed) == 1


async def test_two_callers_with_one_key_both_get_the_large_answer(desk: Desk) -> None:
    operation, key = Large(100_000), fresh_key()
    async with desk.worker(operation):
        both = await asyncio.gather(*(post(desk, ["a", "bb"], Idempotency_Key=key) for _ in range(2)))
    assert [lengths(answer) for answer in both] == [[1, 2], [1, 2]]
    assert len(operation.computed) == 1


async def test_an_answer_that_was_lost_says_so_and_is_computed_anew_for_a_caller_that_asks_again(desk: Desk) -> None:
    operation, key, load = Large(100_000), fresh_key(), desk.broker.payloads.load

    async def lose(dataref: str) -> bytes:
        await desk.broker.payloads.drop(dataref)
        return await load(dataref)

    async with desk.worker(operation):
        desk.broker.payloads.load = lose  # type: ignore[method-assign]
        lost = await post(desk, ["a"], Idempotency_Key=key)
        desk.broker.payloads.load = load  # type: ignore[method-assign]
        again = await post(desk, ["a"], Idempotency_Key=key)
    assert (lost.status_code, lost.headers["x-sie-error-code"]) == (500, "PAYLOAD_LOST")
    assert lengths(again) == [1]
    assert len(operation.computed) == 2


async def test_an_answer_over_the_limit_is_refused_before_it_is_fetched(broker: Broker) -> None:
    async with opened(broker, **LIMITS | {"max_reply_bytes": MIB}) as desk, desk.worker(Large(500)):
        answer = await post(desk, ["x"] * 512)
    assert (answer.status_code, answer.headers["x-sie-error-code"]) == (413, "PAYLOAD_TOO_LARGE")
    assert answer.json()["error"]["limit"] == MIB
    await eventually_empty(desk.broker, "result")


async def test_a_part_that_was_answered_before_the_others_became_jobs_is_kept_with_its_payload(broker: Broker) -> None:
    operation, go_on = Large(400), asyncio.Event()

    async def second_later(work: Work) -> bytes:
        if work.id.endswith("-1"):
            await go_on.wait()
        return await operation(work)

    async with opened(broker, **LIMITS | {"request_timeout_s": 1}) as desk, desk.worker(second_later):
        partly = await post(desk, ["x"] * 260)
        assert partly.status_code == 202
        job_id = partly.json()["job"]["id"]
        kept = await jobs.result(broker.jobs, part_id(job_id, 0))
        assert isinstance(kept, Reply) and kept.dataref is not None
        go_on.set()
        assert await jobs.wait_result(broker.jobs, part_id(job_id, 1), 20)
        assert len((await claim.redeem(broker.payloads, kept)).data) == claim.size(kept)


async def test_a_body_over_the_limit_is_refused(broker: Broker) -> None:
    async with opened(broker, **LIMITS | {"max_body_bytes": 10 * MIB}) as desk:
        answer = await desk.client.post(ROUTE, content=bytes(10 * MIB + 1), headers={"Content-Type": wire.MSGPACK})
    assert answer.status_code == 413
    assert answer.json()["error"]["limit"] == 10 * MIB
