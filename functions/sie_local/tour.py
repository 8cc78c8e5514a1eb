"""``sie tour``, which is what ``make run`` runs: start everything, send one request from zero, and say what happens.

Owns the story it tells on the terminal. Everything in it is real: the processes of ``sie up``, the SDK, the model.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from types import FrameType
from typing import Any

import click
import httpx
import numpy as np
from rich.console import Console
from rich.table import Table

from sie_local.asked import PORT
from sie_local.state import StateFolder, default_folder
from sie_sdk import EncodeResult, Progress, SIEClient
from sie_sdk.errors import StartFailedError

MODEL = "sentence-transformers/all-MiniLM-L6-v2"
SENTENCES = ("A cat sits.", "A kitten rests.", "Interest rates rose.")

console = Console(highlight=False)


@click.command()
@click.option("--port", type=PORT, default=8080, show_default=True, help="The port of the ingress; 0 for any.")
@click.option(
    "--state",
    type=click.Path(file_okay=False, path_type=Path),
    envvar="SIE_STATE_DIR",
    help="The state folder, as for sie up.",
)
@click.option("--once", is_flag=True, help="Stop after the answer: exit status 0, or 1 and the reason.")
@click.option("--deadline", default=120.0, show_default=True, help="Seconds the first answer may take.")
def tour(port: int, state: Path | None, once: bool, deadline: float) -> None:
    """See one request served from zero on this machine.

    Runs sie up, sends a request while nothing runs, shows the 202, the bundle's start and the answer, and keeps serving
    until Ctrl-C.

    \b
    Examples:
      sie tour
      sie tour --once --port 9000
    """
    folder, key = StateFolder(state or default_folder()), _key()
    told = {"Authorization": f"Bearer {key}"} if key else {}
    # It is on this machine: by no proxy.
    with _up(port, folder) as up, httpx.Client(trust_env=False, headers=told) as direct:
        url = _ready_url(up, folder)
        _say("1", "Nothing runs: the always-on part is up, no bundle is.")
        with SIEClient(url, api_key=key, timeout_s=30, http_client=direct) as client:
            _from_zero(client, deadline)
            _show_startup(direct, url)
            _warm(client)
        if once:
            return
        _say("5", f"Serving on [bold]{url}[/]. After a quiet minute the bundle is gone. Ctrl-C stops.")
        with contextlib.suppress(KeyboardInterrupt):
            up.wait()
    if up.returncode != 0:
        raise StartFailedError(f"sie up ended with status {up.returncode}; its own lines above say why.")


def _key() -> str | None:
    """What this tour's own ingress lets in, where it asks for a token; else the SDK's choice."""
    tokens = [token.strip() for token in os.environ.get("SIE_AUTH_TOKENS", "").split(",")]
    return next(filter(None, tokens), None)


@contextlib.contextmanager
def _up(port: int, folder: StateFolder) -> Iterator[subprocess.Popen[bytes]]:
    """``sie up`` as a child; drained at the end, whatever happens."""
    command = [sys.executable, "-m", "sie_local", "up", "--port", str(port), "--state", str(folder.path)]
    # In a session of its own: a terminal's Ctrl-C would reach it a second time, and the second one kills.
    up = subprocess.Popen(command, start_new_session=True)
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    if signal.getsignal(signal.SIGHUP) is not signal.SIG_IGN:  # as nohup has it
        signal.signal(signal.SIGHUP, _hung_up)
    try:
        yield up
    finally:
        for _ in ("drain", "kill"):
            if up.poll() is None:
                up.send_signal(signal.SIGINT)
            with contextlib.suppress(KeyboardInterrupt):
                up.wait()  # it ends, for it kills what is not done in time
                break


def _hung_up(_: int, __: FrameType | None) -> None:
    """The terminal is closed: as Ctrl-C, but once, for its shell says so as well."""
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    raise KeyboardInterrupt


def _ready_url(up: subprocess.Popen[bytes], folder: StateFolder, within_s: float = 60.0) -> str:
    """Wait until that ``sie up`` is ready; returns where."""
    end = time.monotonic() + within_s
    while time.monotonic() < end:
        if up.poll() is not None:
            raise StartFailedError("sie up did not start; its own lines above say why.")
        if (record := folder.ready(up.pid)) is not None:
            return record.url
        time.sleep(0.05)
    raise StartFailedError(f"sie up was not ready within {within_s:.0f} s.", hint="Its log is in the state folder.")


def _from_zero(client: SIEClient, deadline: float) -> None:
    told: set[str] = set()

    def progress(step: Progress) -> None:
        if step.state != "done" and step.job and step.job not in told:
            told.add(step.job)
            wait = "" if step.retry_after_s is None else f", Retry-After about {step.retry_after_s:.0f} s"
            _say("2", f"202 Accepted{wait}: your job [bold]{step.job}[/] is already queued.")
            console.print("     A bundle is starting; the SDK follows the job.", style="dim")

    began = time.monotonic()
    results = client.encode(MODEL, list(SENTENCES), deadline_s=deadline, progress=progress)
    _say("3", f"First vectors after [bold]{time.monotonic() - began:.2f} s[/] from zero.")
    _show_timing("the first request", results[0])


def _warm(client: SIEClient) -> None:
    began = time.monotonic()
    results = client.encode(MODEL, list(SENTENCES))
    _say("4", f"The same request warm: [bold]{(time.monotonic() - began) * 1000:.1f} ms[/].")
    _show_timing("the warm request", results[0])
    vectors = np.stack([result.dense for result in results if result.dense is not None])
    _show_cosines(vectors @ vectors.T)


def _show_startup(direct: httpx.Client, url: str) -> None:
    workers: list[dict[str, Any]] = direct.get(f"{url}/health", timeout=5).json()["workers"]
    for worker in workers:
        steps = sorted(worker["startup"].items(), key=lambda step: float(step[1]))
        path = ", ".join(f"{name} at {at:.2f} s" for name, at in steps)
        console.print(
            f"     The bundle's start: {path}; {worker['memory_used_bytes'] / 1e6:.0f} MB.", style="dim", soft_wrap=True
        )


def _show_timing(title: str, result: EncodeResult) -> None:
    if result.timing is None:
        return
    table = Table(title=f"Where the time of {title} went, in ms", title_justify="left", title_style="dim")
    row = []
    for stage in result.timing.__struct_fields__:
        table.add_column(stage.removesuffix("_ms").replace("_", " "), justify="right")
        row.append(f"{getattr(result.timing, stage):.1f}")
    table.add_row(*row)
    console.print(table)


def _show_cosines(cosines: np.ndarray[Any, Any]) -> None:
    table = Table(title="Cosine of three sentences", title_justify="left", title_style="dim")
    for heading in ("", *SENTENCES):
        table.add_column(heading, justify="left" if not heading else "right")
    for sentence, row in zip(SENTENCES, cosines, strict=True):
        table.add_row(sentence, *(f"{value:.3f}" for value in row))
    console.print(table)


def _say(step: str, text: str) -> None:
    console.print(f"[bold cyan]  {step}  [/]{text}", soft_wrap=True)
