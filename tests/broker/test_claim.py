"""References to payloads: reversible, refused when they are not ours, and no longer-lived work than payload."""

from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sie_broker import claim
from sie_broker.claim import Reference
from sie_broker.jetstream import streams
from sie_broker.jetstream.streams import MAX_WORK_BYTES, Limits
from sie_broker.memory_payloads import MemoryPayloads
from sie_broker.records import Lane, Reply, Work
from sie_sdk.errors import InvalidInputError, PayloadLostError, QueueFullError

references = st.builds(
    Reference,
    store=st.sampled_from(sorted(claim.STREAMS)),
    owner=st.text(min_size=1, max_size=60),
    id=st.from_regex(r"[0-9a-f]{16}", fullmatch=True),
    size=st.integers(0, 10**12 - 1),
    chunk=st.integers(10**8, 10**9 - 1),
    crc32=st.integers(0, 2**32 - 1),
)


def work(work_id: str, data: bytes = b"", dataref: str | None = None) -> Work:
    lane = Lane(pool="p", bundle="b", profile="cpu")
    return Work(id=work_id, op="encode", lane=lane, model="m", data=data, time=1.0, dataref=dataref)


@given(references)
def test_a_reference_is_read_back_and_is_a_uri_of_visible_ascii(reference: Reference) -> None:
    assert claim.parse(str(reference)) == reference
    assert re.fullmatch(r"nats:[\x21-\x7e]+", str(reference))


@given(st.text(max_size=80))
def test_any_other_text_is_refused_as_input(text: str) -> None:
    with pytest.raises(InvalidInputError, match="refers to nothing") as refused:
        claim.parse(text)
    assert refused.value.field == "dataref"


@pytest.mark.parametrize(
    "dataref",
    [
        "https://example.org/data",
        "nats:WORK_default/a/00?bytes=1&chunk=1&crc32=00000000",
        "nats:sie_payloads/a/00?bytes=1&chunk=0&crc32=00000000",
        "nats:sie_payloads/a.*/00?bytes=1&chunk=1&crc32=00000000",
        "nats:sie_payloads/a/*?bytes=1&chunk=1&crc32=00000000",
        "nats:sie_payloads/a/00?bytes=1&chunk=1&crc32=00000000\n",
        "nats:sie_payloads/=FF/00?bytes=1&chunk=1&crc32=00000000",
        "nats:sie_payloads/a/00?bytes=999999999999&chunk=1&crc32=00000000",
        f"nats:sie_payloads/{'a' * 513}/00?bytes=1&chunk=1&crc32=00000000",
    ],
)
def test_what_looks_like_a_reference_and_is_none_is_refused(dataref: str) -> None:
    with pytest.raises(InvalidInputError):
        claim.parse(dataref)


@given(size=st.integers(0, 10**6), chunk=st.integers(1000, 10**6))
def test_the_pieces_of_a_payload_add_up_to_it(size: int, chunk: int) -> None:
    reference = Reference("work", "w", "00", size, chunk, 0)
    lengths = [reference.length(number) for number in range(reference.chunks)]
    assert sum(lengths) == size
    assert all(0 < length <= chunk for length in lengths)


def test_a_payload_outlives_the_work_the_job_and_the_dead_letter_that_refer_to_it() -> None:
    limits = Limits(work_max_age_s=100.0, job_lifetime_s=200.0)
    age = {store: streams.payload_stream(store, limits)["max_age"] for store in claim.STREAMS}
    assert age["work"] > streams.work_stream("default", limits)["max_age"]
    assert age["dead"] > streams.dead_stream(limits)["max_age"]
    assert age["result"] > next(iter(streams.buckets(limits)))["max_age"]


def test_what_travels_inline_fits_its_stream() -> None:
    assert claim.WORK_INLINE_BYTES < MAX_WORK_BYTES


async def test_data_of_others_is_neither_given_to_work_nor_dropped_with_it() -> None:
    payloads = MemoryPayloads()
    theirs = await payloads.store("work", "theirs", b"secret")
    result = await payloads.store("result", "mine", b"answer")
    for dataref in (theirs, result):
        with pytest.raises(InvalidInputError, match="does not belong"):
            await claim.redeem(payloads, work("mine", dataref=dataref))
        assert claim.payload_of(work("mine", dataref=dataref)) is None
    assert claim.payload_of(work("theirs", dataref=theirs)) == theirs
    assert claim.payload_of(work("mine", dataref="https://example.org")) is None
    with pytest.raises(InvalidInputError, match="does not belong"):
        await claim.redeem(payloads, Reply(id="theirs", data=b"", dataref=theirs))


async def test_the_size_of_a_record_is_known_without_its_data() -> None:
    payloads = MemoryPayloads()
    large = Reply(id="a", data=bytes(claim.REPLY_INLINE_BYTES + 1))
    assert claim.size(await claim.check_in(payloads, large)) == claim.size(large) == claim.REPLY_INLINE_BYTES + 1


async def test_memory_lets_go_of_what_has_expired_and_refuses_what_does_not_fit() -> None:
    payloads = MemoryPayloads(max_bytes=10, lifetime_s=0.0)
    gone = await payloads.store("work", "a", bytes(10))
    with pytest.raises(PayloadLostError, match="no longer stored"):
        await payloads.load(gone)
    await payloads.store("work", "b", bytes(10))
    lasting = MemoryPayloads(max_bytes=10)
    await lasting.store("work", "a", bytes(6))
    with pytest.raises(QueueFullError):
        await lasting.store("work", "b", bytes(5))
