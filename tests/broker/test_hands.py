"""Work in hand on a real nats-server that forgets: what comes once more is neither lost nor worked on again."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import aclosing, contextmanager

import msgspec
import pytest

from sie_broker import claim, jobs, subjects
from sie_broker.contract import Delivery
from sie_broker.jetstream import hands
from sie_broker.jetstream.hands import Pulse
from sie_broker.jetstream.nats_broker import NatsBroker
from sie_broker.jetstream.peers import Place
from sie_broker.jetstream.provisioning import Provisioner
from sie_broker.jetstream.streams import Limits
from sie_broker.records import Lane, Queue, Reply, Work
from sie_sdk.errors import PayloadLostError, QueueUnavailableError
from tests.conftest import eventually
from tests.congruence.test_broker import Plenty

LANE = Lane("default", "default", "cpu")
QUEUE = Queue(LANE, "org/model.v1")


def work(work_id: str) -> Work:
    return Work(id=work_id, op="encode", lane=LANE, model=QUEUE.model, data=b"", time=time.time())


@pytest.fixture
async def broker(nats_url: str) -> AsyncIterator[NatsBroker]:
    broker = NatsBroker(nats_url, name="test")
    await broker.connect()
    await broker.provision([(LANE, QUEUE.model)])
    yield broker
    await broker.close()


@contextmanager
def pulling(broker: NatsBroker, taken: list[Delivery]) -> Iterator[asyncio.Task[None]]:
    """What is delivered is kept in ``taken``."""

    async def pull() -> None:
        async with aclosing(broker.pull(QUEUE, Plenty(), lambda: 0)) as deliveries:
            async for delivery in deliveries:
                taken.append(delivery)  # noqa: PERF401  # as they come

    pulls = asyncio.create_task(pull())
    yield pulls
    pulls.cancel()


async def forget(broker: NatsBroker) -> None:
    """Make the server deliver everything as if for the first time."""
    await broker.nc.jetstream().delete_consumer(subjects.stream(LANE.pool), subjects.consumer(QUEUE))
    await broker.provision([(LANE, QUEUE.model)])


async def emptied(broker: NatsBroker) -> None:
    """Return when nothing is left in the queue; acknowledgements take a moment."""
    end = time.monotonic() + 10
    while await broker.backlog():
        assert time.monotonic() < end
        await asyncio.sleep(0.005)


async def test_work_that_comes_again_while_it_is_in_hand_is_one_delivery_with_the_newer_lease(
    broker: NatsBroker,
) -> None:
    taken: list[Delivery] = []
    await broker.submit(work("first"))
    with pulling(broker, taken):
        await eventually(lambda: len(taken) == 1)
        (held,) = broker.hands.held.values()
        older = held.lease
        await forget(broker)
        await broker.submit(work("second"))  # comes after the first one has come again
        await eventually(lambda: len(taken) == 2)
        assert held.lease != older, "else the acknowledgement goes nowhere"
        assert [delivery.work.id for delivery in taken] == ["first", "second"]
        for delivery in taken:
            await delivery.ack()
        await emptied(broker)


async def test_work_whose_acknowledgement_was_forgotten_is_acknowledged_again_and_not_delivered(
    broker: NatsBroker,
) -> None:
    taken: list[Delivery] = []
    await broker.submit(work("first"))
    with pulling(broker, taken):
        await eventually(lambda: len(taken) == 1)
        (place,) = broker.hands.held
        await broker.hands.settle(place, "nobody.hears", b"+ACK")
        await forget(broker)
        await broker.submit(work("second"))
        await eventually(lambda: len(taken) == 2)
        assert [delivery.work.id for delivery in taken] == ["first", "second"]
        await taken[1].ack()
        await emptied(broker)


async def test_what_was_once_here_and_is_no_more_is_given_back(broker: NatsBroker) -> None:
    lease = await broker.nc.subscribe("lease")
    await broker.hands._came_again(Place("sie_work_default", 1, 1), "lease")
    assert (await lease.next_msg(10)).data == b"-NAK"


async def test_only_what_was_settled_last_is_remembered(broker: NatsBroker, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hands, "REMEMBERED", 2)
    places = [Place("sie_work_default", sequence, 1) for sequence in range(3)]
    for place in places:
        await broker.hands.settle(place, "nobody.hears", b"+ACK")
    assert [*broker.hands._settled] == places[1:]


async def test_a_payload_stays_until_the_server_says_that_its_work_is_settled(broker: NatsBroker) -> None:
    large = msgspec.structs.replace(work("large"), data=bytes(claim.WORK_INLINE_BYTES + 1))
    taken: list[Delivery] = []
    await broker.submit(large)
    with pulling(broker, taken):
        await eventually(lambda: len(taken) == 1)
    payload = claim.payload_of(taken[0].work)
    assert payload is not None
    (held,) = broker.hands.held.values()
    lease, held.lease = held.lease, "nobody.hears"
    with pytest.raises(QueueUnavailableError):
        await taken[0].ack()
    assert await broker.payloads.load(payload) == large.data
    held.lease = lease
    await taken[0].ack()
    with pytest.raises(PayloadLostError):
        await broker.payloads.load(payload)


@pytest.fixture
async def other(broker: NatsBroker, nats_url: str) -> AsyncIterator[NatsBroker]:
    """Another worker."""
    other = NatsBroker(nats_url, name="other")
    await other.connect()
    yield other
    await other.close()


@pytest.mark.parametrize("settled", [False, True], ids=["in hand", "settled"])
async def test_what_a_server_gives_to_another_worker_goes_to_the_one_that_has_it(
    broker: NatsBroker, other: NatsBroker, settled: bool
) -> None:
    has, gets = list[Delivery](), list[Delivery]()
    await broker.submit(work("first"))
    with pulling(broker, has):
        await eventually(lambda: len(has) == 1)
    if settled:
        (place,) = broker.hands.held
        await broker.hands.settle(place, "nobody.hears", b"+ACK")
    with pulling(other, gets):
        await broker.submit(work("second"))
        await eventually(lambda: len(gets) == 1)
        await broker.hands.server_lost()
        await forget(broker)
        await broker.submit(work("third"))  # comes after the first two have come again
        await eventually(lambda: len(gets) == 2)
        assert [delivery.work.id for delivery in gets] == ["second", "third"]
        for delivery in gets if settled else [*has, *gets]:
            await delivery.ack()
        await emptied(broker)


async def test_what_a_worker_had_that_died_since_is_worked_on_by_whoever_gets_it(
    broker: NatsBroker, other: NatsBroker, nats_url: str
) -> None:
    dies = NatsBroker(nats_url, name="dies")
    await dies.connect()
    has, gets = list[Delivery](), list[Delivery]()
    await broker.submit(work("first"))
    with pulling(dies, has):
        await eventually(lambda: len(has) == 1)
    with pulling(other, gets):
        await broker.submit(work("second"))
        await eventually(lambda: len(gets) == 1)
        await dies.hands.server_lost()
        await dies.nc.close()
        await forget(broker)
        await eventually(lambda: len(gets) == 2)
    assert {delivery.work.id for delivery in gets} == {"first", "second"}


async def test_what_was_given_back_is_delivered_again(broker: NatsBroker) -> None:
    taken: list[Delivery] = []
    await broker.submit(work("first"))
    with pulling(broker, taken):
        await eventually(lambda: len(taken) == 1)
        await taken[0].nak()
        await eventually(lambda: len(taken) == 2)
    assert [delivery.attempt for delivery in taken] == [1, 2]


async def test_a_worker_that_leaves_gives_back_what_it_has(broker: NatsBroker, other: NatsBroker) -> None:
    has, gets = list[Delivery](), list[Delivery]()
    await broker.submit(work("first"))
    with pulling(other, has) as pulls:
        await eventually(lambda: len(has) == 1)
    await asyncio.wait({pulls})  # else what it gives back comes to it once more
    await other.close()
    with pulling(broker, gets):
        await eventually(lambda: len(gets) == 1, deadline_s=Limits().ack_wait_s / 2)


async def test_work_that_takes_longer_than_a_lease_is_delivered_once(nats_url: str) -> None:
    broker = NatsBroker(nats_url, name="test", limits=Limits(ack_wait_s=2))
    await broker.connect()
    await broker.provision([(LANE, QUEUE.model)])
    taken: list[Delivery] = []
    await broker.submit(work("long"))
    with pulling(broker, taken):
        await eventually(lambda: len(taken) == 1)
        since = time.monotonic()
        await eventually(lambda: time.monotonic() - since > 2.5)
        consumer = await broker.nc.jetstream().consumer_info(subjects.stream(LANE.pool), subjects.consumer(QUEUE))
        assert (consumer.num_ack_pending, consumer.num_redelivered) == (1, 0)
    await broker.close()


async def test_a_reply_that_was_kept_while_its_inbox_heard_nothing_is_found_after_the_reconnection(
    broker: NatsBroker,
) -> None:
    with broker.expect("missed") as (_, coming):
        await jobs.keep(broker.jobs, Reply(id="missed", data=b"done"))
        await broker.nc.force_reconnect()
        async with asyncio.timeout(10):
            assert (await coming).data == b"done"


async def test_a_reply_nobody_confirmed_is_kept_and_sent_once_more(broker: NatsBroker) -> None:
    deaf = await broker.nc.subscribe(subjects.reply("away", "w"))  # hears, but says nothing
    await broker.deliver_reply(subjects.reply("away", "w"), Reply(id="w", data=b"done"))
    first, second = await deaf.next_msg(10), await deaf.next_msg(10)
    assert first.data == second.data == b"done"
    assert first.reply and not second.reply
    assert (await jobs.result(broker.jobs, "w")) == Reply(id="w", data=b"done")


async def test_a_reply_nobody_waits_for_holds_up_no_other_while_it_cannot_be_kept(
    broker: NatsBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    leader, begun = asyncio.Event(), asyncio.Event()
    keep = broker.jobs.put

    async def put(key: str, value: bytes) -> None:
        begun.set()
        await leader.wait()  # the server elects one
        await keep(key, value)

    monkeypatch.setattr(broker.jobs, "put", put)
    with broker.expect("wanted") as (inbox, coming):
        left = asyncio.create_task(broker._offer(subjects.reply("test", "left"), Reply(id="left", data=b"x")))
        await begun.wait()
        assert await broker._offer(inbox, Reply(id="wanted", data=b"y"))
        assert coming.result().data == b"y"
        assert not left.done()
        leader.set()
        assert await left
    assert (await jobs.result(broker.jobs, "left") or Reply("", b"")).data == b"x"


async def test_a_reply_that_is_not_kept_yet_at_the_end_is_left_to_its_worker(
    nats_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    worker, ingress = NatsBroker(nats_url, name="bundle-w"), NatsBroker(nats_url, name="ingress-a")
    for each in (worker, ingress):
        await each.connect()
    await worker.provision([(LANE, QUEUE.model)])
    begun = asyncio.Event()

    async def put(key: str, value: bytes) -> None:
        begun.set()
        await asyncio.Event().wait()

    monkeypatch.setattr(ingress.jobs, "put", put)
    sent = asyncio.create_task(worker.deliver_reply(subjects.reply("ingress-a", "left"), Reply(id="left", data=b"x")))
    await begun.wait()
    await ingress.close()
    await sent
    assert (await jobs.result(worker.jobs, "left") or Reply("", b"")).data == b"x"
    await worker.close()


async def test_work_whose_ingress_is_gone_is_recorded_as_a_job_with_its_result(broker: NatsBroker) -> None:
    taken: list[Delivery] = []
    gone = msgspec.structs.replace(work("w"), reply_to=subjects.reply("gone", "w"))
    await broker.submit(gone)
    with pulling(broker, taken):
        await eventually(lambda: len(taken) == 1)
        await taken[0].reply(Reply(id="w", data=b"done"))
        await taken[0].ack()
    assert (await jobs.result(broker.jobs, "w")) == Reply(id="w", data=b"done")
    found = await jobs.find(broker.jobs, "w")
    assert found is not None and found.digest == jobs.job_of(gone).digest


async def test_what_reached_a_machine_before_it_slept_for_longer_than_a_lease_is_left_to_others(
    broker: NatsBroker, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    taken: list[Delivery] = []
    await broker.submit(work("first"))
    with pulling(broker, taken):
        await eventually(lambda: len(taken) == 1)
        await eventually(lambda: broker.hands._lease_s is not None)
        # What suspending it does to a machine's clocks: of a process's it moves this one alone.
        slept = time.clock_gettime(time.CLOCK_BOOTTIME) + 3600
        monkeypatch.setattr("sie_broker.clock.steady", lambda: slept)
        await broker.submit(work("second"))
        await eventually(lambda: "left to others" in caplog.text)
    assert [delivery.work.id for delivery in taken] == ["first"]


@pytest.mark.parametrize("left", [0, 1], ids=["the first left", "the last left"])
async def test_the_lease_is_read_from_a_model_that_is_still_there(
    nats_url: str, monkeypatch: pytest.MonkeyPatch, left: int
) -> None:
    monkeypatch.setattr(hands, "LEASE_KNOWN_S", 0.0)
    models = ["org/first", "org/last"]
    broker = NatsBroker(nats_url, name="test", limits=Limits(ack_wait_s=1))
    await broker.connect()
    await broker.provision([(LANE, model) for model in models])
    for model in models:
        await broker.hands.pulling(subjects.stream(LANE.pool), subjects.consumer(Queue(LANE, model)))
    await eventually(lambda: broker.hands._lease_s == 1)
    gone = subjects.consumer(Queue(LANE, models.pop(left)))
    await broker.nc.jetstream().delete_consumer(subjects.stream(LANE.pool), gone)
    await Provisioner(broker.nc, Limits(ack_wait_s=2)).ensure([(LANE, models[0])])
    await eventually(lambda: broker.hands._lease_s == 2)
    await broker.close()


def test_a_pulse_that_beats_tells_of_no_standstill_and_a_late_one_of_all_of_it() -> None:
    pulse = Pulse(0.0)
    pulse.beat(0.25)
    assert pulse.stood_still(0.5) == 0.25
    assert pulse.stood_still(40.25) == 40.0, "the beat itself comes after what waited in the socket"
    pulse.beat(40.25)
    assert pulse.stood_still(40.3) == 40.0, "or before it"
    pulse.beat(40.5)
    assert pulse.stood_still(40.5) == 0.25
