"""Every ingress knows how far the others are with the catalogue."""

from __future__ import annotations

import asyncio

import msgspec

from sie_broker.contract import Broker
from sie_config.epochs.mirror import Mirror
from sie_config.registry import Registry
from sie_ingress.applied import BELIEVED_S, AppliedEverywhere
from tests.broker.test_lease import Sometimes
from tests.config.test_writer import put
from tests.config.writing import writing
from tests.conftest import eventually
from tests.ingress.conftest import SPEC

OTHER = msgspec.structs.replace(SPEC, id="org/other")


class Ingress:
    def __init__(self, broker: Broker, name: str) -> None:
        self.now = 1000.0
        self.mirror = Mirror(broker.config, Registry())
        self.applied = AppliedEverywhere(broker.lanes, name, self.mirror, lambda: self.now)
        self._tasks = [asyncio.create_task(self.mirror.follow()), asyncio.create_task(self.applied.run())]

    def epochs(self) -> dict[str, int]:
        return {each.ingress: each.epoch for each in self.applied.ingresses()}

    async def stop(self) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)


async def test_ingresses_tell_each_other_which_epoch_they_serve(broker: Broker) -> None:
    async with writing(broker, SPEC) as writer:
        first, second = Ingress(broker, "a.1"), Ingress(broker, "b")
        await eventually(lambda: first.epochs() == second.epochs() == {"a.1": 1, "b": 1})
        await put(writer, OTHER)
        await eventually(lambda: first.epochs() == second.epochs() == {"a.1": 2, "b": 2})
        assert {each.digest for each in first.applied.ingresses()} == {writer.state.digest}
        await second.stop()
        await eventually(lambda: first.epochs() == {"a.1": 2})
        third = Ingress(broker, "c")
        await eventually(lambda: third.epochs() == {"a.1": 2, "c": 2})
        await third.stop()
        await first.stop()


async def test_an_ingress_that_says_nothing_any_more_is_gone(broker: Broker) -> None:
    async with writing(broker, SPEC):
        ingress = Ingress(broker, "a")
        await eventually(lambda: ingress.epochs() == {"a": 1})
        ingress.now += BELIEVED_S + 1
        assert ingress.epochs() == {}
        await ingress.stop()


async def test_an_ingress_that_ends_without_having_heard_of_what_it_told_leaves_nothing(broker: Broker) -> None:
    await broker.provision([])
    lanes = Sometimes(broker.lanes)
    lanes.answers = False
    telling = asyncio.create_task(AppliedEverywhere(lanes, "a", Mirror(broker.config, Registry())).run())
    await lanes.wrote_unheard.wait()
    assert await broker.lanes.entries("config.")
    telling.cancel()
    await asyncio.gather(telling, return_exceptions=True)
    assert not await broker.lanes.entries("config.")
