"""Names and envelopes are reversible, collision-free and as the specifications want them."""

from __future__ import annotations

import re

import msgspec
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from sie_broker import subjects
from sie_broker.events import envelope
from sie_broker.records import PRIORITIES, Lane, Queue, Reply, Work

# Escaped, 240 bytes at most.
names = st.text(min_size=1, max_size=20)
# The envelope carries microseconds; 1970 to 2100.
times = st.integers(0, 4_102_444_800_000_000).map(lambda micros: micros / 1e6)
lanes = st.builds(Lane, pool=names, bundle=names, profile=names)
works = st.builds(
    Work,
    id=names,
    op=st.sampled_from(["encode", "score", "extract"]),
    lane=lanes,
    model=names,
    data=st.binary(max_size=100),
    time=times,
    reply_to=st.none() | names,
    deadline=st.none() | times,
    traceparent=st.none() | names,
    tracestate=st.none() | names,
    priority=st.sampled_from(PRIORITIES),
    tenant=st.just("") | names,
    cause=st.none() | names,
    dataref=st.none() | names,
    spec=st.just("") | names,
)
queues = st.builds(Queue, lanes, names, st.sampled_from(PRIORITIES))
replies = st.builds(
    Reply,
    id=names,
    data=st.binary(max_size=100),
    status=st.integers(200, 599),
    worker=st.from_regex(r"[ -~]{0,60}", fullmatch=True),
    cause=st.none() | names,
    dataref=st.none() | names,
)


@given(works, st.floats(envelope.LATEST_S, 1e308))
def test_a_deadline_after_all_that_can_be_said_is_the_latest(work: Work, never: float) -> None:
    headers, body = envelope.from_work(msgspec.structs.replace(work, deadline=never), "/here")
    assert envelope.to_work(headers, body).deadline == envelope.LATEST_S


@given(names)
def test_a_token_is_legal_in_subjects_keys_and_consumer_names_and_reversible(name: str) -> None:
    token = subjects.token(name)
    assert re.fullmatch(r"[A-Za-z0-9_=-]+", token)
    assert subjects.name_of(token) == name


@given(queues, queues)
def test_two_queues_never_share_a_subject_or_a_consumer(one: Queue, other: Queue) -> None:
    assert (subjects.work(one) == subjects.work(other)) == (one == other)
    # Consumers live in the stream of their pool.
    same = one == other._replace(lane=Lane(one.lane.pool, other.lane.bundle, other.lane.profile))
    assert (subjects.consumer(one) == subjects.consumer(other)) == same


def test_a_queue_of_the_longest_names_has_a_consumer_that_the_server_takes() -> None:
    lane = Lane("default", f"a{'.' * 63}", f"b{'.' * 63}")
    every = [Queue(lane, f"a{'.a' * 99}{end}", priority) for end in "bc" for priority in PRIORITIES]
    consumers = {subjects.consumer(each) for each in every}
    assert len(consumers) == len(every)
    assert all(len(each) <= 255 and each.count("~") == 3 for each in consumers)


@given(queues)
def test_a_lane_is_read_back_from_its_subjects(queue: Queue) -> None:
    assert subjects.lane_of(subjects.work(queue)) == queue.lane
    assert subjects.lane_of(subjects.wake(queue.lane)) == queue.lane


@given(works)
def test_work_survives_the_envelope(work: Work) -> None:
    headers, body = envelope.from_work(work, source="/ingress/i")
    assert envelope.to_work(headers, body) == work


@given(works)
def test_work_that_does_not_say_how_urgent_it_is_is_interactive(work: Work) -> None:
    headers, body = envelope.from_work(work, source="/ingress/i")
    headers.pop("ce-priority", None)
    assert envelope.to_work(headers, body).priority == "interactive"


@given(replies)
@example(Reply(id="a %41é", data=b"", worker="w"))
def test_a_reply_survives_the_envelope(reply: Reply) -> None:
    headers, body = envelope.from_reply(reply)
    assert envelope.to_reply(headers, body) == reply


@given(works)
def test_headers_are_lower_case_visible_ascii_without_quotes(work: Work) -> None:
    headers, _ = envelope.from_work(work, source="/ingress/i")
    assert {"ce-id", "ce-source", "ce-type", "ce-specversion", "ce-datacontenttype"} <= headers.keys()
    for name, value in headers.items():
        assert re.fullmatch(r"ce-[a-z0-9]{1,20}", name)
        assert re.fullmatch(r"[\x21\x23-\x7e]+", value)


def test_header_values_are_escaped_as_the_specification_s_example_says() -> None:
    # CloudEvents HTTP protocol binding 1.0, section 3.1.3.2; the NATS binding refers to the same rules.
    assert envelope.escape("Euro € \U0001f600") == "Euro%20%E2%82%AC%20%F0%9F%98%80"


@pytest.mark.parametrize("missing", ["ce-id", "ce-type", "ce-time", "ce-model", "ce-pool"])
def test_a_work_event_without_a_required_attribute_names_it(missing: str) -> None:
    work = Work(id="i", op="encode", lane=Lane(pool="p", bundle="b", profile="c"), model="m", data=b"", time=0.0)
    headers, body = envelope.from_work(work, source="/s")
    del headers[missing]
    with pytest.raises(ValueError, match=missing):
        envelope.to_work(headers, body)


@pytest.mark.parametrize(
    "header", [{"ce-id": ""}, {"ce-id": "i" * 257}, {"ce-model": "m" * 9000}, {"ce-replyto": "sie." + "r" * 5000}]
)
def test_a_name_that_makes_no_subject_is_a_value_error(header: dict[str, str]) -> None:
    """The server would close the connection of whoever answers such a work."""
    work = Work(id="i", op="encode", lane=Lane(pool="p", bundle="b", profile="c"), model="m", data=b"", time=0.0)
    headers, body = envelope.from_work(work, source="/s")
    (name,) = header
    with pytest.raises(ValueError, match=name):
        envelope.to_work(headers | header, body)


def test_a_malformed_time_is_a_value_error() -> None:
    work = Work(id="i", op="encode", lane=Lane(pool="p", bundle="b", profile="c"), model="m", data=b"", time=0.0)
    headers, body = envelope.from_work(work, source="/s")
    with pytest.raises(ValueError, match="yesterday"):
        envelope.to_work(headers | {"ce-time": "yesterday"}, body)


@pytest.mark.parametrize(
    "header", [{"ce-status": "99"}, {"ce-status": "1000000"}, {"ce-source": "/bundle/a%0D%0AX: b"}]
)
def test_a_reply_that_makes_no_http_answer_is_a_value_error(header: dict[str, str]) -> None:
    headers, body = envelope.from_reply(Reply(id="i", data=b"", worker="w"))
    with pytest.raises(ValueError, match="result event with the status"):
        envelope.to_reply(headers | header, body)
