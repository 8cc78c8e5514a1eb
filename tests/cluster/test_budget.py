"""The budget of a bundle is its Service's ``max-scale``, which people change by ``kn`` while work waits."""

from __future__ import annotations

import logging
import time

import pytest

from tests.cluster import changes, kube
from tests.cluster.deployed import SERVICE, Deployed
from tests.cluster.jobs import ask, encode, jobs_of, lane, settle
from tests.cluster.load import TEXTS, vectors_of

pytestmark = [pytest.mark.cluster, pytest.mark.weights, pytest.mark.timeout(400)]

log = logging.getLogger("e2e")

MAX_SCALE = "autoscaling.knative.dev/max-scale"
WATCHED_S = 12
"""How long there must not be a pod too many: several of the autoscaler's looks."""
POOL = "budget"


def test_a_lower_budget_keeps_one_pod_and_a_higher_one_gives_two_which_pools_share(at_zero: Deployed) -> None:
    before = kube.one("ksvc", SERVICE)["spec"]["template"]["metadata"]["annotations"][MAX_SCALE]
    # What waits wants a pod each, for as long as it takes to look at them.
    wants_much = changes.demand(SIE_OBJECTIVE_S="0.01", SIE_QUIET_S="90")
    with changes.service("--scale-max", before) as change, wants_much:
        one = change("--scale-max", "1")
        jobs = jobs_of(TEXTS[:20])
        is_given(at_zero, one, 1)
        two = change("--scale-max", "2")
        jobs |= jobs_of(TEXTS[20:])
        is_given(at_zero, two, 2)
        a_pool_takes_one_of_them(at_zero)
        kube.until(lambda: not pods_of(one), 120)
        settle(jobs, vectors_of(at_zero))


def is_given(deployed: Deployed, revision: str, pods: int) -> None:
    """A revision has so many pods, and no more although more are wanted."""
    kube.until(lambda: len(ready(deployed, revision)) == pods, 150)
    end, seen = time.monotonic() + WATCHED_S, set[int]()
    while time.monotonic() < end:
        seen.add(len(pods_of(revision)))
        assert lane()["wanted"] > pods
        time.sleep(1)
    log.info("%d pods wanted, %d given", lane()["wanted"], pods)
    assert seen == {pods}


def a_pool_takes_one_of_them(deployed: Deployed) -> None:
    """A lease on one worker is met out of the budget; the other still works for everybody."""
    leased = {"name": POOL, "gpus": {"cpu": 1}, "minimum_worker_count": 1, "ttl_seconds": 120}
    made = ask("POST", "/v1/pools", leased)
    assert made.status_code == 201, made.text
    try:
        kube.until(lambda: {row["pool"] for row in deployed.workers()} == {"default", POOL}, 60)
        pool_of = {row["name"]: row["pool"] for row in deployed.workers()}
        for asked, headers in ((POOL, {"X_SIE_Pool": POOL}), ("default", {})):
            # The config service, which makes a pool's queues, may have to start first.
            while (answer := encode("whose", Prefer="wait=60", **headers)).status_code == 503:
                log.info("%s: %s", asked, answer.text)
                time.sleep(1)
            assert answer.is_success, answer.text
            assert pool_of[answer.headers["x-sie-worker"]] == asked
    finally:
        ask("DELETE", f"/v1/pools/{POOL}")
    kube.until(lambda: {row["pool"] for row in deployed.workers()} == {"default"}, 60)


def pods_of(revision: str) -> list[str]:
    """The pods of a revision that are not on their way out."""
    selector = f"serving.knative.dev/revision={revision}"
    return [kube.name(pod) for pod in kube.pods(selector)]


def ready(deployed: Deployed, revision: str) -> list[str]:
    """Those that are ready workers."""
    workers = [row["name"] for row in deployed.workers() if row["state"] == "ready"]
    return [pod for pod in pods_of(revision) if any(worker.startswith(pod) for worker in workers)]
