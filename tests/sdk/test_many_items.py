"""Long lists and streams of the clients: many requests at a time, one result; and what ends them all."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Callable, Iterator
from typing import Any

import msgspec
import pytest

from sie_sdk import (
    CancelledByCallerError,
    ConfigurationError,
    DeadlineExceededError,
    EncodeResult,
    InputTooLongError,
    InvalidInputError,
    Item,
    JobStatus,
    ModelNotFoundError,
    Progress,
    SIEAsyncClient,
    SIEClient,
)
from sie_sdk.chunks import ITEMS
from sie_sdk.drivers import AHEAD
from sie_sdk.types import EncodeRequest
from tests.conftest import eventually
from tests.platform import wait_until
from tests.sdk.scripted_server import Answer, Asked, ScriptedServer, accepted, computed, refused

Caller = Callable[..., Any]
LONG = 3 * ITEMS + 10


@pytest.fixture
def all_of(finished: Caller) -> Caller:
    """``all_of(stream)``: everything a stream of either client gives."""

    async def awaited(stream: AsyncIterator[Any]) -> list[Any]:
        return [each async for each in stream]

    return lambda stream: finished(awaited(stream)) if hasattr(stream, "__aiter__") else [*stream]


def numbers(results: list[EncodeResult]) -> list[float]:
    return [float(result.dense[0]) for result in results if result.dense is not None]


def asked_for(asked: Asked) -> list[str | None]:
    return [item.text for item in msgspec.msgpack.decode(asked.body, type=EncodeRequest).items]


class Gate:
    """A server's computing that waits until ``together`` requests are under way, and counts them."""

    def __init__(self, together: int = 1) -> None:
        self.most = 0
        self._now = 0
        self._lock = threading.Lock()
        self._barrier = threading.Barrier(together, timeout=20)

    def __call__(self, asked: Asked) -> Answer:
        with self._lock:
            self._now += 1
            self.most = max(self.most, self._now)
        self._barrier.wait()
        with self._lock:
            self._now -= 1
        return computed(asked)


# -- lists -------------------------------------------------------------------------------------------------------------


def test_a_long_list_is_sent_in_chunks_at_the_same_time_and_comes_back_in_order(
    server: ScriptedServer, call: Caller
) -> None:
    server.computes = gate = Gate(together=4)
    assert numbers(call("encode", "m", [str(i) for i in range(LONG)])) == [*map(float, range(LONG))]
    assert gate.most == len(server.asked) == 4
    assert {request.headers["x-sie-priority"] for request in server.asked} == {"bulk"}
    assert len({request.headers["idempotency-key"] for request in server.asked}) == 4
    assert len({request.headers["x-request-id"] for request in server.asked}) == 4


def test_no_more_chunks_than_asked_for_are_under_way(server: ScriptedServer, call: Caller) -> None:
    server.computes = gate = Gate(together=2)
    call("encode", "m", ["1"] * (8 * ITEMS), concurrency=2)
    assert (gate.most, len(server.asked)) == (2, 8)


def test_one_at_a_time_is_possible(server: ScriptedServer, call: Caller) -> None:
    server.computes = gate = Gate()
    assert len(call("encode", "m", ["1"] * LONG, concurrency=1)) == LONG
    assert gate.most == 1
    with pytest.raises(InvalidInputError) as caught:
        call("encode", "m", ["1"], concurrency=0)
    assert caught.value.field == "concurrency"


def test_half_of_the_connections_are_left_to_other_calls(server: ScriptedServer, call: Caller, client: Any) -> None:
    client._max_connections = 4
    server.computes = gate = Gate(together=2)
    call("encode", "m", ["1"] * (6 * ITEMS), concurrency=100)
    assert (gate.most, len(server.asked)) == (2, 6)


def test_a_short_list_is_one_request_as_urgent_as_the_server_thinks(server: ScriptedServer, call: Caller) -> None:
    server.computes = computed
    call("encode", "m", ["1"] * ITEMS, idempotency_key="k")
    (asked,) = server.asked
    assert asked.headers["idempotency-key"] == "k"
    assert "x-sie-priority" not in asked.headers


def test_a_callers_key_and_priority_hold_for_every_chunk(server: ScriptedServer, call: Caller) -> None:
    server.computes = computed
    call("encode", "m", ["1"] * (2 * ITEMS), idempotency_key="k", priority="interactive")
    assert {request.headers["idempotency-key"] for request in server.asked} == {"k:0-256", "k:256-512"}
    assert {request.headers["x-sie-priority"] for request in server.asked} == {"interactive"}


def test_scores_of_chunks_are_ranked_as_one(server: ScriptedServer, call: Caller) -> None:
    server.computes = computed
    items: list[Item | str] = [str(i % 7) for i in range(LONG)]
    items[500] = Item(text="100", id="best")
    result = call("score", "m", "0", items)
    assert [(entry.index, entry.item_id) for entry in result.scores[:3]] == [
        (500, "best"),
        (6, "item-6"),
        (13, "item-13"),
    ]
    assert [entry.rank for entry in result.scores] == [*range(LONG)]
    assert sorted(entry.index for entry in result.scores) == [*range(LONG)]
    assert result.usage.pairs == LONG


