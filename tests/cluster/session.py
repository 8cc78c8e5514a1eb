"""A demand session as the demand holder opens them, held by a test: it starts a pod, and hears of the pod's end."""

from __future__ import annotations

import contextlib
import json
import subprocess
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta


class Session:
    """One that is open; see `held`."""

    def __init__(self, url: str, length_s: float) -> None:
        until = datetime.now(UTC) + timedelta(seconds=length_s)
        event = {
            "specversion": "1.0",
            "id": "session",
            "source": "/tests/cluster",
            "type": "dev.sie.work.available.v1",
            "holduntil": until.isoformat(timespec="milliseconds").replace("+00:00", "Z"),
        }
        headers = [word for name, value in event.items() for word in ("-H", f"ce-{name}: {value}")]
        self._length_s = length_s
        self.process = subprocess.Popen(
            ["curl", "-sS", "-X", "POST", *headers, url], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
        )

    def said(self) -> str:
        """Wait for its end; what the worker answered, or whoever did in its place."""
        return self.process.communicate(timeout=self._length_s + 10)[0]

    def drained(self) -> bool:
        """Wait for its end; whether it ended because its worker drained."""
        return bool(json.loads(self.said())["draining"])


@contextlib.contextmanager
def held(url: str, length_s: float = 150.0) -> Iterator[Session]:
    """A session against ``url`` until its time is up, its worker drains, or the context ends."""
    session = Session(url, length_s)
    try:
        yield session
    finally:
        session.process.kill()
        session.process.communicate()
