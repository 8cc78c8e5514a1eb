"""What each process may say and hear on NATS: the least it works with, as data for the server's configuration.

Owns the rights and nothing else; what is there to be said and heard stands in ``subjects`` and ``streams``. Names of
work streams and of models are not known beforehand, and a wildcard stands for a whole token: a right on all streams has
those denied that are nobody's business.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

import msgspec

from sie_broker import claim, subjects
from sie_broker.contract import Store
from sie_broker.jetstream import connection
from sie_broker.jetstream.streams import (
    CONFIG,
    DEAD,
    DUE,
    EVENTS,
    JOBS,
    LANES,
    LEASES,
    POOLS,
    PRESENCE,
    SINKS,
    Limits,
    buckets,
)

API: Final = "$JS.API"
ANY_INBOX: Final = "_INBOX.>"
CHANGED: Final = "sie.config.changed.>"


class Rights(msgspec.Struct, frozen=True):
    """The subjects of one user; what is denied is taken from what is allowed."""

    publish: tuple[str, ...]
    subscribe: tuple[str, ...]
    deny_publish: tuple[str, ...] = ()


def users() -> dict[str, Rights]:
    """The rights of every user, by name: our four processes, who sends events, and whoever looks after it all."""
    return {
        "ingress": _ingress(),
        "bundle": _bundle(),
        "config": _config(),
        "demand": _demand(),
        "producer": Rights((f"{subjects.EVENTS}.*",), ("_INBOX.producer.>", CHANGED)),
        "operator": Rights((">",), (">",)),
    }


def _ingress() -> Rights:
    written = (JOBS, LANES, POOLS, SINKS)
    publish = [
        f"{subjects.WORK}.>",
        f"{subjects.WAKE}.>",
        f"{subjects.WANTED}.>",
        f"{subjects.WITHDRAWN}.>",
        f"{subjects.SINK}.*",
        ANY_INBOX,
        *_takes(EVENTS),
        *_payloads(stores=("work", "dead"), loads=("work", "result"), drops=("result",)),
        f"{API}.STREAM.INFO.*",
        f"{API}.STREAM.MSG.GET.*",
        f"{API}.STREAM.MSG.DELETE.*",
        *_buries(),
        *_reads(CONFIG, PRESENCE, *written),
        *_writes(*written),
    ]
    # Who waits for a job watches its result.
    hears = (*_hears(CONFIG, PRESENCE, LANES, POOLS), f"$KV.{JOBS}.result.*")
    # Of messages it takes back work, and nothing else.
    deny = (f"{API}.STREAM.MSG.GET.{DUE}", *(f"{API}.STREAM.MSG.DELETE.{name}" for name in _NO_WORK))
    return _rights("ingress", publish, hears, deny)


def _bundle() -> Rights:
    # It pulls whatever queue of its lane there is, of any pool; the two small queues are not its own.
    publish = [
        f"{API}.CONSUMER.MSG.NEXT.*.*",
        f"{API}.CONSUMER.INFO.*.*",
        f"{API}.STREAM.INFO.*",
        "$JS.ACK.>",
        f"{subjects.WORK}.>",
        f"{subjects.REPLY}.>",
        f"{subjects.SINK}.*",
        f"{subjects.HEALTH}.*",
        subjects.HANDS,
        ANY_INBOX,
        # Work that was tried again after it had been given up refers to what was kept with it.
        *_payloads(stores=("result", "dead"), loads=("work", "dead"), drops=("work",)),
        *_buries(),
        *_reads(CONFIG, JOBS, POOLS, PRESENCE),
        *_writes(JOBS, PRESENCE),
    ]
    deny = [f"{what}.{queue}.>" for queue in (DUE, EVENTS) for what in (f"{API}.CONSUMER.MSG.NEXT", "$JS.ACK")]
    hears = (*_hears(CONFIG, POOLS), f"{subjects.WANTED}.>", f"{subjects.WITHDRAWN}.>", subjects.HANDS)
    return _rights("bundle", publish, hears, deny)


def _config() -> Rights:
    publish = [
        *(f"{API}.STREAM.{verb}.*" for verb in ("INFO", "CREATE", "UPDATE", "DELETE")),
        *(f"{API}.CONSUMER.{verb}.>" for verb in ("INFO", "CREATE", "LIST", "DELETE")),
        CHANGED,
        *_reads(CONFIG, POOLS),
        *_writes(CONFIG, POOLS),
    ]
    # What it makes stays: no stream but a retired pool's is ever removed.
    return _rights("config", publish, _hears(CONFIG, POOLS), [f"{API}.STREAM.DELETE.{name}" for name in _NO_WORK])


def _demand() -> Rights:
    written = (JOBS, LANES, LEASES, POOLS, SINKS)
    publish = [
        f"{API}.STREAM.NAMES",
        f"{API}.STREAM.INFO.*",
        f"{API}.STREAM.MSG.GET.*",
        f"{API}.STREAM.MSG.DELETE.*",
        f"{API}.CONSUMER.LIST.*",
        *_takes(DUE),
        *_payloads(stores=("dead",), loads=("work", "result", "dead"), drops=("work",)),
        *_buries(),
        f"{subjects.REPLY}.>",
        f"{subjects.SINK}.*",
        ANY_INBOX,
        *_reads(PRESENCE, *written),
        *_writes(*written),
    ]
    hears = (*_hears(PRESENCE, POOLS, LEASES), f"{subjects.WAKE}.>", "$JS.EVENT.ADVISORY.CONSUMER.MAX_DELIVERIES.>")
    return _rights("demand", publish, hears, [f"{API}.STREAM.MSG.DELETE.KV_{bucket}" for bucket in _BUCKETS])


_BUCKETS: Final = (JOBS, PRESENCE, CONFIG, LANES, POOLS, LEASES, SINKS)
_DIRECT: Final = {each["name"].removeprefix("KV_") for each in buckets(Limits()) if each["allow_direct"]}

_NO_WORK: Final = (*(f"KV_{bucket}" for bucket in _BUCKETS), DEAD, DUE, EVENTS, *claim.STREAMS.values())
"""All streams but those of work, whose names are not known beforehand."""


def _rights(user: str, publish: Iterable[str], hears: Iterable[str], deny: Iterable[str] = ()) -> Rights:
    # A reply is awaited under a name that a process gives itself at its start.
    own = (f"{connection.inbox(user)}.>", f"{subjects.REPLY}.*.*")
    return Rights(tuple(dict.fromkeys(publish)), (*own, *hears), tuple(deny))


def _reads(*buckets: str) -> Iterable[str]:
    """Values and the list of keys; from any replica where the bucket is read so."""
    for bucket in buckets:
        yield f"{API}.STREAM.INFO.KV_{bucket}"
        yield f"{API}.STREAM.MSG.GET.KV_{bucket}"
        if bucket in _DIRECT:
            yield f"{API}.DIRECT.GET.KV_{bucket}.>"


def _writes(*buckets: str) -> Iterable[str]:
    return (f"$KV.{bucket}.>" for bucket in buckets)


def _hears(*buckets: str) -> tuple[str, ...]:
    """A watch is a subscription to what is written."""
    return tuple(_writes(*buckets))


def _payloads(*, stores: Iterable[Store], loads: Iterable[Store], drops: Iterable[Store]) -> Iterable[str]:
    """Large data. What could not be stored whole is dropped again."""
    for store in stores:
        yield f"{subjects.PAYLOAD}.{claim.STREAMS[store]}.>"
    for store in loads:
        yield f"{API}.STREAM.MSG.GET.{claim.STREAMS[store]}"
        yield f"{API}.DIRECT.GET.{claim.STREAMS[store]}.>"
    for store in dict.fromkeys((*stores, *drops)):
        yield f"{API}.STREAM.PURGE.{claim.STREAMS[store]}"


def _buries() -> Iterable[str]:
    """Dead letters: kept, once each."""
    return (f"{subjects.DEAD}.>", f"{API}.STREAM.MSG.GET.{DEAD}")


def _takes(queue: str) -> Iterable[str]:
    """One of the small queues, whose consumer has its name."""
    return (f"{API}.CONSUMER.MSG.NEXT.{queue}.{queue}", f"$JS.ACK.{queue}.>")
