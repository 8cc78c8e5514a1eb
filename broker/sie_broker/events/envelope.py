"""`Work` and `Reply` as CloudEvents on NATS, binary mode: pure functions between records and (headers, body).

Follows the CloudEvents 1.0 NATS protocol binding: every attribute is a header ``ce-<name>``, the body is the data.
Headers are built by hand because this is the hot path: an event object per message costs some 24 us at each end.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from datetime import UTC, datetime
from functools import lru_cache
from urllib.parse import unquote

from sie_broker.records import PRIORITIES, Lane, Reply, Work
from sie_sdk.formats import JSON, MSGPACK
from sie_sdk.types import Priority

RESULT_TYPE = "dev.sie.result.v1"
AVAILABLE_TYPE = "dev.sie.work.available.v1"
"""Of the event that asks a bundle's Service for a session."""

LONGEST_NAME = 256
"""Characters of a name in its header: escaped as a token it has at most three times as many, and four of them still
make a subject that fits the 4096 bytes of a line to the server."""
LONGEST_REPLY_TO = 1024
LATEST_S = datetime(9999, 12, 31, 23, 59, 59, tzinfo=UTC).timestamp()
"""What RFC 3339 can say; whoever wants an answer for longer has it until then."""
_IN_SUBJECTS = ("ce-id", "ce-pool", "ce-bundle", "ce-profile", "ce-model")

_WORKER = re.compile(r"[\x20-\x7e]{0,256}")
_UNSAFE = re.compile(r"[^\x21\x23\x24\x26-\x7e]")  # all but visible ASCII without " and %


def work_type(op: str) -> str:
    """The CloudEvents type of an operation, such as ``dev.sie.encode.v1``."""
    return f"dev.sie.{op}.v1"


def from_work(work: Work, source: str) -> tuple[dict[str, str], bytes]:
    """The message that carries ``work``; `to_work` is its inverse."""
    headers = {
        "ce-specversion": "1.0",
        "ce-id": escape(work.id),
        "ce-source": escape(source),
        "ce-type": work_type(work.op),
        "ce-time": _rfc3339(work.time),
        "ce-datacontenttype": MSGPACK,
        "ce-pool": escape(work.lane.pool),
        "ce-bundle": escape(work.lane.bundle),
        "ce-profile": escape(work.lane.profile),
        "ce-model": escape(work.model),
        "ce-priority": work.priority,
    }
    if work.tenant:
        headers["ce-tenant"] = escape(work.tenant)
    if work.cause is not None:
        headers["ce-causationid"] = escape(work.cause)
    if work.reply_to is not None:
        headers["ce-replyto"] = escape(work.reply_to)
    if work.deadline is not None:
        headers["ce-expirytime"] = _rfc3339(min(work.deadline, LATEST_S))
    if work.dataref is not None:
        headers["ce-dataref"] = escape(work.dataref)
    if work.spec:
        headers["ce-specetag"] = escape(work.spec)
    if work.traceparent is not None:
        headers["ce-traceparent"] = escape(work.traceparent)
    if work.tracestate is not None:
        headers["ce-tracestate"] = escape(work.tracestate)
    return headers, work.data


def to_work(headers: Mapping[str, str], body: bytes) -> Work:
    """Read a work event.

    Raises:
        ValueError: a required attribute is missing or malformed; the message can never be worked on.
    """
    try:
        kind = headers["ce-type"]
        _check_names(headers)
        return Work(
            id=unquote(headers["ce-id"]),
            op=kind.removeprefix("dev.sie.").removesuffix(".v1"),
            lane=Lane(
                pool=unquote(headers["ce-pool"]),
                bundle=unquote(headers["ce-bundle"]),
                profile=unquote(headers["ce-profile"]),
            ),
            model=unquote(headers["ce-model"]),
            data=body,
            time=_epoch(headers["ce-time"]),
            reply_to=_optional(headers, "ce-replyto"),
            deadline=_epoch(headers["ce-expirytime"]) if "ce-expirytime" in headers else None,
            traceparent=_optional(headers, "ce-traceparent"),
            tracestate=_optional(headers, "ce-tracestate"),
            priority=_priority(headers.get("ce-priority", "interactive")),
            tenant=unquote(headers.get("ce-tenant", "")),
            cause=_optional(headers, "ce-causationid"),
            dataref=_optional(headers, "ce-dataref"),
            spec=unquote(headers.get("ce-specetag", "")),
        )
    except KeyError as missing:
        raise ValueError(f"work event without {missing}") from None


def _check_names(headers: Mapping[str, str]) -> None:
    """Refuse what is to be part of a subject and is too long for it: the server closes a connection that sends one."""
    for name in _IN_SUBJECTS:
        if not 0 < len(headers[name]) <= LONGEST_NAME:
            raise ValueError(f"work event whose {name} has {len(headers[name])} characters")
    if len(headers.get("ce-replyto", "")) > LONGEST_REPLY_TO:
        raise ValueError(f"work event whose ce-replyto has {len(headers['ce-replyto'])} characters")


def from_reply(reply: Reply) -> tuple[dict[str, str], bytes]:
    """The message that carries ``reply``; `to_reply` is its inverse."""
    headers = {
        "ce-specversion": "1.0",
        "ce-id": escape(reply.id),
        "ce-source": f"/bundle/{escape(reply.worker)}",
        "ce-type": RESULT_TYPE,
        "ce-datacontenttype": MSGPACK if reply.status < 400 else JSON,
        "ce-status": str(reply.status),
    }
    if reply.cause is not None:
        headers["ce-causationid"] = escape(reply.cause)
    if reply.dataref is not None:
        headers["ce-dataref"] = escape(reply.dataref)
    return headers, reply.data


def to_reply(headers: Mapping[str, str], body: bytes) -> Reply:
    """Read a result event.

    Raises:
        ValueError: a required attribute is missing or malformed; status and worker become part of an HTTP answer.
    """
    try:
        status, worker = int(headers["ce-status"]), unquote(headers["ce-source"]).removeprefix("/bundle/")
        if not 200 <= status <= 599 or not _WORKER.fullmatch(worker):
            raise ValueError(f"result event with the status {status} of {worker[:80]!r}")
        return Reply(
            id=unquote(headers["ce-id"]),
            data=body,
            status=status,
            worker=worker,
            cause=_optional(headers, "ce-causationid"),
            dataref=_optional(headers, "ce-dataref"),
        )
    except KeyError as missing:
        raise ValueError(f"result event without {missing}") from None


def escape(value: str) -> str:
    """A header value as the binding wants it: space, ``"``, ``%`` and all but visible ASCII percent-encoded."""
    return _UNSAFE.sub(lambda match: "".join(f"%{byte:02X}" for byte in match[0].encode()), value)


def _priority(name: str) -> Priority:
    for priority in PRIORITIES:
        if name == priority:
            return priority
    raise ValueError(f"work event with the priority {name!r}")


def _optional(headers: Mapping[str, str], name: str) -> str | None:
    return unquote(headers[name]) if name in headers else None


def _rfc3339(epoch: float) -> str:
    seconds, micros = divmod(round(epoch * 1_000_000), 1_000_000)
    return f"{_to_the_second(seconds)}.{micros:06d}Z"


@lru_cache(8)  # every request of a second begins alike
def _to_the_second(epoch: int) -> str:
    return datetime.fromtimestamp(epoch, UTC).isoformat(timespec="seconds").removesuffix("+00:00")


def _epoch(rfc3339: str) -> float:
    return datetime.fromisoformat(rfc3339).timestamp()
