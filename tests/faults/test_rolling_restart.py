"""Ingresses that are restarted one after the other under load, as a platform does it: nobody is cut."""

from __future__ import annotations

import pytest

from tests.faults.callers import CALLERS, Load, account
from tests.faults.conftest import Deploy

pytestmark = pytest.mark.e2e


def test_a_rolling_restart_of_the_ingresses_cuts_nobody(deploy: Deploy) -> None:
    deployment = deploy(delay_s=0.3)
    deployment.up("ingress-2", "bundle-1", "bundle-2")
    load = Load([deployment.url("ingress"), deployment.url("ingress-2")], 500, 2 * CALLERS)
    for number, name in enumerate(("ingress", "ingress-2")):
        load.await_answered(100 * (number + 1))
        load.avoid(deployment.url(name))  # first it gets no new requests, then it is told to stop
        load.await_answered(100 * (number + 1) + 20)
        deployment.stop(name)
        deployment.start(name)
        load.return_to(deployment.url(name))
    again = account(deployment, load)
    assert not again.begun_again
    assert set(load.met) == {"200", "202"}, "held requests became jobs, and none was cut or refused"
