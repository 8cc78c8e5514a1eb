"""The spec that a work is computed by: the one its request was resolved with, as long as this worker remembers it.

Between the two the model may have been changed or removed. What else is done with a spec is the operation's.
"""

from __future__ import annotations

import asyncio
import time

from sie_broker.records import Work
from sie_config.model.model_spec import ModelSpec
from sie_config.registry import Registry

MIRRORED_S = 2.0
"""By then a change of the catalogue that the ingress knows of is known here, too."""
LOOK_S = 0.02


async def spec_of(registry: Registry, work: Work) -> ModelSpec:
    """The spec that the work names, else the one of its model as it stands.

    Raises:
        ModelNotFoundError: there is no such model here, and it did not come soon.
        ModelPlannedError, ModelUnplacedError: it is not served any more.
    """
    until = time.monotonic() + (MIRRORED_S if work.spec else 0.0)
    while True:
        if work.spec and (spec := registry.version(work.model, work.spec)) is not None:
            return spec
        if registry.etag(work.model) or time.monotonic() >= until:
            return registry.resolve(work.model)
        await asyncio.sleep(LOOK_S)
