"""A bundle that cannot start: who waits is told why, what was accepted waits, and all of it is answered once mended."""

from __future__ import annotations

import logging
import time
from concurrent.futures import Future, ThreadPoolExecutor

import httpx
import pytest

from sie_sdk import ProvisioningFailedError, calls
from tests.cluster import changes, kube
from tests.cluster.deployed import SERVICE, Deployed
from tests.cluster.jobs import accepted, ask, encode, jobs_of, lane, settle
from tests.cluster.load import TEXTS, vectors_of
from tests.platform import MODEL

pytestmark = [pytest.mark.cluster, pytest.mark.weights, pytest.mark.timeout(400)]

log = logging.getLogger("e2e")

PROVISION_S = 20
DEADLINE_S = 100.0
"""What the callers give it; the typed error must come within."""
NO_IMAGE = ("--image", "dev.local/sie-bundle:no-such-tag")
EXITS = ("--env", "SIE_MAX_IN_HAND=none")
"""A wrong setting, with which a bundle ends at once."""


def test_a_bundle_that_cannot_start_is_told_of_within_the_deadline_and_its_backlog_waits(at_zero: Deployed) -> None:
    image = ("--image", kube.one("ksvc", SERVICE)["spec"]["template"]["spec"]["containers"][0]["image"])
    settings = changes.demand(SIE_PROVISION_S=str(PROVISION_S))
    with settings, ThreadPoolExecutor(2) as callers:
        with changes.service(*image, "--env", "SIE_MAX_IN_HAND-") as change:
            broken = change(*NO_IMAGE)
            jobs = jobs_of(TEXTS[:20])
            patient = callers.submit(first_error, at_zero)
            held = callers.submit(encode, TEXTS[20], Prefer="wait=100", Idempotency_Key=calls.fresh_key())
            jobs[TEXTS[20]], jobs[TEXTS[21]] = told_within_the_deadline(patient, held)
            jobs[TEXTS[22]] = what_new_requests_get()
            is_tried_on(broken, "ImagePullBackOff")
            broken = change(*image, *EXITS)
            jobs[TEXTS[23]] = accepted(TEXTS[23])
            is_tried_on(broken, "CrashLoopBackOff")
            assert "No worker of default on cpu" in failure(), "no worker has come yet"
        mended = time.monotonic()
        kube.until(lambda: failure() == "", 150)
        log.info("%.1f s after it was mended a worker was there", time.monotonic() - mended)
    settle(jobs, vectors_of(at_zero))


def is_tried_on(revision: str, why: str) -> None:
    """Sessions are held for the revision, whose pods cannot start, and Knative says that all is well."""
    kube.until(lambda: why in reasons(revision), 120)
    assert kube.ready(kube.one("ksvc", SERVICE))


def first_error(deployed: Deployed) -> tuple[ProvisioningFailedError, float]:
    """What a caller is told that waits for capacity, and after how many seconds."""
    began = time.monotonic()
    with deployed.client() as client, pytest.raises(ProvisioningFailedError) as told:
        client.encode(MODEL, TEXTS[21], wait_for_capacity=True, deadline_s=DEADLINE_S)
    return told.value, time.monotonic() - began


def told_within_the_deadline(
    patient: Future[tuple[ProvisioningFailedError, float]], held: Future[httpx.Response]
) -> tuple[str, str]:
    """The jobs of the two who waited; both were told why, and that their work is queued."""
    error, waited_s = patient.result()
    answer = held.result()
    log.info("told after %.1f s: %s", waited_s, error)
    assert waited_s < DEADLINE_S
    assert f"No worker of default on cpu has started within {PROVISION_S} s" in error.message
    assert "kubectl get pods" in str(error) and error.retry_after
    told = answer.json()["error"]
    assert (answer.status_code, told["code"], told["message"]) == (503, "PROVISIONING_FAILED", error.message)
    return told["location"], str(error.details["location"])


def what_new_requests_get() -> str:
    """The job of one that does not wait; all others are refused, at once and in their own words, and not queued."""
    began = time.monotonic()
    refused = [
        encode("refused"),
        encode("refused", Prefer="wait=100"),
        encode("refused", X_SIE_SDK_Version="0.10.1"),
        ask("POST", "/v1/embeddings", {"model": MODEL, "input": "refused"}),
    ]
    assert {(each.status_code, each.headers["x-sie-error-code"]) for each in refused} == {(503, "PROVISIONING_FAILED")}
    assert refused[-1].headers["x-should-retry"] == "false"
    job = accepted(TEXTS[22])
    assert ask("GET", job, Prefer="wait=100").json()["error"]["location"] == job
    assert time.monotonic() - began < 60, "somebody was held"
    return job


def failure() -> str:
    """Why no worker of it comes."""
    return str(lane()["failure"])


def reasons(revision: str) -> set[str]:
    """Why containers of a revision's pods wait."""
    pods = kube.objects("pods", f"serving.knative.dev/revision={revision}")
    states = [each["state"] for pod in pods for each in pod["status"].get("containerStatuses", [])]
    return {state["waiting"].get("reason", "") for state in states if "waiting" in state}
