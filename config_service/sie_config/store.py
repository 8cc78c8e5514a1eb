"""The store: the catalogue as entries of the config bucket, one key per model.

Owns the keys and bytes of an entry. Only the config service writes; readers use ``mirror``.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable

import msgspec

from sie_broker.contract import Bucket
from sie_broker.subjects import token
from sie_config.model_spec import ModelSpec

log = logging.getLogger("sie.config")

PREFIX = "models."

_encoder = msgspec.json.Encoder()
_decoder = msgspec.json.Decoder(ModelSpec)


def key(model: str) -> str:
    """The bucket key of a model."""
    return PREFIX + token(model)


def decode(value: bytes) -> ModelSpec:
    """The spec of an entry.

    Raises:
        msgspec.DecodeError: written by a newer or broken writer.
    """
    return _decoder.decode(value)


async def publish(bucket: Bucket, specs: Iterable[ModelSpec]) -> int:
    """Make the bucket hold exactly ``specs``; returns how many entries changed. Unchanged entries are not written."""
    wanted = {key(spec.id): _encoder.encode(spec) for spec in specs}
    present = {name: value for name, value in (await bucket.entries()).items() if name.startswith(PREFIX)}
    changed = [name for name, value in wanted.items() if present.get(name) != value]
    for name in changed:
        await bucket.put(name, wanted[name])
    gone = present.keys() - wanted.keys()
    for name in gone:
        await bucket.delete(name)
    if changed or gone:
        log.info("catalogue: %d changed, %d removed, %d in all", len(changed), len(gone), len(wanted))
    return len(changed) + len(gone)
