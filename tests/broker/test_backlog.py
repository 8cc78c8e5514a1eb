"""What waits, counted by lane on a real server, whatever else somebody has put beside it."""

from __future__ import annotations

import pytest

from sie_broker.jetstream import nats_broker
from sie_broker.jetstream.nats_broker import NatsBroker
from tests.congruence.test_broker import LANE, MODEL, work

STRAYS = ("sie.work.default.oops", "sie.work.default.default.cpu.oops", "sie.work.default.=FF.cpu.interactive.m")


async def test_a_message_that_is_no_work_hides_no_lane_and_is_told_once(
    nats_url: str, caplog: pytest.LogCaptureFixture
) -> None:
    broker = NatsBroker(nats_url, "test")
    await broker.connect()
    await broker.provision([(LANE, MODEL)])
    await broker.submit(work("w"))
    for stray in STRAYS:
        await broker.nc.jetstream().publish(stray, b"hello")
    for _ in range(2):
        assert await broker.backlog() == {LANE: 1}
    told = [record.getMessage() for record in caplog.records if record.name == nats_broker.log.name]
    assert len(told) == 1 and "is no work subject" in told[0]
    await broker.close()
