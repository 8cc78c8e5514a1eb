"""Many texts are tokenized by as many threads as there are free cores, and come back in their order."""

from __future__ import annotations

import os
import threading
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sie_bundle.models.spread import LOT, PART, Spread, as_long_as

LONG = ["a" * PART, "b" * PART, "c"]


def upper(texts: Sequence[str]) -> list[str]:
    return [text.upper() for text in texts]


@given(st.lists(st.sampled_from(["a", "b" * PART, "c" * (PART // 2)]), max_size=9), st.integers(1, 4))
def test_every_text_has_its_result_in_its_place(texts: list[str], cores: int) -> None:
    assert Spread(cores)(upper, texts) == upper(texts)


def test_long_texts_are_done_at_the_same_time() -> None:
    both = threading.Barrier(2, timeout=30)

    def each(texts: Sequence[str]) -> list[str]:
        both.wait()  # for the other, whatever else it is
        return upper(texts)

    assert Spread(2)(each, LONG) == upper(LONG)


def test_short_ones_take_one_thread() -> None:
    calls: list[Sequence[str]] = []

    def counted(texts: Sequence[str]) -> list[str]:
        calls.append(texts)
        return upper(texts)

    Spread(4)(counted, ["hello", "world"])
    assert calls == [["hello", "world"]]


def test_where_all_cores_are_taken_the_caller_does_it_alone() -> None:
    spread, begun, go = Spread(2), threading.Barrier(3, timeout=30), threading.Event()

    def held(texts: Sequence[str]) -> list[str]:
        begun.wait()
        assert go.wait(30)
        return upper(texts)

    with ThreadPoolExecutor(1) as threads:
        first = threads.submit(spread, held, LONG)
        begun.wait()
        calls: list[Sequence[str]] = []

        def counted(texts: Sequence[str]) -> list[str]:
            calls.append(texts)
            return upper(texts)

        assert spread(counted, LONG) == upper(LONG)
        assert calls == [LONG]
        go.set()
        assert first.result(30) == upper(LONG)


def test_an_error_reaches_the_caller_and_takes_no_core_along() -> None:
    spread = Spread(2)

    def fails(texts: Sequence[str]) -> list[str]:
        if texts[0].startswith("b"):
            raise ValueError("b")
        return upper(texts)

    for _ in range(3):
        with pytest.raises(ValueError, match="b"):
            spread(fails, LONG)
    both = threading.Barrier(2, timeout=30)

    def each(texts: Sequence[str]) -> list[str]:
        both.wait()
        return upper(texts)

    assert spread(each, LONG) == upper(LONG)


def test_the_library_has_no_threads_of_its_own_unless_somebody_says_so() -> None:
    assert os.environ["TOKENIZERS_PARALLELISM"] == "false"


def test_what_nobody_wants_any_more_ends_after_the_lot_that_is_done() -> None:
    spread, calls = Spread(2), list[Sequence[str]]()

    def counted(texts: Sequence[str]) -> list[str]:
        calls.append(texts)
        return upper(texts)

    def wanted() -> None:
        if calls:
            raise TimeoutError

    lot = "a" * LOT
    with as_long_as(wanted), pytest.raises(TimeoutError):
        Spread(1)(counted, [lot] * 5)
    assert calls == [[lot]]
    assert spread(counted, [lot] * 2) == upper([lot] * 2), "whoever comes after is not asked"


def test_parts_that_have_not_begun_end_with_the_one_that_failed() -> None:
    spread, begun, go = Spread(3), threading.Semaphore(0), threading.Event()

    def hold() -> None:
        begun.release()
        assert go.wait(30)

    def fails(texts: Sequence[str]) -> list[str]:
        calls.append(texts)
        raise ValueError

    held, calls = [spread._threads.submit(hold) for _ in range(2)], list[Sequence[str]]()
    for _ in held:
        assert begun.acquire(timeout=30)
    with pytest.raises(ValueError):
        spread(fails, ["a" * PART] * 3)
    go.set()
    for each in held:
        each.result(30)
    spread._threads.shutdown()
    assert len(calls) == 1
