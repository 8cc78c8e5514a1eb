"""What the watch of a cluster and its logs say, read: no cluster is needed for it."""

from __future__ import annotations

import pytest

from sie_sdk.types import Timing
from tests.cluster import timeline
from tests.cluster.kube import Object
from tests.cluster.timeline import Change, Line, Step


def pod(name: str, *, ready: bool = False, leaving: bool = False, node: str = "here") -> Object:
    gone = {"deletionTimestamp": "2026-11-22T03:00:00Z"} if leaving else {}
    labels = {"app.kubernetes.io/name": "sie-bundle"}
    conditions = [{"type": "Ready", "status": str(ready)}]
    return {
        "kind": "Pod",
        "metadata": {"name": name, "labels": labels} | gone,
        "spec": {"nodeName": node} if node else {},
        "status": {"conditions": conditions},
    }


def test_a_logged_line_has_the_time_at_which_the_process_wrote_it() -> None:
    (line,) = timeline.lines("2026-11-22 03:49:01,214 demand INFO one two\nTraceback\n")
    assert line.at % 60 == pytest.approx(1.214)
    assert line.text == "demand INFO one two"


def test_pods_on_their_way_out_are_not_counted_and_each_life_has_its_times() -> None:
    changes = [
        Change(1.0, "ADDED", pod("a")),
        Change(2.0, "MODIFIED", pod("a", ready=True)),
        Change(3.0, "ADDED", pod("b", node="")),
        Change(3.5, "MODIFIED", pod("b")),
        Change(4.0, "MODIFIED", pod("a", ready=True, leaving=True)),
        Change(5.0, "DELETED", pod("a", leaving=True)),
    ]
    assert timeline.up(changes) == [(1.0, 1, 0), (2.0, 1, 1), (3.0, 2, 1), (4.0, 1, 0)]
    assert timeline.lives(changes) == {
        "a": {"created": 1.0, "scheduled": 1.0, "ready": 2.0, "told to go": 4.0, "gone": 5.0},
        "b": {"created": 3.0, "scheduled": 3.5},
    }


def test_the_start_of_a_process_is_told_from_its_log_and_its_milestones() -> None:
    startup = {"imports": 0.5, "connected": 0.6, "engine": 1.4, "pulling": 1.5, "first model": 2.0}
    log = [
        Line(101.2, "bundle INFO working for pool default"),
        Line(101.5, "bundle INFO ready: {'imports': 0.5, 'engine': 1.4, 'pulling': 1.5}"),
    ]
    steps = timeline.of_the_process(log, startup, Timing(batch_wait_ms=200, inference_ms=300, total_ms=9999))
    assert steps[0] == Step(100.0, "process begun")
    assert [step.at for step in steps] == [100.0, 100.5, 100.6, 101.4, 101.5, 102.0, 102.5]


def test_steps_of_the_same_moment_stay_in_their_order() -> None:
    told = timeline.table("a start", [Step(1.0, "torch imported"), Step(1.0, "pulling work"), Step(0.5, "begun")], 0.0)
    assert told.index("begun") < told.index("torch imported") < told.index("pulling work")


def test_what_demand_asked_for_is_read_from_the_holders_log() -> None:
    log = [
        Line(1.0, "demand INFO default/default/cpu: 1 pods wanted (1 waiting)"),
        Line(2.0, "demand INFO pool-a/default/cpu: 2 pods wanted (9 waiting)"),
        Line(3.0, "demand INFO default/default/cpu: 3 pods wanted (900 waiting)"),
    ]
    assert timeline.wanted(log, "default/default/cpu") == [(1.0, 1), (3.0, 3)]


def test_pods_asked_for_add_up_rise_by_rise() -> None:
    asked = [(1.0, 1), (2.0, 3), (3.0, 1), (4.0, 2), (5.0, 0)]
    assert timeline.rises(asked) == 4
    assert [timeline.most(asked, at) for at in (0.5, 1.0, 2.5, 9.0)] == [0, 1, 3, 3]


def test_a_step_that_never_came_is_named() -> None:
    with pytest.raises(AssertionError, match="never ready"):
        timeline.reached([Change(1.0, "ADDED", pod("a"))], "ready", lambda thing: False)


def test_a_table_counts_from_the_beginning_and_from_the_step_before() -> None:
    told = timeline.table("A start", [Step(12.0, "second"), Step(11.5, "first")], 10.0)
    assert "| first | 1.50 | 1.50 |\n| second | 2.00 | 0.50 |" in told
