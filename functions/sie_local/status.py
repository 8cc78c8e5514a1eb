"""What ``sie status`` sees and how it is shown. Reads the state folder and /proc, changes nothing."""

from __future__ import annotations

import http.client
import os
import time
import urllib.error
import urllib.request
from collections import Counter
from pathlib import Path

import msgspec
from rich.console import Console
from rich.table import Table

from sie_local.state import ProcessRecord, StateFolder


class ProcessStatus(msgspec.Struct, frozen=True):
    """One process of the platform; ``memory_bytes`` is its resident memory, None where that cannot be read."""

    name: str
    pid: int
    state: str
    uptime_s: float
    memory_bytes: int | None
    restarts: int = 0


class Status(msgspec.Struct, frozen=True):
    """The platform as seen now. ``ready``: the ingress accepts requests, and NATS is well. ``bundles``: ready processes
    per lane."""

    up: bool
    ready: bool = False
    url: str = ""
    nats_url: str = ""
    config_url: str = ""
    demand_url: str = ""
    processes: tuple[ProcessStatus, ...] = ()
    bundles: dict[str, int] = {}


def look(folder: StateFolder) -> Status:
    """The status of what runs on a state folder."""
    record = folder.read()
    if record is None:
        return Status(up=False)
    supervisor = ProcessRecord("supervisor", record.pid, "ready" if record.ready else "starting", record.started)
    return Status(
        up=True,
        # NATS is asked itself: where its disk is full, the record may be old.
        ready=_is_fine(record.url, "readyz") and (not record.monitor_url or _is_fine(record.monitor_url, "healthz")),
        url=record.url,
        nats_url=record.nats_url,
        config_url=record.config_url,
        demand_url=record.demand_url,
        processes=tuple(_process(process) for process in (supervisor, *record.processes)),
        bundles=dict(Counter(each.service for each in record.processes if each.service and each.state == "ready")),
    )


def show(status: Status, folder: StateFolder) -> None:
    """Print a status for people."""
    console = Console(highlight=False)
    if not status.up:
        console.print(f"Nothing is up on {folder.path}.", soft_wrap=True)
        return
    console.print(
        f"{status.url or folder.path} {'accepts requests' if status.ready else 'does not accept requests yet'}"
    )
    table = Table(box=None, pad_edge=False, header_style="dim")
    for column in ("process", "pid", "state", "up", "memory", "restarts"):
        table.add_column(column, justify="left" if column in ("process", "state") else "right")
    for each in status.processes:
        memory = "" if each.memory_bytes is None else f"{each.memory_bytes / 2**20:.0f} MB"
        table.add_row(each.name, str(each.pid), each.state, _duration(each.uptime_s), memory, str(each.restarts or ""))
    console.print(table)
    total = sum(each.memory_bytes or 0 for each in status.processes)
    lanes = ", ".join(f"{count} of {lane}" for lane, count in sorted(status.bundles.items()))
    console.print(f"{total / 2**20:.0f} MB in all; bundles: {lanes or 'none, no work'}")


def _process(record: ProcessRecord) -> ProcessStatus:
    return ProcessStatus(
        name=record.name,
        pid=record.pid,
        state=record.state,
        uptime_s=round(time.time() - record.since, 1),
        memory_bytes=_memory(record.pid),
        restarts=record.restarts,
    )


def _memory(pid: int) -> int | None:
    try:
        return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    except OSError:
        return None


def _is_fine(url: str, path: str) -> bool:
    if not url:
        return False
    direct = urllib.request.build_opener(urllib.request.ProxyHandler({}))  # it is on this machine
    try:
        with direct.open(f"{url}/{path}", timeout=2) as answer:
            return bool(answer.status == 200)
    except (urllib.error.URLError, http.client.HTTPException, OSError):  # it may be somebody else's port
        return False


def _duration(seconds: float) -> str:
    minutes, rest = divmod(int(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours} h {minutes} min" if hours else f"{minutes} min {rest} s" if minutes else f"{rest} s"
