"""The heartbeat: told at once on change, once a second otherwise, and ended although a broker call swallows its end."""

from __future__ import annotations

import asyncio
import re
from pathlib import Path

import msgspec
import pytest
from nats.aio.msg import Msg

import sie_bundle.bundle
import sie_bundle.presence
from sie_broker.jetstream.nats_broker import NatsBroker
from sie_broker.memory import MemoryBroker, MemoryBucket
from sie_broker.records import Lane, WorkerState
from sie_broker.workers import Workers
from sie_bundle.__main__ import main
from sie_bundle.presence import Counts, Presence
from sie_sdk.errors import ConfigurationError
from tests import tiny_model
from tests.config.writing import writing
from tests.conftest import eventually

LANE = Lane(pool="default", bundle="default", profile="cpu")


def states(broker: MemoryBroker) -> list[WorkerState]:
    return [msgspec.msgpack.decode(kept.value, type=WorkerState) for kept in broker.presence._values.values()]


async def test_a_change_is_told_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sie_bundle.presence, "BEAT_S", 3600.0)  # so that only a change is told
    broker = MemoryBroker()
    presence = Presence(broker, LANE, lambda: Counts(("m",), 1, 2, 3, 4.5, 0.5, "c0ffee"))
    beating = asyncio.create_task(presence.beat())
    await eventually(lambda: [state.state for state in states(broker)] == ["starting"])
    presence.became("ready")
    await eventually(lambda: [state.state for state in states(broker)] == ["ready"])
    (state,) = states(broker)
    assert (state.models, state.in_flight, state.completed, state.forwards) == (("m",), 1, 2, 3)
    assert (state.busy_s, state.full_s, state.bundle_config_hash) == (4.5, 0.5, "c0ffee")
    assert state.memory_bytes > 0
    beating.cancel()
    await presence.goodbye()
    assert states(broker) == []


async def test_two_workers_of_one_process_are_heard_of_as_two() -> None:
    broker, support = MemoryBroker(), msgspec.structs.replace(LANE, pool="support")
    for lane in (LANE, support):
        await broker.beat(Presence(broker, lane, Counts).now())
    assert sorted(state.lane.pool for state in states(broker)) == ["default", "support"]


async def test_a_milestone_counts_from_the_decision_to_start_and_only_once() -> None:
    presence = Presence(MemoryBroker(), LANE, Counts, spawned_at=1.0)
    presence.milestone("engine")
    first = presence.startup["engine"]
    presence.milestone("engine")
    assert presence.startup == {"engine": first}
    assert first > 1_000_000_000
    presence.milestone("imports", at=3.0)
    assert presence.startup["imports"] == 2.0


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
    await eventually(beating.done, 5)


async def test_a_heartbeat_is_in_presence_and_outside_tools_hear_it_as_json(nats_url: str) -> None:
    broker, heard = NatsBroker(nats_url, name="test"), list[tuple[str, WorkerState]]()
    await broker.connect()
    await broker.provision([])

    async def listen(message: Msg) -> None:
        heard.append((message.subject, msgspec.json.decode(message.data, type=WorkerState)))

    await broker.nc.subscribe("sie.health.*", cb=listen)
    presence = Presence(broker, LANE, lambda: Counts(("m",), bundle_config_hash="c0ffee"))
    presence.worker = "host.example-7"
    beating = asyncio.create_task(presence.beat())
    await eventually(lambda: bool(heard))
    beating.cancel()
    await asyncio.gather(beating, return_exceptions=True)
    subject, state = heard[0]
    assert subject == "sie.health.host=2Eexample-7"
    assert (state.worker, state.models, state.bundle_config_hash) == ("host.example-7", ("m",), "c0ffee")
    workers = Workers()
    await workers.read(broker.presence)
    assert [known.worker for known in workers.all()] == ["host.example-7"]
    await broker.close()


def test_every_field_of_a_heartbeat_is_documented_and_the_example_has_them_all() -> None:
    documented = (Path(__file__).parents[2] / "docs/heartbeats.md").read_text()
    (example,) = re.findall(r"```json\n(.*?)```", documented, re.DOTALL)
    shown = msgspec.json.decode(example)
    msgspec.json.decode(example, type=WorkerState)
    for field in msgspec.structs.fields(WorkerState):
        assert f"| `{field.name}` |" in documented
        assert field.name in shown


@pytest.mark.parametrize(
    ("error", "fault"),
    [
        (ConfigurationError("SIE_DEVICE=cuda: no such device.", hint="Set cpu."), "CONFIGURATION SIE_DEVICE=cuda: no"),
        (ImportError("libcudart.so.12: cannot open\nshared object file"), "ImportError libcudart.so.12: cannot open"),
    ],
)
async def test_a_worker_that_cannot_start_says_why_and_counts_for_nobody(error: Exception, fault: str) -> None:
    broker, workers = MemoryBroker(), Workers()
    presence = Presence(broker, LANE, Counts)
    await presence.cannot_start(error)
    (state,) = states(broker)
    await workers.read(broker.presence)
    assert state.fault.startswith(fault) and "\n" not in state.fault
    assert (workers.present(), workers.live(LANE)) == ({}, False)


async def test_a_bundle_whose_engine_cannot_be_imported_says_so_before_it_ends(
    nats_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    broker = NatsBroker(nats_url, name="test")
    await broker.connect()
    monkeypatch.setattr(sie_bundle.bundle, "ENGINE", "no_such_engine")
    monkeypatch.setenv("SIE_NATS_URL", nats_url)
    monkeypatch.setenv("PORT", "0")
    async with writing(broker, tiny_model.spec(Path("unused"))):
        with pytest.raises(ModuleNotFoundError):
            await main()
    told = [msgspec.msgpack.decode(value, type=WorkerState) for value in (await broker.presence.entries()).values()]
    assert [state.fault for state in told] == ["ModuleNotFoundError No module named 'no_such_engine'"]
    await broker.close()
