"""``python -m bench sdk [--calls N] [--texts N]``: what a call of our clients costs beside a bare one of httpx.

The server is a child process that answers any number of texts with as many vectors, made beforehand. Rounds of each
kind take turns, and the median of a kind's rounds counts, so that a busy machine disturbs all kinds alike.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import resource
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Coroutine, Iterator
from functools import partial
from typing import Any

import httpx
import msgspec

from bench.servers import wait_ready
from bench.table import show
from sie_local.ports import free_port
from sie_sdk import SIEAsyncClient, SIEClient, formats
from sie_sdk.types import EncodeRequest, Item

ROUNDS = 15
AT_ONCE = 50
"""Calls of a client that is awaited by many tasks."""
TEXT = "A cat sits on the mat, and the rates rose by a quarter of a percent."
MODEL = "noop"


def main() -> None:
    """Print both tables."""
    parser = argparse.ArgumentParser(prog="python -m bench sdk")
    parser.add_argument("--calls", type=int, default=200, help="calls in a round")
    parser.add_argument("--texts", type=int, default=100_000, help="texts of the long call")
    parser.add_argument("--long", choices=("encode", "encode_stream"), help=argparse.SUPPRESS)
    parser.add_argument("--url", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.long:
        _long(options.long, options.url, options.texts)
        return
    with served() as url:
        _calls(url, options.calls)
        rows = [_long_row(kind, url, options.texts) for kind in ("encode", "encode_stream")]
    headings = ["", "texts/s", "CPU us a text", "peak RSS MB", "of which before the call"]
    show(f"{options.texts:,} texts in one call, 384 dimensions, no-op server", headings, rows)


@contextlib.contextmanager
def served() -> Iterator[str]:
    """The no-op server as a child; yields its URL."""
    port = free_port()
    child = subprocess.Popen([sys.executable, "-m", "bench.noop_server", str(port)])
    try:
        wait_ready(url := f"http://127.0.0.1:{port}")
        yield url
    finally:
        child.terminate()
        child.wait(10)


def _calls(url: str, calls: int) -> None:
    """One text a call: CPU time of this process, and the clock's."""
    with httpx.Client() as http, SIEClient(url) as client, asyncio.Runner() as runner:
        awaited, bare_awaited = SIEAsyncClient(url), httpx.AsyncClient()
        kinds: dict[str, Callable[[int], object]] = {
            "httpx.Client, msgpack": lambda count: _bare(http, url, count),
            "SIEClient.encode": lambda count: [client.encode(MODEL, TEXT) for _ in range(count)],
            "httpx.AsyncClient, msgpack": lambda count: runner.run(_bare_awaited(bare_awaited, url, count)),
            "SIEAsyncClient.encode": lambda count: runner.run(_ours_awaited(awaited, count)),
            f"httpx.AsyncClient, {AT_ONCE} at a time": lambda count: runner.run(
                _at_once(partial(_bare_awaited, bare_awaited, url), count)
            ),
            f"SIEAsyncClient.encode, {AT_ONCE} at a time": lambda count: runner.run(
                _at_once(partial(_ours_awaited, awaited), count)
            ),
        }
        spent: dict[str, list[tuple[float, float]]] = {kind: [] for kind in kinds}
        for number in range(ROUNDS + 1):
            for kind, run in kinds.items():
                began, cpu = time.perf_counter(), time.process_time()
                run(calls)
                if number:  # the first round warms up
                    spent[kind].append((time.process_time() - cpu, time.perf_counter() - began))
        runner.run(awaited.close())
        runner.run(bare_awaited.aclose())
    cpu_us = {kind: statistics.median(cpu for cpu, _ in rounds) / calls * 1e6 for kind, rounds in spent.items()}
    clock_us = {kind: statistics.median(clock for _, clock in rounds) / calls * 1e6 for kind, rounds in spent.items()}
    names = list(kinds)
    rows = []
    for place, kind in enumerate(names):
        beyond = f"{cpu_us[kind] - cpu_us[names[place - 1]]:.0f}" if place % 2 else ""
        rows.append([kind, f"{cpu_us[kind]:.0f}", beyond, f"{clock_us[kind]:.0f}"])
    show("One text a call", ["", "CPU us", "beyond bare httpx", "clock us"], rows)


def _request() -> tuple[bytes, dict[str, str]]:
    body = formats.request_body(EncodeRequest([Item(text=TEXT)]))
    return body, {"Content-Type": formats.MSGPACK, "Accept": formats.MSGPACK}


def _bare(http: httpx.Client, url: str, count: int) -> None:
    body, headers = _request()
    for _ in range(count):
        answer = http.post(f"{url}/v1/encode/{MODEL}", content=body, headers=headers)
        msgspec.msgpack.decode(answer.content)


async def _bare_awaited(http: httpx.AsyncClient, url: str, count: int) -> None:
    body, headers = _request()
    for _ in range(count):
        answer = await http.post(f"{url}/v1/encode/{MODEL}", content=body, headers=headers)
        msgspec.msgpack.decode(answer.content)


async def _ours_awaited(client: SIEAsyncClient, count: int) -> None:
    for _ in range(count):
        await client.encode(MODEL, TEXT)


async def _at_once(run: Callable[[int], Coroutine[Any, Any, None]], count: int) -> None:
    async with asyncio.TaskGroup() as tasks:
        for task in range(AT_ONCE):
            tasks.create_task(run(len(range(task, count, AT_ONCE))))


def _long_row(kind: str, url: str, texts: int) -> list[str]:
    """In a process of its own, so that the peak is its own."""
    command = [sys.executable, "-m", "bench.sdk", "--long", kind, "--url", url, "--texts", str(texts)]
    told = subprocess.run(command, capture_output=True, text=True, check=True).stdout.split()
    clock, cpu, before, peak = map(float, told)
    return [f"client.{kind}", f"{texts / clock:,.0f}", f"{cpu / texts * 1e6:.1f}", f"{peak:.0f}", f"{before:.0f}"]


def _long(kind: str, url: str, texts: int) -> None:
    """Print seconds, CPU seconds, and the peaks of memory before and after, in MB."""
    with SIEClient(url) as client:
        client.encode(MODEL, TEXT)
        before = _peak_mb()
        began, cpu = time.perf_counter(), time.process_time()
        items = (f"{number} {TEXT}" for number in range(texts))
        if kind == "encode":
            answered = len(client.encode(MODEL, [*items], deadline_s=3600))
        else:
            answered = sum(1 for _ in client.encode_stream(MODEL, items))
        if answered != texts:
            raise SystemExit(f"{answered} results came back for {texts} texts")
        print(time.perf_counter() - began, time.process_time() - cpu, before, _peak_mb())


def _peak_mb() -> float:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1000


if __name__ == "__main__":
    main()
