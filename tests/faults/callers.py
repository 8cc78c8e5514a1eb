"""Callers that do not give up, and the account of what became of each id they sent.

Every request has a text and an Idempotency-Key of its own; on a refusal, a broken connection or a 202 its caller asks
again until it has the answer, which must be the one to its own text.
"""

from __future__ import annotations

import asyncio
import logging
import threading
from collections import Counter
from collections.abc import Collection, Sequence
from typing import NamedTuple

import httpx
import pytest

from sie_ingress.submit import job_id
from sie_sdk import calls, results, wire
from sie_sdk.types import EncodeRequest, EncodeResult, Item
from tests.faults.deployment import MODEL, STREAM, Deployment
from tests.faults.noop_bundle import recorded, vector
from tests.platform import wait_until

log = logging.getLogger("faults")

CALLERS = 32
PATIENCE_S = 100.0
HELD_S = 30.0
PROXY_S = 0.5
"""The pause after a proxy's refusal, which names none."""
AGAIN = "-again"
"""What is computed a second time for a caller whose answer was lost goes by an id that ends so."""
HEADERS = {"Content-Type": wire.MSGPACK, "Accept": wire.MSGPACK}


class Asked(NamedTuple):
    """One request. ``id`` is what its work is called in the queue and in the record."""

    text: str
    key: str
    id: str


def asked(name: str) -> Asked:
    """A request nobody else sends."""
    key = calls.fresh_key()
    return Asked(f"{name} {key}", key, job_id(key))


def is_of_a_proxy(reply: httpx.Response) -> bool:
    """Whether a proxy on the way could not reach the ingress: ours has a code and says when to come again."""
    return reply.status_code in (502, 503, 504) and "x-sie-error-code" not in reply.headers


class Load:
    """``count`` requests by ``callers`` at a time, on a thread of their own.

    ``urls``: one ingress, or several to turn to in order when one cannot be reached.
    """

    model = MODEL
    patience_s = PATIENCE_S
    """How long a caller goes on with one request."""
    rest_s = 0.0
    """The pause of a caller between two requests."""

    def __init__(
        self, urls: Sequence[str], count: int, callers: int = CALLERS, headers: dict[str, str] | None = None
    ) -> None:
        self.requests = [self.asked(number) for number in range(count)]
        self.answered: list[str] = []
        """Ids in the order in which their answers came; one entry per answer."""
        self.met: Counter[str] = Counter()
        """What callers met on their way: statuses, error codes, ``unreachable`` and ``timeout`` (after `HELD_S`)."""
        self.wrong: list[str] = []
        self.sent: Counter[str] = Counter()
        """How often something was sent to each ingress, or is about to be; looks at jobs are not counted."""
        self.accepted: set[str] = set()
        """Ids that a 202 or an answer told of."""
        self._urls = list(urls)
        self._avoided: set[str] = set()
        self._callers = callers
        self._headers = HEADERS | (headers or {})
        self._enough = threading.Event()
        self._failure: BaseException | None = None
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def asked(self, number: int) -> Asked:
        """The request of that number."""
        return asked(f"request {number}")

    def is_right(self, request: Asked, result: EncodeResult) -> bool:
        """Whether the answer is that to the request's own text."""
        return result.dense is not None and result.dense.tolist() == vector(request.text)

    def await_answered(self, count: int) -> None:
        """Return when so many are answered."""
        wait_until(lambda: len(self.answered) >= count or not self._thread.is_alive(), self.patience_s)
        self._raise()

    def finish(self) -> None:
        """Return when every caller has its answer."""
        self._thread.join(self.patience_s + 20)
        self._raise()
        assert not self._thread.is_alive(), f"{len(self.answered)} of {len(self.requests)} answered; met {self.met}"

    def avoid(self, url: str) -> None:
        """Send nothing new to an ingress; what it has is waited for."""
        self._avoided.add(url)

    def return_to(self, url: str) -> None:
        """Send to it again."""
        self._avoided.discard(url)

    def _turn(self, turn: int) -> str:
        urls = [url for url in self._urls if url not in self._avoided]
        return urls[turn % len(urls)]

    def _raise(self) -> None:
        if self._failure is not None:
            raise self._failure

    def _run(self) -> None:
        try:
            asyncio.run(self._ask_all())
        except BaseException as failure:
            self._failure = failure

    async def _ask_all(self) -> None:
        pending = iter(self.requests)

        async def caller(number: int, http: httpx.AsyncClient) -> None:
            for request in pending:
                async with asyncio.timeout(self.patience_s):
                    await self._ask(http, request, number)
                await asyncio.sleep(self.rest_s)

        limits = httpx.Limits(max_connections=None, max_keepalive_connections=self._callers)
        async with httpx.AsyncClient(timeout=HELD_S, limits=limits) as http:
            await asyncio.gather(*(caller(number, http) for number in range(self._callers)))

    async def _ask(self, http: httpx.AsyncClient, request: Asked, turn: int) -> None:
        body = wire.request_body(EncodeRequest([Item(text=request.text)]))
        job: str | None = None
        while True:
            url = self._turn(turn)
            try:
                if job is None:
                    self.sent[url] += 1
                    headers = self._headers | {"Idempotency-Key": request.key}
                    reply = await http.post(f"{url}/v1/encode/{self.model}", content=body, headers=headers)
                else:
                    reply = await http.get(url + job, headers=self._headers | {"Prefer": "wait=10"})
            except httpx.TransportError as error:
                self.met["timeout" if isinstance(error, httpx.TimeoutException) else "unreachable"] += 1
                turn += 1
                await asyncio.sleep(0.2)
                continue
            proxys = "a proxy's " if is_of_a_proxy(reply) else ""
            self.met[reply.headers.get("x-sie-error-code", f"{proxys}{reply.status_code}")] += 1
            if reply.status_code in (200, 202):
                self.accepted.add(request.id)
            if reply.status_code == 200:
                return self._take(request, reply.content)
            if reply.status_code == 202:
                job = reply.headers["location"]
            elif is_of_a_proxy(reply):
                await asyncio.sleep(PROXY_S)
            elif reply.status_code == 503:
                await asyncio.sleep(float(reply.headers["retry-after"]))
            else:
                pytest.fail(f"{request}: {reply.status_code} {reply.text}")

    def _take(self, request: Asked, body: bytes) -> None:
        (result,) = results.read_encode(body)
        if not self.is_right(request, result):
            self.wrong.append(request.id)
        self.answered.append(request.id)


