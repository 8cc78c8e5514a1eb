"""Replies for those who ask again: within their time and room, and no payload longer or shorter than its reply."""

from __future__ import annotations

import asyncio

import pytest

from sie_broker.memory_payloads import MemoryPayloads
from sie_broker.records import Reply
from sie_ingress import recent
from sie_ingress.recent import ENTRY_BYTES, RECENT_BYTES, RecentReplies
from sie_sdk.errors import IdempotencyMismatchError, UnavailableError
from sie_sdk.refusals import MAY_PASS
from tests.conftest import eventually

MIB = 1024 * 1024


async def stored(payloads: MemoryPayloads, work_id: str, size: int = 100) -> Reply:
    return Reply(id=work_id, data=b"", dataref=await payloads.store("result", work_id, bytes(size)))


async def test_a_reply_is_given_again_to_the_same_request_only() -> None:
    replies = RecentReplies(MemoryPayloads())
    reply = Reply(id="a", data=b"x")
    replies.put(b"digest", reply)
    assert replies.get("a", b"digest") is reply
    assert replies.get("b", b"digest") is None
    with pytest.raises(IdempotencyMismatchError):
        replies.get("a", b"other")


async def test_the_oldest_go_when_there_are_too_many_and_take_their_payloads_along() -> None:
    payloads = MemoryPayloads()
    replies = RecentReplies(payloads)
    replies.put(b"", await stored(payloads, "large"))
    for number in range(RECENT_BYTES // MIB):
        replies.put(b"", Reply(id=str(number), data=bytes(MIB - ENTRY_BYTES)))
    assert replies.get("large", b"") is None
    await eventually(lambda: not payloads.held)
    replies.put(b"", Reply(id="one more", data=bytes(MIB - ENTRY_BYTES)))
    assert replies.get("0", b"") is None
    assert replies.get("1", b"") is not None


async def test_what_has_no_data_takes_room_too() -> None:
    replies = RecentReplies(MemoryPayloads())
    for number in range(RECENT_BYTES // ENTRY_BYTES + 1):
        replies.put(b"", Reply(id=str(number), data=b""))
    assert replies.get("0", b"") is None
    assert replies.get("1", b"") is not None


async def test_what_is_in_use_stays() -> None:
    payloads = MemoryPayloads()
    replies = RecentReplies(payloads)
    with replies.using({"large": b""}):
        replies.put(b"", await stored(payloads, "large"))
        for number in range(2 * RECENT_BYTES // MIB):
            replies.put(b"", Reply(id=str(number), data=bytes(MIB)))
        assert replies.get("large", b"") is not None
    for number in range(2 * RECENT_BYTES // MIB):
        replies.put(b"", Reply(id=str(number), data=bytes(MIB)))
    assert replies.get("large", b"") is None


async def test_an_id_in_use_stands_for_one_request() -> None:
    replies = RecentReplies(MemoryPayloads())
    with replies.using({"a": b"digest"}):
        with replies.using({"a": b"digest", "b": b"another"}), pytest.raises(IdempotencyMismatchError):
            replies.using({"b": b"digest"}).__enter__()
        with pytest.raises(IdempotencyMismatchError):
            replies.using({"a": b"other"}).__enter__()
        replies.using({"b": b"digest"}).__enter__()
    with replies.using({"a": b"other"}):
        pass


async def test_a_reply_that_two_waited_for_is_remembered_once() -> None:
    payloads = MemoryPayloads()
    replies = RecentReplies(payloads)
    reply = await stored(payloads, "a")
    replies.put(b"", reply)
    replies.put(b"", reply)
    assert replies.get("a", b"") is reply
    await asyncio.sleep(0)  # a drop would be done now
    assert payloads.held


async def test_a_newer_reply_takes_the_place_of_the_older_and_its_payload() -> None:
    payloads = MemoryPayloads()
    replies = RecentReplies(payloads)
    older, newer = await stored(payloads, "a"), await stored(payloads, "a")
    replies.put(b"", older)
    replies.put(b"", newer)
    await eventually(lambda: list(payloads.held) == [newer.dataref])


async def test_a_payload_goes_after_its_time_without_anybody_asking(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(recent, "RECENT_S", 0.02)
    payloads = MemoryPayloads()
    RecentReplies(payloads).put(b"", await stored(payloads, "a"))
    await eventually(lambda: not payloads.held)


async def test_what_a_job_keeps_is_neither_remembered_nor_dropped() -> None:
    payloads = MemoryPayloads()
    replies = RecentReplies(payloads)
    reply = Reply(id="a", data=b"", dataref=await payloads.store("result", "a", b"x"), kept=True)
    replies.put(b"", reply)
    assert replies.get("a", b"") is None
    released = await stored(payloads, "b")
    replies.put(b"", released)
    assert replies.release("b") is released
    replies.forget("b")
    await asyncio.sleep(0)
    assert set(payloads.held) == {reply.dataref, released.dataref}


async def test_without_memory_for_an_answer_it_is_remembered_but_for_an_error_that_may_pass() -> None:
    def none(size: int) -> None:
        raise UnavailableError("No memory is left.")

    replies = RecentReplies(MemoryPayloads())
    made = [Reply(id=str(status), data=b"x", status=status) for status in (200, 413, *MAY_PASS)]
    with pytest.raises(UnavailableError):
        replies.take(none, made, {each.id: each.id.encode() for each in made})
    assert [each.status for each in made if replies.get(each.id, each.id.encode()) is each] == [200, 413]


async def test_what_there_is_memory_for_is_not_remembered() -> None:
    taken: list[int] = []
    replies = RecentReplies(MemoryPayloads())
    replies.take(taken.append, [Reply(id="a", data=b"xyz"), Reply(id="b", data=b"x")], {})
    assert taken == [4]
    assert replies.get("a", b"") is None
