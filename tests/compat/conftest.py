"""The servers that published clients are driven against: ``sie up`` and ``sie serve``, with the real model."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.e2e.conftest import serving
from tests.platform import Platform, wait_until


@pytest.fixture(scope="session")
def served() -> Iterator[str]:
    """The URL of ``sie serve`` with the whole catalogue."""
    with serving() as url:
        yield url


@pytest.fixture(scope="session")
def platform(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Platform]:
    """A ``sie up`` on real NATS, warm, that stays up."""
    platform = Platform(tmp_path_factory.mktemp("platform"), quiet_s=600)
    platform.up()
    try:
        platform.encode("warm", prefer="wait=60")
        wait_until(lambda: any(worker["healthy"] for worker in platform.workers()))
        yield platform
    finally:
        platform.down()


@pytest.fixture(params=["serve", "up"])
def url(request: pytest.FixtureRequest) -> str:
    """The URL of each kind of server in turn."""
    if request.param == "serve":
        served: str = request.getfixturevalue("served")
        return served
    return str(request.getfixturevalue("platform").url)
