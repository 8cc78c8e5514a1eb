"""``make e2e``: the tests of this folder on a real cluster, from nothing to nothing.

Owns the cluster: the kit beside the checkout where it is there, else any cluster with Knative 1.19 or newer that
``KUBECONFIG`` names. It builds and loads the images, runs pytest where the cluster's names resolve, and stops what it
started. Two files of tests run at a time, each process of tests with a deployment of its own: they mostly wait. Those
that break what all deployments stand on come last, alone. What is deployed is the fixtures' business. Arguments go to
pytest. What may be said by variables is in CONTRIBUTING.md.
"""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

import pytest

from tests.cluster import evidence, kit, kube
from tests.cluster.gateway import forwarded
from tests.cluster.images import build_and_load
from tests.cluster.place import NAMESPACE, REGISTRY, TAG

Told = TypeVar("Told")

ROOT = Path(__file__).parents[2]
TESTS = [
    *(sys.executable, "-m", "pytest", "tests/cluster", "--durations=20", "--log-cli-level=INFO"),
    *("--log-cli-format=%(asctime)s %(message)s", "--log-cli-date-format=%H:%M:%S"),
]
TURNS = (
    # So captured, lines of progress of several processes come through (`conftest`).
    ("-m", "cluster and not alone", "-n", "2", "--dist", "loadfile", "--capture=sys"),
    ("-m", "cluster and alone"),
)
NOTHING = int(pytest.ExitCode.NO_TESTS_COLLECTED)


def main() -> int:
    """Run the tests; the exit status is pytest's, and 0 where there is no cluster."""
    if reason := kit.absent():
        if "KUBECONFIG" not in os.environ:
            say(f"SKIPPED: nothing was tried on a cluster. {reason} Or name a cluster with Knative by KUBECONFIG.")
            return 0
        return _elsewhere()
    try:
        began = step("cluster kit", kit.up)
    except subprocess.CalledProcessError:
        # Nothing of ours was tried: what it lacks is a matter of this machine, and stands above.
        kit.down()
        say("SKIPPED: nothing was tried on a cluster, for the kit does not start on this machine.")
        return 0
    try:
        if REGISTRY.startswith("dev.local") and "SIE_E2E_TAG" not in os.environ:
            step("images", lambda: build_and_load(TAG))
        step("Knative Eventing", kit.eventing)
        return _tested([*kit.INSIDE, *TESTS], dict(os.environ))
    except pytest.skip.Exception as reason:  # the tests of the images, which build them, say so
        say(f"SKIPPED: nothing was tried on a cluster. {reason}")
        return 0
    finally:
        if began and "SIE_E2E_KEEP" not in os.environ:
            step("taking the cluster kit down", kit.down)


def _elsewhere() -> int:
    """On the cluster of ``KUBECONFIG``, whose names do not resolve here: through its gateway."""
    if reason := kube.absent() or kube.lacks_knative():
        say(f"FAILED: {os.environ['KUBECONFIG']}: {reason}.")
        return 1
    with forwarded() as proxy:
        say(f"on the cluster of {os.environ['KUBECONFIG']}, through its gateway at {proxy}")
        # Also for httpx of the SDK and the command line, which look at these.
        through = {"HTTP_PROXY": proxy, "http_proxy": proxy, "NO_PROXY": "127.0.0.1,localhost"}
        return _tested(TESTS, os.environ | through)


def _tested(command: list[str], environment: dict[str, str]) -> int:
    say(f"tests, in namespaces that begin with {NAMESPACE}")
    turns = [[*command, *turn, *sys.argv[1:]] for turn in TURNS]
    statuses = [subprocess.run(turn, cwd=ROOT, env=environment, check=False).returncode for turn in turns]
    status = max((each for each in statuses if each != NOTHING), default=NOTHING)
    if status:
        say(f"FAILED. Logs and events of each failure are in {evidence.FOLDER}.")
    return status


def step(name: str, do: Callable[[], Told]) -> Told:
    """Do it and say how long it took."""
    say(f"{name} ...")
    began = time.monotonic()
    told = do()
    say(f"{name}: {time.monotonic() - began:.0f} s")
    return told


def say(text: str) -> None:
    """A line of progress."""
    sys.stderr.write(f"make e2e: {text}\n")


if __name__ == "__main__":
    sys.exit(main())
