"""Batch formation as a pure function: nothing is lost, nothing starves, the ceiling is kept, interactive goes first."""

from __future__ import annotations

from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from sie_bundle.engine.batch import BULK_WAIT_S, Entry, Limits, Slice, form

lengths = st.lists(st.integers(1, 40), min_size=1, max_size=12)
entries = st.builds(
    lambda key, lengths, deadline, gone, bulk, queued: Entry(
        key=key, lengths=tuple(lengths), deadline=deadline, gone=lambda: gone, bulk=bulk, queued=queued
    ),
    st.sampled_from("abc"),
    lengths,
    st.one_of(st.none(), st.floats(0, 10)),
    st.booleans(),
    st.booleans(),
    st.floats(0, 5),
)
CEILING, QUADRATIC, TOKENS, NOW = 50.0, 0.01, 44, 5.0


def limits(leader: Slice) -> Limits:
    """Rows of up to 13 tokens fill the tokens first, longer ones the cost."""
    return Limits(CEILING, QUADRATIC, TOKENS)


def by_tokens(leader: Slice) -> Limits:
    return Limits(CEILING)


def whole(entry: Entry) -> Slice:
    return Slice(entry, 0, len(entry.lengths))


def entry(key: str, *lengths: int, bulk: bool = False, queued: float = 0.0) -> Entry:
    return Entry(key=key, lengths=lengths, bulk=bulk, queued=queued)


def wanted(entry: Entry, now: float = NOW) -> bool:
    return not entry.gone() and (entry.deadline is None or entry.deadline >= now)


def cost(lengths: tuple[int, ...]) -> float:
    """What rows cost the device, in tokens: linear layers by token, attention by the square of a row's length."""
    return sum(lengths) + QUADRATIC * sum(length * length for length in lengths)


def price(batch: list[Slice]) -> float:
    return sum(cost(part.lengths) for part in batch)


@given(st.lists(entries, max_size=20))
def test_every_wanted_row_is_computed_once_and_in_order(queue: list[Entry]) -> None:
    computed: dict[Entry, list[int]] = {entry: [] for entry in queue}
    rest = [whole(entry) for entry in queue]
    dropped: list[Slice] = []
    while rest:
        batch, rest, left = form(rest, NOW, limits)
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
        batch, rest, _ = form(rest, NOW, limits)
        assert len({part.entry.key for part in batch}) <= 1
        rows = [length for part in batch for length in part.lengths]
        assert (price(batch) <= CEILING and sum(rows) <= TOKENS) or len(rows) == 1


@given(st.lists(entries, min_size=1, max_size=20), st.floats(0, NOW))
def test_the_oldest_of_a_class_leads(queue: list[Entry], bulk_led: float) -> None:
    batch, _, _ = form([whole(entry) for entry in queue], NOW, limits, bulk_led)
    oldest = [next((entry for entry in queue if wanted(entry) and entry.bulk == bulk), None) for bulk in (False, True)]
    assert not batch if oldest == [None, None] else batch[0].entry in oldest


@given(st.lists(entries, max_size=20))
def test_the_queue_it_was_given_is_left_as_it_was(queue: list[Entry]) -> None:
    given_queue = [whole(entry) for entry in queue]
    before = list(given_queue)
    form(given_queue, NOW, limits)
    assert given_queue == before


@given(st.lists(lengths, min_size=1, max_size=12))
def test_a_waiting_entry_is_served_within_as_many_batches_as_stand_before_it(all_lengths: list[list[int]]) -> None:
    rest = [whole(Entry(key="a", lengths=tuple(lengths))) for lengths in all_lengths]
    last = rest[-1].entry
    for _ in range(len(rest)):
        batch, rest, _ = form(rest, NOW, by_tokens)
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
        batch, rest, _ = form(rest, NOW, by_tokens)
        order.append([(part.entry is large, part.stop - part.start) for part in batch])
    assert order == [[(True, 5)], [(False, 2)], [(True, 5)], [(True, 2)]]


