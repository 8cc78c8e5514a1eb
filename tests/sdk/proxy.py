"""A tiny HTTP proxy on a free port: forwards plain requests, tunnels for CONNECT, remembers what it was asked."""

from __future__ import annotations

import selectors
import socket
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import urlsplit

import httpx


class Proxy:
    """``proxy.asked`` lists the method and target of each request; ``proxy.url`` is where it listens."""

    def __init__(self) -> None:
        self.asked: list[tuple[str, str]] = []
        self._http = ThreadingHTTPServer(("127.0.0.1", 0), self._handler())
        self._http.daemon_threads = True
        self._thread = threading.Thread(target=self._http.serve_forever, kwargs={"poll_interval": 0.01})
        self.url = f"http://127.0.0.1:{self._http.server_port}"

    def __enter__(self) -> Proxy:
        self._thread.start()
        return self

    def __exit__(self, *exc: object) -> None:
        self._http.shutdown()
        self._thread.join()
        self._http.server_close()

    def _handler(self) -> type[BaseHTTPRequestHandler]:
        proxy = self

        class Handler(BaseHTTPRequestHandler):
            def do_CONNECT(self) -> None:
                proxy.asked.append(("CONNECT", self.path))
                host, _, port = self.path.partition(":")
                with socket.create_connection((host, int(port))) as far:
                    self.send_response(200)
                    self.end_headers()
                    _tunnel(self.connection, far)
                self.close_connection = True

            def do_POST(self) -> None:
                proxy.asked.append(("POST", self.path))
                body = self.rfile.read(int(self.headers["Content-Length"]))
                sent = {name: value for name, value in self.headers.items() if name.lower() != "proxy-connection"}
                with httpx.Client(trust_env=False) as client:
                    answer = client.post(self.path, content=body, headers=sent | {"Host": urlsplit(self.path).netloc})
                self.send_response(answer.status_code)
                self.send_header("Content-Type", answer.headers["content-type"])
                self.send_header("Content-Length", str(len(answer.content)))
                self.end_headers()
                self.wfile.write(answer.content)

            def log_message(self, *args: Any) -> None:
                pass

        return Handler


def _tunnel(near: socket.socket, far: socket.socket) -> None:
    other = {near: far, far: near}
    with selectors.DefaultSelector() as selector:
        for each in other:
            selector.register(each, selectors.EVENT_READ, each)
        while True:
            for key, _ in selector.select():
                end: socket.socket = key.data
                try:
                    data = end.recv(65536)
                except ConnectionError:
                    data = b""
                if not data:
                    return
                other[end].sendall(data)
