"""TCP ports of this machine: a free one, and who has a taken one. Owns no connection."""

from __future__ import annotations

import contextlib
import errno
import os
import random
import socket
from pathlib import Path

FIRST, LAST = 10_000, 29_999
"""Below those that a system gives to connections, one of which might take it before the server does that it is for."""

_RANDOM = random.SystemRandom()


def free_port(host: str = "127.0.0.1") -> int:
    """A port nobody listens on now."""
    while not is_free(host, port := _RANDOM.randint(FIRST, LAST)):
        pass
    return port


def is_free(host: str, port: int) -> bool:
    """Whether nobody else listens there; other reasons why one could not are the server's to report."""
    with socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # what servers do: ignore connections in TIME_WAIT
        try:
            probe.bind((host, port))
        except OSError as error:
            return error.errno != errno.EADDRINUSE
    return True


def owner_of(port: int) -> str | None:
    """Who listens on a port, as ``name (pid 1)``; None when that cannot be known: not Linux, or another user's."""
    sockets = _listening(port)
    for fd in Path("/proc").glob("[0-9]*/fd/*") if sockets else ():
        with contextlib.suppress(OSError):
            if os.readlink(fd) in sockets:
                process = fd.parents[1]
                return f"{(process / 'comm').read_text().strip()} (pid {process.name})"
    return None


def _listening(port: int) -> set[str]:
    """The sockets that listen on a port, as their file descriptors' link targets."""
    found = set()
    for table in ("/proc/net/tcp", "/proc/net/tcp6"):
        with contextlib.suppress(OSError):
            for line in Path(table).read_text().splitlines()[1:]:
                columns = line.split()
                if columns[3] == "0A" and int(columns[1].rsplit(":", 1)[1], 16) == port:  # 0A: LISTEN
                    found.add(f"socket:[{columns[9]}]")
    return found
