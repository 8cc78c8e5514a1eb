"""Subject, stream and consumer names: built and parsed, pure. Nothing else spells one.

A name becomes a NATS token by a reversible escape without collisions: letters, digits, ``-`` and ``_`` stand for
themselves, every other UTF-8 byte is ``=XX``. The same token is a legal KV key and consumer name.
"""

from __future__ import annotations

import hashlib
import re
from functools import lru_cache

from sie_broker.records import PRIORITIES, Lane, Queue

WORK = "sie.work"
REPLY = "sie.reply"
WAKE = "sie.wake"
WANTED = "sie.wanted"
WITHDRAWN = "sie.withdrawn"
HEALTH = "sie.health"
DEAD = "sie.dead"
SINK = "sie.sink"
EVENTS = "sie.events"
PAYLOAD = "sie.payload"
HANDS = "sie.hands"
"""Where workers tell each other what they have in hand, when a server was lost."""

_PLAIN = re.compile(r"[A-Za-z0-9_-]+")
_LONGEST_CONSUMER = 255
"""The server's limit; it has none for subjects that names as long as ours could reach."""
_KNOWN = 4096
"""Names made most recently are kept: a deployment has as many lanes and queues, and each request asks for some."""


def token(name: str) -> str:
    """``name`` as one NATS token; `name_of` is its inverse."""
    if _PLAIN.fullmatch(name):
        return name
    return "".join(
        char if _PLAIN.fullmatch(char) else "".join(f"={byte:02X}" for byte in char.encode()) for char in name
    )


def name_of(token: str) -> str:
    """The name that `token` escaped.

    Raises:
        ValueError: not a token that `token` makes.
    """
    return re.sub(rb"=([0-9A-F]{2})", lambda match: bytes([int(match[1], 16)]), token.encode()).decode()


@lru_cache(_KNOWN)
def work(queue: Queue) -> str:
    """Where work of one queue waits: ``sie.work.<pool>.<bundle>.<profile>.<priority>.<model>``."""
    return f"{WORK}.{lane_key(queue.lane)}.{queue.priority}.{token(queue.model)}"


def work_of_lane(lane: Lane) -> str:
    """Where all work of a lane waits."""
    return f"{WORK}.{lane_key(lane)}.>"


def wanted(queue: Queue) -> str:
    """Where the workers of a lane are told of work that perhaps none of them pulls: as `work`, with another root."""
    return f"{WANTED}{work(queue).removeprefix(WORK)}"


def wanted_of_lane(lane: Lane) -> str:
    """All that is told to the workers of a lane."""
    return f"{WANTED}.{lane_key(lane)}.>"


def withdrawn(queue: Queue, work_id: str) -> str:
    """Where the workers that pull a queue are told of work that nobody wants any more: as `work`, and its id."""
    return f"{WITHDRAWN}{work(queue).removeprefix(WORK)}.{token(work_id)}"


def withdrawn_of_queue(queue: Queue) -> str:
    """All that is told so of one queue."""
    return f"{WITHDRAWN}{work(queue).removeprefix(WORK)}.*"


def work_of_withdrawn(subject: str) -> str:
    """The id in a subject that `withdrawn` made."""
    return name_of(subject.rpartition(".")[2])


def is_work(subject: str) -> bool:
    """Whether work waits there."""
    return subject.startswith(f"{WORK}.")


def lane_of(subject: str) -> Lane:
    """The lane of a subject that `work`, `wanted` or `wake` made."""
    pool, bundle, profile = (name_of(each) for each in subject.split(".")[2:5])
    return Lane(pool=pool, bundle=bundle, profile=profile)


def queue_of_work(subject: str) -> Queue:
    """The queue of a work subject, or of one that `wanted` made.

    Raises:
        ValueError: not a subject that `work` makes.
    """
    *_, named, model = subject.split(".")
    for priority in PRIORITIES:
        if named == priority:
            return Queue(lane_of(subject), name_of(model), priority)
    raise ValueError(f"{subject} is no work subject")


def dead(work_id: str, sequence: int) -> str:
    """Where the dead letter of one work is kept; ``sequence`` is its place in its queue's stream."""
    return f"{DEAD}.{token(work_id)}.{sequence}"


def dead_letters(work_id: str) -> str:
    """Every dead letter of an id: a work that was replayed may have died again."""
    return f"{DEAD}.{token(work_id)}.*"


def stream(pool: str) -> str:
    """The work-queue stream of a pool."""
    return f"WORK_{token(pool)}"


def is_work_stream(name: str) -> bool:
    """Whether `stream` made the name."""
    return name.startswith("WORK_")


def stream_subjects(pool: str) -> str:
    """Everything the pool's stream keeps."""
    return f"{WORK}.{token(pool)}.>"


def closed_subjects(pool: str) -> str:
    """What the pool's stream listens to when it takes no more work: a subject too short for work."""
    return f"{WORK}.{token(pool)}.closed"


@lru_cache(_KNOWN)
def consumer(queue: Queue) -> str:
    """The durable consumer of one queue. No token holds a ``~``, so names cannot collide.

    One that were longer than the server takes is its digest, with as many ``~`` and nothing between them.
    """
    name = "~".join((token(queue.lane.bundle), token(queue.lane.profile), queue.priority, token(queue.model)))
    if len(name) <= _LONGEST_CONSUMER:
        return name
    return f"~~~{hashlib.blake2b(name.encode(), digest_size=16).hexdigest()}"


def wake(lane: Lane) -> str:
    """Where the ingress announces new work of a lane to the demand holder."""
    return f"{WAKE}.{lane_key(lane)}"


def health(worker: str) -> str:
    """Where a worker's heartbeats can be heard: ``sie.health.<worker>``."""
    return f"{HEALTH}.{token(worker)}"


def reply(inbox: str, work_id: str) -> str:
    """Where one reply is awaited: ``sie.reply.<inbox>.<work id>``."""
    return f"{REPLY}.{token(inbox)}.{token(work_id)}"


def sink(job_id: str) -> str:
    """The ``reply_to`` of work whose result goes to the sink of its job: ``sie.sink.<job id>``."""
    return f"{SINK}.{token(job_id)}"


def is_sink(reply_to: str) -> bool:
    """Whether `sink` made it."""
    return reply_to.startswith(f"{SINK}.")


def job_of_sink(subject: str) -> str:
    """The job whose sink it is."""
    return name_of(subject.removeprefix(f"{SINK}."))


def payload(stream: str, owner: str, payload_id: str, number: int | str) -> str:
    """Where one piece of a payload lies: ``sie.payload.<stream>.<owner>.<id>.<number>``; ``*`` stands for all."""
    return f"{PAYLOAD}.{stream}.{token(owner)}.{payload_id}.{number}"


def payloads(stream: str) -> str:
    """Everything that a store of payloads keeps."""
    return f"{PAYLOAD}.{stream}.>"


@lru_cache(_KNOWN)
def lane_key(lane: Lane) -> str:
    """The lane as three tokens: in subjects, and as a bucket key."""
    return f"{token(lane.pool)}.{token(lane.bundle)}.{token(lane.profile)}"