def test_entities_of_chunks_come_back_in_order_under_their_own_names(server: ScriptedServer, call: Caller) -> None:
    server.computes = computed
    results = call("extract", "m", [str(i) for i in range(LONG)], labels=["number"])
    assert [result.entities[0].text for result in results] == [f"{i}" for i in range(LONG)]
    assert [result.id for result in results] == [f"item-{i}" for i in range(LONG)]


def test_progress_says_how_many_items_are_done(server: ScriptedServer, call: Caller) -> None:
    server.computes = computed
    told: list[tuple[Progress, str]] = []
    call("encode", "m", ["1"] * LONG, progress=lambda one: told.append((one, threading.current_thread().name)))
    done = [progress.done for progress, _ in told]
    assert done == sorted(done) and done[-1] == LONG
    assert {progress.total for progress, _ in told} == {LONG}
    assert [progress.state for progress, _ in told] == ["running"] * 3 + ["done"]
    assert {thread for _, thread in told} == {threading.current_thread().name}


def test_progress_of_one_request_counts_too(server: ScriptedServer, call: Caller) -> None:
    server.computes = computed
    told: list[Progress] = []
    call("encode", "m", ["1", "2"], progress=told.append)
    assert [(one.state, one.done, one.total) for one in told] == [("done", 2, 2)]


def test_the_first_error_ends_all_chunks_and_says_which_items(server: ScriptedServer, call: Caller) -> None:
    failing = threading.Event()

    def compute(asked: Asked) -> Answer:
        texts = asked_for(asked)
        if "wrong" in texts:
            failing.set()
            place = texts.index("wrong")
            return refused(InputTooLongError(f"items[{place}].text is long.", field=f"items[{place}].text", limit=1))
        assert failing.wait(20)
        return computed(asked)

    server.computes = compute
    items = ["1"] * (100 * ITEMS)
    items[3 * ITEMS + 7] = "wrong"
    with pytest.raises(InputTooLongError, match=r"items\[775\]\.text is long") as caught:
        call("encode", "m", items)
    assert caught.value.field == "items[775].text"
    assert caught.value.details["items"] == [3 * ITEMS, 4 * ITEMS]
    assert caught.value.request_id == "r-error"
    assert len(server.asked) < 30


def test_one_deadline_holds_for_all_chunks(server: ScriptedServer, call: Caller) -> None:
    server.computes = lambda _: accepted(JobStatus("j1"), Retry_After="0.01")
    with pytest.raises(DeadlineExceededError, match=r"deadline of 1\.5 s") as caught:
        call("encode", "m", ["1"] * LONG, deadline_s=1.5, concurrency=2)
    assert caught.value.limit == 1.5
    assert caught.value.request_id


def test_one_cancel_ends_all_chunks(server: ScriptedServer, call: Caller) -> None:
    server.computes = lambda _: accepted(JobStatus("j1"), Retry_After="100")
    cancel = threading.Event()
    with pytest.raises(CancelledByCallerError):
        call("encode", "m", ["1"] * LONG, cancel=cancel, progress=lambda _: cancel.set())


def test_an_exception_of_the_progress_callback_ends_all_chunks(server: ScriptedServer, call: Caller) -> None:
    server.computes = computed

    def stop(_: Progress) -> None:
        raise KeyError("enough")

    with pytest.raises(KeyError, match="enough"):
        call("encode", "m", ["1"] * (50 * ITEMS), progress=stop, concurrency=2)
    assert len(server.asked) < 50


# -- streams -----------------------------------------------------------------------------------------------------------


def test_a_stream_gives_every_result_in_order(server: ScriptedServer, client: Any, all_of: Caller) -> None:
    server.computes = computed
    assert numbers(all_of(client.encode_stream("m", (str(i) for i in range(LONG))))) == [*map(float, range(LONG))]
    assert len(server.asked) == 4
    assert {request.headers["x-sie-priority"] for request in server.asked} == {"bulk"}
    found = all_of(client.extract_stream("m", map(str, range(LONG)), labels=["number"]))
    assert [result.entities[0].text for result in found] == [f"{i}" for i in range(LONG)]


def test_a_stream_of_nothing_gives_nothing(server: ScriptedServer, client: Any, all_of: Caller) -> None:
    assert all_of(client.encode_stream("m", [])) == []
    assert server.asked == []


