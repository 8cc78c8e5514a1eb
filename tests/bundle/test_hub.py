"""Weights from the Hugging Face Hub: its answers told apart, its cache, offline mode, proxies and closed ports."""

from __future__ import annotations

import fcntl
import json
import logging
import re
import socket
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import msgspec
import pytest
from safetensors.numpy import load_file, save_file

from sie_bundle.weights import hub, layout, repository, weights
from sie_bundle.weights.source import SourceError
from sie_config import propose
from sie_config.model.sources import HubSource, LocalSource
from sie_sdk.errors import ConnectionFailedError, WeightsUnavailableError
from tests import tiny_model
from tests.bundle.hub_double import COMMIT, HubDouble

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


@pytest.mark.parametrize(
    ("endpoint", "proxy", "named"),
    [("http://hub:abc", "", "HF_ENDPOINT"), ("https://hub.invalid", "http://me:pass/word@pr:xyz", "HTTPS_PROXY")],
)
def test_an_address_that_is_none_is_named_by_its_setting(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, endpoint: str, proxy: str, named: str
) -> None:
    monkeypatch.setattr("huggingface_hub.constants.ENDPOINT", endpoint)
    monkeypatch.setenv("https_proxy", proxy)
    with pytest.raises(SourceError, match=f"^{named} is no URL") as caught:
        hub.fetch(HUB, weights.FILES, tmp_path)
    assert "pass" not in str(caught.value)
    with pytest.raises(ConnectionFailedError, match=named):
        repository.read("acme/tiny")


