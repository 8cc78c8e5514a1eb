"""Tokens of late interaction (ColBERT, 2004.12832): the marker, the query's augmentation, whose vectors are kept."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from sie_bundle.engine.outputs import Floats
from sie_bundle.engine.row import Row
from sie_bundle.models.tokenization import Tokenizer
from sie_config.model.tasks import Multivector


def marked(row: Row, marker: int) -> Row:
    """The row with the marker behind its first token."""
    ids = np.concatenate([row.ids[:1], [marker], row.ids[1:]])
    return Row(ids, len(ids), len(ids))


def augmented(row: Row, mask: int, length: int, *, seen: bool) -> Row:
    """The row filled up with mask tokens to ``length``. They look at the query; ``seen``: it looks at them too."""
    ids = np.concatenate([row.ids, np.full(max(0, length - len(row.ids)), mask)])
    return Row(ids, len(ids), len(ids) if seen else len(row.ids))


def kept(
    vectors: Sequence[Floats], rows: Sequence[Row], tokenizer: Tokenizer, task: Multivector, is_query: bool
) -> list[Floats]:
    """Each text's vectors [tokens, dim] without those the model's training left out; at least one stays."""
    first = 1 if task.skip_first else 0
    if is_query or not task.skip_punctuation:
        return [own[first:] if len(own) > first else own for own in vectors]
    skipped = tokenizer.punctuation
    made = []
    for own, row in zip(vectors, rows, strict=True):
        stays = ~skipped[row.ids]
        stays[:first] = False
        made.append(own[stays] if stays.any() else own)
    return made
