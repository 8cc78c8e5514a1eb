"""Demand sessions: CloudEvent POSTs without a payload, held open so that Knative's autoscaler sees concurrency.

Owns how many are open per lane, their renewal, and how each Service answers them. How many there should be is decided
in ``holder``; what a bundle does with one is its own business: sessions shape the replica count, they route no work.
"""

from __future__ import annotations

import asyncio
import logging
import random
import socket
import time
import uuid
from collections.abc import Collection
from datetime import UTC, datetime
from enum import Enum
from types import TracebackType
from typing import Self
from urllib.parse import quote

import httpx

from sie_broker import clock
from sie_broker.demand.supply import Answer
from sie_broker.events.envelope import AVAILABLE_TYPE
from sie_broker.records import Lane
from sie_sdk.errors import ConfigurationError

log = logging.getLogger("sie.broker.sessions")

OVERDUE_S = 10.0
"""How long past its end a session may stay open before it is taken for lost with the machine that held it."""
COLD_S, COLD_OVERDUE_S = 10.0, 5.0
"""The most seconds of a session of a Service without a worker, and the same for it. A session waits at the revision
that was routed to when it opened: the one that repairs a Service is asked for its first pod when this has passed."""
EXCERPT = 100
"""Characters of a refusal that are told."""
SETTLED_S = 1.0
"""A session that ended sooner is no session: without this a bundle with a wrong clock would be called in a circle."""


class Ended(Enum):
    """How a session ended, which decides when the next one opens."""

    NORMALLY = "normally"
    WAITING = "waiting"
    """Still without a pod when its time was up (the activator's 504, or no answer): ask again almost at once."""
    BROKEN = "broken"
    """Refused, cut off, or answered with an error: back off."""


def pause_s(ended: Ended, failures: int) -> float:
    """Seconds until the next session of the same slot; ``failures`` counts the broken ones in a row before this one."""
    match ended:
        case Ended.NORMALLY:
            return 0.0
        case Ended.WAITING:
            return random.uniform(0.0, 1.0)  # all sessions of a lane end together there; spread them
        case Ended.BROKEN:
            return min(5.0, 0.2 * 2.0 ** min(failures, 5)) * random.uniform(0.8, 1.0)


def event_headers(lane: Lane, hold_until: float) -> dict[str, str]:
    """The binary CloudEvent of one session; ``hold_until`` is its absolute end in seconds since the epoch.

    An end and not a length: a session that waited out a cold start would otherwise outlive the activator's timeout.
    """
    return {
        "ce-specversion": "1.0",
        "ce-id": uuid.uuid4().hex,
        "ce-source": "/broker/demand",
        "ce-type": AVAILABLE_TYPE,
        "ce-subject": "/".join(quote(part, safe="") for part in (lane.pool, lane.bundle, lane.profile)),
        "ce-holduntil": datetime.fromtimestamp(hold_until, UTC).isoformat(timespec="milliseconds")[:-6] + "Z",
    }


def address(template: str, lane: Lane) -> str:
    """Where the Service of a lane is reached."""
    return template.format(**{name: quote(getattr(lane, name), safe="") for name in ("bundle", "profile", "pool")})


def check(template: str) -> None:
    """See whether addresses can be made of it.

    Raises:
        ConfigurationError: they cannot.
    """
    try:
        url = httpx.URL(address(template, Lane("pool", "bundle", "profile")))
    except (LookupError, ValueError, httpx.InvalidURL) as error:
        fault = f"{type(error).__name__}: {error}"
    else:
        fault = "" if url.scheme in ("http", "https") and url.host else "it begins with no http://host"
    if fault:
        raise ConfigurationError(
            f"SIE_DEMAND_URL={template!r} is no address of a Service: {fault}.",
            field="SIE_DEMAND_URL",
            hint="As http://{bundle}-{profile}.sie.svc.cluster.local; {pool} may stand in it too.",
        )


