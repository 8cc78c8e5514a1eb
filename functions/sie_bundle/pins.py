"""What a worker keeps loaded unasked: the models its settings name, and those of the pool that it works for.

Names are looked up anew whenever the catalogue changes: a model that is added later is loaded then, one that is
changed is loaded as it is now, one that is gone is let go like any other. Not here: how a model is loaded and kept
(``residency``), whose pool this worker is in (``membership``).
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterable, Iterator

from sie_broker.duties import Duties
from sie_broker.records import Lane
from sie_bundle.residency.residency import Residency
from sie_config.model.model_spec import ModelSpec
from sie_config.model.variant import name_of
from sie_config.registry import Registry, lanes_of
from sie_sdk.errors import SIEError

log = logging.getLogger("sie.bundle.pins")

PAUSE_S = 0.5
"""The shortest time between two looks: a catalogue that is written anew changes a thousand times."""


class Pins:
    """Pins models of ``lane`` in the residency and has each of them loaded. ``own``: the names of the settings."""

    def __init__(
        self, registry: Registry, residency: Residency, lane: Lane, own: Iterable[str], duties: Duties
    ) -> None:
        self._registry = registry
        self._residency = residency
        self._lane = lane
        self._own = tuple(filter(None, (name.strip() for name in own)))
        self._of_pool: tuple[str, ...] = ()
        self._duties = duties
        self._holding: dict[ModelSpec, asyncio.Task[None]] = {}
        self._refused: dict[str, str] = {}
        """Names that lead to nothing now, and why: told once."""
        self._news = asyncio.Event()

    def of_pool(self, names: Iterable[str]) -> None:
        """Keep these beside its own from now on."""
        self._of_pool = tuple(names)
        self.update()

    def changed(self) -> None:
        """The catalogue has changed."""
        self._news.set()

    async def follow(self) -> None:
        """Follow what has changed, until cancelled."""
        while True:
            self._news.clear()
            self.update()
            await asyncio.sleep(PAUSE_S)
            await self._news.wait()

    def update(self) -> None:
        """Pin what the names lead to now, begin to load what is new among it, and stop trying what is not wanted."""
        refused: dict[str, str] = {}
        wanted = dict.fromkeys(self._specs(refused))
        for name in refused.keys() - self._refused.keys():
            log.warning("not pinned: %s", refused[name])
        self._refused = refused
        self._residency.pin([name_of(spec) for spec in wanted])
        for spec in self._holding.keys() - wanted.keys():
            self._holding.pop(spec).cancel()
        for spec in wanted:
            if spec not in self._holding:
                self._holding[spec] = self._duties.begin(self._residency.hold(spec))

    def _specs(self, refused: dict[str, str]) -> Iterator[ModelSpec]:
        """Those of this lane, each with the profile that its name chose; a name of nothing keeps no other down."""
        for name in (*self._own, *self._of_pool):
            try:
                spec = self._registry.resolve(name)
            except SIEError as error:
                refused[name] = str(error)
                continue
            if self._lane in lanes_of(spec):
                yield spec