def test_a_stream_reads_no_further_than_a_few_chunks_ahead(
    server: ScriptedServer, client: Any, finished: Caller
) -> None:
    server.computes = computed
    read = 0

    def items() -> Iterator[str]:
        nonlocal read
        while True:
            yield str(read)
            read += 1

    stream = client.encode_stream("m", items(), concurrency=2)
    for taken in range(20 * ITEMS):
        result = finished(anext(stream)) if hasattr(stream, "__anext__") else next(stream)
        assert result.dense[0] == taken
        assert read - taken <= (2 * AHEAD + 1) * ITEMS + 1
    finished(stream.aclose() if hasattr(stream, "aclose") else stream.close())


def test_leaving_a_stream_ends_what_is_under_way(server: ScriptedServer) -> None:
    held = threading.Event()

    def compute(asked: Asked) -> Answer:
        if "0" not in asked_for(asked):
            held.wait(20)
        return computed(asked)

    server.computes = compute
    with SIEClient(server.url) as client:
        for _ in client.encode_stream("m", map(str, range(100 * ITEMS)), concurrency=2):
            break
        held.set()
        wait_until(lambda: not [one for one in threading.enumerate() if one.name.startswith("sie-call")])
        assert len(server.asked) <= 4


async def test_leaving_an_awaited_stream_cancels_what_is_under_way(server: ScriptedServer) -> None:
    held = threading.Event()

    def compute(asked: Asked) -> Answer:
        if "0" not in asked_for(asked):
            held.wait(20)
        return computed(asked)

    server.computes = compute
    async with SIEAsyncClient(server.url) as client:
        before = len(asyncio.all_tasks())
        stream = client.encode_stream("m", map(str, range(100 * ITEMS)), concurrency=2)
        async for _ in stream:
            break
        await stream.aclose()
        await eventually(lambda: len(asyncio.all_tasks()) == before)
        held.set()
    assert len(server.asked) <= 4


async def test_awaited_items_stream_too(server: ScriptedServer) -> None:
    server.computes = computed

    async def items() -> AsyncIterator[str]:
        for number in range(LONG):
            yield str(number)

    async with SIEAsyncClient(server.url) as client:
        results = [result async for result in client.encode_stream("m", items())]
    assert numbers(results) == [*map(float, range(LONG))]


def test_a_stream_gives_what_came_before_an_error_and_then_raises_it(
    server: ScriptedServer, client: Any, finished: Caller
) -> None:
    server.computes = lambda asked: refused(ModelNotFoundError("No.")) if "-1" in asked_for(asked) else computed(asked)
    items = ["1"] * (3 * ITEMS) + ["-1"] + ["1"] * (50 * ITEMS)
    taken = 0

    async def take(stream: Any) -> None:
        nonlocal taken
        if hasattr(stream, "__aiter__"):
            async for _ in stream:
                taken += 1
        else:
            for _ in stream:
                taken += 1

    stream = client.encode_stream("m", items, concurrency=4)
    with pytest.raises(ModelNotFoundError) as caught:
        asyncio.run(take(stream)) if isinstance(client, SIEClient) else finished(take(stream))
    assert taken == 3 * ITEMS
    assert caught.value.details["items"] == [3 * ITEMS, 4 * ITEMS]
    assert len(server.asked) < 30


@pytest.mark.parametrize("width", [1, 2, 8])
@pytest.mark.parametrize("good", [0, 7, 2 * ITEMS, LONG])
def test_what_the_items_raise_comes_after_the_results_of_all_before_it(
    server: ScriptedServer, client: Any, finished: Caller, width: int, good: int
) -> None:
    server.computes = computed
    taken: list[EncodeResult] = []

    def items() -> Iterator[str]:
        yield from map(str, range(good))
        raise OSError("the file is gone")

    async def awaited() -> AsyncIterator[str]:
        for item in items():
            yield item

    async def take(stream: AsyncIterator[EncodeResult]) -> None:
        async for result in stream:
            taken.append(result)  # noqa: PERF401 - those before the error count

    for source in (items,) if isinstance(client, SIEClient) else (items, awaited):
        taken.clear()
        stream = client.encode_stream("m", source(), concurrency=width)
        with pytest.raises(OSError, match="the file is gone"):
            finished(take(stream)) if hasattr(stream, "__aiter__") else taken.extend(stream)
        assert numbers(taken) == [*map(float, range(good))]


def test_one_text_is_no_stream(client: Any) -> None:
    with pytest.raises(InvalidInputError, match="items is one item") as caught:
        client.encode_stream("m", "text")
    assert caught.value.field == "items"


def test_an_unknown_keyword_of_a_stream_is_refused_at_once(client: Any) -> None:
    with pytest.raises(TypeError, match="is_qery"):
        client.encode_stream("m", ["text"], is_qery=True)


def test_a_client_that_is_closed_meanwhile_says_so(server: ScriptedServer) -> None:
    server.computes = computed
    client = SIEClient(server.url)
    stream = client.encode_stream("m", ["1"] * (20 * ITEMS), concurrency=1)
    next(stream)
    client.close()
    with pytest.raises(ConfigurationError, match="closed"):
        list(stream)