class Account(NamedTuple):
    """What became of a load: ids by how they fared."""

    begun_again: dict[str, int]
    """Ids that were begun more than once, and how often."""
    computed_again: dict[str, int]
    """Ids that were computed to the end more than once, and how often."""
    for_callers: set[str]
    """Ids that were computed a second time because their caller came again: it was refused, or its answer was lost."""


def account(deployment: Deployment, *loads: Load) -> Account:
    """Wait for the end of the loads and settle: every id answered once, rightly, nothing left in the queue.

    Logs the figures for docs/reliability.md (``--log-cli-level=INFO`` shows them).
    """
    for load in loads:
        load.finish()
    known = {request.id for load in loads for request in load.requests}
    answers = Counter(id for load in loads for id in load.answered)
    assert answers.keys() == known, f"not answered: {known - answers.keys()}"
    assert set(answers.values()) == {1}
    assert not any(load.wrong for load in loads)
    # First: what was answered may still be waiting to be computed again, where its end was lost.
    wait_until(lambda: waiting(deployment) == 0, 60)
    begun, computed = (_count(deployment, event) for event in ("start", "done"))
    assert begun.keys() == computed.keys() == known, "something was computed that nobody asked for, or not at all"
    met = sum((load.met for load in loads), Counter[str]())
    by_another_id = {line.id for line in deployment.recorded("start") if line.id.endswith(AGAIN)}
    again = Account(_repeated(begun), _repeated(computed), {id.removesuffix(AGAIN) for id in by_another_id})
    log.info(
        "%d ids, %d answered; begun again %d, computed again %d; met %s",
        len(known),
        sum(answers.values()),
        len(again.begun_again),
        len(again.computed_again),
        dict(met),
    )
    return again


def story(deployment: Deployment, ids: Collection[str]) -> str:
    """What the bundles recorded of these works, by the place of each line in the record of all."""
    lines = enumerate(recorded(deployment.record))
    told = (f"{place}: {line.event} {line.id} by {line.worker}" for place, line in lines if line.id[:32] in ids)
    return "\n".join(told)


def waiting(deployment: Deployment) -> int:
    """Messages in the work stream."""
    info = asyncio.run(deployment.ask_server(f"$JS.API.STREAM.INFO.{STREAM}"))
    return int(info["state"]["messages"])


def _count(deployment: Deployment, event: str) -> Counter[str]:
    return Counter(line.id.removesuffix(AGAIN) for line in deployment.recorded(event))


def _repeated(counted: Counter[str]) -> dict[str, int]:
    return {id: times for id, times in counted.items() if times > 1}
