"""A worker that is not ours, or not well: whatever it replies, the ingress answers its caller, in every dialect."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sie_broker.memory import MemoryBroker
from sie_broker.records import Reply
from sie_sdk import wire
from sie_sdk.refusals import BY_CODE
from tests.fuzz import mutations
from tests.fuzz.conftest import share
from tests.fuzz.exchange import Request, ask
from tests.fuzz.mutations import Change, Spoil
from tests.fuzz.test_evil_server import VALUES
from tests.fuzz.test_requests import corpus as corpus
from tests.ingress.conftest import Desk
from tests.openapi_examples import Sent

STATUSES = st.sampled_from((200, 200, 200, 200, 200, 299, 400, 404, 500, 503, 599))


@pytest.mark.timeout(0)
def test_whatever_a_worker_replies_its_caller_is_answered(desk: Desk, loop: asyncio.Runner, corpus: list[Sent]) -> None:
    broker = desk.broker
    assert isinstance(broker, MemoryBroker)
    said: list[tuple[bytes, int]] = []
    deliver = broker.deliver_reply

    async def forged(reply_to: str | None, reply: Reply) -> None:
        data, status = said[-1]
        await deliver(reply_to, Reply(id=reply.id, data=data, status=status, worker="evil"))

    broker.deliver_reply = forged  # type: ignore[method-assign]  # no worker of ours would
    whole = [sent for sent in corpus if sent.status == 200 and "/pools" not in sent.target]

    @share(0.05)
    @given(st.sampled_from(whole), st.sampled_from(VALUES), mutations.changes, mutations.spoils, STATUSES)
    def property(sent: Sent, value: Any, changes: list[Change], spoils: list[Spoil], status: int) -> None:
        for change in changes:
            value = mutations.mutated(value, change)
        data = mutations.encoded(value, wire.MSGPACK if status < 400 else wire.JSON)
        for spoil in spoils:
            data = mutations.spoilt(data, spoil)
        said.append((data, status))
        headers = tuple((name.lower().encode(), each.encode()) for name, each in sent.headers.items())
        made = Request(sent.method, sent.target, headers, [sent.content])
        answer = loop.run(ask(desk.ingress, made, answered=True))
        assert 200 <= answer.status < 600
        assert answer.headers.get("x-sie-error-code", "NOT_FOUND") in BY_CODE

    property()
