"""A real browser for a test: headless Chromium, asked over its debugging protocol what a page shows.

Owns the process and the questions. What the answers must be, tests say.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from websockets.sync.client import ClientConnection, connect

from tests.platform import wait_until

CHROMIUM = shutil.which("chromium") or shutil.which("google-chrome")
OPTIONS = ("--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--no-first-run")
ANSWER_S = 60.0


class Page:
    """One open page. ``failures``: what its scripts threw so far."""

    def __init__(self, socket: ClientConnection) -> None:
        self._socket = socket
        self._numbers = itertools.count(1)
        self.failures: list[str] = []
        self._ask("Runtime.enable")

    def text(self) -> str:
        """What a person reads there now."""
        return str(self.evaluate("document.body?.innerText ?? ''"))

    def evaluate(self, expression: str) -> Any:
        """The value of a JavaScript expression in the page."""
        answer = self._ask("Runtime.evaluate", expression=expression, returnByValue=True)
        assert "exceptionDetails" not in answer, answer
        return answer["result"].get("value")

    def await_text(self, part: str) -> None:
        """Return once the page shows ``part``."""
        shown = ""

        def shows() -> bool:
            nonlocal shown
            shown = self.text()
            return part in shown

        try:
            wait_until(shows)
        except AssertionError as late:
            raise AssertionError(f"{part!r} is not shown but {shown!r}") from late

    def _ask(self, method: str, **params: object) -> Any:
        number = next(self._numbers)
        self._socket.send(json.dumps({"id": number, "method": method, "params": params}))
        while (told := json.loads(self._socket.recv(ANSWER_S))).get("id") != number:
            if told.get("method") == "Runtime.exceptionThrown":
                self.failures.append(told["params"]["exceptionDetails"]["text"])
        return told["result"]


@contextlib.contextmanager
def opened(url: str, profile: Path) -> Iterator[Page]:
    """The page at ``url`` in a browser of its own, with its files in folder ``profile``; skips where none starts."""
    if CHROMIUM is None:
        pytest.skip("no browser here")
    command = [CHROMIUM, *OPTIONS, "--remote-debugging-port=0", f"--user-data-dir={profile}", "about:blank"]
    browser = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        told = profile / "DevToolsActivePort"
        wait_until(lambda: browser.poll() is not None or (told.exists() and "\n" in told.read_text()))
        if browser.poll() is not None:
            pytest.skip(f"{CHROMIUM} does not start here: exit status {browser.returncode}")
        port = told.read_text().split()[0]
        tab = httpx.put(f"http://127.0.0.1:{port}/json/new?{url}", timeout=ANSWER_S).raise_for_status().json()
        with connect(tab["webSocketDebuggerUrl"], max_size=None, open_timeout=ANSWER_S) as socket:
            yield Page(socket)
    finally:
        browser.kill()
        browser.wait()
