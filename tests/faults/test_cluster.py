"""A cluster of three NATS servers that loses one under load: work goes on, and nothing is lost or answered twice."""

from __future__ import annotations

import asyncio

import pytest

from tests.faults.callers import Load, account
from tests.faults.conftest import Deploy
from tests.faults.deployment import IN_HAND, STREAM, Deployment
from tests.platform import wait_until

pytestmark = pytest.mark.e2e


def leader(cluster: Deployment) -> str:
    """The server that leads the work stream."""
    info = asyncio.run(cluster.ask_server(f"$JS.API.STREAM.INFO.{STREAM}"))
    return str(info["cluster"]["leader"])


def in_sync(cluster: Deployment) -> bool:
    """Whether every server has all of the work stream."""
    info = asyncio.run(cluster.ask_server(f"$JS.API.STREAM.INFO.{STREAM}"))
    replicas = info.get("cluster", {}).get("replicas", ())
    return len(replicas) == 2 and all(each["current"] for each in replicas)


def test_a_cluster_that_loses_the_leader_of_its_work_stream_goes_on_and_takes_it_back(deploy: Deploy) -> None:
    cluster = deploy(servers=3, SIE_STREAM_REPLICAS="3", SIE_ACK_WAIT_S="12")
    cluster.up("bundle-1", "bundle-2")
    load = Load([cluster.url()], 600)
    load.await_answered(100)
    lost = leader(cluster)
    cluster.kill(lost)
    load.await_answered(350)
    assert leader(cluster) != lost
    cluster.start(lost)
    again = account(cluster, load)
    assert len(again.computed_again) <= 2 * IN_HAND
    assert not load.met["timeout"], "a held request was told of its answer late or never"
    wait_until(lambda: in_sync(cluster), 60)
