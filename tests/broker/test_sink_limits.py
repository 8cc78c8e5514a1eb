"""What results for sinks cost who sends them: less than its pod has, however large, and never a life without an end."""

from __future__ import annotations

import asyncio
import re
import sys
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import numpy as np
import pytest
import yaml

from sie_broker import claim, subjects
from sie_broker.events import exchange, sinks
from sie_broker.events.allow_list import AllowList
from sie_broker.events.sinks import MAX_BYTES, PER_HOST, TRIES, UNSEEN, Dispatcher
from sie_broker.jetstream.nats_broker import NatsBroker
from sie_broker.merge import part_id
from sie_broker.parcel import Parcel
from sie_broker.records import Reply
from sie_config.deployment.machine_profile import amount
from sie_sdk import replies, wire
from sie_sdk.errors import QueueUnavailableError
from sie_sdk.outputs import DenseOutput
from sie_sdk.types import Timing, Usage
from sie_sdk.wire import MediaType
from tests.broker.sink_double import SinkServer
from tests.broker.test_sinks import Office, dispatching
from tests.conftest import eventually
from tests.congruence.test_broker import LANE, MODEL

BASE = Path(__file__).parents[2] / "knative/base/demand.yaml"
SENDS = """
import asyncio, os, sys
from pathlib import Path
import sie_broker.__main__
from sie_broker.events.allow_list import AllowList
from sie_broker.events.sinks import Dispatcher
from sie_broker.events import exchange
from sie_broker.jetstream.nats_broker import NatsBroker

async def main():
    broker = NatsBroker(sys.argv[1], name="child")
    await broker.connect()
    sending = asyncio.create_task(Dispatcher(broker, AllowList(sys.argv[2], "")).run())
    await asyncio.to_thread(sys.stdin.read)
    sending.cancel()
    await asyncio.gather(sending, return_exceptions=True)
    await broker.close()
    print(Path("/proc/self/status").read_text())

exec(sys.argv[3])
asyncio.run(main())
"""
"""The demand holder's dispatcher, until its input ends."""


def memory_limit() -> float:
    (container,) = yaml.safe_load(BASE.read_text())["spec"]["template"]["spec"]["containers"]
    return amount(container["resources"]["limits"]["memory"])


@asynccontextmanager
async def at_hand(nats_url: str) -> AsyncIterator[Office]:
    """On a real NATS, for a dispatcher in another process."""
    broker = NatsBroker(nats_url, name="test")
    await broker.connect()
    await broker.provision([(LANE, MODEL)])
    server = SinkServer()
    async with server.running():
        yield Office(broker, server)
    await broker.close()


@pytest.fixture
async def far(nats_url: str) -> AsyncIterator[Office]:
    async with at_hand(nats_url) as office:
        yield office


