"""The rights that pods have on NATS: enough for everything that the real processes do, and for nothing else."""

from __future__ import annotations

import asyncio
import os
import socket
import subprocess
from collections.abc import AsyncIterator, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import NamedTuple

import httpx
import msgspec
import nats
import pytest
import yaml
from nats.aio.msg import Msg

from sie_broker import subjects
from sie_broker.contract import Store
from sie_broker.jetstream import streams
from sie_broker.jetstream.nats_broker import NatsBroker
from sie_broker.jetstream.peers import Place
from sie_broker.jetstream.streams import DEAD, PULL_GROUP
from sie_broker.records import MAX_DELIVERIES, Queue
from sie_local.ports import free_port
from sie_local.programs import nats_server
from sie_sdk.errors import PayloadLostError
from tests.conftest import eventually
from tests.faults.deployment import LANE, MODEL, SPEC, STREAM
from tests.knative.guarded import PASSWORDS, WORKER, Guarded, configuration
from tests.platform import wait_until

QUEUE = Queue(LANE, MODEL, "interactive")
SECRET = "admin"


@pytest.fixture
def deployment(tmp_path: Path) -> Iterator[Guarded]:
    deployed = Guarded(tmp_path, SIE_ADMIN_TOKEN=SECRET, SIE_ACK_WAIT_S="1", SIE_COLD_START_S="1")
    yield deployed
    deployed.close()


def ask(deployment: Guarded, text: str, **headers: str) -> httpx.Response:
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    return httpx.post(f"{deployment.url()}/v1/encode/{MODEL}", json=body_of(text), headers=named, timeout=60)


def body_of(text: str) -> object:
    return {"items": [{"text": text}]}


@pytest.mark.e2e
def test_real_processes_do_all_that_they_do_and_the_server_refuses_nothing(deployment: Guarded) -> None:
    deployment.up("bundle")
    deployment.start("demand", SIE_DEMAND_URL=deployment.url("bundle"), SIE_QUIET_S="1")
    # Warm, as a job, large in both directions.
    assert ask(deployment, "a").status_code == 200
    assert ask(deployment, "b" * 400_000).status_code == 200
    assert ask(deployment, "c", Prefer="respond-async").status_code in (200, 202)
    asyncio.run(_by_event(deployment))
    _write_a_model(deployment)
    deployment.stop("bundle")
    deployment.start(WORKER)
    _lease_a_pool(deployment)
    deployment.stop(WORKER)
    deployment.start("bundle")
    deployment.stop("bundle")
    asyncio.run(_give_up(deployment))
    deployment.start("bundle")
    wait_until(lambda: asyncio.run(deployment.ask_server(f"$JS.API.STREAM.INFO.{DEAD}"))["state"]["messages"] == 1)
    assert "sie_dead_letters 1.0" in httpx.get(f"{deployment.url()}/metrics", timeout=5).text
    # A server that comes back: everybody looks for what was lost, workers tell each other what they have.
    deployment.kill("nats-1")
    deployment.launch("nats-1")
    wait_until(lambda: ask(deployment, "d").status_code == 200)
    deployment.stop("bundle")
    waiting = ask(deployment, "e", Prefer="wait=0")
    assert waiting.status_code == 202
    deployment.start("bundle")
    job = waiting.headers["Location"]
    wait_until(lambda: httpx.get(deployment.url() + job, timeout=5).status_code == 200)
    # One that hangs up, while nobody is up, takes its work along.
    deployment.stop("bundle")
    with pytest.raises(httpx.ReadTimeout):
        httpx.post(f"{deployment.url()}/v1/encode/{MODEL}", json=body_of("g"), headers={"Prefer": "wait=30"}, timeout=1)
    wait_until(lambda: asyncio.run(deployment.ask_server(f"$JS.API.STREAM.INFO.{STREAM}"))["state"]["messages"] == 0)
    deployment.start("bundle")
    # One that waits while nobody is up is told as soon as its result is there.
    deployment.stop("bundle")
    with ThreadPoolExecutor() as beside:
        patient = beside.submit(ask, deployment, "patient", Prefer="wait=30")
        deployment.start("bundle")
        assert patient.result(30).status_code == 200
    for name in ("bundle", "demand", "ingress", "config"):
        deployment.stop(name)
    assert deployment.violations() == []


