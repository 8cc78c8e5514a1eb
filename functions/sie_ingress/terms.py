"""On what terms a request is served, from its headers or its event: for whom, how urgently, until when. Pure.

Owns the headers ``X-SIE-Tenant``, ``X-SIE-Priority``, ``X-SIE-Expires-In``, the attributes ``tenant``, ``priority``,
``expirytime``, and their limits. What they lead to is decided where they are used: ``admission`` counts tenants, queues
are kept by priority, workers look at the deadline.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping

import msgspec
from cloudevents.core.v1.event import CloudEvent

from sie_broker.events import exchange
from sie_broker.records import PRIORITIES
from sie_sdk.errors import InvalidInputError
from sie_sdk.types import Priority

_TENANT = re.compile(r"[\x21-\x7e]{1,128}")


class Terms(msgspec.Struct, frozen=True):
    """What the caller asked for; None where it left the choice to us."""

    tenant: str = ""
    priority: Priority | None = None
    deadline: float | None = None
    """Seconds since the epoch after which nobody wants the answer."""

    def priority_of(self, parts: int) -> Priority:
        """The class of the work: a request so large that it was split is bulk unless its caller says otherwise."""
        return self.priority or ("interactive" if parts == 1 else "bulk")


def read_terms(headers: Mapping[str, str], now: float) -> Terms:
    """The terms of a request that came at ``now`` (seconds since the epoch). Header names are lower case.

    Raises:
        InvalidInputError: a header cannot be read; names it.
    """
    return Terms(
        tenant=_tenant(headers.get("x-sie-tenant", ""), "X-SIE-Tenant"),
        priority=_priority(headers.get("x-sie-priority", ""), "X-SIE-Priority"),
        deadline=_deadline(headers.get("x-sie-expires-in"), now),
    )


def event_terms(event: CloudEvent, now: float, prefix: str = "") -> Terms:
    """The terms of an event that came at ``now``; ``prefix`` goes before an attribute's name in errors.

    Raises:
        InvalidInputError: an attribute cannot be read; names it.
        DeadlineExceededError: it has expired.
    """
    return Terms(
        tenant=_tenant(exchange.extension(event, "tenant"), f"{prefix}tenant"),
        priority=_priority(exchange.extension(event, "priority"), f"{prefix}priority"),
        deadline=exchange.expiry(event, now, prefix),
    )


def _tenant(name: str, field: str) -> str:
    if name and not _TENANT.fullmatch(name):
        raise InvalidInputError(f"{field} is no name of a tenant.", field=field, limit="128 visible ASCII characters")
    return name


def _priority(name: str, field: str) -> Priority | None:
    if not name:
        return None
    for priority in PRIORITIES:
        if name.strip().lower() == priority:
            return priority
    raise InvalidInputError(
        f"{field}: {name[:40]} is not known.",
        field=field,
        limit=", ".join(PRIORITIES),
        hint=f"Send {' or '.join(PRIORITIES)}, or leave it out.",
    )


def _deadline(seconds: str | None, now: float) -> float | None:
    if seconds is None:
        return None
    try:
        left = float(seconds)
    except ValueError:
        left = math.nan
    if not 0 < left < math.inf:
        raise InvalidInputError(
            f"X-SIE-Expires-In: {seconds[:40]} is not a number of seconds above 0.",
            field="X-SIE-Expires-In",
            hint="Example: X-SIE-Expires-In: 30",
        )
    return now + left
