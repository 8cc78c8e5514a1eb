"""A tenant has at most its limit in flight, and every place it gives up is free again."""

from __future__ import annotations

from contextlib import ExitStack

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sie_broker.jobs import LIFETIME_S, Job
from sie_broker.records import Lane
from sie_ingress.admission import Admission
from sie_sdk.errors import RateLimitedError

LANE = Lane(pool="default", bundle="default", profile="cpu")


def job(name: str) -> Job:
    return Job(id=name, lane=LANE, model="m", accepted=0.0)


def queue(admission: Admission, name: str, works: int = 1, *, at: float = 0.0) -> None:
    with admission.admit("acme", works, at, name) as ticket:
        ticket.becomes = job(name)


def refused(admission: Admission, *, tenant: str = "acme", at: float = 1.0) -> bool:
    try:
        with admission.admit(tenant, 1, at):
            return False
    except RateLimitedError:
        return True


def test_a_tenant_over_its_limit_is_refused_and_others_are_not() -> None:
    admission = Admission(2)
    with admission.admit("acme", 2, 0.0):
        with pytest.raises(RateLimitedError, match="acme has 2") as error, admission.admit("acme", 1, 0.0):
            pass
        assert (error.value.status, error.value.limit, error.value.field) == (429, 2, "X-SIE-Tenant")
        assert not refused(admission, tenant="other")
    assert not refused(admission)


def test_a_request_that_fails_gives_its_place_back() -> None:
    admission = Admission(1)
    with pytest.raises(ZeroDivisionError), admission.admit("acme", 1, 0.0):
        raise ZeroDivisionError
    assert not refused(admission)


def test_a_job_counts_until_its_answer_is_fetched() -> None:
    admission = Admission(1)
    queue(admission, "j")
    assert refused(admission)
    admission.answered("j")
    assert not refused(admission)


def test_a_job_counts_until_its_lane_was_seen_empty_after_it_came() -> None:
    admission = Admission(1)
    queue(admission, "j", at=5.0)
    admission.drained(LANE, 4.0)
    assert refused(admission, at=6.0)
    admission.drained(Lane(pool="default", bundle="default", profile="gpu"), 7.0)
    assert refused(admission, at=7.0)
    admission.drained(LANE, 7.0)
    assert not refused(admission, at=7.0)


def test_a_job_that_nobody_asks_for_stops_counting_with_its_lifetime() -> None:
    admission = Admission(1)
    queue(admission, "j")
    assert refused(admission, at=LIFETIME_S - 1)
    assert not refused(admission, at=LIFETIME_S + 1)


def test_the_same_job_asked_for_twice_counts_once() -> None:
    admission = Admission(3)
    queue(admission, "j")
    queue(admission, "j")
    with admission.admit("acme", 2, 0.0):
        assert refused(admission, at=0.0)


def test_a_job_that_is_answered_gives_back_all_its_works() -> None:
    admission = Admission(5)
    queue(admission, "j", 4)
    admission.answered("j")
    with admission.admit("acme", 4, 0.0):
        assert not refused(admission)


def test_a_repeat_of_a_job_is_let_in_and_its_answer_is_the_job_s() -> None:
    admission = Admission(1)
    queue(admission, "j")
    for _ in range(2):
        queue(admission, "j")
        assert refused(admission)
    with admission.admit("acme", 1, 0.0, "j"):
        admission.answered("j")
    assert not refused(admission)


def test_a_repeat_of_a_job_whose_answer_was_fetched_meanwhile_counts_when_it_is_a_job_again() -> None:
    admission = Admission(1)
    queue(admission, "j")
    with admission.admit("acme", 1, 0.0, "j") as ticket:
        admission.answered("j")
        ticket.becomes = job("j")
    assert refused(admission)
    admission.answered("j")
    assert not refused(admission)


def test_a_request_larger_than_the_limit_is_let_in_alone() -> None:
    admission = Admission(2)
    with admission.admit("acme", 16, 0.0):
        assert refused(admission)


def test_no_limit_admits_everything() -> None:
    admission = Admission(0)
    with admission.admit("acme", 10**6, 0.0):
        assert not refused(admission)


@given(st.lists(st.sampled_from(["open", "close", "queue", "repeat", "answer", "drain"]), max_size=40))
def test_whatever_happens_everything_that_ended_is_free_again(steps: list[str]) -> None:
    admission, open_requests = Admission(1000), []

    for number, step in enumerate(steps):
        if step == "open":
            with ExitStack() as stack:
                stack.enter_context(admission.admit("acme", 1, 0.0))
                open_requests.append(stack.pop_all())
        elif step == "close" and open_requests:
            open_requests.pop().close()
        elif step == "queue":
            queue(admission, f"j{number}")
        elif step == "repeat":
            queue(admission, f"j{number - 1}")
        elif step == "answer":
            admission.answered(f"j{number - 1}")
        elif step == "drain":
            admission.drained(LANE, 1.0)
    for request in open_requests:
        request.close()
    admission.drained(LANE, 1.0)
    with admission.admit("acme", 10**6, 0.0):  # let in only when nothing else is in flight
        pass
