"""Failures of loads: their kind, their pauses, and that none of them is for ever."""

from __future__ import annotations

import errno
import threading
from pathlib import Path

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sie_bundle.residency.load_failure import JITTER, PAUSES, Failures, pause
from sie_bundle.weights.source import REASONS, Reason, classify, most_hopeful
from sie_sdk.errors import ModelLoadFailedError, OutOfMemoryError, SIEError, WeightsUnavailableError
from tests import tiny_model

SPEC = tiny_model.spec(Path("unused"))


class Clock:
    """Moves when the test says so."""

    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


def failures(clock: Clock) -> Failures:
    return Failures(clock, lambda: 0.5)


def error(reason: Reason) -> SIEError:
    return WeightsUnavailableError("No source has them.", reason=reason, sources=[])


def caused(error: Exception, cause: Exception) -> Exception:
    error.__cause__ = cause
    return error


class TorchsOutOfMemoryError(RuntimeError):
    """Stands for torch's, which is known by its name: this module imports no torch."""


TorchsOutOfMemoryError.__name__ = "OutOfMemoryError"


@pytest.mark.parametrize(
    ("failure", "reason"),
    [
        (error("gated"), "gated"),
        (ModelLoadFailedError("Torn.", reason="corrupt"), "corrupt"),
        (ModelLoadFailedError("Made up.", reason="made up"), "unknown"),
        (MemoryError(), "memory"),
        (OSError(errno.ENOMEM, "no memory"), "memory"),
        (RuntimeError("DefaultCPUAllocator: can't allocate memory: you tried"), "memory"),
        (TorchsOutOfMemoryError("CUDA out of memory"), "memory"),
        (RuntimeError("CUDA error: out of memory"), "memory"),
        (RuntimeError("failed in the TorchScript interpreter.\nRuntimeError: CUDA out of memory. Tried to"), "memory"),
        (RuntimeError("CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`"), "memory"),
        (caused(ModelLoadFailedError("A first forward pass failed."), MemoryError()), "memory"),
        (ConnectionResetError(), "network"),
        (TimeoutError(), "network"),
        (OSError(errno.ENOSPC, "disk full"), "unknown"),
        (ZeroDivisionError(), "unknown"),
    ],
)
def test_a_failure_is_known_by_its_word_its_type_or_its_cause(failure: Exception, reason: Reason) -> None:
    assert classify(failure) == reason


def test_a_failure_that_an_adapter_raised_from_itself_has_a_kind_too() -> None:
    failure, told = RuntimeError("odd"), list[Reason]()
    thread = threading.Thread(target=lambda: told.append(classify(caused(failure, failure))), daemon=True)
    thread.start()
    thread.join(10)
    assert told == ["unknown"]


def test_of_several_sources_the_one_that_may_be_back_soonest_counts() -> None:
    assert most_hopeful(["not_found", "network", "gated"]) == "network"
    assert most_hopeful(["not_found", "gated"]) == "gated"
    assert [PAUSES[reason].first for reason in ("network", "memory", "gated")] == [1, 5, 300]


@given(st.sampled_from(REASONS), st.integers(1, 10_000), st.floats(0, 1, exclude_max=True))
def test_no_pause_is_for_ever_nor_shorter_than_the_first(reason: Reason, count: int, chance: float) -> None:
    first, longest = PAUSES[reason]
    assert first * (1 - JITTER) <= pause(reason, count, lambda: chance) <= longest * (1 + JITTER)


def test_a_network_that_stays_away_is_asked_less_and_less_often() -> None:
    pauses = [pause("network", count, lambda: 0.5) for count in range(1, 9)]
    assert pauses == [1, 2, 4, 8, 16, 32, 60, 60]


def test_pauses_of_many_workers_differ() -> None:
    assert pause("network", 3, lambda: 0.0) < pause("network", 3, lambda: 0.9)


def test_a_model_pauses_and_its_callers_hear_for_how_long() -> None:
    clock = Clock()
    some = failures(clock)
    told = some.note(SPEC, error("network"))
    assert (told.retry_after, told.details["reason"]) == (1.0, "network")
    clock.now += 0.75
    pausing = some.pausing(SPEC)
    assert pausing is not None and pausing.error.retry_after == 0.25
    assert type(pausing.error) is WeightsUnavailableError and pausing.error is not told
    again = some.pausing(SPEC)
    assert again is not None and again.error is not pausing.error, "errors collect the traces of all who raise them"
    clock.now += 0.25
    assert some.pausing(SPEC) is None


def test_failures_in_a_row_pause_longer_and_a_success_ends_the_row() -> None:
    clock = Clock()
    some = failures(clock)
    assert [some.note(SPEC, error("network")).retry_after for _ in range(3)] == [1, 2, 4]
    some.forget(SPEC)
    assert some.pausing(SPEC) is None
    assert some.note(SPEC, error("network")).retry_after == 1


def test_another_kind_of_failure_starts_a_new_row() -> None:
    some = failures(Clock())
    some.note(SPEC, error("network"))
    assert some.note(SPEC, error("gated")).retry_after == 300
    assert some.note(SPEC, error("network")).retry_after == 1


def test_what_is_known_of_a_failure_is_no_error_that_anybody_raises() -> None:
    some, raised = failures(Clock()), error("network")
    told = some.note(SPEC, raised)
    (known,) = some.latest(1)
    assert len({id(each) for each in (raised, told, known.error)}) == 3


class OddError(ModelLoadFailedError):
    """An adapter's own, which is made in a way of its own."""

    def __init__(self, *, path: str) -> None:
        super().__init__(f"{path} is odd.", field="sources")
        self.path = path


def test_an_error_that_an_adapter_makes_in_its_own_way_is_told_with_all_it_knows() -> None:
    known = failures(Clock())
    told = known.note(SPEC, OddError(path="a.bin"))
    pausing = known.pausing(SPEC)
    assert pausing is not None
    for each in (told, pausing.error):
        assert isinstance(each, OddError) and (each.path, each.field, str(each)) == (
            "a.bin",
            "sources",
            "a.bin is odd.",
        )


def test_a_changed_spec_does_not_pause() -> None:
    some = failures(Clock())
    some.note(SPEC, error("gated"))
    changed = msgspec.structs.replace(SPEC, revision="repaired")
    assert some.pausing(changed) is None
    assert some.note(changed, error("network")).retry_after == 1


def test_of_models_that_are_served_no_more_nothing_is_kept() -> None:
    some = failures(Clock())
    other = tiny_model.spec(Path("unused"), "test/other")
    for spec in (SPEC, other):
        some.note(spec, error("gated"))
    some.forget_all_but(lambda model: model == other.id)
    assert [failure.spec for failure in some.latest(2)] == [other] and some.pausing(SPEC) is None


def test_memory_that_ran_out_is_told_as_such_and_retryable() -> None:
    told = failures(Clock()).note(SPEC, MemoryError("secret"))
    assert isinstance(told, OutOfMemoryError)
    assert (told.status, told.retry_after, told.details["reason"]) == (503, 5.0, "memory")


def test_an_error_from_outside_the_tree_is_told_without_its_text() -> None:
    told = failures(Clock()).note(SPEC, ZeroDivisionError("secret"))
    assert type(told) is ModelLoadFailedError
    assert "secret" not in str(told) and told.details["reason"] == "unknown"
