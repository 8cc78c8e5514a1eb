"""With ``SIE_AUTH_TOKENS`` set: clients are let in by their key, and nothing of the platform stands still."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from sie_sdk import SIEClient
from sie_sdk.errors import UnauthorizedError
from tests.e2e.conftest import serving
from tests.platform import Platform, wait_until

pytestmark = pytest.mark.e2e

MODEL = "test/tiny"


@pytest.fixture
def platform(tmp_path: Path, model_folder: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Platform]:
    for variable in ("SIE_ADMIN_TOKEN", "SIE_API_KEY", "SIE_CONFIG_URL"):
        monkeypatch.delenv(variable, raising=False)
    monkeypatch.setenv("SIE_AUTH_TOKENS", "one,two")
    platform = Platform(tmp_path / "state")
    platform.up(0, "--models", str(model_folder))
    yield platform
    platform.down()


def test_a_client_is_let_in_by_its_key_and_is_told_what_is_wrong_without(model_folder: Path) -> None:
    with serving("--models", str(model_folder), SIE_AUTH_TOKENS="one") as url:
        with SIEClient(url, api_key="one") as client:
            assert client.encode(MODEL, "hello").dense is not None
        with SIEClient(url, api_key="three") as client, pytest.raises(UnauthorizedError, match="may not ask"):
            client.encode(MODEL, "hello")


def test_the_platform_comes_up_is_told_of_and_heals_with_tokens_set(platform: Platform) -> None:
    assert "accepts requests" in platform.sie("status").stdout
    before = platform.kill("ingress")
    wait_until(lambda: platform.pids().get("ingress", before) != before)
    wait_until(lambda: "accepts requests" in platform.sie("status").stdout)
    assert httpx.get(f"{platform.url}/health").status_code == 401


def test_the_command_line_asks_with_its_key_and_changes_the_catalogue_as_ever(
    platform: Platform, monkeypatch: pytest.MonkeyPatch
) -> None:
    refused = platform.sie("encode", MODEL, "hello", "--url", platform.url)
    assert refused.returncode != 0 and "SIE_AUTH_TOKENS" in refused.stderr
    history = platform.sie("config", "history", "--url", platform.url)
    assert history.returncode == 0, history.stderr
    monkeypatch.setenv("SIE_API_KEY", "two")
    for words in (("encode", MODEL, "hello"), ("health",), ("models",), ("config", "list"), ("pools", "list")):
        done = platform.sie(*words, "--url", platform.url)
        assert done.returncode == 0, (words, done.stderr)


@pytest.mark.weights
def test_a_tour_of_a_server_that_asks_for_a_token_sends_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SIE_AUTH_TOKENS", ",one")
    monkeypatch.delenv("SIE_API_KEY", raising=False)
    done = Platform(tmp_path / "state").sie("tour", "--once", "--port", "0")
    assert (done.returncode, "The same request warm" in done.stdout) == (0, True), done.stderr


def test_serve_warns_when_others_reach_it_and_it_asks_for_no_token(model_folder: Path, tmp_path: Path) -> None:
    command = [sys.executable, "-m", "sie_local", "serve", "--host", "0.0.0.0", "--port", "0", "--models"]
    log = tmp_path / "log"
    with log.open("w") as file:
        process = subprocess.Popen([*command, str(model_folder)], stderr=file)
    try:
        wait_until(lambda: "Set SIE_AUTH_TOKENS" in log.read_text())
    finally:
        process.terminate()
        assert process.wait(60) == 0
