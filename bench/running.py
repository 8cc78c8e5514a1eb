"""A peer that runs: a server asked over HTTP in its dialect, or a library in a process of its own. Both measure alike.

Owns the start up to the first vector. Which peers there are: ``peers``; what is measured, and when: ``compare``.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import time
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, Protocol

import numpy as np
import numpy.typing as npt

from bench.corpus import Workload
from bench.installs import Unavailable
from bench.load import LoadError, Request, Slice, ask, drive, post
from bench.processes import Pinned

Vectors = npt.NDArray[np.float64]

START_S = 120.0
"""How long a server may take to its first vector."""


class Dialect(NamedTuple):
    """How a server is asked for vectors."""

    path: str
    content_type: str
    body: Callable[[Sequence[str]], bytes]
    vectors: Callable[[bytes], list[npt.NDArray[np.float32]]]

    def request(self, texts: Sequence[str]) -> Request:
        """The request for some texts."""
        return Request(post(self.path, self.body(texts), self.content_type), len(texts))


class Running(Protocol):
    """A peer that has given its first vector."""

    pinned: Pinned

    def measure(self, workload: Workload, seconds: float) -> Slice:
        """Load it for a slice."""

    def vectors(self, texts: Sequence[str], *, at_once: bool) -> Vectors:
        """[n, dim], from one request each or one for all."""


class Server:
    """A running server."""

    def __init__(self, pinned: Pinned, port: int, dialect: Dialect) -> None:
        self.pinned = pinned
        self._port = port
        self._dialect = dialect
        self._requests: dict[str, itertools.cycle[Request]] = {}

    def measure(self, workload: Workload, seconds: float) -> Slice:
        """Load it for a slice; requests go on where the last slice ended."""
        if workload.name not in self._requests:
            made = [self._dialect.request([text.text for text in texts]) for texts in workload.requests]
            self._requests[workload.name] = itertools.cycle(made)
        return drive(self._port, self._requests[workload.name], workload.clients, seconds)

    def vectors(self, texts: Sequence[str], *, at_once: bool) -> Vectors:
        """[n, dim]."""
        groups = [list(texts)] if at_once else [[text] for text in texts]
        answers = ask(self._port, [self._dialect.request(group).data for group in groups])
        return np.array([vector for answer in answers for vector in self._dialect.vectors(answer)], np.float64)


class Worker:
    """A library measured in a process of its own."""

    def __init__(self, pinned: Pinned) -> None:
        self.pinned = pinned

    def order(self, **order: Any) -> Any:
        """Send one order and wait for its answer."""
        to, back = self.pinned.pipes
        with contextlib.suppress(BrokenPipeError):
            to.write(json.dumps(order).encode() + b"\n")
            to.flush()
        if not (line := back.readline()):
            self.pinned.stop()
            raise LoadError(self.pinned.died() or "it hung up")
        return json.loads(line)

    def measure(self, workload: Workload, seconds: float) -> Slice:
        """One call after the other, each with the texts that the workload's clients ask for at once."""
        return Slice(*self.order(do="slice", workload=workload.name, seconds=seconds))

    def vectors(self, texts: Sequence[str], *, at_once: bool) -> Vectors:
        """[n, dim]."""
        return np.array(self.order(do="vectors", texts=list(texts), at_once=at_once))


def first_vector(peer: Server | Worker) -> None:
    """Ask until it answers.

    Raises:
        Unavailable: it ended, or gave no vector within `START_S`; with the last it said.
    """
    began, said = time.monotonic(), ""
    while time.monotonic() - began < START_S:
        try:
            peer.vectors(["hello world"], at_once=True)
        except LoadError as error:
            said = str(error)
        else:
            return
        if reason := peer.pinned.died():
            raise Unavailable(reason)
        time.sleep(0.01)
    raise Unavailable(f"no vector within {START_S:.0f} s; the last it said: {said}")
