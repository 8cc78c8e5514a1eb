"""The commands ``sie up``, ``sie down`` and ``sie status``. The server side is imported only when ``up`` runs."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import click
import msgspec

from sie_local import listening
from sie_local.asked import PORT, models
from sie_local.state import StateFolder, default_folder
from sie_local.status import look, show

DETACHED_S = 60.0
DOWN_S = 30.0
"""How much longer the end may take than all the children's graces together."""

_state = click.option(
    "--state",
    type=click.Path(file_okay=False, path_type=Path),
    envvar="SIE_STATE_DIR",
    show_envvar=True,
    help="Folder for data and logs.  [default: ~/.local/state/sie-knative]",
)


@click.command()
@click.option("--host", default="127.0.0.1", show_default=True, help="Address to listen on.")
@click.option("--port", type=PORT, default=8080, show_default=True, help="Port to listen on; 0 for any.")
@click.option("--nats-port", type=PORT, default=0, help="Port of the NATS server.  [default: any]")
@click.option(
    "--models", callback=models, default="", help="Models to serve: ids separated by commas, or a folder of specs."
)
@_state
@click.option(
    "--quiet-s",
    type=click.FloatRange(min=0),
    default=60.0,
    show_default=True,
    help="Seconds without work before a bundle stops.",
)
@click.option(
    "--max-scale",
    default=lambda: max(1, (os.cpu_count() or 1) // 2),
    type=click.IntRange(min=1),
    help="Processes a bundle may have at most.  [default: one per two cores]",
)
@click.option("--detach", is_flag=True, help="Leave it running in the background.")
def up(state: Path | None, detach: bool, **asked: Any) -> None:
    """Run the whole platform on this machine.

    NATS, config service, ingress and demand holder start now; a bundle starts with the first request for one of its
    models and stops when there is none. Ctrl-C drains and stops; data stays in the state folder.

    \b
    Examples:
      sie up
      sie up --detach --port 9000
      sie up --models BAAI/bge-m3,cross-encoder/ms-marco-MiniLM-L-6-v2
    """
    folder = StateFolder(state or default_folder())
    if told := listening.warning(asked["host"], os.environ.get("SIE_AUTH_TOKENS", "")):
        click.echo(told, err=True)
    if detach:
        click.echo(_detached(folder, asked))
        return
    from sie_local.programs import Options, own_commands
    from sie_local.run import run

    run(Options(state=folder.path, **asked), folder, own_commands())


@click.command()
@_state
def down(state: Path | None) -> None:
    """Stop what `sie up` started: work in flight is finished, the rest stays queued.

    \b
    Examples:
      sie down
      sie down --state /srv/sie
    """
    folder = StateFolder(state or default_folder())
    record = folder.read()
    if record is None:
        click.echo(f"Nothing is up on {folder.path}.")
        return
    started, limit = time.monotonic(), record.grace_s + DOWN_S
    try:
        os.kill(record.pid, signal.SIGTERM)
    except ProcessLookupError:
        raise click.ClickException(f"pid {record.pid} holds {folder.path}, and is not to be seen from here.") from None
    except PermissionError:
        raise click.ClickException(f"pid {record.pid} holds {folder.path}; another user started it.") from None
    while folder.held():
        if time.monotonic() - started > limit:
            raise click.ClickException(f"pid {record.pid} has not stopped after {limit:.0f} s; kill it if you must.")
        time.sleep(0.05)
    click.echo(f"Stopped {record.url or f'pid {record.pid}'} in {time.monotonic() - started:.1f} s.")


@click.command()
@_state
@click.option("--json", "as_json", is_flag=True, help="Print JSON, for programs.")
def status(state: Path | None, as_json: bool) -> None:
    """Show what `sie up` runs: processes, memory, bundles. The exit code is 1 unless requests are accepted.

    \b
    Examples:
      sie status
      sie status --json | jq .bundles
    """
    folder = StateFolder(state or default_folder())
    seen = look(folder)
    if as_json:
        click.echo(msgspec.json.encode(seen))
    else:
        show(seen, folder)
    sys.exit(0 if seen.ready else 1)


def _detached(folder: StateFolder, asked: dict[str, Any]) -> str:
    """Start `sie up` in the background and wait until it is ready; returns its URL."""
    options = [word for name, value in asked.items() for word in (f"--{name.replace('_', '-')}", str(value))]
    with folder.locked():
        pass  # the usual error if one is up already
    with (folder.logs / "up.log").open("ab") as log:  # another that starts now writes there, too
        said_from = log.tell()
        process = subprocess.Popen(
            [sys.executable, "-m", "sie_local", "up", "--state", str(folder.path), *options],
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            start_new_session=True,
        )
    try:
        return _once_ready(folder, process, said_from)
    except BaseException:  # Ctrl-C too: whoever gave it up does not want it to come up all the same
        process.terminate()
        raise


def _once_ready(folder: StateFolder, process: subprocess.Popen[bytes], said_from: int) -> str:
    """Wait until a `sie up` in the background is ready, whose log begins at that byte; returns its URL."""
    deadline, log = time.monotonic() + DETACHED_S, folder.logs / "up.log"
    while time.monotonic() < deadline:
        if (record := folder.ready(process.pid)) is not None:
            return record.url
        if process.poll() is not None:
            said = f"\n{log.read_bytes()[said_from:].decode(errors='replace').strip()}"
            told = said.partition("\nError: ")[2] or said.strip()
            raise click.ClickException(told or f"It ended with status {process.returncode}; its log is {log}.")
        time.sleep(0.05)
    raise click.ClickException(f"It was not ready after {DETACHED_S:.0f} s; see {folder.logs}.")
