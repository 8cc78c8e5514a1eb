"""The heartbeat: told at once on change, once a second otherwise, and ended although a broker call swallows its end."""

from __future__ import annotations

import asyncio

import msgspec
import pytest

import sie_bundle.presence
from sie_broker.contract import Lane, WorkerState
from sie_broker.memory import MemoryBroker, MemoryBucket
from sie_bundle.presence import Counts, Presence
from tests.conftest import eventually

LANE = Lane(pool="default", bundle="default", profile="cpu")


def states(broker: MemoryBroker) -> list[WorkerState]:
    return [msgspec.msgpack.decode(kept.value, type=WorkerState) for kept in broker.presence._values.values()]


async def test_a_change_is_told_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sie_bundle.presence, "BEAT_S", 3600.0)  # so that only a change is told
    broker = MemoryBroker()
    presence = Presence(broker, LANE, lambda: Counts(("m",), 1, 2, 3, 4.5, 0.5))
    beating = asyncio.create_task(presence.beat())
    await eventually(lambda: [state.state for state in states(broker)] == ["starting"])
    presence.became("ready")
    await eventually(lambda: [state.state for state in states(broker)] == ["ready"])
    (state,) = states(broker)
    assert (state.models, state.in_flight, state.completed, state.forwards) == (("m",), 1, 2, 3)
    assert (state.busy_s, state.full_s) == (4.5, 0.5)
    assert state.memory_bytes > 0
    beating.cancel()
    await presence.goodbye()
    assert states(broker) == []


async def test_a_milestone_counts_from_the_decision_to_start_and_only_once() -> None:
    presence = Presence(MemoryBroker(), LANE, Counts, spawned_at=1.0)
    presence.milestone("engine")
    first = presence.startup["engine"]
    presence.milestone("engine")
    assert presence.startup == {"engine": first}
    assert first > 1_000_000_000


async def test_it_ends_although_the_broker_swallows_the_cancellation() -> None:
    class Swallowing(MemoryBucket):
        """As nats-py may do on Python 3.11: a cancellation that coincides with a result is lost."""

        async def put(self, key: str, value: bytes) -> None:
            under_way.set()
            try:
                await asyncio.Event().wait()
            except asyncio.CancelledError:
                return

    under_way = asyncio.Event()
    broker = MemoryBroker()
    broker.presence = Swallowing()
    beating = asyncio.create_task(Presence(broker, LANE, Counts).beat())
    await under_way.wait()
    beating.cancel()
    async with asyncio.timeout(5):
        await asyncio.gather(beating, return_exceptions=True)
