"""From results to where they go: in order, as they come, and with a way to go on after an end that came too early.

Owns what happens on Ctrl-C and after an error: what was written stays, and is counted. Not here: the form of what is
written (``sinks``, ``tables``), how inputs are asked for (``inference``).
"""

from __future__ import annotations

import signal
import sys
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypedDict

import click

from sie_sdk.cli import exits, sinks
from sie_sdk.cli.progress import Meter
from sie_sdk.cli.sinks import Sink
from sie_sdk.errors import SIEError


class OutputOptions(TypedDict):
    """The options of :func:`output_options`, as click hands them over."""

    as_json: bool
    out: Path | None
    resume: bool
    quiet: bool


def output_options(*, endings: str = "") -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Where results go and what is said meanwhile; ``endings`` are those of --out, without any there is no --out."""
    file = (
        click.option(
            "--out", "-o", type=click.Path(dir_okay=False, path_type=Path), help=f"Write to a file instead: {endings}."
        ),
        click.option("--resume", is_flag=True, help="Go on with the file of --out where it was left off."),
    )
    options = (
        click.option("--json", "as_json", is_flag=True, help="Print JSON, one line for each, for programs."),
        *(file if endings else ()),
        click.option("--quiet", "-q", is_flag=True, help="Say nothing on standard error but errors."),
    )

    def decorate(command: Callable[..., Any]) -> Callable[..., Any]:
        for option in reversed(options):
            command = option(command)
        return command

    return decorate


@contextmanager
def opened(asked: OutputOptions, *, vectors: bool = False) -> Iterator[tuple[Sink | None, int]]:
    """The sink for programs, if results are for one, and how many results it holds already.

    Raises:
        UsageError: these options contradict each other.
    """
    out = asked["out"]
    if out is None and asked["resume"]:
        raise click.UsageError("--resume goes on with the file of --out; give one.")
    if out is not None and asked["as_json"]:
        raise click.UsageError("--json prints and --out writes a file; give one of them.")
    sink: Sink | None = sinks.JsonLines(sys.stdout.buffer) if asked["as_json"] else None
    written = 0
    if out is not None:
        sink, written = sinks.opened(out, resume=asked["resume"], vectors=vectors)
    try:
        yield sink, written
    finally:
        if sink is not None:
            sink.close()


def deliver(results: Iterable[Sequence[Any]], write: Callable[[Sequence[Any]], None], meter: Meter, how: str) -> int:
    """Write each lot of results as it comes; returns how many there were.

    ``how``: what the user is told to go on with, after an end that came too early; ``{skip}`` is the number written.

    Raises:
        Exit: with the code of an interrupt, after Ctrl-C.
    """
    count = 0
    with _Ctrl_C() as ctrl_c:
        try:
            with meter:
                for lot in results:
                    with ctrl_c.later():
                        write(lot)
                        count += len(lot)
                    meter.add(len(lot))
        except KeyboardInterrupt:
            click.echo(f"Interrupted after {count:,} results. {how.format(skip=count)}", err=True)
            raise click.exceptions.Exit(exits.INTERRUPTED) from None
        except (SIEError, click.UsageError):
            if count:
                click.echo(f"{count:,} results were written. {how.format(skip=count)}", err=True)
            raise
    return count


class _Ctrl_C:  # noqa: N801 - its name
    """Keeps an interrupt from cutting a line in two: it comes when the line is written, and the second one at once."""

    def __init__(self) -> None:
        self._busy = self._asked = False
        self._ours = threading.current_thread() is threading.main_thread()

    def __enter__(self) -> _Ctrl_C:
        if self._ours:
            self._before = signal.signal(signal.SIGINT, self._come)
        return self

    def __exit__(self, *exc: object) -> None:
        if self._ours:
            signal.signal(signal.SIGINT, self._before)

    @contextmanager
    def later(self) -> Iterator[None]:
        self._busy = True
        try:
            yield
        finally:
            self._busy = False
        if self._asked:
            raise KeyboardInterrupt

    def _come(self, number: int, frame: object) -> None:
        if not self._busy or self._asked:
            raise KeyboardInterrupt
        self._asked = True