def test_behind_a_proxy_it_is_the_proxy_that_must_be_reached(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("https_proxy", "http://proxy.invalid:3128")
    with pytest.raises(SourceError, match=r"cannot resolve proxy\.invalid"):
        hub.fetch(HUB, weights.FILES, tmp_path)


def test_a_hub_that_the_proxy_is_not_for_is_reached_itself(
    answering: type[Hub], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    answering.status, answering.code = 404, "RepoNotFound"
    with socket.socket() as closed:
        closed.bind(("127.0.0.1", 0))  # bound but not listening
        monkeypatch.setenv("http_proxy", f"http://127.0.0.1:{closed.getsockname()[1]}")
        with pytest.raises(SourceError) as caught:
            hub.fetch(HUB, weights.FILES, tmp_path)
    assert caught.value.reason == "not_found", "the hub's own answer"


def test_who_asks_the_hub_is_told_to_nobody(
    answering: type[Hub], monkeypatch: pytest.MonkeyPatch, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    from huggingface_hub import constants

    answering.status = 507
    monkeypatch.setattr(constants, "ENDPOINT", constants.ENDPOINT.replace("http://", "http://user:secret@"))
    with caplog.at_level(logging.DEBUG, "sie"), pytest.raises(WeightsUnavailableError) as caught:
        weights.resolve(MODEL, None, tmp_path)
    with pytest.raises(ConnectionFailedError) as refused:
        repository.read("acme/tiny")
    told = f"{caught.value} {caught.value.details} {refused.value} {refused.value.details}"
    assert "507" in told and "/api/models/acme/tiny" in told
    assert not {"user", "secret"} & set(re.findall(r"\w+", told + ours(caplog)))


def test_the_signature_of_an_address_where_files_lie_is_told_to_nobody(
    hub_here: HubDouble, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    hub_here.repos["acme/tiny"], hub_here.expired = tiny_model.make(tmp_path / "repo"), True
    spec = msgspec.structs.replace(MODEL, sources=(HubSource(repo="acme/tiny", revision=COMMIT),))
    with caplog.at_level(logging.DEBUG, "sie"), pytest.raises(WeightsUnavailableError) as caught:
        weights.resolve(spec, None, tmp_path / "cache")
    told = f"{caught.value} {caught.value.details}"
    assert "403" in told and "/elsewhere/" in told
    assert not any(word in told + ours(caplog) for word in ("Signature", "s3cr3t"))


def ours(caplog: pytest.LogCaptureFixture) -> str:
    """What this project's loggers wrote."""
    return " ".join(record.getMessage() for record in caplog.records if record.name.startswith("sie"))


def test_the_files_that_an_index_names_are_fetched_whatever_they_are_called(
    hub_here: HubDouble, tmp_path: Path
) -> None:
    repo = tiny_model.make(tmp_path / "repo")
    tensors = load_file(repo / layout.WHOLE)
    placed = {name: f"pytorch_model-0000{i % 2 + 1}-of-00002.safetensors" for i, name in enumerate(sorted(tensors))}
    for part in set(placed.values()):
        save_file({name: tensors[name] for name, own in placed.items() if own == part}, repo / part)
    (repo / layout.INDEX).write_text(json.dumps({"weight_map": placed}))
    (repo / layout.WHOLE).unlink()
    (repo / layout.PICKLED).write_bytes(b"of before")
    hub_here.repos["acme/tiny"] = repo
    read = repository.read("acme/tiny")
    source = HubSource(repo="acme/tiny", revision=read.commit)
    proposed = propose.spec(read.folder, id="acme/tiny", revision=read.commit, sources=[source]).spec
    assert proposed.status == "ready"
    assert layout.files(weights.resolve(proposed, None, tmp_path / "cache").folder) == sorted(set(placed.values()))
    assert not any(layout.PICKLED in asked for asked in hub_here.asked)


def test_a_fetch_that_broke_off_goes_on_with_the_files_that_are_not_there_yet(
    hub_here: HubDouble, tmp_path: Path
) -> None:
    hub_here.repos["acme/tiny"] = tiny_model.make(tmp_path / "repo")
    hub_here.failing.add("model.safetensors")
    spec = msgspec.structs.replace(MODEL, sources=(HubSource(repo="acme/tiny", revision=COMMIT),))
    with pytest.raises(WeightsUnavailableError):
        weights.resolve(spec, None, tmp_path / "cache")
    begun = set(fetched(hub_here))  # several at once: the one that fails may be the first, or the last
    assert "model.safetensors" in begun
    hub_here.down = True
    with pytest.raises(WeightsUnavailableError) as caught:
        weights.resolve(spec, None, tmp_path / "cache")
    assert caught.value.details["reason"] == "network"
    hub_here.failing.clear()
    hub_here.asked.clear()
    hub_here.down = False
    folder = weights.resolve(spec, None, tmp_path / "cache").folder
    assert fetched(hub_here) == sorted({"model.safetensors"} | (set(weights.FILES) - begun))
    assert sorted(path.name for path in folder.iterdir()) == sorted(weights.FILES)
    assert not list(tmp_path.rglob("*.partial"))


def test_what_broke_off_is_deleted_once_the_files_have_come_from_elsewhere(hub_here: HubDouble, tmp_path: Path) -> None:
    hub_here.repos["acme/tiny"] = tiny_model.make(tmp_path / "repo")
    hub_here.failing.add("model.safetensors")
    sources = (HubSource(repo="acme/tiny", revision=COMMIT), LocalSource(str(tmp_path / "brought")))
    spec = msgspec.structs.replace(MODEL, sources=sources)
    with pytest.raises(WeightsUnavailableError):
        weights.resolve(spec, None, tmp_path / "cache")
    (begun,) = tmp_path.rglob("*.partial")
    tiny_model.make(tmp_path / "brought")
    with begun.with_name(f"{COMMIT}.lock").open() as another:
        fcntl.flock(another, fcntl.LOCK_EX)
        weights.resolve(spec, None, tmp_path / "cache")
        assert begun.is_dir(), "another process goes on with it"
    assert weights.resolve(spec, None, tmp_path / "cache").folder == tmp_path / "brought"
    assert not begun.exists()


def test_what_a_killed_copy_of_a_cache_left_is_not_taken_for_whole(hub_here: HubDouble, tmp_path: Path) -> None:
    left = tiny_model.make(tmp_path / f"cache/weights/acme--tiny/{COMMIT}.partial")
    (left / "model.safetensors").write_bytes(b"half")
    hub_here.down = True
    spec = msgspec.structs.replace(MODEL, sources=(HubSource(repo="acme/tiny", revision=COMMIT),))
    with pytest.raises(WeightsUnavailableError):
        weights.resolve(spec, None, tmp_path / "cache")
    assert not left.exists()


def fetched(hub: HubDouble) -> list[str]:
    """The files that it was asked for, whole."""
    return sorted(asked.rsplit("/", 1)[1] for asked in hub.asked if re.match("GET /.*/resolve/", asked))
