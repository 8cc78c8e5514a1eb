"""No single message ends a connection: too large, it is refused before it is sent; if one does, its process leaves."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sie_broker.jetstream.client import size_of
from sie_broker.jetstream.nats_broker import NatsBroker
from sie_broker.jetstream.streams import MAX_PAYLOAD_BYTES
from sie_broker.records import Lane, Reply, Work
from sie_sdk.errors import PayloadTooLargeError, QueueUnavailableError
from tests.ingress.nats_wire import connected

LANE = Lane("default", "default", "cpu")


def work(cause: str) -> Work:
    return Work("w", "encode", LANE, "m", b"", round(time.time(), 6), cause=cause)


@pytest.fixture
async def broker(nats_url: str) -> AsyncIterator[NatsBroker]:
    broker = NatsBroker(nats_url, name="test")
    await broker.connect()
    await broker.provision([(LANE, "m")])
    yield broker
    await broker.close()


@given(st.dictionaries(st.text("ab-", min_size=1, max_size=9), st.text(max_size=20)), st.binary(max_size=20))
def test_a_message_is_as_large_as_its_headers_and_its_body(headers: dict[str, str], body: bytes) -> None:
    block = b"NATS/1.0\r\n" + b"".join(f"{name}: {value}\r\n".encode() for name, value in headers.items()) + b"\r\n"
    assert size_of(headers, body) == len(body) + (len(block) if headers else 0)


async def test_a_message_of_the_size_that_the_server_allows_is_sent_and_one_byte_more_is_refused(
    broker: NatsBroker, nats_url: str
) -> None:
    headers = {"a": "x" * (MAX_PAYLOAD_BYTES - size_of({"a": ""}, b"body"))}
    async with connected(nats_url) as wire:
        await wire.subscribe("outside")
        await broker.publish("outside", headers, b"body")
        assert (await wire.next_message()).headers == headers
        with pytest.raises(PayloadTooLargeError) as refused:
            await broker.publish("outside", headers, b"body.")
        assert (refused.value.field, refused.value.limit) == ("headers", MAX_PAYLOAD_BYTES)


@pytest.mark.parametrize("characters", [66_000, MAX_PAYLOAD_BYTES])
async def test_what_can_never_be_a_message_is_no_fault_of_the_broker(broker: NatsBroker, characters: int) -> None:
    with pytest.raises(PayloadTooLargeError) as refused:
        await broker.submit(work("x" * characters))
    assert refused.value.field == "headers"
    with pytest.raises(PayloadTooLargeError):
        await broker.jobs.put("result.w", bytes(100 * characters))
    await broker.submit(work("x"))
    assert broker.nc.stats["reconnects"] == 0


async def test_a_reply_that_can_never_be_a_message_is_not_sent(broker: NatsBroker) -> None:
    with broker.expect("w") as (inbox, coming):
        with pytest.raises(PayloadTooLargeError):
            await broker.deliver_reply(inbox, Reply(id="w", data=b"", cause="x" * MAX_PAYLOAD_BYTES))
        await broker.deliver_reply(inbox, Reply(id="w", data=b"fine"))
        assert (await coming).data == b"fine"


async def test_a_connection_that_is_closed_for_good_ends_its_process(nats_url: str) -> None:
    broker = NatsBroker(nats_url, name="test", stop=(stop := asyncio.Event()))
    await broker.connect()
    # What a server says before it hangs up, of too much data for instance; nats-py does not connect again then.
    await broker.nc._process_err("'maximum payload violation'")
    async with asyncio.timeout(20):
        await stop.wait()
    with pytest.raises(QueueUnavailableError, match="closed"):
        await broker.close()


async def test_a_connection_that_we_close_ourselves_is_no_failure(nats_url: str) -> None:
    broker = NatsBroker(nats_url, name="test", stop=(stop := asyncio.Event()))
    await broker.connect()
    await broker.close()
    assert not stop.is_set()
