"""Fixtures of the fault tests: deployments that are gone when their test is."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.faults.deployment import Deployment

Deploy = Callable[..., Deployment]


@pytest.fixture
def deploy(tmp_path: Path) -> Iterator[Deploy]:
    """Makes a deployment, of which nothing runs yet, with short leases; see `Deployment` for what it may be given."""
    made: list[Deployment] = []

    def deploy(servers: int = 1, delay_s: float = 0.1, **settings: str) -> Deployment:
        short = {"SIE_ACK_WAIT_S": "3", "NOOP_DELAY_S": str(delay_s)}
        made.append(Deployment(tmp_path / f"deployment-{len(made)}", servers, **(short | settings)))
        return made[-1]

    yield deploy
    for deployment in made:
        deployment.close()


@pytest.fixture
def deployment(deploy: Deploy) -> Deployment:
    """One with a single server."""
    return deploy()
