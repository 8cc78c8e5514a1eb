"""Bundle pods that are taken away under load: without a word, as spot machines go, and by SIGTERM."""

from __future__ import annotations

import logging
from datetime import UTC, datetime
from pathlib import Path

import pytest

from tests.cluster import kube, place
from tests.cluster.deployed import BUNDLE, Deployed
from tests.cluster.endings import followed, kill, take_away
from tests.cluster.load import Load, account, one_pod, vectors_of
from tests.cluster.session import held

pytestmark = [pytest.mark.cluster, pytest.mark.weights, pytest.mark.timeout(400)]

log = logging.getLogger("e2e")


def test_pods_taken_away_without_a_word_cost_no_request(deployed: Deployed) -> None:
    load = Load(vectors_of(deployed), 500)
    for count in (100, 250):
        load.await_answered(count)
        assert take_away(kube.WORKERS)
    if place.on_kit():
        load.await_answered(400)
        for pod in kube.pods():
            kill(pod, b"sie_bundle")  # as of too much memory: its container starts again in the same pod
    account(load)


def test_a_deleted_pod_finishes_what_it_holds_tells_its_sessions_and_leaves(deployed: Deployed, tmp_path: Path) -> None:
    vectors = vectors_of(deployed)
    pod = one_pod(deployed)
    with followed(tmp_path) as endings, held(BUNDLE) as session:
        endings.follow()
        before = endings.answered(deployed)
        loads = [Load(vectors, 200)]
        loads[0].await_answered(50)
        began = datetime.now(UTC)
        kube.kubectl("delete", "pod", pod, "--wait=false")
        while endings.exit_code(pod) is None:  # queue-proxy keeps SIGTERM from the worker for the first 30 s
            loads[-1].await_answered(150)
            loads.append(Load(vectors, 200))
            endings.follow()
        log.info("the worker exited %.0f s after its pod was deleted", (datetime.now(UTC) - began).total_seconds())
        account(*loads)
        assert endings.exit_code(pod) == 0
        assert session.drained()
        asked = sum(len(load.requests) for load in loads)
        assert endings.answered(deployed) - before == asked, "something was computed twice"
    assert not any(load.met["timeout"] for load in loads), "a request waited for the end of a lease"
