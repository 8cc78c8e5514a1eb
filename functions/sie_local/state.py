"""The state folder of ``sie up``: who runs on it, where, and what it started. Owns the lock and ``up.json``.

One supervisor per folder. What is in ``up.json`` is true while the lock is held; the folder also keeps the logs and the
NATS server's data, which outlive a run.
"""

from __future__ import annotations

import contextlib
import fcntl
import logging
import os
import secrets
import time
from collections.abc import Iterator
from pathlib import Path
from typing import IO

import msgspec

from sie_sdk.errors import ConfigurationError

log = logging.getLogger("sie.local")


class ProcessRecord(msgspec.Struct, frozen=True):
    """One child. ``service`` is set for bundles: the lane's name at the local scaler."""

    name: str
    pid: int
    state: str
    since: float
    """Start of the process, seconds since the epoch."""
    restarts: int = 0
    service: str = ""


class Record(msgspec.Struct, frozen=True):
    """What ``up.json`` holds."""

    pid: int
    url: str
    """Where its ingress is reached; empty until that is known."""
    started: float
    ready: bool = False
    nats_url: str = ""
    monitor_url: str = ""
    """Where NATS says how it is."""
    config_url: str = ""
    demand_url: str = ""
    grace_s: float = 0.0
    """What its end may take: the children's graces, one after the other but for bundles."""
    processes: tuple[ProcessRecord, ...] = ()


def default_folder() -> Path:
    """``$XDG_STATE_HOME/sie-knative``, which is ``~/.local/state/sie-knative`` where the variable is unset.

    Raises:
        ConfigurationError: it is unset, and who runs this has no home.
    """
    try:
        return Path(os.environ.get("XDG_STATE_HOME") or Path.home() / ".local" / "state") / "sie-knative"
    except RuntimeError:
        raise ConfigurationError(
            "There is no home folder to keep the state in.",
            field="SIE_STATE_DIR",
            hint="Set SIE_STATE_DIR to a folder.",
        ) from None


class StateFolder:
    """A state folder; it is created when it is locked."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.logs = path / "logs"
        self.nats = path / "nats"
        self._record = path / "up.json"

    @contextlib.contextmanager
    def locked(self) -> Iterator[None]:
        """Hold the folder for this process.

        Raises:
            ConfigurationError: another `sie up` holds it, or it cannot be written.
        """
        try:
            for folder in (self.path, self.logs, self.nats):
                folder.mkdir(parents=True, exist_ok=True)
            lock = (self.path / "lock").open("a")
        except OSError as error:
            raise ConfigurationError(f"The state folder {self.path} cannot be used: {error.strerror}.") from None
        with lock:
            self._take(lock)
            # Of one that was killed there may be a record left: its pid may be anybody's by now.
            self._record.unlink(missing_ok=True)
            self.write(Record(os.getpid(), "", time.time()))
            try:
                yield
            finally:
                self._record.unlink(missing_ok=True)

    def write(self, record: Record) -> None:
        """Replace ``up.json``; a reader sees the old one or the new one."""
        draft = self._record.with_suffix(".draft")
        try:
            draft.write_bytes(msgspec.json.format(msgspec.json.encode(record), indent=1))
            draft.replace(self._record)
        except OSError as error:  # the disk is full, the folder is gone: no reason to stop serving
            log.warning("%s cannot be written: %s", self._record, error.strerror)

    def admin_token(self) -> str:
        """The token for writes to the catalogue: made once, and readable for the folder's owner alone.

        The command line of the same user finds it here (``sie_config.cli.service``).
        """
        path = self.path / "admin-token"
        with contextlib.suppress(OSError):
            if token := path.read_text().strip():
                return token
        token = secrets.token_urlsafe(24)
        with open(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "w") as file:
            file.write(token + "\n")
        return token

    def read(self) -> Record | None:
        """What runs on this folder now, or None."""
        return self._recorded() if self.held() else None

    def ready(self, pid: int) -> Record | None:
        """The record of the `sie up` of that process, once it is ready; to its port somebody else might answer."""
        record = self.read()
        return record if record is not None and record.pid == pid and record.ready else None

    def held(self) -> bool:
        """Whether a `sie up` holds the folder."""
        try:
            with (self.path / "lock").open() as lock:
                fcntl.flock(lock, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
        except OSError:
            pass  # there is no such folder
        return False

    def _recorded(self) -> Record | None:
        with contextlib.suppress(FileNotFoundError, msgspec.DecodeError):
            return msgspec.json.decode(self._record.read_bytes(), type=Record)
        return None

    def _take(self, lock: IO[str]) -> None:
        for last in (False, False, True):
            try:
                return fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                if not last:
                    time.sleep(0.05)  # it may be a `sie status` that only looks
        running = self._recorded()
        who = f" (pid {running.pid}{running.url and f', {running.url}'})" if running else ""
        raise ConfigurationError(
            f"sie is already up on {self.path}{who}.", hint="Stop it with `sie down`, or give --state another folder."
        )
