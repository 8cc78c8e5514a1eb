"""When a call follows, waits, tries again or gives up; driven by hand on a clock that only a Wait moves."""

from __future__ import annotations

import random
import threading
from collections.abc import Callable
from typing import Any

import msgspec
import pytest

from sie_sdk import refusals, replies
from sie_sdk.effects import Cancel, Effect, Patience, Reply, Report, Send, Wait
from sie_sdk.errors import (
    CancelledByCallerError,
    ConnectionFailedError,
    DeadlineExceededError,
    InferenceError,
    JobNotFoundError,
    OutOfMemoryError,
    ProvisioningError,
    ProvisioningFailedError,
    QueueFullError,
    SIEError,
    UnexpectedReplyError,
)
from sie_sdk.settle import RETRY_AFTER_S, settle
from sie_sdk.types import JobStatus, Progress

DONE = Reply(200, {}, b"done")
POST = Send("POST", "/v1/encode/m", {"X-Request-ID": "r1", "Idempotency-Key": "k1", "Content-Type": "x"}, b"body")


class World:
    """Runs a call against scripted replies. An exception in the script is thrown in; a held reply takes its hold."""

    def __init__(self, script: list[Reply | SIEError]) -> None:
        self.script = script
        self.clock = 0.0
        self.hold_s: float | None = None
        self.takes_s = 0.0
        self.sent: list[Send] = []
        self.waits: list[float] = []
        self.told: list[Progress] = []
        self.on_report: Callable[[], None] = lambda: None

    def run(
        self,
        deadline_s: float = 300.0,
        wait_for_capacity: bool = True,
        cancel: Cancel | None = None,
        timeout_s: float = POST.timeout_s,
    ) -> Reply:
        patience = Patience(wait_for_capacity, deadline_s, cancel=cancel, now=lambda: self.clock)
        call = settle(msgspec.structs.replace(POST, timeout_s=timeout_s), patience, items=2)
        try:
            effect: Effect = next(call)
            while True:
                outcome = self._perform(effect)
                effect = call.throw(outcome) if isinstance(outcome, SIEError) else call.send(outcome)
        except StopIteration as end:
            reply: Reply = end.value
            return reply

    def _perform(self, effect: Effect) -> Reply | SIEError | None:
        match effect:
            case Send():
                self.sent.append(effect)
                self.clock += self.takes_s
                reply = self.script.pop(0)
                if isinstance(reply, Reply) and "preference-applied" in reply.headers:
                    asked = float(effect.headers["Prefer"].removeprefix("wait="))
                    self.clock += asked if self.hold_s is None else self.hold_s
                return reply
            case Wait():
                self.waits.append(effect.seconds)
                self.clock += effect.seconds
            case Report():
                self.told.append(effect.progress)
                self.on_report()
        return None

    @property
    def states(self) -> list[str]:
        return [progress.state for progress in self.told]


def accepted(retry_after: float = 3.0, held: bool = False, **job: Any) -> Reply:
    headers = {"retry-after": str(retry_after), "location": "/v1/jobs/j1"}
    return Reply(
        202,
        headers | ({"preference-applied": "wait"} if held else {}),
        replies.job_body(JobStatus("j1", **{"state": "provisioning", **job})),
    )


def refused(error: SIEError) -> Reply:
    return Reply(error.status, {"x-request-id": "r9"}, refusals.error_body(error))


def test_what_is_tried_again_takes_nothing_from_the_callers_random_numbers() -> None:
    before = random.getstate()
    World([refused(QueueFullError("full", retry_after=2.0)), DONE]).run()
    assert random.getstate() == before


def test_a_warm_server_is_asked_once() -> None:
    world = World([DONE])
    assert world.run() is DONE
    assert (len(world.sent), world.waits, world.states) == (1, [], ["done"])


def test_what_asks_for_no_items_is_done_without_a_word() -> None:
    with pytest.raises(StopIteration):
        call = settle(POST, Patience())
        next(call)
        call.send(DONE)


def test_a_queued_job_is_followed_to_its_result() -> None:
    world = World([accepted(), accepted(held=True), accepted(held=True), DONE])
    assert world.run() is DONE
    assert [send.path for send in world.sent] == ["/v1/encode/m"] + ["/v1/jobs/j1"] * 3
    assert {send.headers["Prefer"] for send in world.sent[1:]} == {"wait=20"}
    assert world.states == ["provisioning"] * 3 + ["done"]
    assert {progress.job for progress in world.told} == {"j1"}


def test_only_a_server_that_did_not_hold_the_request_is_waited_for() -> None:
    world = World([accepted(3.0), accepted(held=True), accepted(5.0), DONE])
    world.run()
    assert world.waits == [5.0]


def test_the_first_look_at_a_job_comes_at_once_and_asks_to_be_held() -> None:
    world = World([accepted(30.0), DONE])
    world.run()
    assert world.waits == []
    assert world.sent[1].headers["Prefer"] == "wait=20"


