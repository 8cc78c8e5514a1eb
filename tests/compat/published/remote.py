"""A published sie-sdk in a process of its own environment that does what a test tells it, call by call.

Owns the process and the two ends' JSON; what it runs stands in ``clients/published.py``, what is right in the tests.
"""

from __future__ import annotations

import base64
import json
import os
import subprocess
import threading
from contextlib import suppress
from pathlib import Path
from typing import Any, Literal, NamedTuple

import msgspec
import numpy as np
import numpy.typing as npt

from tests.compat.venvs import CLIENTS, RUN_S

Flavour = Literal["sync", "async"]


class Call(NamedTuple):
    """One call of a method."""

    method: str
    args: list[Any]
    keywords: dict[str, Any]


def call(method: str, *args: Any, **keywords: Any) -> Call:
    """As Python would write it."""
    return Call(method, list(args), keywords)


class Outcome(msgspec.Struct):
    """What one call came to: a value, or what it raised with all its fields."""

    waits: list[float]
    """Seconds it meant to wait before each next try."""
    retries: int
    revision: str | None
    value: Any = None
    raised: dict[str, Any] | None = None

    @property
    def error(self) -> dict[str, Any]:
        """What was raised; fails when nothing was."""
        assert self.raised is not None, self.value
        return self.raised

    @property
    def result(self) -> Any:
        """What was returned; fails when something was raised."""
        assert self.raised is None, self.raised
        return self.value


class Told(msgspec.Struct):
    """The outcomes of a program's calls and the warnings that were logged; or why there is no client."""

    outcomes: list[Outcome] = []
    log: list[str] = []
    refused: dict[str, Any] | None = None


class Remote:
    """One process that runs programs one after the other. ``version``: the client's."""

    def __init__(self, python: Path) -> None:
        self._python = python
        self._start()

    def _start(self) -> None:
        kept = {name: value for name, value in os.environ.items() if not name.startswith(("SIE_", "PYTHON"))}
        self._process = subprocess.Popen(
            [str(self._python), str(CLIENTS / "published.py")],
            env=kept,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        self.version = str(self._answer()["version"])

    def run(self, flavour: Flavour, url: str, *calls: Call, renewal_s: float = 60.0, **client: Any) -> Told:
        """Open a client with the arguments ``client``, make the calls one after the other, close it.

        The call ``sleep`` is none of its methods. ``renewal_s``: how often it renews pools.
        """
        if self._process.poll() is not None:  # it took too long for another test, and was ended
            self.close()
            self._start()
        assert self._process.stdin is not None
        program = {"flavour": flavour, "url": url, "client": client, "calls": calls, "renewal_s": renewal_s}
        self._process.stdin.write(json.dumps(program) + "\n")
        self._process.stdin.flush()
        return msgspec.convert(self._answer(), Told)

    def close(self) -> None:
        """End the process."""
        assert self._process.stdin is not None and self._process.stdout is not None
        with suppress(BrokenPipeError):
            self._process.stdin.close()
        self._process.wait(10)
        self._process.stdout.close()

    def _answer(self) -> dict[str, Any]:
        assert self._process.stdout is not None
        late = threading.Timer(RUN_S, self._process.kill)
        late.start()
        line = self._process.stdout.readline()
        late.cancel()
        if not line:
            self._process.wait(10)  # so that the next program finds it gone
        assert line, "the client's process ended"
        answer: dict[str, Any] = json.loads(line)
        return answer


class Client:
    """A published client of one flavour, connected to one server."""

    def __init__(self, remote: Remote, flavour: Flavour, url: str) -> None:
        self.remote = remote
        self.flavour: Flavour = flavour
        self.url = url

    def run(self, *calls: Call, **client: Any) -> Told:
        """As `Remote.run`."""
        return self.remote.run(self.flavour, self.url, *calls, **client)

    def __call__(self, method: str, *args: Any, **keywords: Any) -> Outcome:
        """One call of a client made for it."""
        (outcome,) = self.run(call(method, *args, **keywords)).outcomes
        return outcome


def array(told: dict[str, Any]) -> npt.NDArray[Any]:
    """An array as the client got it."""
    return np.array(told["values"], np.dtype(told["dtype"])).reshape(told["shape"])


def as_array(value: npt.NDArray[Any]) -> dict[str, Any]:
    """An array as an argument."""
    return {"$array": value.tolist(), "dtype": value.dtype.str}


def repeated(text: str, times: int) -> dict[str, Any]:
    """A long text as an argument."""
    return {"$text": text, "$times": times}


def binary(data: bytes) -> dict[str, str]:
    """Bytes as an argument."""
    return {"$bytes": base64.b64encode(data).decode()}
