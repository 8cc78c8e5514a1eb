"""The config service as a function that rests at zero: it costs a write and a new pool its start, and nobody else."""

from __future__ import annotations

import contextlib
import socket
import threading
from collections.abc import Iterator

import httpx
import pytest

from sie_local.ports import free_port
from tests.faults.conftest import Deploy
from tests.faults.deployment import MODEL, Deployment
from tests.faults.test_config_faults import HEADERS, TOKEN, agree, models, spec
from tests.platform import wait_until

pytestmark = pytest.mark.e2e


class Activator:
    """Stands before the config service as Knative's activator does: holds a connection until it is up, then forwards.

    ``woken``: how often it had to start it.
    """

    def __init__(self, port: int) -> None:
        self.deployment: Deployment | None = None
        self.woken = 0
        self._closed = False
        self.starting = threading.Lock()
        self._listener = socket.create_server(("127.0.0.1", port))
        self._thread = threading.Thread(target=self._accept, daemon=True)
        self._thread.start()

    def close(self) -> None:
        self._listener.close()
        with self.starting:  # who starts it now is done with it
            self._closed = True

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                near, _ = self._listener.accept()
                threading.Thread(target=self._serve, args=(near,), daemon=True).start()

    def _serve(self, near: socket.socket) -> None:
        assert self.deployment is not None
        with self.starting:
            if self._closed:
                near.close()
                return
            if "config" not in self.deployment._processes or not self.deployment.alive("config"):
                self.woken += 1
                self.deployment.start("config")
        # It may be told to stop just now; then the caller's connection breaks.
        with near, contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", self._port)) as far:
            back = threading.Thread(target=_forward, args=(far, near), daemon=True)
            back.start()
            _forward(near, far)
            back.join(10)

    @property
    def _port(self) -> int:
        assert self.deployment is not None
        return self.deployment._ports["config"]


def _forward(source: socket.socket, sink: socket.socket) -> None:
    with contextlib.suppress(OSError):
        while data := source.recv(65536):
            sink.sendall(data)
        sink.shutdown(socket.SHUT_WR)


@pytest.fixture
def activator(deploy: Deploy) -> Iterator[Activator]:
    activator = Activator(port := free_port())
    activator.deployment = deploy(SIE_ADMIN_TOKEN=TOKEN, SIE_CONFIG_URL=f"http://127.0.0.1:{port}")
    yield activator
    activator.close()


def test_a_config_service_at_zero_costs_a_write_its_start_and_no_reader_anything(activator: Activator) -> None:
    deployment = activator.deployment
    assert deployment is not None
    deployment.up("bundle-1")
    deployment.stop("config")
    ingress = deployment.url("ingress")
    body = {"items": [{"text": "hello"}]}
    assert httpx.post(f"{ingress}/v1/encode/{MODEL}", json=body, timeout=60).status_code == 200
    assert httpx.get(f"{ingress}/v1/configs/export", timeout=60).json()["epoch"] == 1
    assert activator.woken == 0, "readers need no config service"

    refused = httpx.put(f"{ingress}/v1/configs/models/acme/new", json=spec("acme/new"), timeout=60)
    assert refused.status_code == 405
    url = refused.json()["error"]["config_url"]
    written = httpx.put(f"{url}/v1/configs/models/acme/new", json=spec("acme/new"), headers=HEADERS, timeout=60)
    assert written.status_code == 201, written.text
    assert activator.woken == 1
    wait_until(lambda: agree(url, ingress))
    assert models(ingress) == {"acme/new": "1"}


def test_a_pool_wakes_the_config_service_that_makes_its_queues(activator: Activator) -> None:
    deployment = activator.deployment
    assert deployment is not None
    deployment.up()
    deployment.stop("config")
    ingress = deployment.url("ingress")
    pool = {"name": "team", "gpus": {"cpu": 1}, "ttl_seconds": 60}
    assert httpx.post(f"{ingress}/v1/pools", json=pool, timeout=60).status_code == 201
    wait_until(lambda: activator.woken > 0)
    body = {"items": [{"text": "hello"}]}

    def taken() -> bool:
        """Whether its queues are there: nobody works for the pool here."""
        answer = httpx.post(f"{ingress}/v1/encode/{MODEL}", json=body, headers={"X-SIE-Pool": "team"}, timeout=60)
        return answer.status_code == 202

    wait_until(taken)
    # The lease ends while the config service rests again: its queues are taken down all the same.
    with activator.starting:  # not under the hands of who starts it
        deployment.stop("config")
        woken = activator.woken
    assert httpx.delete(f"{ingress}/v1/pools/team", timeout=60).status_code == 200
    wait_until(lambda: activator.woken > woken and deployment.serves("config"))
