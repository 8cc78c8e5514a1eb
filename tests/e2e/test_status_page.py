"""What a person sees at ``/`` in a browser, from zero to a loaded model and through a restart of the ingress."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from tests import browser
from tests.platform import MODEL, Platform, wait_until

pytestmark = [pytest.mark.e2e, pytest.mark.weights]

ANSWERED = "[...document.querySelectorAll('#workers tr')].map(row => row.cells[3].innerText)"


@pytest.fixture
def platform(tmp_path: Path) -> Iterator[Platform]:
    platform = Platform(tmp_path / "state")
    platform.up()
    yield platform
    platform.down()


def test_the_status_page_follows_the_cluster_from_zero_through_a_restart(platform: Platform, tmp_path: Path) -> None:
    with browser.opened(f"{platform.url}/", tmp_path / "profile") as page:
        page.await_text("Scaled to zero. The next request is queued, answered 202, and starts a bundle.")
        page.await_text(MODEL)
        assert platform.encode("hello", Prefer="wait=50").status_code == 200
        page.await_text("1 bundle up, 1 model loaded")
        wait_until(lambda: any(MODEL in text and "dense 384" in text for text in rows(page, "#models tr.loaded")))
        assert MODEL in rows(page, "#models tr")[0], "what is loaded comes first"
        wait_until(lambda: any("default/default/cpu" in text for text in rows(page, "#lanes tr.ready")))
        before = platform.kill("ingress")
        wait_until(lambda: platform.pids().get("ingress", before) != before)
        wait_until(lambda: answers(platform))
        assert platform.encode("hello again", Prefer="wait=50").status_code == 200
        wait_until(lambda: page.evaluate(ANSWERED) == ["2"])
        platform.down()
        page.await_text("The ingress does not answer; trying again every second.")
        assert page.failures == []


def answers(platform: Platform) -> bool:
    """Whether the ingress accepts requests."""
    with contextlib.suppress(httpx.TransportError):
        return httpx.get(f"{platform.url}/readyz", timeout=5).is_success
    return False


def rows(page: browser.Page, selector: str) -> list[str]:
    """The texts of the rows of a table."""
    found = page.evaluate(f"[...document.querySelectorAll({selector!r})].map(row => row.innerText)")
    assert isinstance(found, list)
    return found