class Sessions:
    """Holds sessions open against each lane's URL, as an async context.

    Args:
        url: template with ``{bundle}``, ``{profile}`` and ``{pool}``.
        session_s: length of a session; each is up to a fifth shorter or longer, so that renewals spread.
    """

    def __init__(self, url: str, session_s: float) -> None:
        self._url = url
        self._session_s = session_s
        self._slots: dict[Lane, list[asyncio.Task[None]]] = {}
        self._cold: frozenset[Lane] = frozenset()
        self._answers: dict[Lane, Answer] = {}
        # A TLS context costs 20 ms and several MB; inside a cluster or a laptop there is nothing to verify.
        self._client = httpx.AsyncClient(
            verify=url.startswith("https:"), trust_env=False, limits=httpx.Limits(max_connections=None), timeout=None
        )

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None
    ) -> None:
        slots = [slot for lane in list(self._slots) for slot in self._shrink(lane, 0)]
        await asyncio.gather(*slots, return_exceptions=True)
        await self._client.aclose()

    def hold(self, lane: Lane, count: int) -> None:
        """Keep exactly ``count`` sessions open for ``lane`` from now on; the newest are closed first."""
        slots = self._slots.setdefault(lane, [])
        self._shrink(lane, count)
        while len(slots) < count:
            slots.append(asyncio.create_task(self._keep_open(lane)))

    def cold(self, services: Collection[Lane]) -> None:
        """These have no worker now, and all others do."""
        self._cold = frozenset(services)

    def answer(self, lane: Lane) -> Answer:
        """How the Service last answered a session, if no worker did."""
        return self._answers.get(lane, Answer())

    def _shrink(self, lane: Lane, count: int) -> list[asyncio.Task[None]]:
        slots = self._slots[lane]
        closed, slots[count:] = slots[count:], []
        for slot in reversed(closed):
            slot.cancel()
        return closed

    async def _keep_open(self, lane: Lane) -> None:
        """One slot: a session that ends is closed before the next opens."""
        failures = 0
        while True:
            opened = time.monotonic()
            ended, how = await self._session(lane)
            if ended is Ended.NORMALLY and time.monotonic() - opened < min(SETTLED_S, self._session_s / 2):
                ended, how = Ended.BROKEN, "ended at once"
            pause = pause_s(ended, failures)
            failures = failures + 1 if ended is Ended.BROKEN else 0
            if failures == 1:
                log.info("session of %s: %s; trying again", lane, how)
            await asyncio.sleep(pause)

    async def _session(self, lane: Lane) -> tuple[Ended, str]:
        """Hold one session open until its end; never raises: a slot that has ended would still count as open."""
        longest, overdue = (COLD_S, COLD_OVERDUE_S) if lane in self._cold else (self._session_s, OVERDUE_S)
        length = min(longest, self._session_s) * random.uniform(0.8, 1.2)
        headers = event_headers(lane, clock.now() + length)
        try:
            async with asyncio.timeout(length + overdue):
                reply = await self._client.post(address(self._url, lane), headers=headers)
        except TimeoutError:
            self._answers[lane] = Answer()
            return Ended.WAITING, "no answer"
        except httpx.HTTPError as error:
            said = str(error) or type(error).__name__
            self._answers[lane] = Answer(said, is_unknown(error))
            return Ended.BROKEN, said
        except Exception as error:  # a name that makes no address, for instance
            said = repr(error)
            if self.answer(lane).words != said:
                log.exception("session of %s cannot be opened", lane)
            self._answers[lane] = Answer(said)
            return Ended.BROKEN, said
        if reply.status_code == 200:
            self._answers.pop(lane, None)
            return Ended.NORMALLY, "200"
        said = f"HTTP {reply.status_code} {reply.text[:EXCERPT]}".strip()
        self._answers[lane] = Answer(said, reply.status_code == 404)
        return (Ended.WAITING if reply.status_code == 504 else Ended.BROKEN), said


def is_unknown(error: BaseException | None) -> bool:
    """Whether an address could not be reached because nobody has that name, as where there is no such Service."""
    while error is not None:
        if isinstance(error, socket.gaierror):
            return error.errno in (socket.EAI_NONAME, socket.EAI_NODATA)
        error = error.__cause__ or error.__context__
    return False
