"""Weights from the Hugging Face Hub: its answers told apart, its cache, offline mode, proxies and closed ports."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import msgspec
import pytest

from sie_bundle.weights import hub, weights
from sie_bundle.weights.source import SourceError
from sie_config.model.sources import HubSource
from sie_sdk.errors import WeightsUnavailableError
from tests import tiny_model

REVISION = "0" * 40
HUB = HubSource(repo="acme/tiny", revision=REVISION)
MODEL = msgspec.structs.replace(tiny_model.spec(Path("unused")), id="acme/tiny", sources=(HUB,))

pytestmark = pytest.mark.usefixtures("no_hub")


class Hub(BaseHTTPRequestHandler):
    """A hub that answers everything as it is told to."""

    status = 200
    code = ""

    def do_GET(self) -> None:
        self.send_response(self.status)
        if self.code:
            self.send_header("X-Error-Code", self.code)
            self.send_header("X-Error-Message", f"{self.code}.")
        self.send_header("Content-Length", "0")
        self.end_headers()

    do_HEAD = do_GET  # noqa: N815

    def log_message(self, *_: object) -> None:
        """Keep the test's output clean."""


@pytest.fixture
def answering(monkeypatch: pytest.MonkeyPatch) -> Iterator[type[Hub]]:
    with ThreadingHTTPServer(("127.0.0.1", 0), type("Answering", (Hub,), {})) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        for name in ("huggingface_hub.constants.ENDPOINT", "huggingface_hub.constants.HUGGINGFACE_CO_URL_HOME"):
            monkeypatch.setattr(name, f"http://127.0.0.1:{server.server_port}")
        monkeypatch.setenv("no_proxy", "127.0.0.1")
        yield server.RequestHandlerClass  # type: ignore[misc]
        server.shutdown()
        thread.join()


@pytest.mark.parametrize(
    ("status", "code", "reason"),
    [
        (403, "GatedRepo", "gated"),
        (401, "GatedRepo", "gated"),
        (403, "", "gated"),
        (404, "RepoNotFound", "not_found"),
        (404, "RevisionNotFound", "not_found"),
        (507, "", "network"),
    ],
)
def test_what_the_hub_answers_is_told_apart(
    answering: type[Hub], status: int, code: str, reason: str, tmp_path: Path
) -> None:
    answering.status, answering.code = status, code
    with pytest.raises(SourceError) as caught:
        hub.fetch(HUB, weights.FILES, tmp_path)
    assert caught.value.reason == reason


def test_hugging_faces_own_cache_is_not_used_when_it_may_be_what_is_damaged(tmp_path: Path) -> None:
    tiny_model.make(tmp_path / "hf/models--acme--tiny/snapshots" / REVISION)
    with pytest.raises(SourceError, match="cannot resolve"):
        hub.fetch(HUB, weights.FILES, tmp_path, cached=False)


def test_hugging_faces_own_cache_is_used_without_the_network(tmp_path: Path) -> None:
    made = tiny_model.make(tmp_path / "hf/models--acme--tiny/snapshots" / REVISION)
    (made / "a/b").mkdir(parents=True)
    (made / "a/b/c.pt").write_bytes(b"deep")
    found = weights.resolve(msgspec.structs.replace(MODEL, files=("a/b/c.pt",)), None, tmp_path / "cache").folder
    assert all((found / name).read_bytes() == (made / name).read_bytes() for name in (*weights.FILES, "a/b/c.pt"))


def test_offline_mode_is_respected_and_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    with pytest.raises(WeightsUnavailableError, match="HF_HUB_OFFLINE is set"):
        weights.resolve(MODEL, None, tmp_path)


def test_a_hub_that_refuses_connections_is_told_with_its_port(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    with socket.socket() as closed:
        closed.bind(("127.0.0.1", 0))  # bound but not listening
        port = closed.getsockname()[1]
        monkeypatch.setattr("huggingface_hub.constants.ENDPOINT", f"http://127.0.0.1:{port}")
        monkeypatch.setenv("http_proxy", "")
        with pytest.raises(SourceError, match=f"cannot connect to 127.0.0.1:{port} "):
            hub.fetch(HUB, weights.FILES, tmp_path)


def test_behind_a_proxy_it_is_the_proxy_that_must_be_reached(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("https_proxy", "http://proxy.invalid:3128")
    with pytest.raises(SourceError, match=r"cannot resolve proxy\.invalid"):
        hub.fetch(HUB, weights.FILES, tmp_path)
