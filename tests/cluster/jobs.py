"""Work that is queued while nobody is there to do it: asked for, looked at, and settled in the end.

Owns how the ingress is asked where what is asked of it may be cut off. What keeps the workers away is the tests'
business.
"""

from __future__ import annotations

import contextlib
import logging
import time
from collections.abc import Iterable, Mapping
from typing import Any

import httpx
import numpy as np
import pytest

from sie_sdk import calls
from tests.cluster import kube
from tests.cluster.deployed import INGRESS
from tests.cluster.load import Vectors
from tests.platform import MODEL

log = logging.getLogger("e2e")


def ask(method: str, path: str, body: object = None, **headers: str) -> httpx.Response:
    """The ingress's own answer: another's, such as Kourier's while it loses a pod, is asked for again.

    ``headers``: by names with underscores.
    """
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    for _ in range(30):
        with contextlib.suppress(httpx.TransportError):
            answer = httpx.request(method, INGRESS + path, json=body, headers=named, timeout=120)
            if "x-sie-version" in answer.headers:
                return answer
        time.sleep(1)
    pytest.fail(f"{method} {path} was not answered by the ingress")


def encode(text: str, **headers: str) -> httpx.Response:
    """One plain request."""
    return ask("POST", f"/v1/encode/{MODEL}", {"items": [{"text": text}]}, **headers)


def accepted(text: str) -> str:
    """A job for one text, for whoever comes; where it is."""
    answer = encode(text, Prefer="respond-async", Idempotency_Key=calls.fresh_key())
    assert answer.status_code == 202, answer.text
    return answer.headers["location"]


def jobs_of(texts: Iterable[str]) -> dict[str, str]:
    """A job for each text."""
    return {text: accepted(text) for text in texts}


def settle(jobs: Mapping[str, str], vectors: Vectors) -> None:
    """Wait until every job is answered, each with the vector of its own text, and nothing is left."""
    right = 0
    for text, job in jobs.items():
        while (answer := ask("GET", job, Prefer="wait=30")).status_code == 202:
            log.info("%s still waits", job)
        assert answer.status_code == 200, f"{job}: {answer.text}"
        dense = np.array(answer.json()["items"][0]["dense"]["values"], np.float32)
        right += float(dense @ vectors[text]) > 0.9999
    log.info("%d of %d jobs answered with the vector of their own text", right, len(jobs))
    assert right == len(jobs)
    kube.until(lambda: lane()["waiting"] == 0)


def lane() -> dict[str, Any]:
    """How the lane of the one bundle that is deployed stands."""
    rows = ask("GET", "/health").json()["lanes"]
    return next(dict(row) for row in rows if row["pool"] == "default")
