"""Child processes that are measured: held to given cores, paused while others are measured, gone when the bench is.

Owns signals and the accounts of memory; what is started is ``peers``.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import shutil
import signal
import subprocess
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import IO, NamedTuple

import psutil

_PR_SET_PDEATHSIG = 1
_libc = ctypes.CDLL(None)


class Memory(NamedTuple):
    """Of a process and its children, in bytes. ``pss``: a page shared by n counts 1/n; ``peak`` is of RSS."""

    rss: int
    pss: int
    peak: int


class Pinned:
    """A program on ``cores``; its output goes to ``log``. Ctrl-C does not reach it; the death of the bench does."""

    def __init__(
        self,
        command: Sequence[str],
        cores: Sequence[int],
        log: Path,
        env: Mapping[str, str] | None = None,
        *,
        pipes: bool = False,
        scratch: Path | None = None,
    ) -> None:
        """Start it. ``scratch``: a folder of its own that goes when it does."""
        self.log = log
        self._scratch = scratch
        log.parent.mkdir(parents=True, exist_ok=True)
        with log.open("wb") as output:
            self._popen = subprocess.Popen(
                command,
                stdin=subprocess.PIPE if pipes else subprocess.DEVNULL,
                stdout=subprocess.PIPE if pipes else output,
                stderr=output,
                env={**os.environ, **(env or {})},
                cwd=Path(__file__).parent.parent,
                start_new_session=True,
                preexec_fn=_held_to(cores),
            )
        self.process = psutil.Process(self._popen.pid)

    @property
    def pipes(self) -> tuple[IO[bytes], IO[bytes]]:
        """Its standard input and output, where it was started with pipes."""
        assert self._popen.stdin is not None
        assert self._popen.stdout is not None
        return self._popen.stdin, self._popen.stdout

    def died(self) -> str | None:
        """The last line it wrote, if it has ended."""
        if self._popen.poll() is None:
            return None
        lines = self.log.read_text(errors="replace").strip().splitlines()
        return f"it ended with {self._popen.returncode}: {lines[-1] if lines else ''}"

    def family(self) -> list[psutil.Process]:
        """The process and all its descendants."""
        with contextlib.suppress(psutil.NoSuchProcess):
            return [self.process, *self.process.children(recursive=True)]
        return []

    def pause(self) -> None:
        """Let it take no CPU time until `resume`."""
        self._signal(signal.SIGSTOP)

    def resume(self) -> None:
        """Undo `pause`."""
        self._signal(signal.SIGCONT)

    def memory(self, part: str = "") -> Memory:
        """What the family holds now, and the sum of each one's peak since `forget_peak`.

        Args:
            part: only the processes with this word in their command line.
        """
        rss = pss = peak = 0
        for process in self.family():
            with contextlib.suppress(psutil.NoSuchProcess, FileNotFoundError):
                if part and part not in process.cmdline():
                    continue
                account = process.memory_full_info()
                rss, pss = rss + account.rss, pss + account.pss
                peak += _peak(process.pid)
        return Memory(rss, pss, peak)

    def cpu_s(self) -> float:
        """The CPU time the family took so far, in seconds."""
        taken = 0.0
        for process in self.family():
            with contextlib.suppress(psutil.NoSuchProcess):
                times = process.cpu_times()
                taken += times.user + times.system
        return taken

    def forget_peak(self) -> None:
        """Let the peak start again from what is held now."""
        for process in self.family():
            with contextlib.suppress(FileNotFoundError):
                Path(f"/proc/{process.pid}/clear_refs").write_text("5")

    def stop(self) -> None:
        """Ask it to end, and kill what is left after ten seconds."""
        family = self.family()
        self.resume()
        with contextlib.suppress(ProcessLookupError):
            self._popen.terminate()
        _, left = psutil.wait_procs(family, timeout=10)
        for process in left:
            with contextlib.suppress(psutil.NoSuchProcess):
                process.kill()
        self._popen.wait()
        if self._scratch is not None:
            shutil.rmtree(self._scratch, ignore_errors=True)
        for pipe in (self._popen.stdin, self._popen.stdout):
            if pipe is not None:
                with contextlib.suppress(BrokenPipeError):
                    pipe.close()

    def _signal(self, number: signal.Signals) -> None:
        for process in self.family():
            with contextlib.suppress(psutil.NoSuchProcess):
                process.send_signal(number)


def _held_to(cores: Sequence[int]) -> Callable[[], None]:
    """Run in the child before the program: pin it, and have the kernel kill it if the bench dies."""

    def prepare() -> None:
        os.sched_setaffinity(0, cores)
        _libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)

    return prepare


def _peak(pid: int) -> int:
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith("VmHWM:"):
            return int(line.split()[1]) * 1024
    return 0
