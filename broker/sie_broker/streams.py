"""Streams, consumers and buckets as declared data, and the one function that makes the server match it.

Limits stand here and nowhere else. Only the config service calls `ensure`; everybody else just uses what is there.
Sources: NATS ADR-42 (priority groups) and the JetStream stream and consumer reference.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import msgspec
import nats.js.errors
from nats.aio.client import Client
from nats.js.api import DiscardPolicy, KeyValueConfig, RetentionPolicy, StorageType, StreamConfig

from sie_broker import deadletter_stream, jobs, subjects
from sie_broker.connection import translated
from sie_broker.contract import MAX_DELIVERIES, PRIORITIES, Lane, Queue
from sie_sdk.errors import QueueUnavailableError

MAX_PAYLOAD_BYTES = 8 * 1024 * 1024
"""What the NATS server must accept in one message (``max_payload``)."""
PULL_GROUP = "pull"
"""The one priority group of every work consumer (prioritized: lower numbers are served first)."""
ACK_WAIT_S = 30.0
IN_PROGRESS_S = 10.0
"""How often a worker renews the lease on work in hand: a third of ``ACK_WAIT_S``."""
PRESENCE_TTL_S = 10.0
QUEUE_BYTES = 2 << 30
POOL_QUEUE_BYTES = 128 << 20
"""The same for a pool beside the default one. The server sets all of it aside, and there may be 64 of them."""
NANO = 1_000_000_000

JOBS, PRESENCE, CONFIG, LANES, POOLS = "sie_jobs", "sie_presence", "sie_config", "sie_lanes", "sie_pools"
LEASES = "sie_leases"

BUCKETS = (
    # Not direct: a replica that lags would not know a job whose 202 has just been answered.
    KeyValueConfig(bucket=JOBS, ttl=jobs.LIFETIME_S, storage=StorageType.FILE, direct=False, max_bytes=1 << 30),
    # On file too: a stream in memory would be gone after a restart of the server, and with it every heartbeat.
    KeyValueConfig(bucket=PRESENCE, ttl=PRESENCE_TTL_S, storage=StorageType.FILE, direct=True),
    KeyValueConfig(bucket=CONFIG, history=8, storage=StorageType.FILE, direct=True),
    KeyValueConfig(bucket=LANES, storage=StorageType.FILE, direct=True),
    # Not direct: a pool is used at once by the caller whose POST has just been answered, perhaps at another ingress.
    KeyValueConfig(bucket=POOLS, storage=StorageType.FILE, direct=False),
    # Not direct: who holds a lease is asked of the leader alone.
    KeyValueConfig(bucket=LEASES, storage=StorageType.FILE, direct=False),
)


def work_stream(pool: str) -> StreamConfig:
    """The work queue of a pool: file storage, discard new (the overload signal), older than any cold start allowed."""
    return StreamConfig(
        name=subjects.stream(pool),
        subjects=[subjects.stream_subjects(pool)],
        retention=RetentionPolicy.WORK_QUEUE,
        storage=StorageType.FILE,
        discard=DiscardPolicy.NEW,
        max_age=3600.0,
        max_msgs=200_000,
        max_bytes=QUEUE_BYTES if pool == "default" else POOL_QUEUE_BYTES,
        duplicate_window=120.0,
        allow_direct=True,
    )


def work_consumer(queue: Queue) -> dict[str, Any]:
    """The durable pull consumer of one queue, as the server's JSON: nats-py has no priority groups."""
    return {
        "durable_name": subjects.consumer(queue),
        "name": subjects.consumer(queue),
        "filter_subject": subjects.work(queue),
        "ack_policy": "explicit",
        "deliver_policy": "all",
        "ack_wait": int(ACK_WAIT_S * NANO),
        "max_deliver": MAX_DELIVERIES,
        "max_ack_pending": 4096,
        "max_waiting": 512,
        "priority_policy": "prioritized",
        "priority_groups": [PULL_GROUP],
    }


async def ensure(nc: Client, queues: Iterable[tuple[Lane, str]]) -> None:
    """Create or update buckets, streams and consumers so that the server matches this module.

    Raises:
        QueueUnavailableError: the server does not answer or refuses a limit.
    """
    wanted = sorted(set(queues), key=lambda queue: (queue[0], queue[1]))
    js = nc.jetstream()
    with translated():
        for bucket in BUCKETS:
            try:
                await js.key_value(bucket.bucket)
            except nats.js.errors.BucketNotFoundError:
                await js.create_key_value(bucket)
        try:
            await js.update_stream(deadletter_stream.STREAM)
        except nats.js.errors.NotFoundError:
            await js.add_stream(deadletter_stream.STREAM)
        for pool in sorted({lane.pool for lane, _ in wanted} | {"default"}):
            config = work_stream(pool)
            try:
                await js.update_stream(config)
            except nats.js.errors.NotFoundError:
                await js.add_stream(config)
        for lane, model in wanted:
            for priority in PRIORITIES:
                await _ensure_consumer(nc, Queue(lane, model, priority))


async def retire(nc: Client, pool: str) -> bool:
    """Close the pool's stream to new work; remove it if nothing waits in it. Returns whether it is gone.

    Closed first, so that nothing can arrive between the look and the removal. What waits is delivered from a closed
    stream as from an open one.

    Raises:
        QueueUnavailableError: the server does not answer.
    """
    js, config = nc.jetstream(), work_stream(pool)
    config.subjects = [subjects.closed_subjects(pool)]
    with translated():
        try:
            if (await js.update_stream(config)).state.messages:
                return False
            await js.delete_stream(subjects.stream(pool))
        except nats.js.errors.NotFoundError:
            pass
    return True


async def _ensure_consumer(nc: Client, queue: Queue) -> None:
    stream, config = subjects.stream(queue.lane.pool), work_consumer(queue)
    request = {"stream_name": stream, "config": config, "action": ""}
    subject = f"$JS.API.CONSUMER.CREATE.{stream}.{config['name']}.{config['filter_subject']}"
    answer = msgspec.json.decode((await nc.request(subject, msgspec.json.encode(request), timeout=5)).data)
    if error := answer.get("error"):
        raise QueueUnavailableError(
            f"The broker refused the consumer of {queue.model}: {error.get('description')}.", retry_after=5.0
        )
