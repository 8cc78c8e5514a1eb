"""On what terms a request is served, from its headers: for whom, how urgently, until when. Pure.

Owns the headers ``X-SIE-Tenant``, ``X-SIE-Priority``, ``X-SIE-Expires-In`` and their limits. What they lead to is
decided where they are used: ``admission`` counts tenants, queues are kept by priority, workers look at the deadline.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping

import msgspec

from sie_broker.contract import PRIORITIES
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
        tenant=_tenant(headers.get("x-sie-tenant", "")),
        priority=_priority(headers.get("x-sie-priority")),
        deadline=_deadline(headers.get("x-sie-expires-in"), now),
    )


def _tenant(name: str) -> str:
    if name and not _TENANT.fullmatch(name):
        raise InvalidInputError(
            "X-SIE-Tenant is no name of a tenant.", field="X-SIE-Tenant", limit="128 visible ASCII characters"
        )
    return name


def _priority(name: str | None) -> Priority | None:
    if name is None:
        return None
    for priority in PRIORITIES:
        if name.strip().lower() == priority:
            return priority
    raise InvalidInputError(
        f"X-SIE-Priority: {name[:40]} is not known.",
        field="X-SIE-Priority",
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
