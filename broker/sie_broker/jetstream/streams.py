"""Streams, consumers and buckets as declared data: pure functions from `Limits` to what the server is to have.

Limits stand here and nowhere else. ``provisioning`` makes a server match; only the config service asks it to, everybody
else just uses what is there. As the server's own JSON, for nats-py has no words for priority groups.
Sources: NATS ADR-42 (priority groups) and the JetStream stream and consumer reference.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Annotated, Any

import msgspec

from sie_broker import claim, parcel, subjects
from sie_broker.contract import Store
from sie_broker.jobs import LIFETIME_S
from sie_broker.records import MAX_DELIVERIES, Queue

MAX_PAYLOAD_BYTES = 8 * 1024 * 1024
"""What the NATS server must accept in one message (``max_payload``)."""
PULL_GROUP = "pull"
"""The one priority group of every work consumer (prioritized: lower numbers are served first)."""
PRESENCE_TTL_S = 10.0
MAX_WORK_BYTES = 1024 * 1024
"""The largest message in a queue. What we submit ourselves is smaller (``claim``)."""
MAX_CONSUMERS = 100_000
"""The queues of a stream: said, because the server's own choice is 1,000 (from 2.15 on)."""
DUPLICATES_S = 120.0
"""For how long a second submission of an id is known to be one."""
DEAD = "DEAD"
"""The stream of the dead letters."""
DEAD_AGE_S = 7 * 24 * 3600.0
DUE, EVENTS = "DUE", "EVENTS"
"""The streams of results due at sinks and of events that came in. Each has one consumer, of the same name."""
NANO = 1_000_000_000
MARKER_S = 3600
"""How long a bucket without an age remembers that a key was deleted: every pool and every pod has keys of its own."""

JOBS, PRESENCE, CONFIG, LANES, POOLS = "sie_jobs", "sie_presence", "sie_config", "sie_lanes", "sie_pools"
LEASES, SINKS = "sie_leases", "sie_sinks"

FIXED = ("retention", "storage")
"""What the server changes in no stream that exists."""

Bytes = Annotated[int, msgspec.Meta(ge=1 << 20)]
Seconds = Annotated[float, msgspec.Meta(ge=1, le=1e9)]


class Limits(msgspec.Struct, frozen=True, kw_only=True):
    """What an operator may choose. The fields are settings of the config service, by the same names."""

    stream_replicas: Annotated[int, msgspec.Meta(ge=1, le=5)] = 1
    """Servers that keep each stream and bucket: 3 on a cluster of three, which then may lose one."""
    work_max_bytes: Bytes = 2 << 30
    """What may wait in the default pool's queues; the server sets it aside. Beyond it work is refused."""
    pool_max_bytes: Bytes = 128 << 20
    """The same for each other pool."""
    work_max_messages: Annotated[int, msgspec.Meta(ge=1)] = 400_000
    """How much work may wait in a pool's queues."""
    queue_max_messages: Annotated[int, msgspec.Meta(ge=1)] = 150_000
    """How much may wait of one lane's model in one priority class: no queue fills up the others' room."""
    work_max_age_s: Seconds = 3600.0
    """How long work may wait: longer than any cold start. What is older is thrown away."""
    job_lifetime_s: Seconds = LIFETIME_S
    """How long a job and its result can be asked for."""
    job_max_bytes: Bytes = 1 << 30
    """What jobs and their results may take; set aside too. Beyond it `QUEUE_FULL` is the result, or one comes later."""
    ack_wait_s: Seconds = 30.0
    """How long after a worker's last sign of life its work is given to another. It gives one every third of that."""
    payload_max_bytes: Bytes = 2 << 30
    """What the data of large requests may take, in all pools together; set aside too. Beyond it they are refused."""
    result_max_bytes: Bytes = 4 << 30
    """What large answers may take. Beyond it they are lost, and their callers get `QUEUE_FULL` instead."""


def work_stream(pool: str, limits: Limits) -> dict[str, Any]:
    """The work queue of a pool: on file, discard new (the overload signal), older than any cold start allowed."""
    return {
        "name": subjects.stream(pool),
        "subjects": [subjects.stream_subjects(pool)],
        "max_msg_size": MAX_WORK_BYTES,
        "max_consumers": MAX_CONSUMERS,
        "retention": "workqueue",
        "storage": "file",
        "num_replicas": limits.stream_replicas,
        "discard": "new",
        "max_age": int(limits.work_max_age_s * NANO),
        "max_msgs": limits.work_max_messages,
        "max_msgs_per_subject": limits.queue_max_messages,
        "discard_new_per_subject": True,
        "max_bytes": limits.work_max_bytes if pool == "default" else limits.pool_max_bytes,
        "duplicate_window": int(min(DUPLICATES_S, limits.work_max_age_s) * NANO),
        "allow_direct": True,
    }


def dead_stream(limits: Limits) -> dict[str, Any]:
    """A week of dead letters, the oldest of which go first; a work buried twice is one message."""
    return {
        "name": DEAD,
        "subjects": [f"{subjects.DEAD}.>"],
        "retention": "limits",
        "storage": "file",
        "num_replicas": limits.stream_replicas,
        "discard": "old",
        "max_age": int(DEAD_AGE_S * NANO),
        "max_bytes": 512 << 20,
        "max_msgs_per_subject": 1,
        "duplicate_window": int(DUPLICATES_S * NANO),
        "allow_direct": True,
    }


