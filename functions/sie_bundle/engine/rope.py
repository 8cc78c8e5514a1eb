"""Rotary positions as ``config.json`` describes them: the base of each layer, and how it is stretched. Pure.

Owns the several ways there are to write them, and the angle of one step. Turning queries and keys is ``positions``.
"""

from __future__ import annotations

import math
from typing import Any

import msgspec
import numpy as np
import numpy.typing as npt


class UnsupportedRope(ValueError):  # noqa: N818
    """A rotation that nothing here computes. Never leaves ``family.architecture``."""


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


def ropes(given: dict[str, Any], kinds: list[str], head_size: int) -> list[Rope]:
    """The rotation of each layer, ``kinds`` being what each sees: full_attention or sliding_attention.

    Raises:
        UnsupportedRope: a kind of stretching that is not here.
    """
    described = given.get("rope_parameters") or given.get("rope_scaling") or {}
    plain = float(given.get("rope_theta", 10_000.0))
    published = {
        "full_attention": float(given.get("global_rope_theta", plain)),
        "sliding_attention": float(given.get("local_rope_theta", plain)),
    }
    by_kind = {
        kind: _rope(described.get(kind) or described, published.get(kind, plain), head_size) for kind in set(kinds)
    }
    return [by_kind[kind] for kind in kinds]


def _rope(described: dict[str, Any], theta: float, head_size: int) -> Rope:
    theta = float(described.get("rope_theta", theta))
    factor = float(described.get("factor", 1.0))
    match described.get("rope_type", described.get("type", "default")):
        case "default":
            return Rope(theta)
        case "linear":
            return Rope(theta, divisor=factor)
        case "ntk" if described.get("mixed_b") is None:
            # Of GTE: the base times the factor, and every pair slower by a root of it (https://kexue.fm/archives/9706).
            return Rope(theta * factor, divisor=factor ** (2 / head_size))
        case "llama3":
            return Rope(
                theta,
                trained=int(described["original_max_position_embeddings"]),
                factor=factor,
                low=float(described["low_freq_factor"]),
                high=float(described["high_freq_factor"]),
            )
        case kind:
            raise UnsupportedRope(f"rotation of type {kind!r} is not supported")
