"""How large a catalogue may grow: what its queues, an idle worker, nats-server and the registry cost by its models.

Real processes and a real nats-server; the models are specs without weights, and the worker computes nothing and says
that it has none of them loaded. The registry is measured in this process.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import itertools
import os
import socket
import statistics
import sys
import tempfile
import time
import tracemalloc
from collections.abc import Callable, Iterator
from pathlib import Path

import msgspec

from bench.broker import MB, NOOP
from bench.processes import Pinned
from bench.servers import wait_ready
from bench.table import show
from sie_broker.jetstream.nats_broker import NatsBroker
from sie_broker.jetstream.provisioning import Provisioner
from sie_broker.jetstream.streams import Limits
from sie_broker.records import Lane, Work
from sie_config import catalog
from sie_config.model.model_spec import ModelSpec
from sie_config.registry import Registry
from sie_local.ports import free_port
from sie_local.programs import NATS_MEMORY, nats_server

CORES = sorted(os.sched_getaffinity(0))
LANE = Lane("default", "default", "cpu")


def main() -> None:
    """Print the table."""
    options = argparse.ArgumentParser(prog="python -m bench catalogue", description=__doc__)
    options.add_argument("--seconds", type=float, default=10.0, help="for which a worker idles")
    options.add_argument("--models", type=int, nargs="+", default=[4, 100, 1000])
    asked = options.parse_args()
    rows = [asyncio.run(_of_nats(count, asked.seconds)) for count in asked.models]
    headings = ["models", "queues made s", "looked over s", "config service ready s"]
    headings += ["worker ready s", "worker CPU %", "worker MB", "nats-server CPU %", "nats-server MB"]
    headings += ["first request to a model, p50 / max ms"]
    show("A catalogue on NATS, one idle worker, two queues a model", headings, rows)
    headings = ["models", "snapshot ms", "put us", "resolve us", "resolve after a change us", "MB"]
    show("The registry", headings, [_of_registry(count) for count in asked.models])


def specs(count: int) -> list[ModelSpec]:
    """As many models, each with a profile and a source, like those of the packaged catalogue."""
    like = catalog.load()["sentence-transformers/all-MiniLM-L6-v2"]
    return [msgspec.structs.replace(like, id=f"org-{number % 40}/model-{number}") for number in range(count)]


async def _of_nats(count: int, seconds: float) -> list[str]:
    models = specs(count)
    with tempfile.TemporaryDirectory(prefix="sie-bench-") as temporary, _nats(folder := Path(temporary)) as (nats, url):
        broker = NatsBroker(url, "bench")
        await broker.connect()
        provisioner = Provisioner(broker.nc, Limits())
        queues = [(LANE, spec.id) for spec in models]
        made = await _took(provisioner, queues)
        looked = statistics.median([await _took(provisioner, queues) for _ in range(3)])
        env = {"SIE_NATS_URL": url, "NOOP_MODELS": ",".join(spec.id for spec in models), "NOOP_LOADED": ""}
        ready = _config_ready(folder, models, env)
        there, began = asyncio.Event(), time.monotonic()
        async with broker.presence.watch(lambda *_: there.set()):
            worker = Pinned([sys.executable, str(NOOP)], CORES, folder / "worker.log", env)
            await there.wait()
            up = time.monotonic() - began
        try:
            await asyncio.sleep(6)  # past its start, and the first heartbeats of its pulls
            before = worker.cpu_s(), nats.cpu_s()
            await asyncio.sleep(seconds)
            idle = [(part.cpu_s() - was) / seconds * 100 for part, was in zip((worker, nats), before, strict=True)]
            first = [await _asked(broker, spec.id) for spec in models[:: max(1, count // 20)]]
            memory = [part.memory().rss / MB for part in (worker, nats)]
        finally:
            worker.stop()
        await broker.close()
    cells = [f"{count}", f"{made:.2f}", f"{looked:.3f}", f"{ready:.2f}", f"{up:.2f}"]
    cells += [f"{idle[0]:.1f}", f"{memory[0]:.0f}", f"{idle[1]:.1f}", f"{memory[1]:.0f}"]
    return [*cells, f"{statistics.median(first) * 1000:.1f} / {max(first) * 1000:.1f}"]


async def _took(provisioner: Provisioner, queues: list[tuple[Lane, str]]) -> float:
    began = time.monotonic()
    await provisioner.ensure(queues)
    return time.monotonic() - began


async def _asked(broker: NatsBroker, model: str) -> float:
    """Seconds to the answer of one request, as an ingress submits it for a model that nobody has loaded."""
    began = time.monotonic()
    work = Work(id=f"bench-{model}", op="echo", lane=LANE, model=model, data=b"x", time=time.time())
    broker.want(work.queue)
    with broker.expect(work.id) as (inbox, coming):
        await broker.submit(msgspec.structs.replace(work, reply_to=inbox))
        await coming
    return time.monotonic() - began


def _config_ready(folder: Path, models: list[ModelSpec], env: dict[str, str]) -> float:
    """Seconds until a config service that finds everything as it should be accepts requests, from its start."""
    written = folder / "models"
    written.mkdir()
    for number, spec in enumerate(models):
        (written / f"{number}.yaml").write_bytes(msgspec.json.encode(spec))  # JSON is YAML
    port = free_port()
    more = {"PORT": str(port), "SIE_MODELS": str(written)}
    config = Pinned([sys.executable, "-m", "sie_config"], CORES, folder / "config.log", env | more)
    try:
        return wait_ready(f"http://127.0.0.1:{port}")
    finally:
        config.stop()


@contextlib.contextmanager
def _nats(folder: Path) -> Iterator[tuple[Pinned, str]]:
    port = free_port()
    conf = folder / "nats.conf"
    conf.write_text(f'listen: "127.0.0.1:{port}"\nmax_payload: 8MB\njetstream {{ store_dir: "{folder}/nats" }}\n')
    nats = Pinned([nats_server(), "-c", str(conf)], CORES, folder / "nats.log", {"GOMEMLIMIT": NATS_MEMORY})
    try:
        _wait_listening(port)
        yield nats, f"nats://127.0.0.1:{port}"
    finally:
        nats.stop()


def _wait_listening(port: int) -> None:
    end = time.monotonic() + 10
    while time.monotonic() < end:
        with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), 1):
            return
        time.sleep(0.01)
    raise RuntimeError("nats-server did not start")


def _of_registry(count: int) -> list[str]:
    models = specs(count)
    changed = [msgspec.structs.replace(spec, revision="changed") for spec in models]
    document = msgspec.json.encode(models)
    tracemalloc.start()
    registry = Registry(msgspec.json.decode(document, type=list[ModelSpec]))
    for spec in models:
        registry.resolve(spec.id)
    size = tracemalloc.get_traced_memory()[0]
    tracemalloc.stop()
    snapshot = _timed(lambda: Registry(models), 5)
    names = itertools.cycle([spec.id for spec in models])
    puts, warm = iter(changed), _timed(lambda: registry.resolve(next(names)), count)
    put = _timed(lambda: registry.put(next(puts)), count)
    cold = _timed(lambda: registry.resolve(next(names)), count)
    return [
        f"{count}",
        f"{snapshot * 1e3:.1f}",
        *(f"{each * 1e6:.1f}" for each in (put, warm, cold)),
        f"{size / MB:.1f}",
    ]


def _timed(run: Callable[[], object], times: int) -> float:
    """Seconds of one run, the mean."""
    began = time.perf_counter()
    for _ in range(times):
        run()
    return (time.perf_counter() - began) / times
