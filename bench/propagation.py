"""How long a change of the catalogue takes until it is served everywhere, and how many writes a second there may be.

Real processes on one machine: nats-server, the config service, five ingress and twenty mirrors as a bundle has one.
"Served" is the moment at which a process has the change in its registry, told by the process itself; the time is
counted from before the write was sent.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import statistics
import sys
import tempfile
import threading
import time
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

import httpx

from bench.broker import _cores
from bench.catalogue import _nats
from bench.processes import Pinned
from bench.servers import wait_ready
from bench.table import show
from sie_local.ports import free_port

INGRESSES, MIRRORS = 5, 20
TOKEN = "bench"
SPEC = {
    "family": "bert",
    "revision": "1",
    "tasks": {"dense": {"dim": 384}},
    "sources": [{"kind": "local", "path": "nowhere"}],
    "max_sequence_length": 512,
}

Seen = dict[int, list[float]]
"""When each epoch was in a registry, one time for each process that has it."""


def main() -> None:
    """Print the table."""
    options = argparse.ArgumentParser(prog="python -m bench propagation", description=__doc__)
    options.add_argument("--writes", type=int, default=300)
    asked = options.parse_args()
    with _folder() as folder, _nats(folder) as (_, url), _running(folder, url) as (config, ingresses, mirrors):
        spread = _spread(config, ingresses, mirrors, asked.writes, pause_s=0.05)
        burst = _spread(config, ingresses, mirrors, asked.writes, pause_s=0.0)
    headings = ["writes", "a second", "write p50 / p99 ms", "in all ingresses p50 / p99 / max ms"]
    headings += ["in all mirrors p50 / p99 / max ms"]
    show(f"A change of the catalogue, {INGRESSES} ingresses and {MIRRORS} mirrors", headings, [spread, burst])
    rows = [_of_size(count) for count in (1, 1000)]
    headings = ["models", "config service ready s", "ingress ready s", "ingress MB", "export p50 ms"]
    headings += ["writes a second, of 8 authors", "the same without queues to make"]
    show("A large catalogue", headings, rows)


@contextlib.contextmanager
def _folder() -> Iterator[Path]:
    with tempfile.TemporaryDirectory(prefix="sie-bench-") as temporary:
        yield Path(temporary)


def _of_size(count: int) -> list[str]:
    """One row: a catalogue of that many models, its config service and one ingress."""
    with _folder() as folder, _nats(folder) as (_, nats_url), contextlib.ExitStack() as stack:
        (models := folder / "models").mkdir()
        for number in range(count):
            (models / f"{number}.yaml").write_text(f"{SPEC | {'id': f'org-{number % 40}/model-{number}'}}")
        env = {"SIE_NATS_URL": nats_url, "SIE_ADMIN_TOKEN": TOKEN, "SIE_MODELS": str(models)}
        env["SIE_LOG_LEVEL"] = "WARNING"

        def start(name: str) -> tuple[str, Pinned, float]:
            port = free_port()
            command = [sys.executable, "-m", name]
            process = Pinned(command, _cores(), folder / f"{name}.log", env | {"PORT": str(port)})
            stack.callback(process.stop)
            return f"http://127.0.0.1:{port}", process, wait_ready(f"http://127.0.0.1:{port}", 60)

        config, _, config_s = start("sie_config")
        headers = {"Authorization": f"Bearer {TOKEN}"}
        with httpx.Client(base_url=config, headers=headers, timeout=30) as http:
            while http.get("/v1/configs/epoch").json()["writer"] is None:
                time.sleep(0.01)
            _, process, ingress_s = start("sie_ingress")
            exports = []
            for _ in range(20):
                began = time.monotonic()
                http.get("/v1/configs/export").raise_for_status()
                exports.append(time.monotonic() - began)
        return [
            str(count),
            f"{config_s:.2f}",
            f"{ingress_s:.2f}",
            f"{process.memory().rss / 1e6:.0f}",
            f"{statistics.median(exports) * 1000:.0f}",
            f"{_written(config, 200, new=True):.0f}",
            f"{_written(config, 400, new=False):.0f}",
        ]


def _written(config: str, writes: int, new: bool) -> float:
    """Writes a second of eight authors at once: of models that nobody knew, or that are there."""

    def author(number: int) -> None:
        with httpx.Client(base_url=config, headers={"Authorization": f"Bearer {TOKEN}"}, timeout=60) as http:
            for turn in range(writes // 8):
                model = f"org/new-{number}-{turn}" if new else f"org/new-{number}-0"
                spec = SPEC | {"id": model, "revision": f"{new}-{turn}"}
                http.put(f"/v1/configs/models/{model}", json=spec).raise_for_status()

    began = time.monotonic()
    authors = [threading.Thread(target=author, args=(number,)) for number in range(8)]
    for each in authors:
        each.start()
    for each in authors:
        each.join()
    return writes / (time.monotonic() - began)


@contextlib.contextmanager
def _running(folder: Path, nats_url: str) -> Iterator[tuple[str, list[str], list[Path]]]:
    (models := folder / "models").mkdir()
    (models / "first.yaml").write_text(f"{SPEC | {'id': 'org/first'}}")
    env = {"SIE_NATS_URL": nats_url, "SIE_ADMIN_TOKEN": TOKEN, "SIE_MODELS": str(models), "SIE_LOG_LEVEL": "WARNING"}
    started: list[Pinned] = []

    def start(name: str, *command: str, port: int = 0) -> Path:
        more = {"PORT": str(port)} if port else {}
        started.append(Pinned([sys.executable, *command], _cores(), folder / f"{name}.log", env | more))
        return folder / f"{name}.log"

    try:
        ports = [free_port() for _ in range(1 + INGRESSES)]
        urls = [f"http://127.0.0.1:{port}" for port in ports]
        start("config", "-m", "sie_config", port=ports[0])
        wait_ready(urls[0])
        for number, port in enumerate(ports[1:]):
            start(f"ingress-{number}", "-m", "sie_ingress", port=port)
        logs = [start(f"mirror-{number}", "-m", "bench.mirror") for number in range(MIRRORS)]
        for url in urls[1:]:
            wait_ready(url)
        for log in logs:
            while not log.read_bytes():
                time.sleep(0.01)
        yield urls[0], urls[1:], logs
    finally:
        for each in started:
            each.stop()


def _spread(config: str, ingresses: list[str], mirrors: list[Path], writes: int, pause_s: float) -> list[str]:
    """One row: that many writes, each after a pause."""
    seen: Seen = defaultdict(list)
    watching = [threading.Thread(target=_watch, args=(url, seen), daemon=True) for url in ingresses]
    for thread in watching:
        thread.start()
    time.sleep(1.0)  # until all of them watch
    began_at: dict[int, float] = {}
    took: list[float] = []
    headers = {"Authorization": f"Bearer {TOKEN}"}
    with httpx.Client(base_url=config, headers=headers, timeout=30) as http:
        began = time.monotonic()
        for number in range(writes):
            spec = SPEC | {"id": f"org/model-{number % 50}", "revision": f"{os.getpid()}-{pause_s}-{number}"}
            sent = time.time()
            answer = http.put(f"/v1/configs/models/{spec['id']}", json=spec).raise_for_status().json()
            took.append(time.time() - sent)
            began_at[answer["epoch"]] = sent
            time.sleep(pause_s)
        rate = writes / (time.monotonic() - began)
    end = time.monotonic() + 30
    while time.monotonic() < end and any(len(seen[epoch]) < INGRESSES for epoch in began_at):
        time.sleep(0.05)
    there = {epoch: max(seen[epoch]) if len(seen[epoch]) == INGRESSES else float("inf") for epoch in began_at}
    mirrored: Seen = defaultdict(list)
    for log in mirrors:
        for line in log.read_text().splitlines():
            epoch, at = line.split()
            mirrored[int(epoch)].append(float(at))
    everywhere = {
        epoch: max(mirrored[epoch]) if len(mirrored[epoch]) == MIRRORS else float("inf") for epoch in began_at
    }
    return [
        str(writes),
        f"{rate:.0f}",
        _milliseconds(took, maximum=False),
        _milliseconds([there[epoch] - at for epoch, at in began_at.items()]),
        _milliseconds([everywhere[epoch] - at for epoch, at in began_at.items()]),
    ]


def _watch(url: str, seen: Seen) -> None:
    """Note when this ingress has each epoch: it tells its watchers once it is in its registry."""
    with httpx.stream("GET", f"{url}/v1/configs/watch", timeout=None) as stream:
        for line in stream.iter_lines():
            if line.startswith("id: "):
                seen[int(line[4:])].append(time.time())


def _milliseconds(seconds: list[float], maximum: bool = True) -> str:
    cuts = statistics.quantiles(seconds, n=100)
    told = [cuts[49], cuts[98]] + ([max(seconds)] if maximum else [])
    return " / ".join(f"{each * 1000:.0f}" for each in told)


if __name__ == "__main__":
    main()
