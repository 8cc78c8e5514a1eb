"""Several messages in one stream, all or none: JetStream's atomic batch publish (NATS ADR-50, server 2.12).

Owns the headers and the reading of the answers. What is written together and why is the caller's.
"""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec
from nats.aio.client import Client
from nats.js.api import Header
from nats.js.kv import KV_OP

from sie_broker.jetstream.connection import refusal, translated
from sie_broker.records import Put
from sie_sdk.errors import QueueUnavailableError

OUTDATED = (10071, 10164)
"""JetStream's error codes for "wrong last sequence": somebody else wrote meanwhile."""
EXPECTED_SUBJECT = "Nats-Expected-Last-Subject-Sequence-Subject"
MOST = 1000
"""Messages of a batch: the server's own limit."""
ANSWER_S = 5.0
"""How long the server may take; it forgets a batch after 10 s without a message."""


async def publish(nc: Client, prefix: str, puts: Sequence[Put], checks: Mapping[str, int]) -> int | None:
    """Write ``puts`` under ``prefix`` as one batch; the sequence of the last. None: a revision was another.

    Raises:
        ValueError: more than `MOST`, a key twice, or more checks than puts without a revision.
        QueueUnavailableError: the server does not answer, or refuses; it may have been written all the same.
    """
    messages = _messages(prefix, puts, checks)
    with translated():
        async with asyncio.timeout(ANSWER_S):
            # The first is a request too, so that a server that knows no batches says so before anything is written.
            if len(messages) > 1:
                subject, value, headers = messages[0]
                _answer((await nc.request(subject, value, headers=headers, timeout=ANSWER_S)).data)
            for subject, value, headers in messages[1:-1]:
                await nc.publish(subject, value, headers=headers)
            subject, value, headers = messages[-1]
            headers[Header.BATCH_COMMIT] = "1"
            return _answer((await nc.request(subject, value, headers=headers, timeout=ANSWER_S)).data)


def _messages(prefix: str, puts: Sequence[Put], checks: Mapping[str, int]) -> list[tuple[str, bytes, dict[str, str]]]:
    """Subject, value and headers of each."""
    if not 0 < len(puts) <= MOST or len({put.key for put in puts}) < len(puts):
        raise ValueError(f"{len(puts)} puts; there may be {MOST}, each key once")
    batch, left = uuid.uuid4().hex, list(checks.items())
    messages = []
    for number, put in enumerate(puts, 1):
        headers: dict[str, str] = {Header.BATCH_ID: batch, Header.BATCH_SEQUENCE: str(number)}
        if put.value is None:
            headers[KV_OP] = "DEL"
        if put.ttl_s is not None:
            headers[Header.MSG_TTL] = str(put.ttl_s)
        if put.revision is not None:
            headers[Header.EXPECTED_LAST_SUBJECT_SEQUENCE] = str(put.revision)
        elif left:  # a message can be about another subject's last sequence than its own
            key, revision = left.pop()
            headers[Header.EXPECTED_LAST_SUBJECT_SEQUENCE] = str(revision)
            headers[EXPECTED_SUBJECT] = prefix + key
        messages.append((prefix + put.key, put.value or b"", headers))
    if left:
        raise ValueError("more checks than puts that have room for one")
    return messages


def _answer(data: bytes) -> int | None:
    """The sequence that an acknowledgement names, 0 where it names none; None: somebody else wrote meanwhile."""
    answer: dict[str, Any] = msgspec.json.decode(data) if data else {}
    if (error := answer.get("error")) is None:
        return int(answer.get("seq", 0))
    if error.get("err_code") in OUTDATED:
        return None
    refused = refusal(error.get("err_code"))
    raise (
        refused
        if not isinstance(refused, QueueUnavailableError)
        else QueueUnavailableError(f"The broker refused the batch: {error.get('description')}.", retry_after=1.0)
    )
