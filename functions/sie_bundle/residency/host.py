"""Host memory: the checkpoints that are kept open there, for models that come back to the device.

Owns what is kept and when it goes. How much it takes is ``tier``'s account, how it is held ``loading``'s and
``pinned``'s: mapped for a CPU, which the system takes back when it needs to, and copied for a CUDA device.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Collection
from typing import TYPE_CHECKING

from sie_bundle.residency.loading import Loader, Opened
from sie_bundle.residency.memory import Memory
from sie_bundle.residency.tier import Tier
from sie_config.model.variant import key_of, name_of

if TYPE_CHECKING:
    from sie_bundle.engine.cost import Fit
    from sie_bundle.models.model import Model

log = logging.getLogger("sie.bundle.host")


class Host:
    """The checkpoints of one device's models.

    Args:
        loader: holds them.
        limit: the most bytes of them.
        percent: with more than this part of the machine's memory in use, copies go below the limit.
        pinned: names of variants that are never let go.
        reading: the memory of the machine.
        clock: seconds.
    """

    def __init__(
        self,
        loader: Loader,
        limit: int,
        percent: float,
        pinned: Collection[str],
        reading: Callable[[], Memory],
        clock: Callable[[], float],
    ) -> None:
        self.kept: Tier[Opened] = Tier(limit, pinned, clock)
        """By `key_of`."""
        self._loader = loader
        self._percent = percent
        self._reading = reading
        self._keeping: set[asyncio.Task[None]] = set()
        self._returned = 0
        """How many had been let go when what was theirs was last returned to the system."""

    @property
    def busy(self) -> bool:
        """Whether any is on its way here."""
        return bool(self._keeping)

    def keep(self, opened: Opened, model: Model) -> None:
        """Keep the checkpoint of a model from now on, beside everything else, if there is room for it."""
        if not self._loader.keeps(opened):
            return
        # Not the model: it would be in use for as long as its checkpoint is copied.
        keeping = asyncio.create_task(self._keep(opened, self._loader.fit_of(model)))
        self._keeping.add(keeping)
        keeping.add_done_callback(self._keeping.discard)

    def ease(self) -> None:
        """Let go what is over the limit, one more where they are copies and the machine is short of memory, and return
        what was theirs. From any thread."""
        self.kept.trim()
        if not self._loader.pins:
            return
        if self._reading().over(self._percent) > 0:
            self.kept.relieve()
        # Of one in use nothing is free yet.
        if self._returned < (gone := self.kept.gone) and not self.kept.leaving:
            self._returned = gone
            self._loader.unpin()

    async def _keep(self, opened: Opened, fit: Fit | None) -> None:
        name = key_of(opened.checkpoint.spec)
        # What cannot fit would only drive the others out.
        if opened.bytes > self.kept.most(name) or not self.kept.make_room(name, opened.bytes):
            return
        try:
            kept = await self._loader.keep(opened, fit)
            self.kept.put(name, kept, kept.bytes)
            if kept.bytes > self.kept.most(name):
                self.kept.let_go(name)
            else:
                self.kept.make_room(name, 0)  # where it takes more than its files
        except (MemoryError, RuntimeError) as error:
            log.warning("%s is not kept in the host's memory: %s", name_of(opened.checkpoint.spec), error)
            self._returned = -1  # nor is what was copied until then
        finally:
            self.kept.release(name)
