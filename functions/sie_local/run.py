"""Runs a supervisor in the foreground of a terminal: the lock, the event loop, what is printed."""

from __future__ import annotations

import asyncio
import contextlib
import io
import logging
import signal
import sys
from collections.abc import Callable

from rich.console import Console
from rich.text import Text

from sie_local.programs import Commands, Options
from sie_local.state import StateFolder
from sie_local.supervisor import Supervisor
from sie_sdk.version import __version__


def run(options: Options, folder: StateFolder, commands: Commands) -> None:
    """Hold the state folder and run until SIGINT, SIGTERM or SIGHUP, which drain; a second of the first two kills.

    Raises:
        ConfigurationError: the folder is held, or a port is taken.
        StartFailedError: a process could not be started.
    """
    logging.basicConfig(level=logging.WARNING, format="%(message)s")
    # Made here and written below: a console keeps what it could not write, and leaves when a pipe's reader has gone.
    console = Console(file=io.StringIO(), force_terminal=sys.stdout.isatty() or None, highlight=False, soft_wrap=True)

    def say(text: str) -> None:
        with console.capture() as shown:
            console.print(Text(text, style=_style(text)))
        with contextlib.suppress(OSError):  # the terminal is gone, the disk is full: no reason to stop serving
            sys.stdout.write(shown.get())
            sys.stdout.flush()

    with folder.locked():
        say(f"sie {__version__} on {folder.path}")
        asyncio.run(_run(options, folder, commands, say))


async def _run(options: Options, folder: StateFolder, commands: Commands, say: Callable[[str], None]) -> None:
    supervisor, stop = Supervisor(options, folder, commands, say), asyncio.Event()

    def signalled(number: signal.Signals) -> None:
        if not stop.is_set():
            stop.set()
            say("Stopping: work in flight is finished, the rest stays queued (once more to kill)")
        elif number != signal.SIGHUP:  # a terminal that is closed sends it, and so does the shell in it
            supervisor.kill()
            say("Killing what is left")

    outlives = signal.getsignal(signal.SIGHUP) is signal.SIG_IGN  # its terminal, as nohup has it
    for number in (signal.SIGINT, signal.SIGTERM, *(() if outlives else (signal.SIGHUP,))):
        asyncio.get_running_loop().add_signal_handler(number, signalled, number)
    await supervisor.run(stop)


def _style(text: str) -> str:
    """Lines that matter stand out: ready is bold, a death (a block of several lines) is red, the rest is plain."""
    if text.startswith("Ready"):
        return "bold green"
    return "red" if "\n" in text else ""
