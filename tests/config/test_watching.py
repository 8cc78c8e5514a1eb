"""``sie config watch`` from one stream to the next: it goes on over what passes, and ends with what does not."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from itertools import islice
from pathlib import Path

import pytest

from sie_config.cli import service
from sie_config.cli.service import ConfigService
from sie_sdk.errors import SIEError


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
            self.wfile.write(event.encode() if status == 200 else b"{}")

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
        for token in (None, "told"):
            with ConfigService(None, url, token) as config:
                next(config.events("/v1/configs/watch", None))
    assert tokens == ["Bearer made-by-up", "Bearer told"]
