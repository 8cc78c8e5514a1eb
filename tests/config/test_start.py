"""The config service as a process: what it does before it has what it needs."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys

import pytest


@pytest.mark.parametrize("told", [signal.SIGTERM, signal.SIGINT])
def test_a_service_that_waits_for_nats_leaves_when_it_is_told_to(told: signal.Signals) -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        url = f"nats://127.0.0.1:{silent.getsockname()[1]}"
        process = subprocess.Popen(
            [sys.executable, "-m", "sie_config"],
            env=os.environ | {"SIE_NATS_URL": url, "PORT": "0"},
        )
        try:
            connection, _ = silent.accept()
            with connection:  # it hears signals before it connects
                process.send_signal(told)
                assert process.wait(60) == 0
        finally:
            process.kill()
            process.wait()
