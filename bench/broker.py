"""Ingress and broker without a model: real processes, a real nats-server, and a worker whose forward pass is nothing.

Three tables: requests a second and each process's share of them; what NATS adds to one client's request; a backlog
that nobody works on, and how it drains. What it adds to a real request is in ``warm_path``.
"""

from __future__ import annotations

import argparse
import contextlib
import itertools
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import NamedTuple

import httpx
import psutil

from bench.load import Request, Slice, drive, post
from bench.processes import Pinned
from bench.servers import MODEL, wait_ready
from bench.table import show
from sie_local.ports import free_port
from sie_local.programs import NATS_MEMORY, nats_server
from sie_sdk import wire
from sie_sdk.types import EncodeRequest, Item

MB = 1024 * 1024
TEXT = "A short sentence to embed."
NOOP = Path(__file__).parent.parent / "tests" / "faults" / "noop_bundle.py"


class Deployment(NamedTuple):
    """What is running. ``worker`` may be stopped and started: `workers`."""

    nats: Pinned
    ingress: Pinned
    port: int
    env: Mapping[str, str]
    folder: Path

    @contextlib.contextmanager
    def worker(self) -> Iterator[Pinned]:
        """A worker that computes nothing, ready to be asked."""
        worker = Pinned([sys.executable, str(NOOP)], _cores(), self.folder / "worker.log", self.env)
        try:
            _until(lambda: any(row["state"] == "ready" for row in self.health()["workers"]), "no worker came up")
            yield worker
        finally:
            worker.stop()

    def health(self) -> dict[str, list[dict[str, str]]]:
        """``GET /health``."""
        found: dict[str, list[dict[str, str]]] = httpx.get(f"http://127.0.0.1:{self.port}/health", timeout=30).json()
        return found

    def load(self, clients: int, seconds: float, status: int = 200) -> Slice:
        """Ask for ``seconds``, one short text a request."""
        return drive(self.port, itertools.repeat(_request()), clients, seconds, status)


def main() -> None:
    """Print the three tables."""
    options = argparse.ArgumentParser(prog="python -m bench broker", description=__doc__)
    options.add_argument("--seconds", type=float, default=10.0, help="of each load")
    options.add_argument("--backlog", type=int, default=100_000, help="requests queued without a worker")
    asked = options.parse_args()
    with tempfile.TemporaryDirectory(prefix="sie-bench-") as folder, deployed(Path(folder)) as deployment:
        with deployment.worker() as worker:
            throughput(deployment, worker, asked.seconds)
            with in_process(Path(folder)) as port:
                round_trip(deployment.port, port, asked.seconds)
        backlog(deployment, asked.backlog)


def throughput(deployment: Deployment, worker: Pinned, seconds: float) -> None:
    """Requests a second for 1, 64 and 256 clients, and the CPU time of a request by process."""
    parts = {"ingress": deployment.ingress, "nats-server": deployment.nats, "worker": worker}
    rows = []
    deployment.load(64, 2.0)
    for clients in (1, 64, 256):
        before = {name: part.cpu_s() for name, part in parts.items()}
        own = psutil.Process().cpu_times().user
        done = deployment.load(clients, seconds)
        cpu = {name: (part.cpu_s() - before[name]) / done.items * 1e6 for name, part in parts.items()}
        cpu["load generator"] = (psutil.Process().cpu_times().user - own) / done.items * 1e6
        rows.append(
            [
                str(clients),
                f"{done.items / done.seconds:.0f}",
                f"{statistics.median(done.latencies) * 1000:.2f}",
                f"{statistics.quantiles(done.latencies, n=100)[98] * 1000:.2f}",
                ", ".join(f"{name} {micros:.0f}" for name, micros in cpu.items()),
            ]
        )
    headings = ["clients", "requests/s", "p50 ms", "p99 ms", "CPU time of a request, us"]
    show("Ingress and broker, no-op model", headings, rows)