async def _by_event(deployment: Guarded) -> None:
    """An event of a producer, whose result comes to an inbox of its own."""
    producer = await nats.connect(deployment.user_url("producer").split(","), inbox_prefix=b"_INBOX.producer")
    results: asyncio.Queue[Msg] = asyncio.Queue()
    await producer.subscribe("_INBOX.producer.results", cb=results.put)
    headers = {
        "ce-specversion": "1.0",
        "ce-id": "by-event",
        "ce-source": "/test",
        "ce-type": "dev.sie.encode.v1",
        "ce-model": MODEL,
        "ce-datacontenttype": "application/json",
        "ce-replyto": "nats:_INBOX.producer.results",
    }
    taken = await producer.request("sie.events.encode", b'{"items": [{"text": "f"}]}', headers=headers, timeout=5)
    assert "seq" in msgspec.json.decode(taken.data)
    async with asyncio.timeout(30):
        result = await results.get()
    assert (result.headers or {})["ce-causationid"] == "by-event"
    await producer.close()


def _write_a_model(deployment: Guarded) -> None:
    url, own = deployment.url("config"), {"Authorization": f"Bearer {SECRET}"}
    more = {**yaml.safe_load(SPEC), "id": "test/more"}
    done = httpx.post(f"{url}/v1/configs/models", json=more, headers=own, timeout=30)
    assert done.status_code in (200, 201), done.text
    done = httpx.delete(f"{url}/v1/configs/models/test/more", headers=own, timeout=30)
    assert done.status_code == 200, done.text


def _lease_a_pool(deployment: Guarded) -> None:
    """A worker becomes the pool's and pulls its queues, which the config service has made."""

    def of(pool: str) -> bool:
        return pool in {row["pool"] for row in deployment.live_workers()}

    pool = {"name": "team-a", "gpus": {"cpu": 1}, "minimum_worker_count": 1, "ttl_s": 60}
    made = httpx.post(f"{deployment.url()}/v1/pools", json=pool, timeout=30)
    assert made.is_success, made.text
    wait_until(lambda: of("team-a"))
    # Its weights are nowhere; that the worker says so shows that it was asked.
    wait_until(lambda: "local" in ask(deployment, "p", X_SIE_MACHINE_PROFILE="team-a/cpu").text)
    gone = httpx.delete(f"{deployment.url()}/v1/pools/team-a", timeout=30)
    assert gone.is_success, gone.text
    wait_until(lambda: not of("team-a"))


async def _give_up(deployment: Guarded) -> None:
    """Work that nobody finishes: what is delivered too often is buried by the demand holder."""
    assert ask(deployment, "g", Prefer="wait=0").status_code == 202
    client = await deployment.connected()
    inbox = await client.subscribe("_INBOX.operator.pull")
    ask_for = msgspec.json.encode({"batch": 1, "expires": 5_000_000_000, "group": PULL_GROUP, "priority": 0})
    for _ in range(MAX_DELIVERIES):
        next_one = f"$JS.API.CONSUMER.MSG.NEXT.{STREAM}.{subjects.consumer(QUEUE)}"
        await client.publish(next_one, ask_for, reply=inbox.subject)
        await client.publish((await inbox.next_msg(10)).reply, b"-NAK")
    await client.close()


class Server(NamedTuple):
    address: str
    log: Path


@pytest.fixture
def started(tmp_path: Path) -> Iterator[Server]:
    """A server with our users."""
    server = Server(f"127.0.0.1:{free_port()}", tmp_path / "log")
    (tmp_path / "nats.conf").write_text(configuration(server.address, tmp_path / "store"))
    with server.log.open("w") as log:
        command = [nats_server(), "-c", str(tmp_path / "nats.conf")]
        process = subprocess.Popen(command, env=os.environ | PASSWORDS, stdout=log, stderr=log)
    wait_until(lambda: "Server is ready" in server.log.read_text())
    yield server
    process.terminate()
    process.wait(60)


async def is_refused(address: str, user: str, verb: str, subject: str) -> None:
    """Return when the server has refused it."""
    told = asyncio.Event()

    async def on_error(error: Exception) -> None:
        if "permissions violation" in str(error).lower():
            told.set()

    client = await nats.connect(f"nats://{user}:p-{user}@{address}", error_cb=on_error)
    if verb == "publish":
        await client.publish(subject, b"{}")
    else:
        await client.subscribe(subject)
    async with asyncio.timeout(10):
        await told.wait()
    await client.close()


