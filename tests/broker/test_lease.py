"""One holder at a time: taken, renewed, released, lost and taken over, in memory and on a real nats-server."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import TypeVar

import pytest

from sie_broker.contract import Broker, Bucket
from sie_broker.jetstream.nats_broker import NatsBroker
from sie_broker.lease import Lease
from sie_broker.memory import MemoryBucket
from sie_broker.records import Entry
from sie_sdk.errors import QueueUnavailableError
from tests.conftest import eventually, running_nats

Answer = TypeVar("Answer")

TTL_S = 2
LONG_S = 120
"""Nothing of a test waits so long: what happens to such a lease does not happen because it ended."""


@pytest.fixture
async def bucket(broker: Broker) -> Bucket:
    await broker.provision([])
    return broker.leases


class Sometimes:
    """A bucket that can be cut off from its reader, before or after it has done what it was asked."""

    def __init__(self, bucket: Bucket) -> None:
        self._bucket = bucket
        self.reachable = True
        self.answers = True
        self.wrote_unheard = asyncio.Event()
        self.found: list[Entry] = []
        self.get, self.put, self.delete, self.entries = bucket.get, bucket.put, bucket.delete, bucket.entries
        self.watch, self.commit = bucket.watch, bucket.commit

    async def read(self, key: str) -> Entry:
        entry = await self._asked(lambda: self._bucket.read(key))
        self.found.append(entry)
        return entry

    async def replace(self, key: str, value: bytes, revision: int, ttl_s: int | None = None) -> int | None:
        written = await self._asked(lambda: self._bucket.replace(key, value, revision, ttl_s))
        if not self.answers:
            self.wrote_unheard.set()
            raise QueueUnavailableError("The broker does not answer.")
        return written

    async def remove(self, key: str, revision: int) -> bool:
        return await self._asked(lambda: self._bucket.remove(key, revision))

    async def _asked(self, ask: Callable[[], Awaitable[Answer]]) -> Answer:
        if not self.reachable:
            raise QueueUnavailableError("The broker does not answer.")
        return await ask()


class Candidate:
    """Somebody who wants a lease, and when it had it."""

    def __init__(self, lease: Lease) -> None:
        self.lease = lease
        self.acting = False
        self.terms = 0
        self.ended_at = 0.0
        self.tokens: list[int] = []

    async def act(self) -> None:
        self.acting = True
        self.terms += 1
        self.tokens.append(self.lease.token)
        try:
            await asyncio.Event().wait()
        finally:
            self.acting = False
            self.ended_at = time.monotonic()

    @asynccontextmanager
    async def leading(self) -> AsyncIterator[Candidate]:
        task = asyncio.create_task(self.lease.lead(self.act))
        try:
            yield self
        finally:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)


def candidate(
    bucket: Bucket, holder: str = "", patience_s: float = 0.0, renew_s: float = 0.3, ttl_s: int = TTL_S
) -> Candidate:
    lease = Lease(bucket, "demand", holder, ttl_s=ttl_s, renew_s=renew_s, margin_s=0.5, patience_s=patience_s)
    return Candidate(lease)


async def test_one_of_many_holds_it_and_the_next_has_it_when_that_one_leaves(bucket: Bucket) -> None:
    everybody = [candidate(bucket, ttl_s=LONG_S) for _ in range(4)]
    async with AsyncExitStack() as stack:
        left: dict[Candidate, AsyncExitStack] = {}
        for each in everybody:
            left[each] = await stack.enter_async_context(AsyncExitStack())
            await left[each].enter_async_context(each.leading())
        tokens: list[int] = []
        for _ in everybody:
            await eventually(lambda: any(each.acting for each in left))
            (holder,) = [each for each in left if each.acting]
            tokens += holder.tokens
            await left.pop(holder).aclose()
        assert tokens == sorted(set(tokens)) and tokens[0] > 0
        assert [each.terms for each in everybody] == [1] * len(everybody)


async def test_a_holder_keeps_it_for_many_times_its_length(bucket: Bucket) -> None:
    first, second = candidate(bucket), candidate(bucket)
    async with first.leading():
        await eventually(lambda: first.acting)
        async with second.leading():
            since = time.monotonic()
            await eventually(lambda: time.monotonic() - since > 2 * TTL_S)
            assert (first.terms, second.terms) == (1, 0)
            assert first.lease.token > first.tokens[0], "each renewal raises the token"
            assert second.lease.token == 0


async def test_who_claims_it_has_it_before_it_ends_and_the_holder_stops_at_its_next_renewal(bucket: Bucket) -> None:
    first, second = candidate(bucket, ttl_s=LONG_S), candidate(bucket, ttl_s=LONG_S)
    async with first.leading():
        await eventually(lambda: first.acting)
        async with second.leading():
            second.lease.claim()
            await eventually(lambda: second.acting and not first.acting)
            assert second.tokens[0] > first.tokens[0]
            assert (first.terms, second.terms) == (1, 1)


async def test_who_stands_by_and_leaves_does_not_take_it_from_its_holder(bucket: Bucket) -> None:
    holder, late = candidate(bucket, ttl_s=LONG_S, renew_s=LONG_S), candidate(bucket, ttl_s=LONG_S)
    async with holder.leading():
        await eventually(lambda: holder.acting)
        async with late.leading():
            await eventually(lambda: late.lease._other is not None)
        assert await bucket.get("demand") is not None


async def test_it_is_held_until_its_holder_s_work_has_come_to_its_end(bucket: Bucket) -> None:
    acts, found = asyncio.Event(), list[bytes | None]()

    async def act() -> None:
        acts.set()
        try:
            await asyncio.Event().wait()
        finally:
            found.extend([await bucket.get("demand") for _ in range(10)])  # longer than a release takes

    leading = asyncio.create_task(Lease(bucket, "demand").lead(act))
    await acts.wait()
    leading.cancel()
    await asyncio.wait({leading})
    assert len(found) == 10 and None not in found
    assert await bucket.get("demand") is None


async def test_a_holder_that_cannot_renew_stops_before_another_begins(bucket: Bucket) -> None:
    cut_off = Sometimes(bucket)
    first, second = candidate(cut_off), candidate(bucket)
    async with first.leading():
        await eventually(lambda: first.acting)
        async with second.leading():
            cut_off.reachable = False
            await eventually(lambda: second.acting)
            assert not first.acting and first.lease.token == 0
            assert time.monotonic() - first.ended_at > 0.2, "the margin"
            cut_off.reachable = True
            since = time.monotonic()
            await eventually(lambda: time.monotonic() - since > 1)
            assert (first.terms, second.terms) == (1, 1)


async def test_a_holder_with_patience_acts_on_while_nobody_answers_but_has_no_token(bucket: Bucket) -> None:
    cut_off = Sometimes(bucket)
    only = candidate(cut_off, patience_s=60)
    async with only.leading():
        await eventually(lambda: only.acting)
        cut_off.reachable = False
        await eventually(lambda: only.lease.token == 0)
        since = time.monotonic()
        await eventually(lambda: time.monotonic() - since > TTL_S)
        assert await bucket.get("demand") is None
        cut_off.reachable = True
        await eventually(lambda: only.lease.token > 0)
        assert (only.acting, only.terms) == (True, 1)


async def test_patience_ends(bucket: Bucket) -> None:
    cut_off = Sometimes(bucket)
    only = candidate(cut_off, patience_s=0.5)
    async with only.leading():
        await eventually(lambda: only.acting)
        cut_off.reachable = False
        await eventually(lambda: not only.acting)


async def test_a_patient_holder_stops_as_soon_as_it_learns_of_another(bucket: Bucket) -> None:
    cut_off = Sometimes(bucket)
    first, second = candidate(cut_off, patience_s=60), candidate(bucket, patience_s=60)
    async with first.leading():
        await eventually(lambda: first.acting)
        async with second.leading():
            cut_off.reachable = False
            await eventually(lambda: second.acting)
            cut_off.reachable = True
            await eventually(lambda: not first.acting)
            assert second.acting


async def test_where_all_were_cut_off_the_patient_holder_goes_before_those_who_stand_by(bucket: Bucket) -> None:
    cut_off, also = Sometimes(bucket), Sometimes(bucket)
    first, second = candidate(cut_off, patience_s=60), candidate(also, patience_s=60, renew_s=1.5)
    async with first.leading():
        await eventually(lambda: first.acting)
        async with second.leading():
            await eventually(lambda: second.lease._other is not None)
            cut_off.reachable = also.reachable = False
            await becomes(lambda: bucket.get("demand"), None)
            await eventually(lambda: second.lease._blind_at is not None)
            also.found.clear()
            also.reachable = True
            await eventually(lambda: bool(also.found))
            assert also.found[0].value is None, "it was free, and yet"
            cut_off.reachable = True
            await eventually(lambda: first.lease.token > 0)
            assert (first.terms, second.terms) == (1, 0)


async def becomes(look: Callable[[], Awaitable[object]], wanted: object) -> None:
    """Wait until ``look()`` finds what is wanted."""
    end = time.monotonic() + 10
    while (found := await look()) != wanted:
        assert time.monotonic() < end, found
        await asyncio.sleep(0.01)


async def test_a_write_whose_answer_was_lost_does_not_lose_the_lease(bucket: Bucket) -> None:
    deaf = Sometimes(bucket)
    only = candidate(deaf, ttl_s=LONG_S)
    async with only.leading():
        await eventually(lambda: only.acting)
        deaf.answers = False
        await deaf.wrote_unheard.wait()
        deaf.answers, unheard = True, (await bucket.read("demand")).revision
        await eventually(lambda: only.lease.token > unheard)
        assert only.terms == 1


async def test_a_token_of_the_past_writes_nothing(bucket: Bucket) -> None:
    first, second = candidate(bucket), candidate(bucket)
    async with first.leading():
        await eventually(lambda: first.acting)
        old = first.lease.token
    async with second.leading():
        await eventually(lambda: second.acting)
        assert second.lease.token > old
        assert await bucket.replace("demand", b"zombie", old) is None


async def test_a_holder_that_died_and_comes_back_under_its_name_need_not_wait(bucket: Bucket) -> None:
    await bucket.replace("demand", b"pod-1/what died", 0, ttl_s=60)
    back, other = candidate(bucket, "pod-1"), candidate(bucket, "pod-2")
    async with other.leading(), back.leading():
        await eventually(lambda: back.acting)
        assert not other.acting


async def test_two_that_were_given_the_same_name_settle_on_one(bucket: Bucket) -> None:
    twins = [candidate(bucket, "twin") for _ in range(2)]
    async with twins[0].leading(), twins[1].leading():
        await eventually(lambda: any(twin.acting for twin in twins))
        since = time.monotonic()
        await eventually(lambda: time.monotonic() - since > TTL_S)
        assert sum(twin.acting for twin in twins) == 1
        assert sum(twin.terms for twin in twins) <= 2


async def test_it_ends_with_what_it_was_for_and_is_free_at_once() -> None:
    bucket = MemoryBucket()

    async def fails() -> None:
        raise RuntimeError("no")

    async def returns() -> None:
        return

    with pytest.raises(RuntimeError, match="no"):
        await Lease(bucket, "demand").lead(fails)
    assert await bucket.get("demand") is None
    await Lease(bucket, "demand").lead(returns)
    assert await bucket.get("demand") is None


@pytest.mark.parametrize("patience_s", [0.0, 60.0])
async def test_a_restart_of_the_server_changes_no_holder(tmp_path: Path, patience_s: float) -> None:
    """Shorter than a lease for the strict one, longer than a lease for the patient one."""
    async with AsyncExitStack() as stack:
        with running_nats(tmp_path) as url:
            brokers = [NatsBroker(url, name=f"b{n}") for n in range(2)]
            for broker in brokers:
                await broker.connect()
                stack.push_async_callback(broker.close)
            await brokers[0].provision([])
            # A patient one's lease ends meanwhile; so long the other gives it to come back first.
            ttl_s = TTL_S if patience_s else LONG_S
            first, second = (
                candidate(broker.leases, patience_s=patience_s, ttl_s=ttl_s, renew_s=renew_s)
                for broker, renew_s in zip(brokers, (0.3, 3.0), strict=True)
            )
            await stack.enter_async_context(first.leading())
            await eventually(lambda: first.acting)
            await stack.enter_async_context(second.leading())
            await eventually(lambda: second.lease._other is not None)
            before = first.lease.token
        if patience_s:
            await eventually(lambda: first.lease.token == 0)
            assert first.acting
            await asyncio.sleep(1)
        with running_nats(tmp_path, port=int(url.rpartition(":")[2])):
            await eventually(lambda: first.lease.token > before)
            since = time.monotonic()
            await eventually(lambda: time.monotonic() - since > TTL_S)
            assert (first.terms, second.terms, first.acting) == (1, 0, True)
            await stack.aclose()
