"""One text whose states are not finite does not spoil the others of its batch: on a CPU short texts share tiles.

Owns what happens when a pass gives numbers that are not finite: each text alone, and where scores left the range of the
numbers, shifted by the largest from then on. Not here: which item is refused for it (``executor``).
"""

from __future__ import annotations

import logging
import math
from collections.abc import Callable

import torch
from torch import Tensor

from sie_bundle.engine.packing import Packed, apart

log = logging.getLogger("sie.bundle.finite")


class Finite:
    """The passes of one encoder.

    ``states``: a batch to the states [T, hidden], with scores shifted by the largest or not (`cpu_attention.by_tile`).
    """

    def __init__(self, states: Callable[[Packed, bool], Tensor]) -> None:
        self._states = states
        self._by_maximum = False

    def __call__(self, packed: Packed) -> Tensor:
        """The states of a batch; not finite are at most those of texts that alone are not."""
        states = self._states(packed, self._by_maximum)
        if states.device.type != "cpu" or _finite(states):
            return states
        return torch.cat([self._alone(text) for text in apart(packed)])

    def _alone(self, text: Packed) -> Tensor:
        states = self._states(text, self._by_maximum)
        if self._by_maximum or _finite(states):
            return states
        if _finite(shifted := self._states(text, True)):
            log.warning("attention scores leave the range of the numbers; they are shifted by the largest from now on")
            self._by_maximum = True
        return shifted


def _finite(states: Tensor) -> bool:
    # A sum says it of all numbers in one pass.
    return math.isfinite(float(states.sum(dtype=torch.float32)))
