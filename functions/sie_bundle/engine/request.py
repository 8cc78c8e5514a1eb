"""A request in front of the device: its rows and heads, who waits for it, and what batches have computed of it so far.

Owns which rows and heads a batch comes to, and what a request is told of it. When it is computed, and with what, is the
executor's; the rules are ``batch``'s.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from typing import Protocol, TypeAlias

import msgspec

from sie_bundle.engine import outputs
from sie_bundle.engine.batch import Entry, Slice
from sie_bundle.engine.cost import Fit
from sie_bundle.engine.failure import frameless
from sie_bundle.engine.outputs import Outputs
from sie_bundle.engine.row import Row
from sie_sdk.errors import InferenceError


class Model(Protocol):
    """What the executor needs of a model. Requests for equal models share batches, whatever heads they want."""

    fit: Fit

    def forward(self, rows: Sequence[Row], wanted: Mapping[str, Sequence[int]]) -> Mapping[str, Outputs]: ...


class Forwarded(msgspec.Struct, frozen=True, eq=False):
    """A request's outputs by head, one for each of its rows, and when it was queued, first started and last ended."""

    outputs: Mapping[str, Outputs]
    queued: float
    """Seconds of ``time.monotonic()``, like the two others."""
    started: float
    ended: float


class Request(Entry, frozen=True, eq=False, kw_only=True):
    """An entry with its rows and its caller. ``done``: by first row, what batches have computed of it so far."""

    model: Model
    rows: Sequence[Row]
    heads: tuple[str, ...]
    answer: asyncio.Future[Forwarded]
    done: dict[int, Forwarded]

    def outcome(self, part: Slice, done: Forwarded, *, finite: bool = False) -> Forwarded | Exception | None:
        """What to tell it after its part of a batch, if anything; an output that is not finite fails it alone.

        ``finite``: it is known that all outputs are.
        """
        try:
            if finite or (bad := outputs.first_not_finite(done.outputs)) is None:
                return self._add(part, done)
        except Exception as error:  # an adapter's outputs that are no numbers, or of another shape in each slice
            return frameless(error)
        return InferenceError(
            "The model's output for this item is not finite.",
            field=f"items[{part.start + bad}]",
            row=part.start + bad,
            hint="Leave this item out; the model cannot represent it.",
        )

    def _add(self, part: Slice, done: Forwarded) -> Forwarded | None:
        """Note what was computed of it; the whole with its last part."""
        if part.stop - part.start == len(self.rows):
            return done
        self.done[part.start] = done
        if sum(outputs.count(known.outputs) for known in self.done.values()) < len(self.rows):
            return None
        parts = [self.done[start] for start in sorted(self.done)]
        return Forwarded(
            {head: outputs.join([known.outputs[head] for known in parts]) for head in self.heads},
            self.queued,
            min(known.started for known in parts),
            max(known.ended for known in parts),
        )


Outcome: TypeAlias = tuple[Request, Forwarded | Exception]


def gather(batch: Sequence[Slice]) -> tuple[list[Row], dict[str, list[int]]]:
    """The rows of a batch, and which of them want which head."""
    rows: list[Row] = []
    wanted: dict[str, list[int]] = {}
    for part in batch:
        request = request_of(part)
        for head in request.heads:
            wanted.setdefault(head, []).extend(range(len(rows), len(rows) + part.stop - part.start))
        rows.extend(request.rows[part.start : part.stop])
    return rows, wanted


def request_of(part: Slice) -> Request:
    """Whose part it is."""
    assert isinstance(part.entry, Request)
    return part.entry


def is_last(part: Slice) -> bool:
    """Whether its caller has all rows of the request with it."""
    return part.stop == len(request_of(part).rows)
