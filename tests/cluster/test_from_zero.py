"""From zero pods to the first vector and back, on a real autoscaler; where the time of a cold start goes."""

from __future__ import annotations

import logging
import time
from collections.abc import Sequence

import pytest

from sie_sdk import Progress
from sie_sdk.types import EncodeResult
from tests.cluster import kube, timeline
from tests.cluster.deployed import Deployed
from tests.cluster.timeline import Step
from tests.cluster.watched import DEPLOYMENTS, PODS, Watch, asked_for
from tests.platform import MODEL

pytestmark = [pytest.mark.cluster, pytest.mark.weights, pytest.mark.timeout(400)]

log = logging.getLogger("e2e")

LEASE_S = 30.0
"""What a worker that dies with work in hand costs it."""


def test_the_first_request_brings_one_pod_and_is_answered_by_it(at_zero: Deployed) -> None:
    steps: list[Step] = []

    def progress(told: Progress) -> None:
        steps.append(Step(time.time(), {"queued": "accepted: 202", "done": "answered"}.get(told.state, told.state)))

    with at_zero.client() as client, Watch(PODS, DEPLOYMENTS) as watch:
        began = time.time()
        first, second = client.encode(MODEL, ["a cat", "a kitten"], wait_for_capacity=True, progress=progress)
        kube.until(lambda: any(map(kube.ready, kube.pods())))
    in_the_pod, in_the_cluster = _of_the_process(at_zero, first), timeline.of_the_cluster(watch.changes)
    at, pods = next(asked for asked in asked_for() if asked[0] >= began)
    log.info(timeline.table("A cold start", [*steps, Step(at, "demand held"), *in_the_cluster, *in_the_pod], began))
    assert pods == len(timeline.lives(timeline.of("Pod", watch.changes))) == 1
    assert first.dense is not None and second.dense is not None
    assert 0.5 < float(first.dense @ second.dense) < 0.9999
    # Each by its own clock: ours, the cluster's, the process's.
    assert [step.name for step in steps] == ["accepted: 202", "answered"]
    for clock in (in_the_cluster, in_the_pod):
        assert clock == sorted(clock, key=lambda step: step.at)


def test_a_pod_that_is_told_to_go_still_answers_and_when_it_ends_the_next_request_brings_another(
    deployed: Deployed,
) -> None:
    with deployed.client() as client, Watch(PODS) as watch:

        def ask(name: str) -> EncodeResult:
            asked = time.time()
            result = client.encode(MODEL, "a cat", wait_for_capacity=True)
            steps.append(Step(time.time(), f"{name}: answered after {time.time() - asked:.2f} s"))
            return result

        began, steps = time.time(), list[Step]()
        answers = [ask("at first")]
        (first,) = kube.pods()
        _await(watch, [first], "told to go")
        answers.append(ask("while it is on its way out"))
        kube.until(lambda: bool(kube.pods()))
        second = kube.pods()
        _await(watch, second, "told to go")
        kube.until(lambda: not deployed.workers())  # SIGTERM came: the worker said goodbye
        answers.append(ask("after its end"))
        _await(watch, [first, *second], "gone")
    lives = timeline.lives(timeline.of("Pod", watch.changes))
    ends = [Step(life[end], f"pod {number} {end}") for number, life in enumerate(lives.values(), 1) for end in life]
    log.info(timeline.table("The end of a pod", [*steps, *ends], began))
    one, _, three = lives.values()
    assert steps[1].at < one["gone"]
    assert steps[2].at - three["scheduled"] < LEASE_S
    vectors = [answer.dense for answer in answers]
    assert all(vector is not None and float(vector @ vectors[0]) > 0.9999 for vector in vectors)


def _await(watch: Watch, pods: Sequence[kube.Object], end: str) -> None:
    def came() -> bool:
        lives = timeline.lives(timeline.of("Pod", watch.changes))
        return all(end in lives.get(kube.name(pod), {}) for pod in pods)

    kube.until(came, 150)


def _of_the_process(deployed: Deployed, first: EncodeResult) -> list[Step]:
    (worker,), (pod,) = deployed.workers(), kube.pods()
    assert first.timing is not None
    logged = timeline.lines(kube.kubectl("logs", kube.name(pod), "-c", "bundle"))
    return timeline.of_the_process(logged, worker["startup"], first.timing)
