"""A rotation as data: the angle of one step. Turning queries and keys by it is ``positions``. Pure."""

from __future__ import annotations

import math

import msgspec
import numpy as np
import numpy.typing as npt


class Rope(msgspec.Struct, frozen=True):
    """The rotation of a layer: the pair of dimensions i of d turns by ``theta ** (-2i / d) / divisor`` per token.

    With ``trained``, as Llama 3.1 stretches it: pairs that turn less than ``low`` times within so many tokens are
    slower by ``factor``, those that turn more than ``high`` times are as before, those between are between.
    """

    theta: float
    divisor: float = 1.0
    trained: int = 0
    factor: float = 1.0
    low: float = 1.0
    high: float = 4.0

    def steps(self, size: int) -> npt.NDArray[np.float64]:
        """[size / 2]: the angle of one token's step for each pair of a head's ``size`` dimensions."""
        steps = self.theta ** (-np.arange(0, size, 2, dtype=np.float64) / size) / self.divisor
        if not self.trained:
            return steps
        turns = self.trained * steps / (2 * math.pi)
        share = np.clip((turns - self.low) / (self.high - self.low), 0, 1)
        return np.asarray(steps * (share + (1 - share) / self.factor))
