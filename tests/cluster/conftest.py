"""One deployment for all tests of a run; each begins with it at rest: every part up, no bundle running."""

from __future__ import annotations

import logging
import os
import sys
from collections.abc import Generator, Iterator

import pytest

from tests.cluster import evidence, kube
from tests.cluster.deployed import Deployed

# Each request would be a line of the report, and each end of a connection to NATS.
logging.getLogger("httpx").setLevel(logging.WARNING)
logging.getLogger("asyncio").setLevel(logging.ERROR)


def pytest_configure(config: pytest.Config) -> None:
    """pytest tells no line of progress of processes that run beside each other; so each does it itself."""
    process = os.environ.get("PYTEST_XDIST_WORKER")
    if process and (line := config.getoption("log_cli_format")):
        lines = logging.StreamHandler(sys.__stderr__)
        lines.setFormatter(logging.Formatter(f"{process} {line}", config.getoption("log_cli_date_format")))
        logging.getLogger("e2e").addHandler(lines)
        logging.getLogger("e2e").setLevel(logging.INFO)


@pytest.fixture(scope="session")
def deployment(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Deployed]:
    if reason := kube.absent():
        pytest.skip(f"{reason}; `make e2e` brings one up")
    deployed = Deployed(tmp_path_factory.mktemp("cluster"))
    try:
        deployed.up()
        yield deployed
    finally:
        if "SIE_E2E_KEEP" not in os.environ:
            deployed.remove(volumes=True)


@pytest.fixture
def deployed(deployment: Deployed) -> Deployed:
    return deployment


@pytest.fixture
def at_zero(deployed: Deployed) -> Deployed:
    """No bundle is wanted and none runs; those that were told to go do not take the half minute that they may."""
    # A pod of a revision that is gone is not the last one while its lane still wants one.
    kube.until(lambda: not deployed.wanted() and not kube.pods(), 150)
    kube.kill(kube.WORKERS)
    deployed.to_zero()
    kube.until(lambda: not deployed.workers())
    return deployed


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Logs and events of a failure, at once: the next test, or the end of the run, changes them."""
    report = yield
    if report.failed and item.get_closest_marker("cluster"):
        folder = evidence.collect(item.name)
        report.sections.append(("cluster", f"logs and events: {folder}\n{evidence.excerpt(folder)}"))
    return report