async def due(office: Office, job: str, media: MediaType, size: int, *, parts: int = 1, to: str = "") -> None:
    """A result of ``size`` bytes, or a little less, in ``parts``."""
    dims = 1024
    count = (size // parts - 1000) // (4 * dims + 80)
    sizes = (count,) * parts if parts > 1 else ()
    await office.record(job, to=to, sizes=sizes, media=media)
    for number in range(parts):
        rows = np.random.default_rng(number).standard_normal((count, dims), dtype=np.float32)
        data = replies.encode(MODEL, [None] * count, {"dense": DenseOutput(rows, dims, "float32")}, Timing(), Usage())
        reply = Reply(id=part_id(job, number) if sizes else job, data=data, worker="w")
        await office.broker.deliver_reply(subjects.sink(job), await claim.check_in(office.broker.payloads, reply))


async def peak(child: asyncio.subprocess.Process) -> int:
    """The most memory that it has had, at its end."""
    said, _ = await child.communicate(b"")
    found = re.search(rb"VmHWM:\s+(\d+) kB", said)  # what getrusage tells begins with that of whoever started it
    assert found is not None, said
    return int(found[1]) * 1024


async def sender(office: Office, before: str = "") -> asyncio.subprocess.Process:
    assert isinstance(office.broker, NatsBroker)
    pipe = asyncio.subprocess.PIPE
    return await asyncio.create_subprocess_exec(
        sys.executable, "-c", SENDS, office.broker.url, office.server.url, before, stdin=pipe, stdout=pipe
    )


@pytest.mark.parametrize("media", MAX_BYTES)
async def test_the_largest_result_that_is_sent_fits_into_the_pod_with_much_to_spare(
    far: Office, media: MediaType
) -> None:
    await due(far, "j", media, MAX_BYTES[media], parts=16)
    child = await sender(far)
    await eventually(lambda: bool(far.server.accepted))
    assert far.server.received[0].headers["ce-status"] == "200"
    assert await peak(child) < 0.7 * memory_limit()


async def test_many_results_for_a_sink_that_hangs_fit_into_the_pod(far: Office) -> None:
    far.server.hold.clear()
    for number in range(40):
        await due(far, f"{number}", wire.JSON, 3 << 20)
    child = await sender(far)
    await eventually(lambda: far.server.open == 1)  # for a host that has more in hand than one there is less room
    far.server.hold.set()
    await eventually(lambda: len(far.server.accepted) > PER_HOST)
    assert await peak(child) < 0.7 * memory_limit()


async def test_a_result_that_no_message_holds_is_an_error_at_its_subject(far: Office) -> None:
    assert isinstance(far.broker, NatsBroker)
    inbox = far.broker.nc.new_inbox()
    subscription = await far.broker.nc.subscribe(inbox)
    await due(far, "j", wire.MSGPACK, 9 << 20, to=f"nats:{inbox}")
    async with dispatching(far):
        message = await subscription.next_msg(20)
    assert message.headers is not None and message.headers["ce-status"] == "413"
    assert b"/v1/jobs/j" in message.data


@pytest.mark.parametrize("parts", [1, 2])
async def test_what_kills_whoever_sends_it_is_a_dead_letter_after_some_and_can_be_sent_again(
    nats_url: str, monkeypatch: pytest.MonkeyPatch, parts: int
) -> None:
    monkeypatch.setattr("sie_broker.parcel.ACK_WAIT_S", 1.0)
    async with at_hand(nats_url) as far:
        await due(far, "j", wire.JSON, 20_000 * parts, parts=parts)
        killed = 0
        while not await far.letters():
            child = await sender(far, "exchange.result = lambda *_: os.kill(os.getpid(), 9)")
            ended = asyncio.create_task(child.wait())
            while not ended.done() and not await far.letters():
                await asyncio.wait([ended], timeout=0.1)
            killed += ended.done()
        await peak(child)
        assert killed == TRIES // UNSEEN + 1
        assert far.server.received == []
        (letter,) = await far.letters()
        assert (letter.id, letter.reason, letter.deliveries) == ("j-result", "undeliverable", killed + 1)
        await far.broker.dead.replay(letter.id)
        async with dispatching(far):
            await eventually(lambda: bool(far.server.accepted))
        assert await far.letters() == []


async def test_a_sink_that_hangs_keeps_no_room_from_another(far: Office) -> None:
    far.server.hold.clear()
    other = SinkServer()
    async with other.running():
        for number in range(40):
            await due(far, f"hangs {number}", wire.MSGPACK, 700_000)
        for number in range(6):
            await due(far, f"fine {number}", wire.MSGPACK, 700_000, to=f"{other.url}/sink")
        async with dispatching(far, f"{far.server.url},{other.url}"):
            await eventually(lambda: len(other.accepted) == 6)
            assert far.server.open > 0
            far.server.hold.set()


class Again(Parcel):
    """A parcel that was in hand before."""

    sequence, attempt, at = 1, 2, time.time()
    subject, headers, data = subjects.sink("j"), {}, b"j"

    async def ack(self) -> None: ...
    async def nak(self, delay: float) -> None: ...
    async def term(self, reason: str) -> None: ...


async def tries(office: Office) -> int:
    return int(await office.broker.sinks.get(sinks._tries("j")) or 0)


@pytest.mark.parametrize(("error", "counted"), [(QueueUnavailableError("away"), 1), (ZeroDivisionError(), UNSEEN)])
async def test_an_outage_counts_as_one_try_and_what_nobody_expected_as_several(
    far: Office, monkeypatch: pytest.MonkeyPatch, error: Exception, counted: int
) -> None:
    def fails(*_: object) -> None:
        raise error

    monkeypatch.setattr(exchange, "result", fails)
    await far.due("j")
    with pytest.raises(type(error)):
        await Dispatcher(far.broker, AllowList(far.server.url, ""))._send(Again())
    assert await tries(far) == counted


async def test_a_shutdown_counts_as_one_try(far: Office) -> None:
    far.server.hold.clear()
    await far.due("j")
    sending = asyncio.create_task(Dispatcher(far.broker, AllowList(far.server.url, ""))._send(Again()))
    await eventually(lambda: far.server.open == 1)
    sending.cancel()
    with pytest.raises(asyncio.CancelledError):
        await sending
    assert await tries(far) == 1
