"""How work is sent to JetStream: all of a burst is taken, and none is given up because of those before it."""

from __future__ import annotations

import asyncio
import time

import pytest
from nats.aio.msg import Msg

from sie_broker.jetstream import nats_broker
from sie_broker.jetstream.mailbox import AWAY_S
from sie_broker.jetstream.nats_broker import PUBLISHING, NatsBroker
from sie_broker.records import Lane, Work

LANE = Lane("default", "default", "cpu")


async def test_a_burst_is_on_its_way_so_many_at_a_time_and_all_of_it_is_stored(
    nats_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    broker = NatsBroker(nats_url, name="test")
    await broker.connect()
    await broker.provision([(LANE, "m")])
    asked = most = 0
    ask = broker._mailbox.ask

    async def counted(subject: str, body: bytes, headers: dict[str, str] | None, timeout: float) -> Msg:
        nonlocal asked, most
        asked += 1
        most = max(most, asked)
        try:
            return await ask(subject, body, headers, timeout)
        finally:
            asked -= 1

    monkeypatch.setattr(broker._mailbox, "ask", counted)
    works = [Work(f"w{i}", "encode", LANE, "m", b"", round(time.time(), 6)) for i in range(4 * PUBLISHING)]
    stored = await asyncio.gather(*(broker.submit(work) for work in works))
    assert {one.sequence for one in stored} == set(range(1, len(works) + 1))
    assert most == PUBLISHING
    await broker.close()


async def test_a_loop_that_was_away_for_longer_than_an_answer_may_take_looks_for_it_before_it_gives_up(
    nats_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(nats_broker, "PUBLISHED_S", 0.5)
    broker = NatsBroker(nats_url, name="test")
    await broker.connect()
    await broker.provision([(LANE, "m")])
    asked = asyncio.create_task(broker.submit(Work("w", "encode", LANE, "m", b"", round(time.time(), 6))))
    while not broker._mailbox._asked:  # noqa: ASYNC110  # nothing tells of it
        await asyncio.sleep(0)
    time.sleep(1)  # noqa: ASYNC251  # as garbage collection does, or a host that takes the core away
    assert (await asked).sequence == 1
    await broker.close()


async def test_a_loop_that_is_away_again_and_again_gives_up_what_nobody_answers(nats_url: str) -> None:
    broker = NatsBroker(nats_url, name="test")
    await broker.connect()

    async def silent(message: Msg) -> None: ...

    await broker.nc.subscribe("silent", cb=silent)
    asked = asyncio.create_task(broker._mailbox.ask("silent", b"", None, 0.1))
    for _ in range(50):
        time.sleep(2 * AWAY_S)  # noqa: ASYNC251  # as a loop that has too much to do
        await asyncio.sleep(0)
        if asked.done():
            break
    assert asked.done() and isinstance(asked.exception(), TimeoutError)
    await broker.close()
