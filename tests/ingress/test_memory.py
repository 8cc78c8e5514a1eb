"""Large bodies and answers in hand at once: as many as there is memory for, and the rest may come again."""

from __future__ import annotations

import asyncio
import gzip
from collections.abc import AsyncIterator

import httpx
import pytest

from sie_broker.contract import Broker
from sie_broker.memory import MemoryBroker
from sie_ingress import memory
from sie_ingress.memory import SMALL_BYTES, Hold, Memory
from sie_sdk import wire
from sie_sdk.errors import UnavailableError
from sie_sdk.types import EncodeRequest, Item
from tests.conftest import eventually
from tests.congruence.test_payloads import MIB
from tests.ingress.conftest import MODEL, ROUTE, Desk, opened


@pytest.fixture
async def desk() -> AsyncIterator[Desk]:
    broker = MemoryBroker()
    await broker.connect()
    async with opened(broker, max_body_bytes=2 * MIB, max_reply_bytes=2 * MIB) as desk, desk.worker():
        yield desk
    await broker.close()


@pytest.fixture
async def either(broker: Broker) -> AsyncIterator[Desk]:
    async with opened(broker, max_body_bytes=2 * MIB, max_reply_bytes=2 * MIB) as desk, desk.worker():
        yield desk


def test_what_goes_beyond_is_refused_until_others_let_go_and_small_ones_never() -> None:
    behind = 0
    whole = Memory(10 * MIB, lambda: behind)
    first, second, small = Hold(whole), Hold(whole), Hold(whole)
    first.take(6 * MIB)
    second.take(4 * MIB)
    for hold in (first, second):
        with pytest.raises(UnavailableError) as refused:
            hold.take(1)
        assert refused.value.retry_after
    small.take(SMALL_BYTES)
    small.release()
    first.release()
    behind = 6 * MIB
    with pytest.raises(UnavailableError):
        second.take(1)
    behind = 0
    second.take(6 * MIB)
    second.release()
    assert whole.held == 0


def test_before_anything_is_refused_room_is_made_of_what_is_taken_slowly() -> None:
    asked: list[int] = []
    behind = 9 * MIB

    def make_room(size: int) -> None:
        nonlocal behind
        asked.append(size)
        behind -= 4 * MIB

    whole = Memory(10 * MIB, lambda: behind, make_room)
    hold = Hold(whole)
    hold.take(2 * MIB)
    assert asked == [1 * MIB]
    with pytest.raises(UnavailableError):
        Hold(whole).take(20 * MIB)


def posted(desk: Desk, content: bytes | AsyncIterator[bytes], **headers: str) -> asyncio.Task[httpx.Response]:
    named = {"Content-Type": wire.MSGPACK} | {name.replace("_", "-"): value for name, value in headers.items()}
    return asyncio.create_task(desk.client.post(ROUTE, content=content, headers=named))


async def test_large_bodies_are_read_while_there_is_memory(desk: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    counts: list[Memory] = []
    take = Hold.take

    def noted(hold: Hold, size: int) -> None:
        take(hold, size)
        assert hold._memory is not None
        counts.append(hold._memory)

    monkeypatch.setattr(Hold, "take", noted)
    body = wire.request_body(EncodeRequest([Item(text="x" * 1_900_000)]))
    go_on = asyncio.Event()

    async def unfinished() -> AsyncIterator[bytes]:
        yield body[:-1]
        await go_on.wait()
        yield body[-1:]

    begun = [posted(desk, unfinished()) for _ in range(3)]
    await eventually(lambda: len(counts) == 3)
    refused = await posted(desk, body)
    assert (refused.status_code, refused.json()["error"]["code"]) == (503, "UNAVAILABLE")
    assert refused.headers["retry-after"]
    packed = await posted(desk, gzip.compress(body), Content_Encoding="gzip")
    assert packed.status_code == 503
    assert (await desk.encode("small")).status_code == 200
    go_on.set()
    assert [each.status_code for each in await asyncio.gather(*begun)] == [200] * 3
    assert (await posted(desk, body)).status_code == 200
    assert counts[0].held == 0


async def test_a_large_answer_is_not_fetched_while_there_is_no_memory_for_it(
    desk: Desk, monkeypatch: pytest.MonkeyPatch
) -> None:
    items = [Item(text="x", id="i" * 3000) for _ in range(500)]
    job = await posted(desk, wire.request_body(EncodeRequest(items)), Prefer="wait=0")
    asked = job.headers["location"], {"Prefer": "wait=10", "Accept": wire.MSGPACK}
    whole = await desk.client.get(asked[0], headers=asked[1])
    assert whole.status_code == 200 and len(whole.content) > SMALL_BYTES
    with monkeypatch.context() as full:
        full.setattr(Memory, "check", _refuse)
        refused = await desk.client.get(asked[0], headers=asked[1])
    assert (refused.status_code, refused.headers["x-sie-error-code"]) == (503, "UNAVAILABLE")
    assert (await desk.client.get(asked[0], headers=asked[1])).content == whole.content


def _refuse(memory: Memory, size: int) -> None:
    raise UnavailableError("Full.", retry_after=1.0)


EVENT = {"ce-specversion": "1.0", "ce-id": "e", "ce-source": "/s", "ce-type": "dev.sie.encode.v1", "ce-model": MODEL}
ITEMS = {"items": [{"text": "a"}, {"text": "bb"}]}
LARGE = {"items": [{"text": "a", "id": "i" * 3000} for _ in range(500)]}
"""Whose answer no message holds."""


@pytest.mark.parametrize(
    ("route", "body", "headers"),
    [
        (ROUTE, ITEMS, {}),
        (ROUTE, ITEMS, {"Idempotency-Key": "key"}),
        (ROUTE, ITEMS, {"X-SIE-SDK-Version": "0.2.0"}),
        ("/v1/embeddings", {"model": MODEL, "input": ["a", "bb"]}, {}),
        ("/v1/events", ITEMS, {**EVENT, "Prefer": "wait=5"}),
        (ROUTE, LARGE, {}),
    ],
    ids=["no key", "key", "published", "dialect", "event", "large"],
)
async def test_an_answer_for_which_there_is_no_memory_is_kept_for_the_repeat_of_its_request(
    either: Desk, monkeypatch: pytest.MonkeyPatch, route: str, body: object, headers: dict[str, str]
) -> None:
    sent = len(httpx.Request("POST", "http://ingress", json=body).content)

    def full(_: Memory, size: int) -> None:
        if size not in (0, sent):  # no piece of the body: the answer
            raise UnavailableError("Full.", retry_after=1.0)

    async def ask() -> httpx.Response:
        return await either.client.post(route, json=body, headers=headers)

    with monkeypatch.context() as crowded:
        crowded.setattr(memory, "SMALL_BYTES", 0)
        crowded.setattr(Memory, "check", full)
        assert (await ask()).status_code == 503
        computed = either.computed.copy()
        assert computed
        assert [(await ask()).status_code for _ in range(2)] == [503] * 2
    assert (await ask()).status_code == 200
    assert either.computed == computed
