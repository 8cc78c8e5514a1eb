"""What a person sees at ``/`` in a browser: from zero to a loaded model, through a restart, and with a token."""

from __future__ import annotations

import contextlib
import shutil
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from tests import browser
from tests.e2e.conftest import serving
from tests.platform import MODEL, Platform, wait_until

pytestmark = pytest.mark.e2e

ANSWERED = "[...document.querySelectorAll('#workers tr')].map(row => row.cells[3].innerText)"


@pytest.fixture
def platform(tmp_path: Path) -> Iterator[Platform]:
    platform = Platform(tmp_path / "state")
    platform.up()
    yield platform
    platform.down()


@pytest.mark.weights
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


def test_what_is_planned_comes_last_in_grey_and_says_what_it_waits_for(model_folder: Path, tmp_path: Path) -> None:
    models = tmp_path / "models"
    shutil.copytree(model_folder, models)
    planned = (models / "tiny.yaml").read_text().replace("test/tiny", "first/of-all")
    (models / "planned.yaml").write_text(f"{planned}status: planned\nblocked_by: its image tower\n")
    with serving("--models", str(models)) as url, browser.opened(f"{url}/", tmp_path / "profile") as page:
        page.await_text("planned: its image tower")
        names = [text.split()[0] for text in rows(page, "#models tr")]
        assert names == ["test/absent", "test/tiny", "first/of-all"]
        assert page.evaluate("document.querySelector('#models tr.planned td').childNodes[1].data") == "first/of-all"
        ink = "(row => getComputedStyle(document.querySelector(row + ' td')).color)"
        assert page.evaluate(f"{ink}('#models tr.planned')") != page.evaluate(f"{ink}('#models tr.available')")
        assert page.failures == []


def test_a_server_that_asks_for_a_token_is_looked_at_once_the_page_has_one(model_folder: Path, tmp_path: Path) -> None:
    with (
        serving("--models", str(model_folder), SIE_AUTH_TOKENS="one,two") as url,
        browser.opened(f"{url}/", tmp_path / "profile") as page,
    ):
        page.await_text("This server asks for a token.")
        enter(page, "three")
        page.await_text("This token is not let in.")
        enter(page, "two")
        page.await_text("1 bundle up, 0 models loaded")
        page.await_text("test/tiny")
        assert page.evaluate("document.getElementById('ask').hidden")
        page.evaluate("location.reload()")
        page.await_text("1 bundle up, 0 models loaded")
        assert page.evaluate("document.getElementById('ask').hidden"), "the tab keeps it"
        assert page.failures == []


def test_the_api_s_page_tries_a_request_with_the_token_that_the_status_page_was_given(
    model_folder: Path, tmp_path: Path
) -> None:
    with (
        serving("--models", str(model_folder), SIE_AUTH_TOKENS="one") as url,
        browser.opened(f"{url}/", tmp_path / "profile") as page,
    ):
        page.await_text("This server asks for a token.")
        enter(page, "one")
        page.await_text("test/tiny")
        page.evaluate("document.querySelector('a[href=docs]').click()")
        page.await_text("The catalogue")
        shown = "document.querySelector('#models pre').innerText"
        wait_until(lambda: "Bearer $SIE_API_KEY" in str(page.evaluate(f"document.getElementById('models') && {shown}")))
        assert "Authorization" not in page.evaluate("document.querySelector('#ready pre').innerText")
        page.evaluate("document.querySelector('#models .send').click()")
        wait_until(lambda: "200" in page.evaluate("document.querySelector('#models .answer').innerText"))
        assert page.failures == []


def test_a_page_of_another_origin_asks_and_reads_why_it_was_refused(model_folder: Path, tmp_path: Path) -> None:
    settings = {"SIE_AUTH_TOKENS": "one", "SIE_CORS_ORIGINS": "*"}
    with serving("--models", str(model_folder), **settings) as url:
        page_url = url.replace("127.0.0.1", "localhost") + "/healthz"  # to a browser another origin
        with browser.opened(page_url, tmp_path / "profile") as page:
            page.await_text("ok")
            for token in ("two", "one"):
                page.evaluate(
                    f"fetch('{url}/v1/models', {{headers: {{Authorization: 'Bearer {token}'}}}})"
                    ".then(reply => reply.text().then(text => { document.body.innerText = reply.status + text; }))"
                )
                page.await_text("200" if token == "one" else '401{"error":{"code":"UNAUTHORIZED"')
            page.await_text("test/tiny")


def enter(page: browser.Page, token: str) -> None:
    """Type a token and look."""
    page.evaluate(f"document.getElementById('token').value = {token!r}")
    page.evaluate("document.querySelector('#ask button').click()")


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