def test_a_server_that_claims_to_hold_but_does_not_is_asked_once_a_second_at_most() -> None:
    world = World([accepted(3.0), accepted(3.0, held=True), DONE])
    world.hold_s = 0.25
    world.run()
    assert world.waits == [0.75]


def test_a_look_at_a_job_carries_neither_the_key_nor_a_body_and_outlasts_its_hold() -> None:
    world = World([accepted(), DONE])
    world.run()
    look = world.sent[1]
    assert (look.method, look.body) == ("GET", None)
    assert look.headers == {"X-Request-ID": "r1", "Prefer": "wait=20"}
    assert look.timeout_s > 20


def test_a_held_look_is_answered_before_the_deadline() -> None:
    world = World([accepted(3.0), accepted(3.0), DONE])
    world.hold_s = 0.0
    world.run(deadline_s=10.0)
    assert world.sent[1].headers["Prefer"] == "wait=9"
    assert world.sent[2].headers["Prefer"] == "wait=6.3"


def test_location_never_leads_to_another_host() -> None:
    away = Reply(202, {"location": "https://evil.example/v1/jobs/j1", "retry-after": "1"}, accepted().body)
    world = World([away, DONE])
    world.run()
    assert world.sent[1].path == "/v1/jobs/j1"


def test_without_location_the_jobs_route_is_used() -> None:
    world = World([Reply(202, {}, accepted().body), DONE])
    world.run()
    assert world.sent[1].path == "/v1/jobs/j1"


def test_the_pause_comes_from_the_header_then_the_body_then_a_default() -> None:
    body = replies.job_body(JobStatus("j1", retry_after_s=4.0))
    bare = replies.job_body(JobStatus("j1"))
    pauses = [Reply(202, {"retry-after": "2"}, body), Reply(202, {}, body), Reply(202, {}, bare)]
    world = World([accepted(), *pauses, DONE])
    world.run()
    assert world.waits == [2.0, 4.0, RETRY_AFTER_S]


def test_the_jobs_error_is_final() -> None:
    world = World([accepted(), refused(InferenceError("not finite"))])
    with pytest.raises(InferenceError) as caught:
        world.run()
    assert caught.value.request_id == "r9"


def test_a_lost_job_is_final() -> None:
    with pytest.raises(JobNotFoundError):
        World([accepted(), refused(JobNotFoundError("gone"))]).run()


def test_an_impatient_caller_gets_the_job_instead_of_the_result() -> None:
    world = World([accepted(message="starting a worker")])
    with pytest.raises(ProvisioningError, match="starting a worker") as caught:
        world.run(wait_for_capacity=False)
    assert caught.value.details == {"job": "j1", "location": "/v1/jobs/j1"}
    assert caught.value.retry_after == 3.0


def test_a_full_queue_is_tried_again_with_the_same_request() -> None:
    world = World([refused(QueueFullError("full", retry_after=2.0)), Reply(429, {"retry-after": "4"}, b""), DONE])
    assert world.run() is DONE
    assert {(send.headers["Idempotency-Key"], send.body) for send in world.sent} == {("k1", b"body")}
    assert world.states == ["retrying", "retrying", "done"]
    for waited, asked in zip(world.waits, [2.0, 4.0], strict=True):
        assert asked <= waited <= asked * 1.1


def test_a_job_whose_result_may_pass_is_asked_for_again_by_the_request_itself() -> None:
    world = World([accepted(), refused(OutOfMemoryError("not now", retry_after=2.0)), accepted(), DONE])
    assert world.run() is DONE
    assert [send.method for send in world.sent] == ["POST", "GET", "POST", "GET"]
    assert msgspec.structs.replace(world.sent[2], patience_s=world.sent[0].patience_s) == world.sent[0]
    assert world.states == ["provisioning", "retrying", "provisioning", "done"]


@pytest.mark.parametrize("before", [[], [accepted()]])
def test_workers_that_do_not_come_are_not_waited_for_any_longer(before: list[Reply | SIEError]) -> None:
    failed = ProvisioningFailedError("No worker has started within 900 s.", retry_after=60.0, job="j1")
    world = World([*before, refused(failed)])
    with pytest.raises(ProvisioningFailedError, match="within 900 s") as caught:
        world.run(wait_for_capacity=True)
    assert (caught.value.details, caught.value.retry_after, world.waits) == ({"job": "j1"}, 60.0, [])


def test_a_lost_connection_is_tried_again_on_the_post_and_on_the_job() -> None:
    lost = ConnectionFailedError("reset")
    world = World([lost, accepted(), lost, DONE])
    assert world.run() is DONE
    assert [send.method for send in world.sent] == ["POST", "POST", "GET", "GET"]
    assert world.states == ["unreachable", "provisioning", "unreachable", "done"]


@pytest.mark.parametrize("failure", [ConnectionFailedError("reset", request_id="r1"), refused(QueueFullError("full"))])
def test_an_impatient_caller_gets_the_first_failure(failure: Reply | SIEError) -> None:
    world = World([failure])
    with pytest.raises((ConnectionFailedError, QueueFullError)) as caught:
        world.run(wait_for_capacity=False)
    assert caught.value.request_id in ("r1", "r9")
    assert world.waits == []


