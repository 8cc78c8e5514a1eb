"""From results to where they go: in order, as they come, and with a way to go on after an end that came too early.

Owns what happens on Ctrl-C and after an error: what was written stays, and is counted. Not here: the form of what is
written (``sinks``, ``tables``), how inputs are asked for (``inference``).
"""

from __future__ import annotations

import os
import re
import signal
import sys
import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, BinaryIO, TypeVar

import click

from sie_sdk.cli import exits, sinks
from sie_sdk.cli.progress import Meter
from sie_sdk.cli.sinks import Sink
from sie_sdk.errors import SIEError

F = TypeVar("F", bound=Callable[..., Any])


resume = click.option("--resume", is_flag=True, help="Go on with the file of --out where it was left off.")
quiet = click.option("--quiet", "-q", is_flag=True, help="Say nothing on standard error but errors.")


def out(endings: str) -> Callable[[F], F]:
    """The option ``--out``, for files of these ``endings``."""
    path = click.Path(dir_okay=False, writable=True, path_type=Path)
    return click.option("--out", "-o", type=path, help=f"Write to a file instead: {endings}.")


@contextmanager
def opened(
    out: Path | None,
    *,
    as_json: bool,
    resume: bool = False,
    vectors: bool = False,
    source: BinaryIO | None = None,
) -> Iterator[tuple[Sink | None, int]]:
    """The sink for programs, if results are for one, and how many results it holds already.

    ``source``: where the inputs come from, if not from arguments.

    Raises:
        UsageError: these options contradict each other.
    """
    if out is None and resume:
        raise click.UsageError("--resume goes on with the file of --out; give one.")
    if out is not None and as_json:
        raise click.UsageError("--json prints and --out writes a file; give one of them.")
    if out is not None and source is not None and _is_same(source, out):
        raise click.UsageError(f"--out {out}: the inputs come from this file; write to another one.")
    sink: Sink | None = sinks.JsonLines(sys.stdout.buffer) if as_json else None
    written = 0
    if out is not None:
        sink, written = sinks.opened(out, resume=resume, vectors=vectors)
    try:
        yield sink, written
    finally:
        if sink is not None:
            sink.close()


def _is_same(source: BinaryIO, out: Path) -> bool:
    try:
        return os.path.samestat(os.fstat(source.fileno()), out.stat())
    except OSError:  # a stream that is no file, or a file that is not there yet
        return False


def deliver(
    results: Iterable[Any], write: Callable[[Any], None], meter: Meter, skipped: int = 0, *, out: Path | None = None
) -> None:
    """Write each result as it comes, and say how to go on after an end that came too early.

    ``skipped``: the inputs left out before the first one. ``out``: the file that is written, if one is.

    Raises:
        Exit: with the code of an interrupt, after Ctrl-C.
    """
    count = 0

    def how() -> str:
        if out is None:
            return f"Go on with --skip {skipped + count}."
        if out.suffix.lower() == ".npz":  # written in one go
            return f"Go on with --skip {skipped + count} and another file for --out."
        return "Go on with --resume."

    with _CtrlC() as ctrl_c:
        try:
            with meter:
                for result in results:
                    with ctrl_c.later():
                        write(result)
                        count += 1
                    meter.add(1)
        except KeyboardInterrupt:
            click.echo(f"Interrupted after {count:,} results. {how()}" if count else "Interrupted.", err=True)
            raise click.exceptions.Exit(exits.INTERRUPTED) from None
        except BrokenPipeError:
            raise
        except (SIEError, click.ClickException, OSError) as error:
            if count:
                click.echo(f"{count:,} {'result was' if count == 1 else 'results were'} written. {how()}", err=True)
            if isinstance(error, SIEError) and (place := _PLACE.match(error.field or "")):
                click.echo(f"The input at fault is number {skipped + int(place[1]) + 1:,}.", err=True)
            raise


_PLACE = re.compile(r"items\[(\d+)\]")


class _CtrlC:
    """Keeps an interrupt from cutting a line in two: it comes when the line is written, and the second one at once."""

    def __init__(self) -> None:
        self._busy = self._asked = False
        self._ours = threading.current_thread() is threading.main_thread()

    def __enter__(self) -> _CtrlC:
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
