"""A process a part of which fails leaves, so that its platform starts another: see `sie_broker.duties`."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.faults.conftest import Deploy
from tests.faults.deployment import before

pytestmark = pytest.mark.e2e

BROKEN = Path(__file__).parent / "broken"


@pytest.mark.parametrize(
    ("name", "part"),
    [
        ("config", "sie_config.epochs.writer:Writer._lead"),
        ("config", "sie_config.epochs.relay:Relay._tell"),
        ("ingress", "sie_config.epochs.mirror:Mirror.look"),
        ("ingress", "sie_ingress.lanes:Lanes._read"),
        ("demand-1", "sie_broker.demand.holder:Holder._decide"),
        ("worker", "sie_bundle.membership:Membership._read"),
        ("worker", "sie_broker.jetstream.hands:Hands._beat"),
        ("ingress", "sie_broker.clock:Clock.follow"),
    ],
)
def test_a_process_leaves_when_a_part_of_it_fails_and_says_why(deploy: Deploy, name: str, part: str) -> None:
    deployment = deploy()
    deployment.up()
    if name in ("config", "ingress"):
        deployment.stop(name)
    deployment.launch(name, BROKEN=part, PYTHONPATH=before(BROKEN))
    assert deployment.await_end(name) == 1
    told = deployment.log(name)
    assert "a part of this process failed, and it leaves" in told and "a mistake of ours" in told
