"""What the ingress is built on, chosen by measurement: the HTTP server, the framework, and the reading of msgpack.

Each server is held to one core and asked by 32 clients from another one, where there is one. All candidates are
installed in one environment of their own (cached). What the whole ingress costs is in ``broker``.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import statistics
import subprocess
import tempfile
from collections.abc import Sequence
from pathlib import Path

from bench import installs
from bench.load import Request, drive, post
from bench.processes import Pinned
from bench.servers import MODEL, wait_ready
from bench.table import show
from sie_local.ports import free_port
from sie_sdk import wire
from sie_sdk.types import EncodeRequest, Item

HERE = Path(__file__).parent
PACKAGES = (
    "uvicorn==0.54.0",
    "httptools==0.9.0",
    "uvloop==0.23.0",
    "h11",
    "starlette",
    "fastapi",
    "hypercorn",
    "granian",
    "httpx",
    "msgspec",
    "numpy",
    "msgpack",
    "ormsgpack",
    "pydantic",
)
CLIENTS = 32
TEXT = "A short sentence to embed."
CANDIDATES = (
    ("uvicorn, h11, asyncio", "h11+asyncio", "bare"),
    ("uvicorn, httptools, asyncio", "httptools+asyncio", "bare"),
    ("uvicorn, httptools, uvloop", "httptools+uvloop", "bare"),
    ("the same, an answer in one write (in use)", "ours", "bare"),
    ("hypercorn, uvloop", "hypercorn", "bare"),
    ("granian, uvloop", "granian", "bare"),
    ("in use, with Starlette", "ours", "starlette"),
    ("in use, with FastAPI", "ours", "fastapi"),
)


def main() -> None:
    """Print both tables."""
    options = argparse.ArgumentParser(prog="python -m bench stack", description=__doc__)
    options.add_argument("--seconds", type=float, default=2.0, help="of each slice")
    options.add_argument("--rounds", type=int, default=3, help="slices of each candidate, in turns")
    asked = options.parse_args()
    python = installs.environment("stack", installs.OWN_PYTHON, PACKAGES, print) / "bin" / "python"
    http(python, asked.seconds, asked.rounds)
    bodies(python)


def http(python: Path, seconds: float, rounds: int) -> None:
    """Requests a second and CPU time of a request, per candidate."""
    taken: dict[str, list[tuple[float, float]]] = {name: [] for name, _, _ in CANDIDATES}
    failed: dict[str, str] = {}
    for _, (name, server, framework) in itertools.product(range(rounds), CANDIDATES):
        try:
            taken[name].append(_slice(python, server, framework, seconds))
        except RuntimeError as error:
            failed[name] = str(error)
    rows = []
    for name, slices in taken.items():
        if not slices:
            rows.append([name, failed.get(name, "")[:60], ""])
            continue
        rates, cpu = zip(*slices, strict=True)
        rows.append([name, f"{statistics.median(rates):.0f}", f"{statistics.median(cpu) * 1e6:.0f}"])
    show("HTTP alone, no work behind it, 32 clients, one core", ["stack", "requests/s", "CPU us a request"], rows)


def _slice(python: Path, server: str, framework: str, seconds: float) -> tuple[float, float]:
    port, cores = free_port(), sorted(os.sched_getaffinity(0))
    env = {"PYTHONPATH": os.pathsep.join(str(HERE.parent / part) for part in ("broker", "sdk"))}
    with tempfile.TemporaryDirectory(prefix="sie-bench-") as folder:
        command = [str(python), str(HERE / "stack_server.py"), server, framework, str(port)]
        pinned = Pinned(command, cores[:1], Path(folder) / "log", env)
        os.sched_setaffinity(0, cores[1:] or cores)
        try:
            wait_ready(f"http://127.0.0.1:{port}")
            body = wire.request_body(EncodeRequest([Item(text=TEXT)]))
            request = Request(post(f"/v1/encode/{MODEL}", body, wire.MSGPACK), 1)
            drive(port, itertools.repeat(request), CLIENTS, 0.3)
            before = pinned.cpu_s()
            done = drive(port, itertools.repeat(request), CLIENTS, seconds)
            return done.items / done.seconds, (pinned.cpu_s() - before) / done.items
        except RuntimeError as error:
            raise RuntimeError(pinned.died() or str(error)) from error
        finally:
            os.sched_setaffinity(0, cores)
            pinned.stop()


def bodies(python: Path) -> None:
    """Microseconds to read and check a body, and to write the reply, per library."""
    env = os.environ | {"PYTHONPATH": str(HERE.parent / "sdk")}
    done = subprocess.run(
        [str(python), str(HERE / "stack_bodies.py")], env=env, capture_output=True, text=True, check=False
    )
    if done.returncode:
        raise RuntimeError(done.stderr)
    rows: Sequence[Sequence[str]] = json.loads(done.stdout)
    show("Reading and checking an encode body, us", ["library", "1 text", "256 texts"], rows)


if __name__ == "__main__":
    main()
