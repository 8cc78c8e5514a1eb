"""A deployment whose processes a test may kill, stop, pause and start again by name: real servers, noop bundles.

Owns processes, their ports (kept over a restart) and folders. Who calls and what must come of it stands in ``callers``.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import httpx
import msgspec
import nats
import psutil
from nats.aio.client import Client

from sie_broker.jetstream.pull import STANDING
from sie_broker.jetstream.streams import MAX_PAYLOAD_BYTES
from sie_broker.records import Lane
from sie_local.ports import free_port
from sie_local.programs import nats_server
from tests.faults.noop_bundle import Recorded, recorded
from tests.platform import wait_until

LANE = Lane(pool="default", bundle="default", profile="cpu")
MODEL = "test/noop"
STREAM = "WORK_default"
ROOM = 8
IN_HAND = ROOM + STANDING[True]
"""The most requests one bundle has in hand: what a kill may cost."""

SPEC = f"""
id: {MODEL}
revision: "0"
family: bert
tasks: {{dense: {{dim: 2}}}}
max_sequence_length: 512
sources: [{{kind: local, path: nowhere}}]
"""
PROGRAMS = {
    "config": ("-m", "sie_config"),
    "ingress": ("-m", "sie_ingress"),
    "demand": ("-m", "sie_broker"),
    "bundle": (str(Path(__file__).parent / "noop_bundle.py"),),
    "worker": ("-m", "sie_bundle"),
}
OWN_CLOCK = Path(__file__).parent / "own_clock"
SERVERS = ("nats-1", "nats-2", "nats-3")


def before(folder: Path) -> str:
    """The ``PYTHONPATH`` of a process that looks for modules in a folder first."""
    return os.pathsep.join(filter(None, (str(folder), os.environ.get("PYTHONPATH"))))


class Deployment:
    """One deployment in ``folder``. A name is a program and a number: ``bundle-2`` is a second ``bundle``.

    ``servers``: one NATS server, or the three of a cluster. ``settings`` are those of every process but the servers.
    """

    def __init__(self, folder: Path, servers: int = 1, **settings: str) -> None:
        self.folder = folder
        self.record = folder / "record"
        self.servers = SERVERS[:servers]
        self._ports: dict[str, int] = {}
        for name in self.servers:
            self._port(name)
        self._processes: dict[str, subprocess.Popen[bytes]] = {}
        self._started: dict[str, dict[str, str]] = {}
        models = folder / "models"
        models.mkdir(parents=True)
        (models / "noop.yaml").write_text(SPEC)
        self.nats_url = ",".join(f"nats://127.0.0.1:{self._ports[name]}" for name in self.servers)
        self._settings = {
            "SIE_NATS_URL": self.nats_url,
            "SIE_MODELS": str(models),
            "SIE_MAX_IN_HAND": str(ROOM),
            "SIE_LOG_LEVEL": "INFO",
            "NOOP_RECORD": str(self.record),
            **settings,
        }

    # -- processes -----------------------------------------------------------------------------------------------------

    def _port(self, name: str) -> int:
        """Its own from now on; none that another has who does not listen yet."""
        while name not in self._ports:
            if (port := free_port()) not in self._ports.values():
                self._ports[name] = port
        return self._ports[name]

    def up(self, *names: str) -> None:
        """Start what every test needs, then ``names``; return when all are ready."""
        for name in self.servers:
            self.launch(name)
        self.start("config")  # waits for its servers, as on a platform that starts everything at once
        self.start("ingress", *names)

    def start(self, *names: str, **settings: str) -> None:
        """Start processes, or start them again, and return when all are ready.

        ``settings`` are theirs alone, and stay theirs when they are started again without any.
        """
        for name in names:
            self.launch(name, **settings)
        for name in names:
            self.await_ready(name)

    def launch(self, name: str, **settings: str) -> None:
        """Start a process and do not wait for it."""
        if name in SERVERS:
            self._run_server(name)
        else:
            self._run(name, settings or self._started.get(name, {}))

    def await_ready(self, name: str) -> None:
        """Return when the process serves."""

        def ready() -> bool:
            assert self.alive(name), f"{name} ended: {self.log(name)[-2000:]}"
            return self.serves(name)

        wait_until(ready, 40)

    def await_end(self, name: str) -> int:
        """Return the exit status of a process that is about to end; one that does not is asked what it waits for."""
        process = self._processes[name]
        with contextlib.suppress(subprocess.TimeoutExpired):
            return process.wait(60)
        process.send_signal(signal.SIGUSR1)
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(2)
        raise AssertionError(f"{name} does not end: {self.log(name)[-8000:]}")

    def serves(self, name: str) -> bool:
        """Whether the process is healthy, as a platform would ask it; a demand holder when it leads."""
        if name.startswith("demand"):
            return "holding demand" in self.log(name)
        path = "healthz" if name in SERVERS else "readyz"
        port = self._ports[f"{name} http"] if name in SERVERS else self._ports[name]
        with contextlib.suppress(httpx.TransportError):
            return httpx.get(f"http://127.0.0.1:{port}/{path}", timeout=5).status_code == 200
        return False

    def kill(self, name: str) -> int:
        """kill -9; returns the id of the process that is no more."""
        return self._end(name, signal.SIGKILL)

    def stop(self, name: str) -> int:
        """SIGTERM, and wait for the end."""
        return self._end(name, signal.SIGTERM)

    def send(self, name: str, number: signal.Signals) -> None:
        """Any other signal; one that stops a process returns when it has, which may be in the middle of a write."""
        process = self._processes[name]
        process.send_signal(number)
        if number == signal.SIGSTOP:
            wait_until(lambda: psutil.Process(process.pid).status() == psutil.STATUS_STOPPED)

    def set_clock(self, name: str, off_s: float) -> None:
        """Let the clock of a process be off by so many seconds from now on, or from its start."""
        told = self.folder / f"{name}.clock.new"
        told.write_text(str(off_s))
        told.rename(self.folder / f"{name}.clock")

    def alive(self, name: str) -> bool:
        """Whether it runs."""
        return self._processes[name].poll() is None

    def close(self) -> None:
        """Kill everything that is left."""
        for name, process in self._processes.items():
            if process.poll() is None:
                process.send_signal(signal.SIGCONT)
                self.kill(name)

    def _end(self, name: str, number: signal.Signals) -> int:
        process = self._processes[name]
        process.send_signal(number)
        self.await_end(name)
        return process.pid

    def _run(self, name: str, settings: dict[str, str]) -> None:
        port = self._port(name)
        self._started[name] = settings
        own = {"PORT": str(port), "NOOP_NAME": name}
        if (clock := self.folder / f"{name}.clock").exists():
            own |= {"OWN_CLOCK": str(clock), "PYTHONPATH": before(OWN_CLOCK)}
        program = PROGRAMS[name.split("-")[0]]
        clean = {key: value for key, value in os.environ.items() if not key.startswith(("SIE_", "NOOP_"))}
        self._spawn(name, [sys.executable, *program], clean | self._settings | own | settings)

    def _run_server(self, name: str) -> None:
        store = self.folder / name
        store.mkdir(exist_ok=True)
        http = self._port(f"{name} http")
        config = (
            f'server_name: {name}\nlisten: "127.0.0.1:{self._ports[name]}"\nhttp: "127.0.0.1:{http}"\n'
            f'max_payload: {MAX_PAYLOAD_BYTES}\njetstream {{ store_dir: "{store}", max_file_store: 16GB }}\n'
        )
        if len(self.servers) > 1:
            routes = {each: self._ports.setdefault(f"{each} route", free_port()) for each in self.servers}
            others = ", ".join(f'"nats://127.0.0.1:{port}"' for port in routes.values())
            config += f'cluster {{ name: test, listen: "127.0.0.1:{routes[name]}", routes: [{others}] }}\n'
        (self.folder / f"{name}.conf").write_text(config)
        self._spawn(name, [nats_server(), "-c", str(self.folder / f"{name}.conf")], dict(os.environ))

    def _spawn(self, name: str, command: list[str], env: dict[str, str]) -> None:
        with (self.folder / f"{name}.log").open("ab") as log:
            self._processes[name] = subprocess.Popen(command, env=env, stdout=log, stderr=log)

    # -- what is seen of them ------------------------------------------------------------------------------------------

    def url(self, name: str = "ingress") -> str:
        """Where an ingress serves."""
        return f"http://127.0.0.1:{self._ports[name]}"

    def log(self, name: str) -> str:
        """What a process has said, over all its lives."""
        path = self.folder / f"{name}.log"
        return path.read_text(errors="replace") if path.exists() else ""

    def recorded(self, event: str, worker: str = "") -> list[Recorded]:
        """What the bundles, or one of them, have begun (``start``) or computed (``done``)."""
        return [line for line in recorded(self.record) if line.event == event and worker in ("", line.worker)]

    def live_workers(self, ingress: str = "ingress") -> list[dict[str, Any]]:
        """The ready workers as an ingress sees them."""
        rows = httpx.get(f"{self.url(ingress)}/health", timeout=30).json()["workers"]
        return [row for row in rows if row["state"] == "ready"]

    async def connected(self) -> Client:
        """A connection of the test's own, to be closed by it."""
        return await nats.connect(self.nats_url.split(","), connect_timeout=5)

    async def ask_server(self, subject: str, body: object = None) -> dict[str, Any]:
        """One request of the JetStream API."""
        client = await self.connected()
        try:
            data = b"" if body is None else msgspec.json.encode(body)
            answer: dict[str, Any] = msgspec.json.decode((await client.request(subject, data, timeout=5)).data)
            return answer
        finally:
            await client.close()
