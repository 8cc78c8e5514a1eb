"""How lists are cut into chunks, and how results and errors of chunks become those of the whole."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sie_sdk import chunks, errors
from sie_sdk.chunks import BYTES, ITEMS, Chunk, Tally
from sie_sdk.types import Item, PairUsage, Progress, ScoreEntry, ScoreResult, Timing

SIZES = st.lists(st.one_of(st.integers(0, 40), st.sampled_from([BYTES // 2, BYTES, BYTES + 1])), max_size=900)


def texts(sizes: list[int]) -> list[Item | str]:
    return ["x" * size for size in sizes]


@given(SIZES)
def test_a_list_is_cut_without_loss_in_order_and_within_the_limits(sizes: list[int]) -> None:
    items = texts(sizes)
    cut = chunks.cut(items)
    assert [item for chunk in cut for item in chunk.items] == items
    assert all(before.stop == after.start for before, after in pairwise(cut))
    for chunk in cut:
        assert len(chunk.items) <= ITEMS
        assert len(chunk.items) == 1 or sum(map(len, chunk.items)) <= BYTES  # type: ignore[arg-type]


@given(st.integers(ITEMS + 1, 5 * ITEMS))
def test_a_long_list_of_short_texts_is_cut_evenly(count: int) -> None:
    cut = chunks.cut(["x"] * count)
    assert len(cut) == -(-count // ITEMS)
    assert max(len(chunk.items) for chunk in cut) - min(len(chunk.items) for chunk in cut) < len(cut)


def test_chunks_are_filled_to_their_size_one_after_the_other() -> None:
    for text, sizes in (("xxxx", [2] * 6), ("xxxxx", [2] * 6), ("xxxxxx", [1] * 12)):
        assert [len(chunk.items) for chunk in chunks.each([text] * 12, 100, 10)] == sizes


@given(SIZES)
def test_items_that_come_one_by_one_are_cut_alike_whether_awaited_or_not(sizes: list[int]) -> None:
    items = texts(sizes)

    async def coming() -> AsyncIterator[Item | str]:
        for item in items:
            yield item

    async def awaited() -> list[Chunk]:
        return [chunk async for chunk in chunks.each_awaited(coming())]

    cut = [*chunks.each(items)]
    assert [item for chunk in cut for item in chunk.items] == items
    assert asyncio.run(awaited()) == cut


def test_what_the_items_raise_comes_after_the_chunk_that_was_being_filled() -> None:
    def items() -> Iterator[Item | str]:
        yield from "abcde"
        raise OSError("gone")

    async def coming() -> AsyncIterator[Item | str]:
        for item in items():
            yield item

    cut = chunks.each(items(), 3)
    assert [next(cut).items, next(cut).items] == [["a", "b", "c"], ["d", "e"]]
    with pytest.raises(OSError, match="gone"):
        next(cut)

    async def awaited() -> None:
        cut = chunks.each_awaited(coming())
        assert (await anext(cut)).items == [*"abcde"]
        with pytest.raises(OSError, match="gone"):
            await anext(cut)

    asyncio.run(awaited())


def test_vectors_ids_and_metadata_count_for_the_size_of_a_chunk() -> None:
    large = Item(multivector=np.zeros((BYTES // 8 + 1, 1), np.float32))
    assert len(chunks.cut([large, large])) == 2
    assert len(chunks.cut([Item(text="a", id="x" * BYTES), "a"])) == 2
    assert len(chunks.cut([Item(text="a", metadata={"a": "x" * BYTES}), "a"])) == 2


def test_items_are_known_by_their_place_in_the_whole_unless_they_have_an_id() -> None:
    named = Chunk(300, ["a", Item(text="b"), Item(text="c", id="own")]).named
    assert named == [Item(text="a", id="item-300"), Item(text="b", id="item-301"), Item(text="c", id="own")]


def test_an_error_of_a_chunk_counts_from_the_first_item_of_all() -> None:
    error = errors.InputTooLongError("items[3].text has 9 bytes.", field="items[3].text", limit=8)
    chunks.place(error, 256, 356)
    assert (error.message, error.field) == ("items[259].text has 9 bytes.", "items[259].text")
    assert error.details["items"] == [256, 356]
    other = errors.InvalidInputError("params.labels is empty.", field="params.labels")
    chunks.place(other, 256, 257)
    assert (other.message, other.field) == ("params.labels is empty.", "params.labels")


@given(st.lists(st.lists(st.integers(-3, 3), min_size=1, max_size=5), min_size=1, max_size=5))
def test_scores_of_chunks_are_ranked_as_those_of_one_request(parts: list[list[int]]) -> None:
    results, start = [], 0
    for part in parts:
        order = sorted(range(len(part)), key=lambda index: (-part[index], index))
        entries = [ScoreEntry(f"item-{start + at}", part[at], rank, at) for rank, at in enumerate(order)]
        results.append(ScoreResult(entries, "m", "q", PairUsage(10, len(part)), Timing(total_ms=float(start))))
        start += len(part)
    whole = chunks.merged("score", results)
    values = [value for part in parts for value in part]
    order = sorted(range(len(values)), key=lambda index: (-values[index], index))
    assert [(entry.index, entry.item_id) for entry in whole.scores] == [(at, f"item-{at}") for at in order]
    assert [entry.rank for entry in whole.scores] == [*range(len(values))]
    assert (whole.model, whole.query_id) == ("m", "q")
    assert whole.usage == PairUsage(10 * len(parts), len(values))
    assert whole.timing == results[-1].timing


def test_scores_whose_places_a_server_does_not_tell_name_no_other_items() -> None:
    parts = [ScoreResult([ScoreEntry(f"item-{start}", 1.0 + start, 0)]) for start in (0, 1)]
    whole = chunks.merged("score", parts)
    assert [(entry.item_id, entry.index) for entry in whole.scores] == [("item-1", -1), ("item-0", -1)]


def test_scores_without_usage_or_timing_are_merged_too() -> None:
    one = ScoreResult([ScoreEntry("a", 1.0, 0, 0)])
    whole = chunks.merged("score", [one, one])
    assert (whole.usage, whole.timing) == (None, None)


@pytest.mark.parametrize("total", [4, None])
def test_progress_of_chunks_adds_up(total: int | None) -> None:
    clock = iter([10.0, 11.0, 12.0, 13.0])
    tally = Tally(total, lambda: next(clock))
    told = [tally(Progress("queued", total=2)), tally(Progress("done", done=2)), tally(Progress("done", done=2))]
    assert [(one.state, one.done, one.total) for one in told] == [
        ("queued", 0, total),
        ("running", 2, total),
        ("done" if total else "running", 4, total),
    ]
    assert [one.elapsed_s for one in told] == [1.0, 2.0, 3.0]
