"""A wire between a process and a server that a test may cut and mend: TCP, forwarded byte by byte."""

from __future__ import annotations

import contextlib
import socket
import threading


class Wire:
    """Listens at ``port`` while the context is open, and forwards to ``target``, unless it is cut."""

    def __init__(self, target: int) -> None:
        self._target = target
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listener.getsockname()[1]
        self._whole = True
        self._ends: list[socket.socket] = []
        self._thread = threading.Thread(target=self._accept, daemon=True)

    def __enter__(self) -> Wire:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._listener.close()
        self.cut()
        self._thread.join(10)

    def cut(self) -> None:
        """Break every connection, and take no new one."""
        self._whole = False
        for end in self._ends:
            with contextlib.suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)
            end.close()
        self._ends.clear()

    def mend(self) -> None:
        """Take connections again."""
        self._whole = True

    def _accept(self) -> None:
        while True:
            try:
                near, _ = self._listener.accept()
            except OSError:  # the context has ended
                return
            if not self._whole:
                near.close()
                continue
            far = socket.create_connection(("127.0.0.1", self._target))
            self._ends += [near, far]
            for source, sink in ((near, far), (far, near)):
                threading.Thread(target=_forward, args=(source, sink), daemon=True).start()


def _forward(source: socket.socket, sink: socket.socket) -> None:
    with contextlib.suppress(OSError):
        while data := source.recv(65536):
            sink.sendall(data)
    for end in (source, sink):
        with contextlib.suppress(OSError):
            end.shutdown(socket.SHUT_RDWR)
