"""kill -9 of one part under load: every id is answered once, and computed again only where the kill took its result."""

from __future__ import annotations

import pytest

from tests.faults.callers import CALLERS, Load, account
from tests.faults.deployment import IN_HAND, Deployment
from tests.platform import wait_until

pytestmark = pytest.mark.e2e


def busy(deployment: Deployment, worker: str) -> bool:
    """Whether a bundle has begun more than it has computed."""
    return len(deployment.recorded("start", worker)) > len(deployment.recorded("done", worker))


def test_a_bundle_killed_mid_batch_costs_what_it_had_in_hand(deployment: Deployment) -> None:
    deployment.up("bundle-1", "bundle-2")
    load = Load([deployment.url()], 600)
    load.await_answered(150)
    wait_until(lambda: busy(deployment, "bundle-1"))
    deployment.kill("bundle-1")
    again = account(deployment, load)
    assert 0 < len(again.begun_again) <= IN_HAND
    assert len(again.computed_again) <= IN_HAND


def test_two_of_three_bundles_killed_under_load_cost_what_they_had_in_hand(deployment: Deployment) -> None:
    deployment.up("bundle-1", "bundle-2", "bundle-3")
    load = Load([deployment.url()], 600)
    load.await_answered(150)
    wait_until(lambda: busy(deployment, "bundle-1"))
    deployment.kill("bundle-1")
    deployment.kill("bundle-3")
    again = account(deployment, load)
    assert 0 < len(again.begun_again) <= 2 * IN_HAND
    assert len(again.computed_again) <= 2 * IN_HAND


def test_an_ingress_killed_with_requests_in_flight_answers_after_its_restart(deployment: Deployment) -> None:
    deployment.up("bundle-1", "bundle-2")
    load = Load([deployment.url()], 600)
    load.await_answered(150)
    deployment.kill("ingress")
    deployment.start("ingress")
    again = account(deployment, load)
    assert len(again.computed_again) <= CALLERS


def test_a_second_ingress_answers_what_a_killed_one_had_in_flight(deployment: Deployment) -> None:
    deployment.up("ingress-2", "bundle-1", "bundle-2")
    load = Load([deployment.url("ingress"), deployment.url("ingress-2")], 600)
    load.await_answered(150)
    deployment.kill("ingress")
    again = account(deployment, load)
    assert len(again.computed_again) <= CALLERS


def test_a_killed_nats_server_brings_everything_back_from_its_storage(deployment: Deployment) -> None:
    deployment.up("bundle-1", "bundle-2")
    load = Load([deployment.url()], 600)
    load.await_answered(150)
    deployment.kill("nats-1")
    deployment.start("nats-1")
    again = account(deployment, load)
    assert len(again.computed_again) <= 2 * IN_HAND
    assert not load.met["timeout"], "a held request was told of its answer late or never"
