"""One text whose states are not finite does not spoil the others of its batch.

On a CPU a text is computed beside what a mask hides from it. That weighs nothing; but nothing times what is no number
is no number. Owns what happens when a pass gives such: each text alone. Not here: which item is refused for it
(``executor``).
"""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from torch import Tensor

from sie_bundle.engine.packing import Packed, apart


def finite(states: Callable[[Packed], Tensor], packed: Packed) -> Tensor:
    """What ``states`` gives of a batch, [T, hidden]; not finite are at most those of texts that alone are not."""
    found = states(packed)
    if found.device.type != "cpu" or len(packed.lengths) == 1 or _is_finite(found):
        return found
    return torch.cat([states(text) for text in apart(packed)])


def _is_finite(states: Tensor) -> bool:
    # A sum says it of all numbers in one pass.
    return math.isfinite(float(states.sum(dtype=torch.float32)))
