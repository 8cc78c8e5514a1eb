"""Batch formation as a pure function: nothing is lost, nothing starves, the ceiling is kept."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from sie_bundle.batch import Entry, Slice, cost, form

lengths = st.lists(st.integers(1, 40), min_size=1, max_size=12)
entries = st.builds(
    lambda key, lengths, deadline, gone: Entry(key=key, lengths=tuple(lengths), deadline=deadline, gone=lambda: gone),
    st.sampled_from("abc"),
    lengths,
    st.one_of(st.none(), st.floats(0, 10)),
    st.booleans(),
)
CEILING, QUADRATIC, NOW = 50.0, 0.01, 5.0


def whole(entry: Entry) -> Slice:
    return Slice(entry, 0, len(entry.lengths))


def entry(key: str, *lengths: int) -> Entry:
    return Entry(key=key, lengths=lengths)


def wanted(entry: Entry) -> bool:
    return not entry.gone() and (entry.deadline is None or entry.deadline >= NOW)


def price(batch: list[Slice]) -> float:
    return sum(cost(part.lengths, QUADRATIC) for part in batch)


@given(st.lists(entries, max_size=20))
def test_every_wanted_row_is_computed_once_and_in_order(queue: list[Entry]) -> None:
    computed: dict[Entry, list[int]] = {entry: [] for entry in queue}
    rest = [whole(entry) for entry in queue]
    dropped: list[Slice] = []
    while rest:
        batch, rest, left = form(rest, NOW, CEILING, QUADRATIC)
        dropped += left
        for part in batch:
            computed[part.entry] += range(part.start, part.stop)
    for entry, rows in computed.items():
        assert rows == (list(range(len(entry.lengths))) if wanted(entry) else [])
    assert {part.entry for part in dropped} == {entry for entry in queue if not wanted(entry)}


@given(st.lists(entries, max_size=20))
def test_a_batch_holds_one_model_and_keeps_the_ceiling_unless_a_single_row_is_over_it(queue: list[Entry]) -> None:
    rest = [whole(entry) for entry in queue]
    while rest:
        batch, rest, _ = form(rest, NOW, CEILING, QUADRATIC)
        assert len({part.entry.key for part in batch}) <= 1
        rows = sum(len(part.lengths) for part in batch)
        assert price(batch) <= CEILING or rows == 1


@given(st.lists(entries, min_size=1, max_size=20))
def test_the_oldest_is_always_in_the_batch(queue: list[Entry]) -> None:
    batch, _, _ = form([whole(entry) for entry in queue], NOW, CEILING, QUADRATIC)
    oldest = next((entry for entry in queue if wanted(entry)), None)
    assert [part.entry for part in batch][:1] == ([] if oldest is None else [oldest])


@given(st.lists(entries, max_size=20))
def test_the_queue_it_was_given_is_left_as_it_was(queue: list[Entry]) -> None:
    given_queue = [whole(entry) for entry in queue]
    before = list(given_queue)
    form(given_queue, NOW, CEILING, QUADRATIC)
    assert given_queue == before


@given(st.lists(lengths, min_size=1, max_size=12))
def test_a_waiting_entry_is_served_within_as_many_batches_as_stand_before_it(all_lengths: list[list[int]]) -> None:
    rest = [whole(Entry(key="a", lengths=tuple(lengths))) for lengths in all_lengths]
    last = rest[-1].entry
    for _ in range(len(rest)):
        batch, rest, _ = form(rest, NOW, CEILING)
        if any(part.entry is last for part in batch):
            return
        # Work that keeps arriving does not push it back.
        rest.append(whole(entry("a", 1)))
    raise AssertionError("it starved")


def test_an_entry_over_the_ceiling_shares_the_device_with_those_behind_it() -> None:
    large, small = entry("a", *[10] * 12), entry("a", 10, 10)
    rest = [whole(large), whole(small)]
    order = []
    while rest:
        batch, rest, _ = form(rest, NOW, CEILING)
        order.append([(part.entry is large, part.stop - part.start) for part in batch])
    assert order == [[(True, 5)], [(False, 2)], [(True, 5)], [(True, 2)]]


def test_smaller_entries_fill_the_room_a_larger_one_leaves() -> None:
    first, larger, small = entry("a", 30), entry("a", 40), entry("a", 20)
    batch, rest, _ = form([whole(first), whole(larger), whole(small)], NOW, CEILING)
    assert [part.entry for part in batch] == [first, small]
    assert [part.entry for part in rest] == [larger]


def test_an_empty_queue_forms_nothing() -> None:
    assert form([], NOW, CEILING) == ([], [], [])


def test_cost_counts_tokens_and_their_squares_per_row() -> None:
    assert cost((2, 3)) == 5
    assert cost((2, 3), quadratic=0.5) == 5 + 0.5 * 13
