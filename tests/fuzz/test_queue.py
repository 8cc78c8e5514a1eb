"""A producer that is not ours puts anything at all on a work queue: workers go on, and no exception is left over."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator
from typing import Any

import msgspec
import nats
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sie_broker import subjects
from sie_broker.events import envelope
from sie_broker.jetstream.nats_broker import NatsBroker
from sie_broker.memory import MemoryBroker
from sie_broker.records import Queue, Reply, Work
from sie_config.registry import lane_of
from tests.fuzz import mutations
from tests.fuzz.conftest import EXAMPLES, share
from tests.fuzz.test_requests import RICH
from tests.ingress.conftest import SPEC, Desk, opened

names = st.one_of(
    st.text(max_size=20),
    st.sampled_from(
        ("", "a b", "a.b", "*", ">", "\x00", "=41", "%", "%zz", "é" * 40, "a" * 6000, "\ud800", "job.x", "$JS")
    ),
)
times = st.sampled_from(
    (
        "2026-01-01T00:00:00Z",
        "0001-01-01T00:00:00",
        "0001-01-01T00:00:00+23:59",
        "9999-12-31T23:59:59",
        "9999-12-31T23:59:59-23:59",
        "2026-01-01",
        "now",
        "",
        "1e400",
    )
)
types = st.sampled_from(("dev.sie.encode.v1", "dev.sie.score.v1", "dev.sie.extract.v1", "dev.sie..v1", "x", ""))
statuses = st.sampled_from(("200", "500", "1e3", "-1", "²", "", "9" * 5000))
attributes = st.fixed_dictionaries(
    {},
    optional={
        **{f"ce-{name}": names for name in ("id", "source", "pool", "bundle", "profile", "model", "tenant")},
        **{f"ce-{name}": names for name in ("causationid", "replyto", "dataref", "traceparent", "tracestate")},
        "ce-time": times,
        "ce-expirytime": times,
        "ce-type": types,
        "ce-status": statuses,
        "ce-priority": st.sampled_from(("interactive", "bulk", "urgent", "")),
    },
)


@share(0.1)
@given(attributes, st.binary(max_size=20))
def test_any_headers_are_a_work_or_a_reply_or_a_value_error(headers: dict[str, str], body: bytes) -> None:
    for read in (envelope.to_work, envelope.to_reply):
        try:
            made = read(headers, body)
        except ValueError:
            continue
        assert isinstance(made, Work | Reply)


def wild(random_: random.Random) -> dict[str, str]:
    """Headers that nats can carry: sometimes all that a work has, with something wrong; sometimes none of it."""
    own, _ = envelope.from_work(_work("fuzz"), "/fuzz")
    odd = ("", "%", "%00", "%ff", "*", ">", "a.b", "a%20b", "%C3%A9", "x" * 6000, "0001-01-01T00:00:00", "nats:", "-1")
    for _ in range(random_.randrange(1, 4)):
        own[random_.choice(sorted(own))] = random_.choice(odd)
    own.setdefault("ce-dataref", random_.choice(odd)) if random_.random() < 0.2 else None
    own.setdefault("ce-replyto", random_.choice((*odd, "sie.reply.x", "_INBOX.x"))) if random_.random() < 0.4 else None
    if random_.random() < 0.2:
        own.pop(random_.choice(sorted(own)))
    if random_.random() < 0.1:
        own["Status"] = "404"
    own["ce-id"] = own.get("ce-id", "") + str(random_.randrange(1 << 40)) if random_.random() < 0.8 else "x" * 6000
    return own


def _work(id: str, data: bytes = b"", **changed: Any) -> Work:
    return Work(
        **{"id": id, "op": "encode", "lane": lane_of(SPEC), "model": SPEC.id, "data": data, "time": 1.0, **changed}
    )


@pytest.fixture
async def unhandled() -> AsyncIterator[list[dict[str, Any]]]:
    """What the event loop was left with."""
    found: list[dict[str, Any]] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: found.append(context))
    yield found


@pytest.mark.timeout(600)
async def test_messages_of_anybody_on_a_work_queue_of_nats_neither_kill_nor_stop_a_worker(
    nats_url: str, silent: None, unhandled: list[dict[str, Any]]
) -> None:
    broker, stranger = NatsBroker(nats_url, name="fuzz"), await nats.connect(nats_url)
    await broker.connect()
    made = random.Random(EXAMPLES)
    bodies = [mutations.to_msgpack(body) for body in RICH.values()] + [
        b"",
        b"\xc1",
        b"\xdd\xff\xff\xff\xff",
        b"[" * 9000,
    ]
    async with opened(broker) as desk, desk.worker() as worker:
        subject = subjects.work(Queue(lane_of(SPEC), SPEC.id, "interactive"))
        for _ in range(min(5000, EXAMPLES // 50)):
            body = made.choice(bodies)
            await stranger.publish(
                subject, body[: made.randrange(len(body) + 1)] if made.random() < 0.5 else body, headers=wild(made)
            )
        await stranger.flush()
        for text in ("four", "five5"):
            answer = await desk.encode(text, Prefer="wait=10")
            assert answer.status_code == 200, answer.text
            assert answer.json()["items"][0]["dense"]["values"] == [len(text), 1]
        assert all(not pull.done() for pull in worker._pulls._running.values())
    assert broker.nc.stats["reconnects"] == 0
    await stranger.close()
    await broker.close()
    assert unhandled == []


@pytest.fixture
def memory_desk(desk: Desk) -> Desk:
    assert isinstance(desk.broker, MemoryBroker)
    return desk


@pytest.mark.timeout(0)
def test_work_of_any_content_is_answered_by_a_worker_and_tells_no_exception(
    memory_desk: Desk, loop: asyncio.Runner
) -> None:
    count = 0

    async def served(work: Work) -> Reply:
        with memory_desk.broker.expect(work.id) as (_, coming):
            await memory_desk.broker.submit(work)
            async with asyncio.timeout(20):
                return await coming

    @share(0.1)
    @given(
        st.sampled_from(("encode", "score", "extract", "", "generate")),
        st.sampled_from([*RICH.values()]),
        mutations.changes,
        mutations.spoils,
        st.sampled_from((None, 1.0, 4e9)),
    )
    def property(op: str, body: Any, changes: Any, spoils: Any, deadline: float | None) -> None:
        nonlocal count
        count += 1
        for change in changes:
            body = mutations.mutated(body, change)
        data = mutations.to_msgpack(body)
        for spoil in spoils:
            data = mutations.spoilt(data, spoil)
        work = _work(f"fuzz-{count}", data, op=op, deadline=deadline, reply_to="memory")
        reply = loop.run(served(work))
        assert b"secret" not in reply.data
        if reply.status >= 400:
            assert msgspec.json.decode(reply.data)["error"]["code"]

    property()