def test_a_batch_has_as_many_tokens_as_it_may_whatever_they_cost_unless_that_takes_too_long() -> None:
    queue = [whole(entry("a", 20)) for _ in range(4)]
    for cost_at_most, held in ((float("inf"), 3), (60.0, 1), (64.0, 2)):
        limited = Limits(cost_at_most, 0.03, 60)
        batch, _, _ = form(queue, NOW, {queue[0]: limited}.__getitem__)
        assert len(batch) == held, cost_at_most


def test_smaller_entries_fill_the_room_a_larger_one_leaves() -> None:
    first, larger, small = entry("a", 30), entry("a", 40), entry("a", 20)
    batch, rest, _ = form([whole(first), whole(larger), whole(small)], NOW, by_tokens)
    assert [part.entry for part in batch] == [first, small]
    assert [part.entry for part in rest] == [larger]


# -- interactive and bulk ----------------------------------------------------------------------------------------------


class Device:
    """A device that takes batch after batch, as the executor does, while a test's clock goes on."""

    def __init__(self) -> None:
        self.now = 0.0
        self.bulk_led = float("-inf")
        self.queue: list[Slice] = []

    def arrives(self, key: str, *lengths: int, bulk: bool) -> Entry:
        new = entry(key, *lengths, bulk=bulk, queued=self.now)
        self.queue.append(whole(new))
        return new

    def waiting(self, *, bulk: bool) -> list[Entry]:
        return [part.entry for part in self.queue if part.entry.bulk == bulk]

    def batch(self, seconds: float) -> list[Slice]:
        batch, self.queue, _ = form(self.queue, self.now, by_tokens, self.bulk_led)
        if batch and batch[0].entry.bulk:
            self.bulk_led = self.now
        self.now += seconds
        return batch


@given(st.lists(entries, max_size=20), st.floats(0, NOW), st.lists(st.floats(0, 10), max_size=20))
def test_whatever_bulk_waits_the_oldest_interactive_is_in_the_next_batch_or_the_one_after_it(
    queue: list[Entry], bulk_led: float, durations: list[float]
) -> None:
    oldest = next((entry for entry in queue if wanted(entry) and not entry.bulk), None)
    first, rest, _ = form([whole(entry) for entry in queue], NOW, limits, bulk_led)
    if oldest is None or first[0].entry is oldest:
        return
    assert first[0].entry.bulk
    more = [whole(entry("abc"[i % 3], *[10] * 9, bulk=True, queued=NOW)) for i in range(len(durations))]
    second, _, _ = form(rest + more, NOW + sum(durations), limits, bulk_led=NOW)
    assert oldest in [part.entry for part in (*first, *second)] or not wanted(oldest, NOW + sum(durations))


steps = st.tuples(
    st.lists(st.tuples(st.sampled_from("abc"), st.integers(1, 50), st.booleans()), max_size=5),
    st.floats(0.01, 2 * BULK_WAIT_S),
)


@given(st.lists(steps, max_size=40))
def test_bulk_costs_an_interactive_slice_that_fits_a_batch_at_most_one_batch(
    arrivals: list[tuple[list[tuple[str, int, bool]], float]],
) -> None:
    device = Device()
    overtaken: dict[Entry, int] = {}
    for new, seconds in arrivals:
        for key, length, bulk in new:
            device.arrives(key, length, bulk=bulk)
        before, led = device.waiting(bulk=False), device.bulk_led
        batch = device.batch(seconds)
        if batch and batch[0].entry.bulk:
            for waiting in before:
                overtaken[waiting] = overtaken.get(waiting, 0) + 1
            assert not before or device.bulk_led >= led + BULK_WAIT_S, "and within BULK_WAIT_S none at all"
    assert max(overtaken.values(), default=0) <= 1


