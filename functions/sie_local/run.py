"""Runs a supervisor in the foreground of a terminal: the lock, the event loop, what is printed."""

from __future__ import annotations

import asyncio
import logging
import signal
from collections.abc import Callable

from rich.console import Console
from rich.text import Text

from sie_local.programs import Commands, Options
from sie_local.state import StateFolder
from sie_local.supervisor import Supervisor
from sie_sdk.version import __version__


def run(options: Options, folder: StateFolder, commands: Commands) -> None:
    """Hold the state folder and run until SIGINT, SIGTERM or SIGHUP, which drain; a second one kills.

    Raises:
        ConfigurationError: the folder is held, or a port is taken.
        StartFailedError: a process could not be started.
    """
    logging.basicConfig(level=logging.WARNING, format="%(message)s")
    console = Console(highlight=False, soft_wrap=True)

    def say(text: str) -> None:
        console.print(Text(text, style=_style(text)))

    with folder.locked():
        say(f"sie {__version__} on {folder.path}")
        asyncio.run(_run(options, folder, commands, say))


async def _run(options: Options, folder: StateFolder, commands: Commands, say: Callable[[str], None]) -> None:
    supervisor, stop = Supervisor(options, folder, commands, say), asyncio.Event()

    def signalled() -> None:
        if stop.is_set():
            say("Killing what is left")
            supervisor.kill()
        else:
            say("Stopping: work in flight is finished, the rest stays queued (once more to kill)")
            stop.set()

    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        asyncio.get_running_loop().add_signal_handler(number, signalled)
    await supervisor.run(stop)


def _style(text: str) -> str:
    """Lines that matter stand out: ready is bold, a death (a block of several lines) is red, the rest is plain."""
    if text.startswith("Ready"):
        return "bold green"
    return "red" if "\n" in text else ""
