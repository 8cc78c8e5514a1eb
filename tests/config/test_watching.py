"""``sie config watch`` from one stream to the next: it goes on over what passes, and ends with what does not."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from itertools import islice

import pytest

from sie_config.cli import service
from sie_config.cli.service import ConfigService
from sie_sdk.errors import SIEError


@contextmanager
def answering(statuses: Sequence[int]) -> Iterator[str]:
    """A server that answers so, one after the other; each 200 is a stream of one event, which then ends."""
    left = list(enumerate(statuses, 1))

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            number, status = left.pop(0)
            self.send_response(status)
            self.end_headers()
            self.wfile.write(b"event: config.changed\nid: %d\ndata: {}\n\n" % number if status == 200 else b"{}")

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
    with answering(statuses) as url, ConfigService(None, url, "token") as config, pytest.raises(SIEError):
        list(config.events("/v1/configs/watch", None))