@pytest.mark.parametrize(
    ("user", "verb", "subject"),
    [
        # The catalogue is written by the config service alone, and streams are made by nobody else.
        *((user, "publish", "$KV.sie_config.mark") for user in ("ingress", "bundle", "demand", "producer")),
        *((user, "publish", f"$JS.API.STREAM.CREATE.{STREAM}") for user in ("ingress", "bundle", "demand", "producer")),
        *((user, "publish", f"$JS.API.STREAM.DELETE.{STREAM}") for user in ("ingress", "bundle", "demand", "producer")),
        *((user, "publish", f"$JS.API.STREAM.PURGE.{STREAM}") for user in ("ingress", "bundle", "demand", "config")),
        *(("config", "publish", f"$JS.API.STREAM.DELETE.{name}") for name in ("KV_sie_config", "KV_sie_jobs", DEAD)),
        # Work is pulled by bundles, events by ingresses, results for sinks by dispatchers.
        ("ingress", "publish", f"$JS.API.CONSUMER.MSG.NEXT.{STREAM}.{subjects.consumer(QUEUE)}"),
        ("demand", "publish", f"$JS.API.CONSUMER.MSG.NEXT.{STREAM}.{subjects.consumer(QUEUE)}"),
        ("bundle", "publish", f"$JS.API.CONSUMER.MSG.NEXT.{streams.EVENTS}.{streams.EVENTS}"),
        ("bundle", "publish", f"$JS.API.CONSUMER.MSG.NEXT.{streams.DUE}.{streams.DUE}"),
        ("bundle", "publish", f"$JS.ACK.{streams.EVENTS}.{streams.EVENTS}.1.1.1.1.0"),
        ("producer", "publish", subjects.work(QUEUE)),
        ("producer", "publish", "sie.reply.ingress.1"),
        # Others' answers are not heard, and neither is work on its way.
        ("bundle", "subscribe", "_INBOX.ingress.>"),
        ("ingress", "subscribe", "_INBOX.>"),
        ("producer", "subscribe", "_INBOX.ingress.>"),
        *((user, "subscribe", "sie.work.>") for user in ("ingress", "bundle", "demand", "config", "producer")),
        *((user, "subscribe", ">") for user in ("ingress", "bundle", "demand", "config", "producer")),
    ],
)
async def test_what_is_none_of_its_business_is_refused(started: Server, user: str, verb: str, subject: str) -> None:
    await is_refused(started.address, user, verb, subject)


@asynccontextmanager
async def as_user(address: str, user: str) -> AsyncIterator[NatsBroker]:
    broker = NatsBroker(f"nats://{user}:p-{user}@{address}", name=f"{user}-1")
    await broker.connect()
    try:
        yield broker
    finally:
        await broker.close()


async def test_large_data_travels_and_goes_and_workers_pass_on_what_is_not_theirs(started: Server) -> None:
    async with AsyncExitStack() as opened:
        users = ("config", "ingress", "demand", "bundle", "bundle")
        config, ingress, demand, one, two = [
            await opened.enter_async_context(as_user(started.address, user)) for user in users
        ]
        await config.provision([(LANE, MODEL)])
        data = bytes(600_000)
        ways: list[tuple[Store, NatsBroker, NatsBroker]] = [
            ("work", ingress, one),
            ("result", one, ingress),
            ("dead", demand, one),
        ]
        for store, writer, reader in ways:
            reference = await writer.payloads.store(store, "w", data)
            assert await reader.payloads.load(reference) == data
            await reader.payloads.drop(reference)
            with pytest.raises(PayloadLostError):
                await reader.payloads.load(reference)
        await asyncio.gather(one.hands.peers.open(), two.hands.peers.open())
        await two.nc.flush()  # what another connection says from now on is heard
        where = Place(STREAM, 1, 1)
        one.hands.held[where] = None  # type: ignore[assignment]  # what it holds matters to nobody but itself
        await one.hands.peers.tell()
        await eventually(lambda: where in two.hands.peers._owners)
        del one.hands.held[where]
        assert await two.hands.peers.pass_on(where, "_INBOX.operator.lease")
    assert "Violation" not in started.log.read_text()


def test_a_stranger_gets_no_connection(started: Server) -> None:
    host, port = started.address.split(":")
    with socket.create_connection((host, int(port)), timeout=10) as stranger:
        stranger.sendall(b'CONNECT {"verbose": false}\r\nPING\r\n')
        said = b""
        while more := stranger.recv(65536):
            said += more
    assert b"-ERR 'Authorization Violation'" in said


async def test_the_operator_looks_after_everything(started: Server) -> None:
    async with as_user(started.address, "config") as broker:
        await broker.provision([(LANE, MODEL)])
    client = await nats.connect(f"nats://operator:p-operator@{started.address}")
    await client.jetstream().publish(subjects.work(QUEUE), b"")
    assert await client.jetstream().purge_stream(STREAM)
    assert await client.jetstream().delete_stream(STREAM)
    await client.close()
