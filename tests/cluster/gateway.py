"""A cluster's inner gateway from outside: as an HTTP proxy, so that its names work as they do inside.

Owns the port that ``kubectl`` forwards, again whenever the gateway's pod goes. An ingress such as Kourier's takes
requests in a proxy's form and finds the Service by the host in it; nothing is to be resolved here.
"""

from __future__ import annotations

import contextlib
import os
import subprocess
import threading
from collections.abc import Iterator

from sie_local.ports import free_port

GATEWAY = os.environ.get("SIE_E2E_GATEWAY", "kourier-system/svc/kourier-internal")
PATIENCE_S = 60.0


class _Forward:
    """``kubectl port-forward`` to a gateway, begun anew until it is closed."""

    def __init__(self, gateway: str, port: int) -> None:
        namespace, _, service = gateway.partition("/")
        self._command = ["kubectl", "-n", namespace, "port-forward", service, f"{port}:80"]
        self._closing = threading.Event()
        self._open = threading.Event()
        self._complaint = ""
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def await_open(self) -> None:
        """Return when the port is there."""
        assert self._open.wait(PATIENCE_S), f"{' '.join(self._command)}: {self._complaint or 'no answer'}"

    def close(self) -> None:
        """Forward no longer."""
        self._closing.set()
        self._thread.join()

    def _run(self) -> None:
        while not self._closing.is_set():
            with subprocess.Popen(self._command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as forward:
                threading.Thread(target=self._listen, args=[forward], daemon=True).start()
                while forward.poll() is None and not self._closing.wait(0.2):
                    pass
                forward.terminate()

    def _listen(self, forward: subprocess.Popen[str]) -> None:
        assert forward.stdout is not None and forward.stderr is not None
        for line in forward.stdout:
            if "Forwarding" in line:
                self._open.set()
        self._complaint = forward.stderr.read().strip() or self._complaint


@contextlib.contextmanager
def forwarded(gateway: str = GATEWAY) -> Iterator[str]:
    """The gateway on a port of this machine, for ``HTTP_PROXY``."""
    port = free_port()
    forward = _Forward(gateway, port)
    try:
        forward.await_open()
        yield f"http://127.0.0.1:{port}"
    finally:
        forward.close()
