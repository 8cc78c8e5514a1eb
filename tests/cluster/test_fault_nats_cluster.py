"""NATS as a cloud has it: three servers, certificates both ways, every stream three times, and one of them gone."""

from __future__ import annotations

import asyncio
import json
import logging
import subprocess
from collections import Counter
from collections.abc import Iterator

import pytest

from sie_sdk.types import EncodeResult
from tests.cluster import kube, place
from tests.cluster.deployed import Deployed
from tests.cluster.three_servers import INGRESS, PODS, SERVERS, WHERE, ThreeServers
from tests.faults import callers
from tests.faults.callers import Asked, asked
from tests.platform import MODEL

pytestmark = [
    pytest.mark.cluster,
    pytest.mark.weights,
    pytest.mark.timeout(400),
]
log = logging.getLogger("e2e")


@pytest.fixture(scope="module")
def three(deployment: Deployed, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ThreeServers]:
    """Deployed beside the other, whose weights it reads."""
    if not place.on_kit():
        pytest.skip("needs folders of the node, and names that only the cluster resolves")
    servers = ThreeServers(tmp_path_factory.mktemp("three"))
    try:
        servers.up()
        yield servers
    finally:
        servers.remove()


class Load(callers.Load):
    """Requests whose answers must be the vector of one text."""

    model = MODEL
    patience_s = 200.0
    rest_s = 0.3  # it lasts while servers come and go, and presses nobody
    right: EncodeResult

    def is_right(self, request: Asked, result: EncodeResult) -> bool:
        assert result.dense is not None and self.right.dense is not None
        return float(result.dense @ self.right.dense) > 0.9999

    def asked(self, number: int) -> Asked:
        return asked("")._replace(text="a river by night")


def test_every_stream_is_there_three_times_and_one_server_less_costs_no_request(three: ThreeServers) -> None:
    streams = asyncio.run(three.streams())
    assert {stream["config"]["num_replicas"] for stream in streams} == {SERVERS}
    leaders = Counter(stream["cluster"]["leader"] for stream in streams)
    assert leaders.keys() <= {f"sie-nats-{number}" for number in range(SERVERS)}
    log.info("%d streams of %d copies, led by %s", len(streams), SERVERS, dict(leaders))
    with three.client() as client:
        Load.right = client.encode(MODEL, "a river by night", wait_for_capacity=True)
    (work,) = [stream for stream in streams if stream["config"]["name"].startswith("WORK")]
    leader = work["cluster"]["leader"]
    load = Load([INGRESS], 400, 16)
    load.await_answered(60)
    assert evicted(leader)
    # The budget: while one is away, nobody may take a second one.
    assert not evicted(next(name for name in servers() if name != leader))
    load.finish()
    log.info("%s, which led the work, evicted: %d of 400 answered, met %s", leader, len(load.answered), dict(load.met))
    assert len(set(load.answered)) == len(load.answered) == 400 and not load.wrong
    kube.until(lambda: all_current(three), 120)


def test_servers_that_are_restarted_one_after_the_other_cost_no_request(three: ThreeServers) -> None:
    load = Load([INGRESS], 600, 8)
    load.await_answered(60)
    kube.kubectl("rollout", "restart", "statefulset/sie-nats", namespace=WHERE)
    kube.kubectl("rollout", "status", "statefulset/sie-nats", "--timeout=240s", namespace=WHERE)
    log.info("the last server is back; %d are answered so far", len(load.answered))
    load.finish()
    log.info("all servers restarted: %d of 600 answered, met %s", len(load.answered), dict(load.met))
    assert len(set(load.answered)) == len(load.answered) == 600 and not load.wrong


def servers() -> list[str]:
    """The NATS servers' pods."""
    return [kube.name(pod) for pod in kube.objects("pods", PODS, WHERE)]


def evicted(pod: str) -> bool:
    """Whether Kubernetes takes a pod away as it does before a node goes; False: a disruption budget forbids it."""
    asked = {"apiVersion": "policy/v1", "kind": "Eviction", "metadata": {"name": pod, "namespace": WHERE}}
    command = ["kubectl", "create", "--raw", f"/api/v1/namespaces/{WHERE}/pods/{pod}/eviction", "-f", "-"]
    done = subprocess.run(command, input=json.dumps(asked), capture_output=True, text=True, check=False)
    assert done.returncode == 0 or "disruption budget" in done.stderr, done.stderr
    return done.returncode == 0


def all_current(three: ThreeServers) -> bool:
    """Whether each stream has all its copies up to date."""
    copies = [stream["cluster"].get("replicas", []) for stream in asyncio.run(three.streams())]
    return all(len(each) == SERVERS - 1 and all(copy["current"] for copy in each) for each in copies)