def round_trip(over_nats: int, in_process: int, seconds: float) -> None:
    """One client's request, over NATS and in process, in turns of half a second."""
    took: dict[str, list[float]] = {"over NATS": [], "in process": []}
    for _ in range(round(seconds)):
        for way, port in (("over NATS", over_nats), ("in process", in_process)):
            took[way] += drive(port, itertools.repeat(_request()), 1, 0.5).latencies
    medians = {way: statistics.median(times) * 1000 for way, times in took.items()}
    rows = [
        [way, f"{medians[way]:.2f}", f"{statistics.quantiles(times, n=100)[98] * 1000:.2f}"]
        for way, times in took.items()
    ]
    rows.append(["added by NATS", f"{medians['over NATS'] - medians['in process']:.2f}", ""])
    show("A round trip, no-op model, one client, ms", ["way", "p50", "p99"], rows)


@contextlib.contextmanager
def in_process(folder: Path) -> Iterator[int]:
    """The same in one process on the in-memory broker; yields its port."""
    port = free_port()
    command = [sys.executable, "-m", "bench.in_process"]
    server = Pinned(command, _cores(), folder / "in-process.log", {"PORT": str(port)})
    try:
        wait_ready(f"http://127.0.0.1:{port}")
        yield port
    finally:
        server.stop()


def backlog(deployment: Deployment, works: int) -> None:
    """Queue ``works`` requests with nobody to work on them, then let one worker drain them."""
    rows, queued, began = [["0", *_memory(deployment), ""]], 0, time.monotonic()
    for share in (0.1, 0.5, 1.0):
        while queued < works * share:
            queued += int(deployment.load(64, min(2.0, (works * share - queued) / 1000), status=202).items)
        rows.append([str(queued), *_memory(deployment), f"{queued / (time.monotonic() - began):.0f}/s accepted"])
    with deployment.worker():
        began = time.monotonic()
        done = 0
        while done < queued:
            time.sleep(0.2)
            done = sum(int(row["completed"]) for row in deployment.health()["workers"])
        rows.append(["0", *_memory(deployment), f"{queued / (time.monotonic() - began):.0f}/s drained"])
    show("A backlog", ["waiting", "ingress MB", "nats-server MB", "rate"], rows)


@contextlib.contextmanager
def deployed(folder: Path) -> Iterator[Deployment]:
    """nats-server, config service and ingress; no worker yet."""
    nats_port, port, config_port = free_port(), free_port(), free_port()
    conf = folder / "nats.conf"
    conf.write_text(
        f'listen: "127.0.0.1:{nats_port}"\nmax_payload: 8MB\n'
        f'jetstream {{ store_dir: "{folder}/nats", max_file_store: 16GB }}\n'
    )
    env = {"SIE_NATS_URL": f"nats://127.0.0.1:{nats_port}", "SIE_MAX_IN_HAND": "256"}
    with contextlib.ExitStack() as stack:

        def start(name: str, *command: str, **more: str) -> Pinned:
            pinned = Pinned(command, _cores(), folder / f"{name}.log", env | more)
            stack.callback(pinned.stop)
            return pinned

        nats = start("nats", nats_server(), "-c", str(conf), GOMEMLIMIT=NATS_MEMORY)
        start("config", sys.executable, "-m", "sie_config", PORT=str(config_port))
        ingress = start("ingress", sys.executable, "-m", "sie_ingress", PORT=str(port))
        wait_ready(f"http://127.0.0.1:{port}")
        yield Deployment(nats, ingress, port, env, folder)


def _request() -> Request:
    body = wire.request_body(EncodeRequest([Item(text=TEXT)]))
    return Request(post(f"/v1/encode/{MODEL}", body, wire.MSGPACK), 1)


def _cores() -> list[int]:
    return sorted(os.sched_getaffinity(0))


def _memory(deployment: Deployment) -> list[str]:
    return [f"{part.memory().rss / MB:.0f}" for part in (deployment.ingress, deployment.nats)]


def _until(holds: object, otherwise: str, within_s: float = 30.0) -> None:
    assert callable(holds)
    end = time.monotonic() + within_s
    while not holds():
        if time.monotonic() > end:
            raise RuntimeError(otherwise)
        time.sleep(0.05)
