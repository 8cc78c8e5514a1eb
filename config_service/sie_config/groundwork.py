"""What stands before the catalogue is told: the queues of its models and pools, and what is deployed.

Owns that order. Queues are made by the broker, the entries are written by ``writer``; where a model's work waits is
``placement``'s.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections.abc import Callable, Iterator, Sequence

from sie_broker.contract import Broker
from sie_broker.ending import cancelled
from sie_broker.records import Lane
from sie_config.deployment import placement
from sie_config.epochs import store
from sie_config.model.model_spec import ModelSpec
from sie_config.pool_queues import PoolQueues
from sie_config.registry import Registry, lanes_of
from sie_sdk.errors import ConfigurationError, QueueUnavailableError

log = logging.getLogger("sie.config.groundwork")

REPAIR_S = 30.0
"""How often whoever leads looks all of it over."""
LOST_S = 5.0
"""How often whoever does not looks whether there is anything to lead with."""
FEW = 64
"""So many queues are made one by one; of more, it is first asked which are there."""


class Groundwork:
    """Makes it for the catalogue of ``registry``, which knows what is deployed."""

    def __init__(self, broker: Broker, registry: Registry, queues: PoolQueues) -> None:
        self._broker = broker
        self._registry = registry
        self._queues = queues
        self._told = False
        self._laid: set[tuple[Lane, str]] = set()
        """What was made since all was looked over, whether its model is told by now or not."""

    async def lay(self, coming: Sequence[ModelSpec] = ()) -> None:
        """For all models there are, and those to come: a model is told only when its work has a place to wait.

        Once all was laid, and until it is looked over again, a write costs what is new with it.

        Raises:
            QueueUnavailableError: the broker does not answer.
            ConfigurationError: it cannot have the queues of those to come.
        """
        new = list(self._new(coming))
        if not self._told or len(new) > FEW:
            await self._all(new)
        else:
            await self._broker.provision_also(new)
        self._laid.update(new)
        await self._queues.note_homes(coming)
        if not self._told:
            await self._tell()

    async def _all(self, new: Sequence[tuple[Lane, str]]) -> None:
        try:
            await self._broker.provision([*self._registry.queues(), *new, *self._laid, *self._queues.living()])
        except ConfigurationError as error:
            # Of what is there already: it must be possible to write it away, and all the rest has to be served.
            log.warning("a queue is missing: %s", error)
            await self._broker.provision_also(new)

    def _new(self, coming: Sequence[ModelSpec]) -> Iterator[tuple[Lane, str]]:
        """Where work of the models to come will wait, and that of none does now; in the pools that use it, too."""
        for spec in coming:
            for lane in lanes_of(self._registry.placed(spec)):
                if (lane, spec.id) not in self._laid and not self._registry.serves(spec.id, lane):
                    yield lane, spec.id
                    yield from ((beside, spec.id) for beside in self._queues.beside(lane))

    async def look_over(self) -> None:
        """Make the server match again: its storage may have been lost, or changed by somebody else. Errors as `lay`."""
        self.forget()
        await self.lay()

    def forget(self) -> None:
        """What was laid may be there no more: the next `lay` looks at all of it."""
        self._told = False
        self._laid.clear()

    async def keep(self, leading: Callable[[], bool]) -> None:
        """Look everything over now and then while we lead, until cancelled.

        A bucket that was lost took the lease with it: it is made anew by whoever finds that, and then somebody leads.
        """
        due = time.monotonic() + REPAIR_S
        while not cancelled():
            await asyncio.sleep(LOST_S)
            try:
                if not leading():
                    await self._restore()
                elif time.monotonic() > due:
                    due = time.monotonic() + REPAIR_S
                    await self.look_over()
            except (QueueUnavailableError, ConfigurationError) as error:
                log.warning("the queues were not looked over: %s", error)

    async def _restore(self) -> None:
        """Make the buckets and streams where there is no catalogue; nothing else, for it is not ours to change."""
        with contextlib.suppress(QueueUnavailableError):  # which a bucket that is gone raises, too
            if await self._broker.config.get(store.EPOCH) is not None:
                return
        self.forget()
        await self._broker.provision([])

    async def _tell(self) -> None:
        """Tell readers what is deployed; behind the queues, for they place every model by it at once."""
        assert self._registry.deployment is not None
        value = placement.encode(self._registry.deployment)
        if await self._broker.config.get(placement.KEY) != value:
            await self._broker.config.put(placement.KEY, value)
        self._told = True
