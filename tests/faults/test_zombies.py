"""A worker that is frozen for longer than its leases, is taken for dead, and comes back: nobody is answered twice."""

from __future__ import annotations

import signal

import pytest

from tests.faults.callers import Load, account, story
from tests.faults.conftest import Deploy
from tests.faults.deployment import IN_HAND, ROOM, Deployment
from tests.platform import wait_until

pytestmark = pytest.mark.e2e


def begun(deployment: Deployment, worker: str) -> set[str]:
    """Ids a worker has begun."""
    return {line.id for line in deployment.recorded("start", worker)}


def frozen_at_work(deployment: Deployment, name: str) -> bool:
    """Stop a bundle, and let it go on if it had nothing in hand just then."""
    deployment.send(name, signal.SIGSTOP)
    at_work = bool(begun(deployment, name) - {line.id for line in deployment.recorded("done", name)})
    if not at_work:
        deployment.send(name, signal.SIGCONT)
    return at_work


def test_a_worker_that_was_frozen_computes_nothing_that_others_took_over_meanwhile(deployment: Deployment) -> None:
    deployment.up("bundle-1", "bundle-2")
    load = Load([deployment.url()], 300)
    load.await_answered(60)
    wait_until(lambda: frozen_at_work(deployment, "bundle-1"))
    before = begun(deployment, "bundle-1")
    load.finish()
    deployment.send("bundle-1", signal.SIGCONT)
    after = Load([deployment.url()], 100)
    again = account(deployment, load, after)
    wait_until(lambda: begun(deployment, "bundle-1") - before != set())
    late = begun(deployment, "bundle-1") - before
    assert late <= {request.id for request in after.requests}, "it began work that was long done"
    # By now, and not when all were answered: what was frozen between its answer and its end comes later than that.
    taken_over = before & begun(deployment, "bundle-2")
    assert 0 < len(taken_over) <= IN_HAND
    if load.met.keys() | after.met.keys() == {"200"}:
        assert not again.for_callers, "nobody was refused, and nobody came again"
    doubled = again.begun_again.keys() - again.for_callers
    assert doubled == taken_over - again.for_callers, story(deployment, doubled ^ taken_over)


def test_a_late_answer_while_the_other_worker_still_computes_is_the_only_one(deploy: Deploy) -> None:
    deployment = deploy(delay_s=2)
    deployment.up("bundle-1")
    load = Load([deployment.url()], ROOM, ROOM)
    wait_until(lambda: len(begun(deployment, "bundle-1")) == ROOM)
    deployment.send("bundle-1", signal.SIGSTOP)
    deployment.start("bundle-2")
    wait_until(lambda: len(begun(deployment, "bundle-2")) == ROOM)
    deployment.send("bundle-1", signal.SIGCONT)
    load.finish()
    by_then = deployment.recorded("done", "bundle-2")
    again = account(deployment, load)
    assert by_then == [], "the frozen worker answered while the other one was still computing"
    assert len(again.begun_again) == ROOM
    wait_until(lambda: len(deployment.recorded("done", "bundle-2")) == ROOM)
