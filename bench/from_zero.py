"""From nothing: how soon ``sie up`` accepts requests, what it costs at rest, where the time of a cold request goes."""

from __future__ import annotations

import statistics
import tempfile
import time
from typing import Any

import httpx
import psutil

from bench.servers import MODEL, running, wait_ready
from bench.table import show
from sie_local.ports import free_port
from sie_sdk import SIEClient

RUNS = 5
REST_S = 20.0


def main() -> None:
    """Print both tables."""
    runs = [_one_run() for _ in range(RUNS)]
    names = list(runs[0])
    rows = [
        [
            name,
            f"{statistics.median(run[name] for run in runs):.2f}",
            f"{min(run[name] for run in runs):.2f} to {max(run[name] for run in runs):.2f}",
        ]
        for name in names
    ]
    show(f"From zero on a warm disk, s (median and range of {RUNS} runs)", ["step", "median", "range"], rows)
    _at_rest()


def _one_run() -> dict[str, float]:
    """One start, one cold request; seconds by step."""
    port = free_port()
    with tempfile.TemporaryDirectory() as state:
        began = time.monotonic()
        with running("up", "--port", str(port), "--state", state), SIEClient(f"http://127.0.0.1:{port}") as client:
            wait_ready(client.base_url)
            ready = time.monotonic() - began
            asked = time.monotonic()
            (result,) = client.encode(MODEL, ["hello"])
            answered = time.monotonic() - asked
            (worker,) = httpx.get(f"{client.base_url}/health", timeout=5).json()["workers"]
    return {"sie up accepts requests after": ready} | _account(answered, worker["startup"], result.timing)


def _account(answered: float, startup: dict[str, float], timing: Any) -> dict[str, float]:
    """Split the cold request's time at the milestones the bundle noted; they count from the decision to start it."""
    return {
        "cold request: until its model is there (demand, process start, torch's import, load)": timing.queue_ms / 1000,
        "  of which from the decision to start until torch is imported": startup["engine"],
        "  of which until it pulls": startup["pulling"],
        "  of which until the model is loaded and warmed up, from the decision to start": startup["first model"],
        "cold request: forward": timing.inference_ms / 1000,
        "cold request: way back": answered - timing.total_ms / 1000,
        "cold request: from zero to the first vector": answered,
    }


def _at_rest() -> None:
    port = free_port()
    with tempfile.TemporaryDirectory() as state, running("up", "--port", str(port), "--state", state) as process:
        wait_ready(f"http://127.0.0.1:{port}")
        family = [psutil.Process(process.pid), *psutil.Process(process.pid).children(recursive=True)]
        time.sleep(3)  # what the start left to do
        before = {each.pid: _cpu(each) for each in family}
        time.sleep(REST_S)
        rows = [
            [
                _name(each),
                f"{each.memory_info().rss / 1e6:.0f}",
                f"{(_cpu(each) - before[each.pid]) / REST_S * 100:.2f}",
            ]
            for each in family
        ]
    total = [sum(float(row[column]) for row in rows) for column in (1, 2)]
    rows.append(["in all", f"{total[0]:.0f}", f"{total[1]:.2f}"])
    show("The always-on part at rest", ["process", "resident MB", "% of one core"], rows)


def _cpu(process: psutil.Process) -> float:
    times = process.cpu_times()
    return float(times.user + times.system)


def _name(process: psutil.Process) -> str:
    words = process.cmdline()
    known = {"sie_config": "config", "sie_ingress": "ingress", "sie_broker": "demand holder"}
    return next((name for word, name in known.items() if word in words), "NATS" if "nats" in words[0] else "scaler")
