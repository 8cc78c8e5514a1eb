"""Large requests: split and merged without losing order, and answered as one, warm and cold."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

import msgspec
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sie_broker.merge import merge
from sie_broker.records import Reply
from sie_config.model.tasks import Multivector, Tasks
from sie_ingress import parts
from sie_sdk import replies, results, wire
from sie_sdk.errors import InvalidInputError
from sie_sdk.outputs import DenseOutput
from sie_sdk.replies import Extracted
from sie_sdk.types import (
    EncodeParams,
    EncodeRequest,
    ExtractParams,
    ExtractRequest,
    Item,
    OutputType,
    ScoreRequest,
    Timing,
    Usage,
)
from tests.ingress.conftest import EVERYTHING, RERANKER, SPEC, TAGGER, TIMING, Desk
from tests.ingress.test_requests import lengths

TEXTS = ["x" * (1 + i % 9) for i in range(600)]


def reply(first: int, count: int, total_ms: float = 1.0) -> Reply:
    dense = DenseOutput(np.arange(first, first + count, dtype="<f4").reshape(-1, 1), 1, "float32")
    ids: list[str | None] = [str(i) for i in range(first, first + count)]
    timing, usage = Timing(total_ms=total_ms), Usage(input_tokens=count)
    return Reply(id="p", data=replies.encode("m", ids, {"dense": dense}, timing, usage), worker="w")


def texts(longest: int) -> st.SearchStrategy[str]:
    """Texts of one character, of one byte to four."""
    return st.builds(str.__mul__, st.sampled_from("xé語🙂"), st.integers(0, longest))


items = st.lists(
    st.builds(
        Item,
        text=texts(3000),
        id=st.none() | st.text(max_size=3),
    ),
    min_size=1,
    max_size=700,
)


def check_limits(split: Sequence[wire.Request]) -> None:
    for part in split:
        given = sum(len((item.text or "").encode()) for item in part.items)
        assert 0 < len(part.items) <= parts.PART_ITEMS
        assert given <= parts.PART_BYTES or len(part.items) == 1


@given(items)
def test_splitting_an_encode_keeps_every_item_in_order_and_every_limit(items: list[Item]) -> None:
    request = EncodeRequest(items=items, params=EncodeParams(instruction="i"))
    split = parts.split(request, SPEC)
    assert [item for part in split for item in part.items] == items
    assert all(isinstance(part, EncodeRequest) and part.params == request.params for part in split)
    check_limits(split)
    assert len(split) > 1 or split[0] is request


@given(items, st.booleans())
def test_splitting_a_score_or_an_extract_names_each_item_by_its_place_in_the_request(
    items: list[Item], score: bool
) -> None:
    request = ScoreRequest(Item(text="q"), items, "i") if score else ExtractRequest(items, ExtractParams(labels=["a"]))
    split = parts.split(request, RERANKER if score else TAGGER)
    check_limits(split)
    if len(split) == 1:
        assert split[0] is request
        return
    for part in split:
        assert msgspec.structs.replace(request, items=part.items) == part
    whole = [item for part in split for item in part.items]
    assert [item.text for item in whole] == [item.text for item in items]
    assert [item.id for item in whole] == [
        item.id if item.id is not None else f"item-{place}" for place, item in enumerate(items)
    ]


@given(
    st.lists(
        st.builds(
            Item,
            text=st.none()
            | st.tuples(st.sampled_from("xé語🙂"), st.integers(0, 1100)).map(lambda each: each[0] * each[1]),
            id=st.none() | st.text(max_size=3),
            metadata=st.none() | st.just({}) | st.integers(0, 9000).map(lambda length: {"m": "x" * length}),
            multivector=st.none() | st.integers(0, 40).map(lambda rows: np.zeros((rows, 128), np.float32)),
        ),
        min_size=1,
        max_size=300,
    )
    | st.builds(lambda count, length: [Item(text="x" * length)] * count, st.integers(250, 260), st.integers(4090, 4100))
    | st.builds(lambda count, length: [Item(text="語" * length)] * count, st.integers(1, 260), st.integers(1000, 1400)),
    st.sampled_from([None, ["dense"], ["sparse"], ["multivector"], ["dense", "sparse", "multivector"]]),
    st.sampled_from([None, {"muvera": True}, {"muvera": {"final_dims": 1024}}, {"muvera": {"final_dims": None}}]),
)
def test_what_is_one_part_at_a_glance_is_one_part_counted_item_by_item(
    items: list[Item], types: list[OutputType] | None, options: dict[str, Any] | None
) -> None:
    for request, spec in (
        (EncodeRequest(items, EncodeParams(types, options=options)), EVERYTHING),
        (ScoreRequest(Item(text="q"), items), RERANKER),
    ):
        at_a_glance = parts.split(request, spec)
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(parts, "_fits", lambda items, reply: False)
            assert at_a_glance == parts.split(request, spec)


@pytest.mark.parametrize("text", ["x" * 4096, "語" * 1024])
def test_a_request_of_usual_size_is_not_gone_through_item_by_item(text: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(parts, "_chunks")
    request = EncodeRequest([Item(text=text)] * 256)
    assert parts.split(request, SPEC) == [request]


def test_a_part_is_counted_in_bytes_and_not_in_characters() -> None:
    request = EncodeRequest([Item(text="語" * 8192)] * 128)
    assert [len(part.items) for part in parts.split(request, SPEC)] == [42, 42, 42, 2]


def test_a_part_has_at_most_256_items() -> None:
    request = EncodeRequest([Item(text=text) for text in TEXTS])
    assert [len(part.items) for part in parts.split(request, SPEC)] == [256, 256, 88]


def test_multivectors_are_split_by_the_size_of_their_reply_and_vectors_by_their_own() -> None:
    long = msgspec.structs.replace(EVERYTHING, max_sequence_length=512, tasks=Tasks(multivector=Multivector(dim=128)))
    request = EncodeRequest([Item(text="x" * 1000)] * 64)
    assert [len(part.items) for part in parts.split(request, long)] == [16] * 4
    compact = EncodeRequest(list(request.items) * 4, EncodeParams(output_dtype="binary"))
    assert len(parts.split(compact, long)) == 1
    with_room_for_special_tokens = EncodeRequest([Item(text="x" * 120)] * 128)
    assert [len(part.items) for part in parts.split(with_room_for_special_tokens, long)] == [64] * 2
    filled_up = msgspec.structs.replace(long, tasks=Tasks(multivector=Multivector(dim=128, query_length=256)))
    assert [len(part.items) for part in parts.split(EncodeRequest([Item(text="x")] * 64), filled_up)] == [32] * 2
    assert len(parts.split(request, SPEC)) == 1
    for muvera, sizes in (
        (True, [102, 26]),
        ({}, [102, 26]),
        ({"final_dims": 1024}, [128]),
        (False, [128]),
        ({"final_dims": None}, [16] * 8),
    ):
        encoded = EncodeRequest([Item(text="x")] * 128, EncodeParams(options={"muvera": muvera}))
        assert [len(part.items) for part in parts.split(encoded, long)] == sizes
    matrix = np.ones((512, 128), "f4")
    vectors = ScoreRequest(Item(multivector=matrix), [Item(multivector=matrix)] * 8)
    assert [len(part.items) for part in parts.split(vectors, EVERYTHING)] == [4, 4]


def test_merging_keeps_the_order_adds_usage_and_takes_the_slowest_part_s_timing() -> None:
    whole = merge("job", [reply(0, 3, 5.0), reply(3, 2, 9.0)], [3, 2])
    read = results.read_encode(whole.data)
    assert [result.id for result in read] == ["0", "1", "2", "3", "4"]
    assert [float(result.dense[0]) for result in read if result.dense is not None] == [0, 1, 2, 3, 4]
    assert read[0].timing is not None and read[0].timing.total_ms == 9.0
    assert msgspec.msgpack.decode(whole.data)["usage"] == {"input_tokens": 5}
    assert whole.id == "job"


@given(st.lists(st.integers(-9, 9), min_size=2, max_size=30), st.data())
def test_merged_scores_are_those_of_the_request_scored_whole(values: list[int], data: st.DataObject) -> None:
    cut = data.draw(st.integers(1, len(values) - 1))
    names: list[str | None] = [f"item-{place}" for place in range(len(values))]

    def scored(start: int, end: int) -> Reply:
        array = np.array(values[start:end], np.float32)
        return Reply(id="p", data=replies.score("m", array, names[start:end], "q", TIMING, Usage(end - start)))

    merged = merge("job", [scored(0, cut), scored(cut, len(values))], [cut, len(values) - cut])
    assert results.read_score(merged.data) == results.read_score(scored(0, len(values)).data)


def test_merged_extractions_keep_their_order() -> None:
    found = [Reply("p", replies.extract("m", [name], [Extracted()], TIMING, Usage(2))) for name in ("a", "b")]
    merged = merge("job", found, [1, 1])
    assert [result.id for result in results.read_extract(merged.data)] == ["a", "b"]
    assert results.read_head(merged.data).usage.input_tokens == 4


def test_an_error_of_a_part_names_the_item_of_the_request() -> None:
    error = InvalidInputError("Too long.", field="items[1].text")
    failed = Reply(id="p", data=wire.error_body(error), status=400)
    whole = merge("job", [reply(0, 3), failed], [3, 2])
    assert whole.status == 400
    assert msgspec.json.decode(whole.data)["error"]["param"] == "items[4].text"


async def test_a_large_warm_request_is_computed_in_parts_and_answered_as_one(desk: Desk) -> None:
    async with desk.worker():
        answer = await desk.encode(*TEXTS)
    assert lengths(answer.json()) == [len(text) for text in TEXTS]
    assert len(desk.computed) == 3


async def test_a_large_score_is_computed_in_parts_and_ranked_as_one(desk: Desk) -> None:
    body = {"query": {"text": "q", "id": "Q"}, "items": [{"text": text} for text in TEXTS]}
    async with desk.worker():
        answer = (await desk.post("/v1/score/org/reranker", body)).json()
    assert len(desk.computed) == 3
    assert answer["query_id"] == "Q"
    assert answer["usage"] == {"input_tokens": 3, "pairs": 600}
    best = sorted(range(600), key=lambda index: (-len(TEXTS[index]), index))
    assert [entry["index"] for entry in answer["scores"]] == best
    assert [entry["item_id"] for entry in answer["scores"]] == [f"item-{index}" for index in best]
    assert [entry["rank"] for entry in answer["scores"]] == list(range(600))


async def test_a_large_cold_extract_is_one_job_and_names_items_by_their_place(desk: Desk) -> None:
    body = {"items": [{"text": text} for text in TEXTS]}
    cold = await desk.post("/v1/extract/org/tagger", body)
    assert cold.status_code == 202
    async with desk.worker():
        done = await desk.client.get(cold.headers["location"], headers={"Prefer": "wait=10"})
    assert [item["id"] for item in done.json()["items"]] == [f"item-{index}" for index in range(600)]


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
