"""``sie config watch`` from one stream to the next: it goes on over what passes, and ends with what does not."""

from __future__ import annotations

import json
import pwd
import socket
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from itertools import islice
from pathlib import Path

import pytest

from sie_config.cli import service
from sie_config.cli.apply import wait_until_served
from sie_config.cli.service import ConfigService
from sie_sdk.errors import DeadlineExceededError, SIEError, UnauthorizedError


@contextmanager
def answering(statuses: Sequence[int], data: str = "{}", tokens: list[str | None] | None = None) -> Iterator[str]:
    """A server that answers so, one after the other; each 200 is a stream of one event, which then ends.

    ``tokens`` gets what each request has for its ``Authorization``.
    """
    left = list(enumerate(statuses, 1))

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            number, status = left.pop(0)
            if tokens is not None:
                tokens.append(self.headers["Authorization"])
            self.send_response(status)
            self.end_headers()
            event = f"event: config.changed\r\nid: {number}\ndata: {data}\n\n"
            refusal = b'{"error": {"code": "UNAUTHORIZED", "message": "No."}}' if status == 401 else b"{}"
            self.wfile.write(event.encode() if status == 200 else refusal)

        def log_message(self, format: str, *args: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


@pytest.fixture(autouse=True)
def comes_again_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(service, "AGAIN_S", 0.0)


@pytest.fixture
def silent() -> Iterator[str]:
    """A server that takes connections and says nothing."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        yield f"http://127.0.0.1:{listener.getsockname()[1]}"


def test_a_watch_goes_on_over_a_service_that_is_busy_or_starts_anew() -> None:
    with answering([200, 503, 429, 502, 200]) as url, ConfigService(None, url, "token") as config:
        assert len(list(islice(config.events("/v1/configs/watch", None), 2))) == 2


@pytest.mark.parametrize("statuses", [[200, 401], [503]])
def test_a_watch_ends_where_coming_again_would_not_help(statuses: list[int]) -> None:
    with answering(statuses) as url, ConfigService(None, url, "token") as config, pytest.raises(SIEError) as caught:
        list(config.events("/v1/configs/watch", None))
    assert caught.value.request_id


def test_a_line_separator_within_an_event_ends_no_line() -> None:
    note = "one\u2028two\u2029three\u0085four"
    with answering([200], f'{{"note": "{note}"}}') as url, ConfigService(None, url, "token") as config:
        assert next(config.events("/v1/configs/watch", None)) == ("config.changed", {"note": note})


def test_a_watch_on_this_machine_has_the_token_of_sie_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / service.TOKEN_FILE).write_text("made-by-up\n")
    monkeypatch.setenv("SIE_STATE_DIR", str(tmp_path))
    for name in ("SIE_ADMIN_TOKEN", "SIE_API_KEY"):
        monkeypatch.delenv(name, raising=False)
    tokens: list[str | None] = []
    with answering([200, 200], tokens=tokens) as url:
        up = {"pid": 1, "url": "http://127.0.0.1:9", "config_url": url}
        (tmp_path / service.UP_FILE).write_text(json.dumps(up))
        for token in (None, "told"):
            with ConfigService(None, url, token) as config:
                next(config.events("/v1/configs/watch", None))
    assert tokens == ["Bearer made-by-up", "Bearer told"]


@pytest.mark.parametrize("up", ['{"url": "http://127.0.0.1:9", "config_url": ""}', "{", None])
def test_the_token_of_a_sie_up_is_sent_to_no_other_server_on_this_machine(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, up: str | None
) -> None:
    (tmp_path / service.TOKEN_FILE).write_text("made-by-up\n")
    if up is not None:
        (tmp_path / service.UP_FILE).write_text(up)
    monkeypatch.setenv("SIE_STATE_DIR", str(tmp_path))
    monkeypatch.delenv("SIE_ADMIN_TOKEN", raising=False)
    monkeypatch.setenv("SIE_API_KEY", "mine")
    tokens: list[str | None] = []
    with answering([401], tokens=tokens) as url, ConfigService(None, url, None) as config:
        with pytest.raises(UnauthorizedError) as caught:
            config.read("/v1/configs/epoch")
        assert "SIE_STATE_DIR=DIR" in (caught.value.hint or "")
    assert tokens == ["Bearer mine"]


def test_a_user_without_a_home_has_no_token_of_sie_up(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("HOME", "XDG_STATE_HOME", "SIE_STATE_DIR", "SIE_API_KEY"):
        monkeypatch.delenv(name, raising=False)

    def nobody(uid: int) -> None:
        raise KeyError(uid)

    monkeypatch.setattr(pwd, "getpwuid", nobody)
    with ConfigService("http://127.0.0.1:9", None, None):
        pass


def test_a_server_that_falls_silent_after_a_write_is_told_as_one_that_does_not_serve_it(
    silent: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(service, "TIMEOUT_S", 3600.0)
    with (
        ConfigService(silent, None, "token") as config,
        pytest.raises(DeadlineExceededError, match=r"acme/x is written, and after 0\.3 s not known to be served"),
    ):
        wait_until_served(config, ["acme/x"], 7, 0.3)
