"""Load failures: when a model is worth another try, and what its callers are told until then. Never permanent.

Owns the pauses and the table of models that pause. Pure: the clock and the random numbers are passed in. What kinds of
failure there are, and which one an error is: ``weights.source``.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from sie_bundle.weights.source import Reason, classify
from sie_config.model.model_spec import ModelSpec
from sie_config.model.variant import name_of
from sie_sdk.errors import ModelLoadFailedError, OutOfMemoryError, SIEError


class Pause(NamedTuple):
    """Seconds before the next try: ``first``, then doubled with each failure in a row up to ``most``."""

    first: float
    most: float


PAUSES: dict[Reason, Pause] = {
    "network": Pause(1.0, 60.0),
    "corrupt": Pause(60.0, 60.0),
    "memory": Pause(5.0, 5.0),
    "unknown": Pause(2.0, 60.0),
    "gated": Pause(300.0, 300.0),
    "not_found": Pause(300.0, 300.0),
    "too_large": Pause(300.0, 300.0),
}
JITTER = 0.1
"""Pauses differ by up to this part, so that many workers do not come back to a source in step."""


def pause(reason: Reason, failures: int, random: Callable[[], float]) -> float:
    """Seconds before another try after ``failures`` (at least one) in a row; ``random`` gives numbers in [0, 1)."""
    first, most = PAUSES[reason]
    return min(most, first * 2.0 ** min(failures - 1, 30)) * (1 - JITTER + 2 * JITTER * random())


class Failure(NamedTuple):
    """The last failure of a model."""

    spec: ModelSpec
    error: SIEError
    reason: Reason
    in_a_row: int
    at: float
    again_at: float
    absent: bool
    """Whether the weights were not on this machine."""


class Failures:
    """The models that failed to load, and until when they pause. ``clock``: seconds; ``random``: see `pause`."""

    def __init__(self, clock: Callable[[], float], random: Callable[[], float]) -> None:
        self._clock = clock
        self._random = random
        self._last: dict[str, Failure] = {}

    def pausing(self, spec: ModelSpec) -> Failure | None:
        """The failure because of which the model is not to be tried now; a changed spec is a new start."""
        failure = self._last.get(name_of(spec))
        if failure is None or failure.spec != spec or self._clock() >= failure.again_at:
            return None
        # A copy: errors collect the traces of all who raise them.
        error = _copied(failure.error)
        if error.retry_after is not None:
            error.retry_after = round(failure.again_at - self._clock(), 3)
        return failure._replace(error=error)

    def note(self, spec: ModelSpec, error: Exception, *, absent: bool = False) -> SIEError:
        """Take a failure down; returns what its callers are told, with ``details["reason"]`` and ``retry_after``.

        Without the latter where waiting does not help: only a change of the settings does.
        """
        reason = classify(error)
        last = self._last.get(name_of(spec))
        in_a_row = last.in_a_row + 1 if last and last.spec == spec and last.reason == reason else 1
        told = _told(spec, error, reason)
        paused = round(pause(reason, in_a_row, self._random), 3)
        told.retry_after = None if reason == "too_large" else paused
        told.details["reason"] = reason
        now = self._clock()
        # A copy: what is raised holds on to what it came through, and with that to what the load had made so far.
        self._last[name_of(spec)] = Failure(spec, _copied(told), reason, in_a_row, now, now + paused, absent)
        return told

    def latest(self, count: int) -> list[Failure]:
        """The models that did not load when they were last tried; at most ``count``, the last to fail."""
        return sorted(self._last.values(), key=lambda failure: failure.at)[-count:]

    def forget(self, spec: ModelSpec) -> None:
        """It loads: the next failure is a first one."""
        self._last.pop(name_of(spec), None)

    def forget_all_but(self, served: Callable[[str], bool]) -> None:
        """What there is no more does not load, either. ``served``: whether a model is, by its id."""
        self._last = {name: failure for name, failure in self._last.items() if served(failure.spec.id)}


def _told(spec: ModelSpec, error: Exception, reason: Reason) -> SIEError:
    if reason == "memory" and not isinstance(error, OutOfMemoryError):
        return OutOfMemoryError(f"There is not the memory to load {name_of(spec)} now.", hint="Try again later.")
    if isinstance(error, SIEError):
        return _copied(error)
    return ModelLoadFailedError(f"{name_of(spec)} could not be loaded.", hint="The worker's log says why.")


def _copied(error: SIEError) -> SIEError:
    """Another one that says the same; by no ``__init__``, for a class of an adapter's own may take what it likes."""
    copied = type(error).__new__(type(error), *error.args)
    vars(copied).update(vars(error))
    return copied


def too_large(spec: ModelSpec, size: int, most: int, limit: int) -> SIEError:
    """What is told of a model of ``size`` bytes; ``most`` of the ``limit`` is not pinned."""
    if size > limit:  # whatever goes: nobody need wait for it
        return ModelLoadFailedError(
            f"{name_of(spec)} takes {size} bytes or more on the device, more than SIE_MODEL_BYTES allows ({limit}).",
            field="SIE_MODEL_BYTES",
            limit=limit,
            hint="Allow more, or use a machine with more memory or a smaller model.",
            reason="too_large",
        )
    return OutOfMemoryError(
        f"{name_of(spec)} takes {size} bytes or more on the device, and pinned models leave {most} of the limit.",
        field="SIE_MODEL_BYTES",
        limit=most,
        reason="memory",
    )
