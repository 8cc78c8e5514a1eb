"""Results that cannot be sent in time, or are gone before they were sent, are dead letters; on both brokers."""

from __future__ import annotations

import asyncio

import pytest

from sie_broker import subjects
from sie_broker.contract import Broker
from sie_broker.ending import end
from sie_broker.events import sink_room, sinks
from sie_broker.merge import part_id
from sie_broker.parcel import Parcel, work_off
from sie_sdk.errors import QueueUnavailableError
from tests.broker.test_sinks import Office, buried, dispatching, office
from tests.conftest import eventually

__all__ = ["office"]


async def test_a_result_that_waited_too_long_for_its_turn_is_a_dead_letter_and_can_be_sent_again(
    office: Office, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sink_room, "LARGE_BYTES", 10)
    office.server.hold.clear()
    async with dispatching(office):
        await office.due("has its turn")
        await eventually(lambda: bool(office.server.open))
        await office.due("waits")
        with monkeypatch.context() as much_later:
            much_later.setattr(sinks, "GIVE_UP_S", -1.0)
            letter = await buried(office)
        assert (letter.id, letter.reason) == ("waits-result", "undeliverable")
        assert "not its turn" in letter.fault
        await office.broker.dead.replay(letter.id)
        office.server.hold.set()
        await eventually(lambda: len(office.server.accepted) == 2)
    assert await office.letters() == []


async def test_a_result_that_is_gone_before_it_could_be_sent_is_a_dead_letter(
    office: Office, monkeypatch: pytest.MonkeyPatch
) -> None:
    await office.due("j")
    await office.broker.jobs.delete("result." + subjects.token("j"))
    monkeypatch.setattr(sinks, "GIVE_UP_S", -1.0)
    async with dispatching(office):
        letter = await buried(office)
    assert (letter.id, letter.deliveries) == ("j-result", 1)
    assert "not kept any more" in letter.fault


async def test_parts_of_which_one_expires_while_they_wait_for_their_turn_are_a_dead_letter(
    office: Office, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO", sinks.log.name)
    monkeypatch.setattr(sinks, "PER_HOST", 0)
    await office.due("j", sizes=(1, 1))
    async with dispatching(office):
        await eventually(lambda: "busy" in caplog.text)
        await office.broker.jobs.delete("result." + subjects.token(part_id("j", 0)))
        letter = await buried(office)
    assert letter.id == "j-result"
    assert office.server.received == []


async def test_what_fails_while_it_is_settled_is_delivered_again_and_what_failed_after_that_is_not(
    broker: Broker, office: Office, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sie_broker.parcel.ACK_WAIT_S", 0.05)
    seen: list[tuple[str, int]] = []

    async def settle(parcel: Parcel) -> None:
        seen.append((parcel.data.decode(), parcel.attempt))
        if parcel.data == b"settled" or parcel.attempt == 3:
            await parcel.ack()
        if len(seen) < 5:
            raise ZeroDivisionError if parcel.attempt == 1 else QueueUnavailableError("away")

    await office.due("settled")
    await office.due("fails")
    working = asyncio.create_task(work_off(broker.due, settle, 1))
    await eventually(lambda: ("fails", 3) in seen)
    await office.due("last")
    await eventually(lambda: ("last", 1) in seen)
    await end(working)
    assert seen == [("settled", 1), ("fails", 1), ("fails", 2), ("fails", 3), ("last", 1)]