def test_the_deadline_names_the_seconds_the_reason_the_job_and_the_way_out() -> None:
    world = World([accepted(), accepted(9.0, message="pulling the image")])
    world.hold_s = 0.0
    with pytest.raises(DeadlineExceededError) as caught:
        world.run(deadline_s=5.0)
    assert world.waits == [5.0]
    assert str(caught.value) == (
        "No result within the deadline of 5 s; the last news was: job j1 (pulling the image). "
        "The work stays queued as job j1. Pass a larger deadline_s than 5."
    )
    assert caught.value.details == {"job": "j1", "location": "/v1/jobs/j1"}


def test_a_server_that_is_absent_until_the_deadline_is_what_is_advised_on() -> None:
    world = World([ConnectionFailedError("Could not reach it.", hint="Check that it runs.")])
    with pytest.raises(DeadlineExceededError, match="Could not reach it") as caught:
        world.run(deadline_s=1.0)
    assert caught.value.hint == "Check that it runs.", "more time brings nobody"
    assert caught.value.field == "deadline_s"


@pytest.mark.parametrize(("timeout_s", "hint"), [(2.0, "Make the client with a larger timeout_s than 2."), (9.0, None)])
def test_requests_that_were_given_less_than_an_answer_takes_are_to_be_given_more(
    timeout_s: float, hint: str | None
) -> None:
    """The last one is given what is left of the deadline, and says no more of what the others were given."""
    world = World([])
    world.script = [ConnectionFailedError("Not in time.", limit=limit) for limit in (timeout_s, 1.5)]
    world.takes_s = 2.0
    with pytest.raises(DeadlineExceededError, match=r"Not in time\.") as caught:
        world.run(deadline_s=3.5, timeout_s=2.0)
    assert caught.value.hint == (hint or "Pass a larger deadline_s than 3.5.")


def test_one_request_that_was_given_too_little_says_so() -> None:
    world = World([ConnectionFailedError("Not in time.", limit=2.0)])
    with pytest.raises(ConnectionFailedError) as caught:
        world.run(timeout_s=2.0, wait_for_capacity=False)
    assert caught.value.hint == "Make the client with a larger timeout_s than 2."


def test_a_deadline_is_called_what_the_caller_called_it() -> None:
    patience = Patience(wait_for_capacity=False, deadline_s=0.0, bound="timeout_s", now=lambda: 0.0)
    with pytest.raises(DeadlineExceededError, match=r"Pass a larger timeout_s than 0\.") as caught:
        next(settle(POST, patience))
    assert caught.value.field == "timeout_s"


def test_a_deadline_spent_on_refusals_says_so() -> None:
    world = World([refused(QueueFullError("The queue is full.", retry_after=60.0))])
    with pytest.raises(DeadlineExceededError, match=r"The queue is full\.") as caught:
        world.run(deadline_s=5.0)
    assert caught.value.details == {}


def test_one_request_never_outlasts_the_deadline() -> None:
    world = World([accepted(), accepted(3.0), DONE])
    world.run(deadline_s=5.0)
    assert [send.timeout_s for send in world.sent] == [5.0, 5.0, 2.0]


def test_a_cancelled_call_names_the_job_it_leaves_behind() -> None:
    cancel = threading.Event()
    world = World([accepted(), accepted(held=True)])
    world.on_report = lambda: cancel.set() if len(world.told) == 2 else None
    with pytest.raises(CancelledByCallerError, match="job j1") as caught:
        world.run(cancel=cancel)
    assert caught.value.details["job"] == "j1"


def test_a_cancellable_call_asks_for_short_holds() -> None:
    world = World([accepted(), DONE])
    world.run(cancel=threading.Event())
    assert world.sent[1].headers["Prefer"] == "wait=1"


def test_work_may_be_held_for_most_of_a_short_deadline_so_that_its_job_can_be_named() -> None:
    world = World([accepted(held=True), accepted(9.0)])
    world.hold_s = None
    with pytest.raises(DeadlineExceededError) as caught:
        world.run(deadline_s=10.0)
    assert world.sent[0].headers["Prefer"] == "wait=9"
    assert caught.value.details["job"] == "j1"


def test_work_that_can_be_cancelled_is_held_for_a_second_at_most() -> None:
    world = World([accepted(held=True), DONE])
    world.run(cancel=threading.Event())
    assert world.sent[0].headers["Prefer"] == "wait=1"


def test_work_with_time_is_held_as_long_as_the_server_likes() -> None:
    world = World([DONE])
    world.run()
    assert "Prefer" not in world.sent[0].headers


def test_a_202_without_a_job_is_unexpected() -> None:
    with pytest.raises(UnexpectedReplyError) as caught:
        World([Reply(202, {"x-request-id": "r9"}, b"{}")]).run()
    assert caught.value.request_id == "r9"
    assert caught.value.details["http_status"] == 202
