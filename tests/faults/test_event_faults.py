"""Events and their results under kill -9: nothing that was accepted is lost, and each result is taken once."""

from __future__ import annotations

import asyncio
import hashlib
import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest

from sie_broker.events.sinks import IN_HAND
from sie_local.ports import free_port
from tests.broker.sink_double import SinkServer
from tests.faults.deployment import MODEL, Deployment
from tests.faults.noop_bundle import vector
from tests.ingress.any_producer import binary, event, lengths
from tests.ingress.nats_wire import Wire, connected
from tests.ingress.test_intake import on_nats
from tests.platform import wait_until

pytestmark = pytest.mark.e2e

SINK_PORT = free_port()
SINK = f"http://127.0.0.1:{SINK_PORT}/results"
REDELIVERED_S = 60.0
"""What was in the hands of a process that was killed comes again after 30 s."""


@pytest.fixture
def deployment(tmp_path: Path) -> Iterator[Deployment]:
    deployment = Deployment(tmp_path, SIE_REPLY_SINKS=f"http://127.0.0.1:{SINK_PORT}/")
    yield deployment
    deployment.close()


@contextmanager
def serving(sink: SinkServer) -> Iterator[None]:
    """The sink, on a thread of its own while the context is open."""
    loop, up, down = asyncio.new_event_loop(), threading.Event(), asyncio.Event()

    async def run() -> None:
        async with sink.running(SINK_PORT):
            up.set()
            await down.wait()

    thread = threading.Thread(target=lambda: loop.run_until_complete(run()))
    thread.start()
    try:
        assert up.wait(30)
        yield
    finally:
        loop.call_soon_threadsafe(down.set)
        thread.join(10)
        loop.close()


def asked(number: int, **more: Any) -> dict[str, Any]:
    return event(f"e{number}", f"text {number}", model=MODEL, **more)


def job_of(number: int) -> str:
    return hashlib.sha256(f"\n/producer\ne{number}".encode()).hexdigest()[:32]


def post(deployment: Deployment, count: int) -> None:
    with httpx.Client() as http:
        for number in range(count):
            headers, body = binary(asked(number, replyto=SINK))
            answer = http.post(f"{deployment.url()}/v1/events", headers=headers, content=body)
            assert (answer.status_code, answer.content) == (202, b"")


def taken(sink: SinkServer) -> Counter[str]:
    """How often the result of each event was answered with 200; each must be its own."""
    for each in sink.accepted:
        number = each.headers["ce-causationid"].removeprefix("e")
        assert each.headers["ce-id"] == job_of(int(number))
        assert lengths(each) == [vector(f"text {number}")[0]]
    return Counter(each.headers["ce-causationid"] for each in sink.accepted)


def test_results_reach_a_sink_that_is_away_then_busy_then_there_once_each_although_the_dispatcher_is_killed(
    deployment: Deployment,
) -> None:
    count, sink = 40, SinkServer()
    deployment.up("demand", "bundle-1")
    post(deployment, count)
    wait_until(lambda: deployment.log("demand").count("again in") >= count, 30)
    deployment.kill("demand")
    sink.answers = [(503, {"Retry-After": "1"})] * count
    with serving(sink):
        deployment.start("demand")
        wait_until(lambda: len(sink.received) >= count // 2, 60)
        deployment.kill("demand")
        assert not sink.accepted
        deployment.start("demand")
        wait_until(lambda: len(taken(sink)) == count, 60 + REDELIVERED_S)
    assert taken(sink) == Counter({f"e{number}": 1 for number in range(count)})
    assert sum(each.status == 503 for each in sink.received) == count
    assert Counter(line.id for line in deployment.recorded("done")) == {job_of(number): 1 for number in range(count)}


def test_a_dispatcher_killed_while_results_are_taken_costs_at_most_repeats_of_what_it_had_in_hand(
    deployment: Deployment,
) -> None:
    count, sink = 300, SinkServer()
    deployment.up("demand", "bundle-1")
    deployment.launch("demand-2")
    wait_until(lambda: "standing by" in deployment.log("demand-2"))
    with serving(sink):
        poster = threading.Thread(target=post, args=(deployment, count))
        poster.start()
        wait_until(lambda: len(sink.accepted) >= count // 3, 60)
        deployment.kill("demand")
        poster.join(60)
        wait_until(lambda: len(taken(sink)) == count, 60 + REDELIVERED_S)
    repeated = {cause: times for cause, times in taken(sink).items() if times > 1}
    assert len(repeated) <= IN_HAND and set(repeated.values()) <= {2}
    for cause in repeated:
        same = [each for each in sink.accepted if each.headers["ce-causationid"] == cause]
        assert len({(each.headers["ce-source"], each.headers["ce-id"], each.body) for each in same}) == 1


def test_events_on_nats_survive_the_ingresses_that_take_them_and_are_computed_once(deployment: Deployment) -> None:
    count = 400
    deployment.up("ingress-2", "bundle-1")

    async def publish(first: int, last: int) -> None:
        async with connected(deployment.nats_url) as wire:
            await wire.subscribe("_INBOX.receipts")
            for number in range(first, last):
                await told(wire, number)

    async def told(wire: Wire, number: int) -> None:
        headers, body = on_nats(asked(number))
        await wire.publish("sie.events.encode", body, headers, reply="_INBOX.receipts")
        assert "seq" in (await wire.next_message()).json()

    asyncio.run(publish(0, count // 4))
    killer = threading.Timer(0.1, deployment.kill, ["ingress"])
    killer.start()
    asyncio.run(publish(count // 4, count * 3 // 4))
    killer.join()
    deployment.kill("ingress-2")
    asyncio.run(publish(count * 3 // 4, count))
    deployment.start("ingress", "ingress-2")
    wait_until(lambda: len({line.id for line in deployment.recorded("done")}) == count, 60 + REDELIVERED_S)
    wait_until(lambda: _left(deployment) == 0, 10 + REDELIVERED_S)
    assert Counter(line.id for line in deployment.recorded("done")) == {job_of(number): 1 for number in range(count)}
    with httpx.Client(base_url=deployment.url()) as http:
        for number in range(count):
            answer = http.get(f"/v1/jobs/{job_of(number)}")
            assert answer.json()["items"][0]["dense"]["values"] == vector(f"text {number}")


def _left(deployment: Deployment) -> int:
    info = asyncio.run(deployment.ask_server("$JS.API.STREAM.INFO.EVENTS"))
    return int(info["state"]["messages"])