@given(st.integers(1, 6), st.integers(1, 6), st.floats(0.05, 2 * BULK_WAIT_S), st.data())
def test_no_bulk_slice_waits_for_ever_under_an_endless_interactive_stream(
    streams: int, bulk: int, seconds: float, data: st.DataObject
) -> None:
    device = Device()
    for _ in range(bulk):
        device.arrives(data.draw(st.sampled_from("ab")), 40, bulk=True)
    turn = int(BULK_WAIT_S / seconds) + 1 + streams
    for _ in range(bulk * (turn + 1)):
        while len(device.waiting(bulk=False)) < streams:
            device.arrives(data.draw(st.sampled_from("bc")), 40, bulk=False)
        device.batch(seconds)
    assert not device.waiting(bulk=True)


def test_interactive_slices_fill_a_batch_before_older_bulk_ones_do() -> None:
    bulk = [entry("a", 10, bulk=True, queued=NOW) for _ in range(3)]
    first, other, second = entry("a", 20, queued=NOW), entry("b", 5, queued=NOW), entry("a", 5, queued=NOW)
    batch, rest, _ = form([whole(each) for each in (*bulk, first, other, second)], NOW, by_tokens)
    assert [part.entry for part in batch] == [first, second, bulk[0]]
    assert [part.entry for part in rest] == [other, *bulk[1:]]


def test_bulk_alone_waits_for_nothing() -> None:
    batch, _, _ = form([whole(entry("a", 5, bulk=True, queued=NOW))], NOW, by_tokens, bulk_led=NOW)
    assert len(batch) == 1


def test_bulk_leads_a_batch_when_it_has_stood_back_long_enough_and_interactive_the_next() -> None:
    bulk = [whole(entry("a", 50, bulk=True)) for _ in range(2)]
    queue = [*bulk, whole(entry("b", 50, queued=1.0)), whole(entry("b", 50, queued=1.5))]
    led = []
    bulk_led = float("-inf")
    for now in (BULK_WAIT_S - 0.01, BULK_WAIT_S, 3 * BULK_WAIT_S, 3 * BULK_WAIT_S):
        batch, queue, _ = form(queue, now, by_tokens, bulk_led)
        led.append(batch[0].entry.bulk)
        bulk_led = now if batch[0].entry.bulk else bulk_led
    assert led == [False, True, False, True]


def test_bulk_leads_at_half_of_its_time_where_that_is_sooner_but_twice_before_nobody() -> None:
    late = whole(Entry("a", (50,), deadline=1.0, bulk=True))
    first, second = whole(entry("b", 50)), whole(entry("b", 50, queued=0.5))
    assert not form([late, first], 0.49, by_tokens).batch[0].entry.bulk
    assert form([late, first], 0.5, by_tokens).batch[0].entry.bulk
    assert form([late, second], 0.6, by_tokens, bulk_led=0.45).batch[0].entry.bulk
    assert not form([late, first], 0.6, by_tokens, bulk_led=0.45).batch[0].entry.bulk


# -- the rest ----------------------------------------------------------------------------------------------------------


def test_an_empty_queue_forms_nothing() -> None:
    assert form([], NOW, by_tokens) == ([], [], [])


def test_of_slices_with_more_rows_than_there_is_room_for_no_lengths_are_looked_at() -> None:
    class Unread(tuple[int, ...]):
        def __getitem__(self, key: object) -> Any:
            raise AssertionError("looked at")

    small = [whole(entry("a", 40)), whole(entry("a", 2))]
    large = [Slice(Entry(key="a", lengths=Unread([1] * 20)), 0, 20)]
    batch, rest, _ = form(small[:1] + large + small[1:], NOW, by_tokens)
    assert (batch, rest) == (small, large)


def test_a_slice_with_as_many_rows_as_there_is_room_for_tokens_joins() -> None:
    queue = [whole(entry("a", 40)), whole(entry("a", *[1] * 10))]
    assert form(queue, NOW, by_tokens).batch == queue
