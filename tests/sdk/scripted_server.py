"""A real HTTP/1.1 server on a free port that answers from a script and remembers what it was asked."""

from __future__ import annotations

import ssl
import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import msgspec
import numpy as np

from sie_sdk import replies, wire
from sie_sdk.errors import SIEError
from sie_sdk.outputs import DenseOutput
from sie_sdk.replies import Extracted
from sie_sdk.types import Entity, JobStatus, Timing, Usage


@dataclass
class Asked:
    """One request as it arrived; header names in lower case."""

    method: str
    path: str
    headers: dict[str, str]
    body: bytes


@dataclass
class Answer:
    """One scripted reply. ``hang_up`` closes the connection instead of replying."""

    status: int = 200
    body: bytes = b""
    headers: dict[str, str] = field(default_factory=dict)
    hang_up: bool = False


def vectors(count: int = 1) -> Answer:
    """An encode result of ``count`` items; vector i is ``[i, 0.5]``."""
    rows = np.stack([np.arange(count), np.full(count, 0.5)], axis=1)
    dense = DenseOutput(rows.astype(np.float32), 2, "float32")
    return answered(replies.encode("m", [None] * count, {"dense": dense}, Timing(total_ms=3.0), Usage(2)))


def scores(*values: float) -> Answer:
    """A score result, one value per item."""
    array = np.array(values, np.float32)
    return answered(replies.score("m", array, [None] * len(values), None, Timing(total_ms=3.0), Usage(2)))


def extracted(*items: Extracted) -> Answer:
    """An extract result."""
    return answered(replies.extract("m", [None] * len(items), items, Timing(total_ms=3.0), Usage(2)))


def answered(body: bytes) -> Answer:
    """A reply that worked."""
    return Answer(200, body, {"Content-Type": wire.MSGPACK, "X-Request-ID": "r-ok"})


def computed(asked: Asked) -> Answer:
    """What a model would answer whose vector, score or entity of a text like ``"17"`` is that number."""
    operation = asked.path.split("/")[2]
    request = wire.PARSERS[operation](asked.body, None)  # type: ignore[index]  # a path of a test
    ids, numbers = [item.id for item in request.items], [float(item.text or "0") for item in request.items]
    timing, usage = Timing(total_ms=3.0), Usage(len(ids))
    if operation == "encode":
        rows = np.array([[number, 0.5] for number in numbers], np.float32)
        return answered(replies.encode("m", ids, {"dense": DenseOutput(rows, 2, "float32")}, timing, usage))
    if operation == "score":
        return answered(replies.score("m", np.array(numbers, np.float32), ids, None, timing, usage))
    found = [Extracted([Entity(f"{number:g}", "number", 1.0)]) for number in numbers]
    return answered(replies.extract("m", ids, found, timing, usage))


class Silent:
    """Answers each request with a vector, but not before it is let go. ``came``: whether any is there."""

    def __init__(self) -> None:
        self.came, self.left = threading.Event(), threading.Event()

    def __call__(self, asked: Asked) -> Answer:
        self.came.set()
        self.left.wait(60)
        return vectors()


def accepted(job: JobStatus, **headers: str) -> Answer:
    """A 202 for ``job``; keywords are headers with ``_`` for ``-``."""
    location = {"Content-Type": wire.JSON, "Location": f"/v1/jobs/{job.id}", "X-Request-ID": "r-202"}
    return Answer(
        202, replies.job_body(job), location | {key.replace("_", "-"): value for key, value in headers.items()}
    )


def refused(error: SIEError) -> Answer:
    """``error`` as a server answers it."""
    headers = {"Content-Type": wire.JSON, "X-Request-ID": "r-error"}
    if error.retry_after is not None:
        headers["Retry-After"] = str(error.retry_after)
    return Answer(error.status, wire.error_body(error), headers)


def json_answer(value: object) -> Answer:
    return Answer(200, msgspec.json.encode(value), {"Content-Type": wire.JSON})


class _Quiet(ThreadingHTTPServer):
    """Clients that hang up are part of the tests."""

    def handle_error(self, *_: Any) -> None:
        pass


class ScriptedServer:
    """``server.script`` answers one request each, in order; ``server.asked`` lists the requests.

    Without a script ``server.computes`` answers whatever it is asked, on as many threads as there are connections.
    """

    def __init__(self, tls: ssl.SSLContext | None = None) -> None:
        self.script: list[Answer] = []
        self.computes: Callable[[Asked], Answer] | None = None
        self.asked: list[Asked] = []
        self._http = _Quiet(("127.0.0.1", 0), self._handler())
        self._http.daemon_threads = True
        self._thread = threading.Thread(target=self._http.serve_forever, kwargs={"poll_interval": 0.01})
        if tls is not None:
            self._http.socket = tls.wrap_socket(self._http.socket, server_side=True, do_handshake_on_connect=False)
        self.url = f"http{'s' if tls else ''}://127.0.0.1:{self._http.server_port}"

    def __enter__(self) -> ScriptedServer:
        self._thread.start()
        return self

    def __exit__(self, *exc: object) -> None:
        self._http.shutdown()
        self._thread.join()
        self._http.server_close()

    def _handler(self) -> type[BaseHTTPRequestHandler]:
        server = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_GET(self) -> None:
                length = int(self.headers.get("Content-Length", 0))
                headers = {name.lower(): value for name, value in self.headers.items()}
                asked = Asked(self.command, self.path, headers, self.rfile.read(length))
                server.asked.append(asked)
                computes = server.computes
                answer = server.script.pop(0) if computes is None or server.script else computes(asked)
                if answer.hang_up:
                    self.close_connection = True
                    return
                self.send_response(answer.status)
                for name, value in (answer.headers | {"Content-Length": str(len(answer.body))}).items():
                    self.send_header(name, value)
                self.end_headers()
                self.wfile.write(answer.body)

            do_POST = do_DELETE = do_GET  # noqa: N815

            def log_message(self, *args: Any) -> None:
                pass

        return Handler
