"""A receiver of events that keeps what it is sent: what runs in the pod, by itself, and says all of it to a GET.

Owns nothing but its memory. It is handed to ``python -c`` of an image of ours, so it imports no more than Python has.
"""

from __future__ import annotations

import http.server
import json
import os
import signal
from typing import Any, ClassVar


class Recorder(http.server.BaseHTTPRequestHandler):
    """Answers every event with 202."""

    seen: ClassVar[list[dict[str, Any]]] = []
    protocol_version = "HTTP/1.1"

    def do_POST(self) -> None:
        """Keep it."""
        body = self.rfile.read(int(self.headers.get("content-length") or 0)).decode("utf-8", "replace")
        headers = {name.lower(): value for name, value in self.headers.items()}
        self.seen.append({"path": self.path, "headers": headers, "body": body})
        self._answer(202, b"")

    def do_GET(self) -> None:
        """Tell it."""
        self._answer(200, json.dumps(self.seen).encode())

    def log_message(self, format: str, *args: object) -> None:
        """Say nothing."""

    def _answer(self, status: int, body: bytes) -> None:
        self.send_response(status)
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, lambda *_: os._exit(0))
    http.server.ThreadingHTTPServer(("", int(os.environ["PORT"])), Recorder).serve_forever()
