"""The third way in: texts padded to one length and masked, for models whose code cannot be packed (DeBERTa).

Owns the way there and back between the packed row and padded ones, `packing.buckets` of texts a forward pass. The model
itself is a `Body` of ``transformers_encoder``.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from sie_bundle.engine.packing import SHARE, SLACK, Packed, buckets
from sie_bundle.engine.transfer import moved
from sie_bundle.models.transformers_encoder import TOLERANCE, Body, error
from sie_config.model.model_spec import ModelSpec
from sie_sdk.errors import ModelLoadFailedError

log = logging.getLogger("sie.bundle.padded_encoder")

SQUARES = {"cpu": 1 << 20, "cuda": 1 << 24}
"""The most texts * length ** 2 of a bucket: what a head's scores take, which such models keep whole."""


class PaddedEncoder:
    """A body run on buckets of padded texts."""

    def __init__(self, body: Body, spec: ModelSpec) -> None:
        """Prove that padding changes nothing, then make the body fast.

        Raises:
            ModelLoadFailedError: the spec wants tokens that look but are not looked at, which padded models hide whole.
        """
        multivector = spec.tasks.multivector
        if multivector and multivector.query_length and not multivector.attend_to_mask:
            raise ModelLoadFailedError(
                f"{spec.id} is run padded, where queries cannot be augmented with tokens that are not attended to.",
                hint="Set attend_to_mask, or query_length to 0.",
            )
        self.device = body.device
        self._body = body
        self._padding = int(getattr(body.config, "pad_token_id", None) or 0)
        self._share, self._slack = SHARE, SLACK
        packed = body.sample()
        alone = body.alone(packed)
        if error(self._states(packed, [range(len(packed.lengths))]), alone) > TOLERANCE[alone.dtype]:
            log.warning("padding changes what %s computes; only texts of equal length share a pass", spec.id)
            self._share, self._slack = 0.0, 0
        body.quicken(lambda: self(packed), alone)

    def __call__(self, packed: Packed) -> Tensor:
        """The states of the last layer: [T, hidden], in the order of ``packed``."""
        lengths = np.sort(packed.lengths).tolist()
        squares = SQUARES[self.device.type]
        return self._states(packed, buckets(lengths, share=self._share, slack=self._slack, squares=squares))

    def _states(self, packed: Packed, cut: Sequence[range]) -> Tensor:
        lengths = np.sort(packed.lengths)
        starts = np.cumsum(lengths) - lengths
        return torch.cat([self._bucket(packed, starts[part], lengths[part]) for part in map(_indices, cut)])

    def _bucket(self, packed: Packed, starts: np.ndarray, lengths: np.ndarray) -> Tensor:
        """The states of some texts that lie side by side."""
        places = np.arange(lengths[-1])
        inside = places < lengths[:, None]
        if inside.all():
            part = slice(starts[0], starts[-1] + lengths[-1])
            ids, types = (None if x is None else x[part].view(len(lengths), -1) for x in (packed.ids, packed.types))
            assert ids is not None
            return self._body(ids, token_type_ids=types).flatten(0, 1)
        index = moved(np.where(inside, starts[:, None] + places, 0), self.device)
        mask, own = moved(inside, self.device), moved(np.flatnonzero(inside), self.device)
        ids = packed.ids[index].masked_fill_(~mask, self._padding)
        types = None if packed.types is None else packed.types[index].masked_fill_(~mask, 0)
        return self._body(ids, token_type_ids=types, attention_mask=mask.long()).flatten(0, 1)[own]


def _indices(part: range) -> slice:
    return slice(part.start, part.stop)