def parcel_streams(limits: Limits) -> Iterable[dict[str, Any]]:
    """The small work queues: what is not taken in time is thrown away, what is too much refused."""
    for name, subject, age_s, max_messages in (
        # Room for a million at the least: a result that finds none is computed again.
        (DUE, f"{subjects.SINK}.*", limits.work_max_age_s + limits.job_lifetime_s, -1),
        (EVENTS, f"{subjects.EVENTS}.*", limits.work_max_age_s, limits.work_max_messages),
    ):
        yield {
            "name": name,
            "subjects": [subject],
            "retention": "workqueue",
            "storage": "file",
            "num_replicas": limits.stream_replicas,
            "discard": "new",
            "max_age": int(age_s * NANO),
            "max_msgs": max_messages,
            "max_bytes": 256 << 20,
            "duplicate_window": int(min(DUPLICATES_S, age_s) * NANO),
            "allow_direct": True,
        }


def parcel_consumer(stream: dict[str, Any]) -> dict[str, Any]:
    """Its one consumer. Deliveries are not counted, and what waits for another try holds nothing up."""
    return {
        "durable_name": stream["name"],
        "name": stream["name"],
        "filter_subject": stream["subjects"][0],
        "ack_policy": "explicit",
        "deliver_policy": "all",
        "ack_wait": int(parcel.ACK_WAIT_S * NANO),
        "max_deliver": -1,
        "max_ack_pending": -1,
        "max_waiting": 512,
        "priority_policy": "prioritized",
        "priority_groups": [PULL_GROUP],
    }


def payload_stream(store: Store, limits: Limits) -> dict[str, Any]:
    """A store of payloads (``claim``): a piece is a message of its own, and what nobody drops expires."""
    max_bytes = {"work": limits.payload_max_bytes, "result": limits.result_max_bytes, "dead": 1 << 30}
    # Longer than whatever refers to them.
    max_age_s = {"work": limits.work_max_age_s, "result": limits.job_lifetime_s, "dead": DEAD_AGE_S}
    return {
        "name": claim.STREAMS[store],
        "subjects": [subjects.payloads(claim.STREAMS[store])],
        "retention": "limits",
        "storage": "file",
        "num_replicas": limits.stream_replicas,
        # Of dead letters the oldest go first.
        "discard": "old" if store == "dead" else "new",
        "max_age": int((max_age_s[store] + claim.MARGIN_S) * NANO),
        "max_bytes": max_bytes[store],
        "max_msgs_per_subject": 1,
        "duplicate_window": int(DUPLICATES_S * NANO),
        "allow_direct": True,
    }


def buckets(limits: Limits) -> Iterable[dict[str, Any]]:
    """The streams of all buckets."""
    # Not direct: a replica that lags would not know a job whose 202 has just been answered.
    largest = 2 * claim.REPLY_INLINE_BYTES
    yield bucket_stream(
        JOBS,
        limits,
        ttl_s=limits.job_lifetime_s,
        direct=False,
        max_bytes=limits.job_max_bytes,
        max_value_bytes=largest,
    )
    # On file too: a stream in memory would be gone after a restart of the server, and with it every heartbeat.
    yield bucket_stream(PRESENCE, limits, ttl_s=PRESENCE_TTL_S)
    # Not direct: readers look for what was committed a moment ago. Written in batches that are all or nothing.
    yield bucket_stream(CONFIG, limits, direct=False, atomic=True)
    yield bucket_stream(LANES, limits)
    # Not direct: a pool is used at once by the caller whose POST has just been answered, perhaps at another ingress.
    yield bucket_stream(POOLS, limits, direct=False)
    # Not direct: who holds a lease is asked of the leader alone.
    yield bucket_stream(LEASES, limits, direct=False)
    # Longer than the work may wait and its result then be kept. Not direct: a result may come right after its sink.
    yield bucket_stream(SINKS, limits, ttl_s=limits.work_max_age_s + limits.job_lifetime_s, direct=False)


def bucket_stream(
    bucket: str,
    limits: Limits,
    *,
    ttl_s: float = 0.0,
    direct: bool = True,
    atomic: bool = False,
    max_bytes: int = -1,
    max_value_bytes: int = -1,
) -> dict[str, Any]:
    """The stream that is a key-value bucket to every NATS client (ADR-8)."""
    return {
        "name": f"KV_{bucket}",
        "subjects": [f"$KV.{bucket}.>"],
        "retention": "limits",
        "storage": "file",
        "num_replicas": limits.stream_replicas,
        "discard": "new",
        "max_age": int(ttl_s * NANO),
        "max_bytes": max_bytes,
        "max_msg_size": max_value_bytes,
        "max_msgs_per_subject": 1,
        "duplicate_window": int(min(DUPLICATES_S, ttl_s or DUPLICATES_S) * NANO),
        "allow_direct": direct,
        "allow_rollup_hdrs": True,
        "allow_msg_ttl": True,
        "allow_atomic": atomic,
        "deny_delete": True,
    }


def work_consumer(queue: Queue, limits: Limits) -> dict[str, Any]:
    """The durable pull consumer of one queue."""
    return {
        "durable_name": subjects.consumer(queue),
        "name": subjects.consumer(queue),
        "filter_subject": subjects.work(queue),
        "ack_policy": "explicit",
        "deliver_policy": "all",
        "ack_wait": int(limits.ack_wait_s * NANO),
        "max_deliver": MAX_DELIVERIES,
        "max_ack_pending": 4096,
        "max_waiting": 512,
        "priority_policy": "prioritized",
        "priority_groups": [PULL_GROUP],
    }


def differences(declared: dict[str, Any], there: dict[str, Any]) -> list[str]:
    """The fields in which what is there is not as declared. The server leaves out what is false or zero."""
    return [field for field, value in declared.items() if (there.get(field) or None) != (value or None)]
