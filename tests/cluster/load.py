"""Callers of the deployed platform who go on until they are answered: those of ``tests.faults``, with a real model.

Owns the texts, the vector that each must come back as, and the account of the ids. What is broken meanwhile is the
tests' business.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Mapping
from functools import cache

import httpx
import numpy as np
import numpy.typing as npt

from sie_sdk.types import EncodeResult
from tests.cluster import kube
from tests.cluster.deployed import INGRESS, Deployed
from tests.faults import callers
from tests.faults.callers import Asked, asked
from tests.platform import MODEL

log = logging.getLogger("e2e")

Vector = npt.NDArray[np.float32]
Vectors = Mapping[str, Vector]

CALLERS = 16
THINGS = "a river", "the night train", "an old map", "seven bridges", "a lighthouse", "the market", "a violin", "snow"
"""What the texts tell of. Each text is long enough that hundreds of them take a bundle seconds."""
TEXTS = [f"{number} times {thing}: " + f"{thing} by day and by night, " * 12 for number in range(5) for thing in THINGS]


class Load(callers.Load):
    """``count`` requests to the ingress; ``vectors``: what each of `TEXTS` must come back as.

    ``rest_s``: the pause of each caller between two requests, for a load that is to last and not to press.
    """

    model = MODEL
    patience_s = 250.0

    def __init__(self, vectors: Vectors, count: int, rest_s: float = 0.0) -> None:
        self._vectors, self.rest_s = vectors, rest_s  # first, for callers begin at once
        super().__init__([INGRESS], count, CALLERS)

    def asked(self, number: int) -> Asked:
        """One of the texts, under a key of its own."""
        return asked("")._replace(text=TEXTS[number % len(TEXTS)])

    def is_right(self, request: Asked, result: EncodeResult) -> bool:
        """Whether the answer is the vector of its own text."""
        return result.dense is not None and float(result.dense @ self._vectors[request.text]) > 0.9999


@cache
def vectors_of(deployed: Deployed) -> Vectors:
    """The vectors of `TEXTS`, asked for once; no two are so alike that one could be taken for the other."""
    with deployed.client() as client:
        rows = [row.dense for row in client.encode(MODEL, TEXTS, wait_for_capacity=True)]
    vectors = {text: row for text, row in zip(TEXTS, rows, strict=True) if row is not None}
    likeness = np.stack(list(vectors.values())) @ np.stack(list(vectors.values())).T
    assert np.max(likeness - 2 * np.eye(len(TEXTS))) < 0.999
    return vectors


def one_pod(deployed: Deployed) -> str:
    """The one bundle pod that is up; those of an earlier burst are gone."""

    def alone() -> bool:
        answered = deployed.encode("one", Prefer="wait=60").is_success
        there = kube.objects("pods", kube.WORKERS)  # those on their way out work, too
        # It may answer for seconds before Kubernetes calls it ready.
        return answered and len(deployed.workers()) == 1 == len(there) and kube.pods() == there and kube.ready(there[0])

    kube.until(alone, 150)
    (pod,) = kube.pods()
    return kube.name(pod)


def account(*loads: Load) -> None:
    """Wait for the end of the loads and settle: every id answered once, rightly, nothing left in the queue."""
    for load in loads:
        load.finish()
    known = {request.id for load in loads for request in load.requests}
    answers = Counter(id for load in loads for id in load.answered)
    met = sum((load.met for load in loads), Counter[str]())
    log.info("%d ids, %d answered; met %s", len(known), answers.total(), dict(met))
    assert answers.keys() == known, f"not answered: {known - answers.keys()}"
    assert set(answers.values()) == {1}
    assert not any(load.wrong for load in loads)
    kube.until(lambda: waiting() == 0, 60)


def waiting() -> int:
    """Works that wait or are in somebody's hands, as the demand holder last told the ingress."""
    lanes = httpx.get(f"{INGRESS}/health", timeout=10).json()["lanes"]
    return sum(lane["waiting"] for lane in lanes)
