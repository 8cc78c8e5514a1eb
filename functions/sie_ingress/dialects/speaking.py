"""The routes of all dialects: a request is read, given its model, checked, placed and held, and answered in its words.

Owns which model serves a request that names none, and that nobody gets a 202 here: what is not answered within the
hold is refused with 503 and ``Retry-After``, which the official clients follow. The dialects themselves are pure; the
way of a request behind its check is ``inference``'s.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
from collections.abc import Awaitable, Callable, Iterable, Iterator
from functools import partial

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Match, Route
from starlette.types import Receive, Scope, Send

from sie_broker import clock, http_refusals
from sie_broker.records import Lane
from sie_config import model_name
from sie_config.model.model_spec import ModelSpec
from sie_config.registry import Registry
from sie_ingress import answer, caller, memory
from sie_ingress.answer import Answers
from sie_ingress.beside import beside
from sie_ingress.body import read_body
from sie_ingress.dialects import cohere, cohere_embed, openai, tei, tei_server
from sie_ingress.dialects.dialect import Asking, Headers, Spoken, Write
from sie_ingress.headers import by_name
from sie_ingress.identity import trace_of, works_on
from sie_ingress.inference import Asked, Checked, Inference, Parsed
from sie_ingress.lanes import Lanes
from sie_ingress.settings import Settings
from sie_ingress.submit import Holds, job_id
from sie_ingress.terms import Terms, read_terms
from sie_sdk import refusals, wire
from sie_sdk.errors import (
    ConfigurationError,
    InvalidInputError,
    ModelPlannedError,
    ModelUnplacedError,
    NotFoundError,
    ProvisioningError,
    ProvisioningFailedError,
    SIEError,
    UnavailableError,
)
from sie_sdk.refusals import MAY_PASS

MODEL_HEADER = "x-sie-model"
LONGEST_RETRY_S = 60.0
"""The longest ``Retry-After``: official clients do not wait for more, and some then wait for less, or give up."""
NAMED = 5
"""So many models are named to a caller that has to choose."""


class Dialects:
    """All routes that speak another's dialect."""

    def __init__(
        self, inference: Inference, registry: Registry, lanes: Lanes, answers: Answers, settings: Settings
    ) -> None:
        self._inference = inference
        self._registry = registry
        self._lanes = lanes
        self._answers = answers
        self._settings = settings
        tokenizer = settings.openai_tokenizer
        self._spoken = [*openai.spoken(tokenizer), *cohere.spoken(), *cohere_embed.spoken(), *tei.spoken()]
        self._tei = self._spoken[-1]
        self._defaults = named_models(settings.default_models)
        self._routes = [
            (Route("/info", self._info, methods=["GET"]), self._tei),
            (Route("/tei/{model:path}/info", self._info, methods=["GET"]), self._tei),
            (Route("/tei/{model:path}/health", self._health, methods=["GET"]), self._tei),
            *(
                (Route(path, Absent(self._tei, name)), self._tei)
                for name in tei_server.ABSENT
                for path in _absent_paths(name)
            ),
            *((Route(each.path, partial(self._serve, each), methods=["POST"]), each) for each in self._spoken),
        ]

    def routes(self) -> list[Route]:
        """In the order in which they are to be tried."""
        return [route for route, _ in self._routes]

    def refused(self, scope: Scope, error: SIEError) -> Response:
        """An error as it is said where a request would go that is not let in: in a dialect, if one is spoken there."""
        for route, spoken in self._routes:
            if route.matches(scope)[0] is not Match.NONE:
                return refuse(spoken, error)
        return answer.refuse_in(scope, error)

    def by_path(self) -> dict[str, Callable[[Request], Awaitable[Response]]]:
        """What answers a POST to each path that is always the same."""
        return {each.path: partial(self._serve, each) for each in self._spoken if "{" not in each.path}

    async def _serve(self, spoken: Spoken, request: Request) -> Response:
        try:
            return await self._answer(spoken, request)
        except SIEError as error:
            return refuse(spoken, error)

    async def _answer(self, spoken: Spoken, request: Request) -> Response:
        accepted, limit = clock.now(), self._settings.request_timeout_s
        headers = by_name(request.scope)
        terms = read_terms(headers, accepted)
        held = answer.prefer_wait(headers.get("prefer"), limit)
        hold_s, key = limit if held is None else held, headers.get("idempotency-key")
        own_id = job_id(key, terms.tenant) if key else os.urandom(16).hex()
        works_on(request.scope, own_id)
        checked, write = await self._checked(spoken, request, headers, terms, own_id, accepted)
        take, waits = memory.of(request.scope).take, caller.of(request.receive, key)
        reply = await self._inference.answered(checked, Holds(hold_s, hold_s, key, take=take, caller=waits))
        if reply is None:
            raise await self._late(checked.whole.lane)
        if reply.status >= 400:
            raise refusals.read_error(reply.status, {"content-type": wire.JSON}, reply.data)
        body = await self._answers.in_json(reply.data, lambda data: write(data, own_id))
        return self._answers.told(Response(body, media_type=wire.JSON), reply)

    async def _checked(
        self, spoken: Spoken, request: Request, headers: Headers, terms: Terms, own_id: str, accepted: float
    ) -> tuple[Checked, Write]:
        """The request, ready to be placed, and what writes its answer. Nothing else keeps its texts from here on."""
        body = await read_body(request, self._settings.max_body_bytes)
        size = len(body)
        asking = await beside(size, partial(spoken.read, body, headers, self._inference.limits))
        spec = self._model(asking, headers, _in_path(request))
        ask = partial(asking.ask, spec)
        operation, wanted, write = await asyncio.to_thread(ask) if asking.slow else await beside(size, ask)
        trace = trace_of(request.scope)
        asked = Asked(operation, spec, Parsed(wanted), terms, own_id, accepted, headers, trace)
        return await self._inference.check(asked), write

    def _model(self, asking: Asking, headers: Headers, in_path: str) -> ModelSpec:
        if name := asking.model or headers.get(MODEL_HEADER) or in_path:
            return self._registry.resolve(name)
        return self._default(asking.can)

    def _default(self, can: Callable[[ModelSpec], bool]) -> ModelSpec:
        """The model of a request that names none: the first of the setting that can do it, or the only one that can.

        Raises:
            InvalidInputError: there is none, or several; says how to name one.
        """
        known = list(self._listed()) if self._defaults else self._registry.specs()
        able = [spec for spec in known if spec.status == "ready" and can(spec)]
        if able and (self._defaults or len(able) == 1):
            return able[0]
        raise InvalidInputError(
            "The request names no model, and "
            + (f"{len(able)} could do it." if able else "none of those there are by default could do it."),
            field="model",
            limit=", ".join(spec.id for spec in able[:NAMED]) or None,
            hint='Name one as "model" in the body, in the header X-SIE-Model, or in the path (/tei/org/model/embed), '
            "or set SIE_DEFAULT_MODELS of the server.",
        )

    def _listed(self) -> Iterator[ModelSpec]:
        for name in self._defaults:
            # It may come into the catalogue later, or be served later.
            with contextlib.suppress(NotFoundError, ModelPlannedError, ModelUnplacedError):
                yield self._registry.resolve(name)

    async def _late(self, lane: Lane) -> SIEError:
        if (given_up := self._lanes.given_up(lane)) is not None:
            return given_up
        retry_after = await self._lanes.retry_after(lane)
        if self._lanes.live(lane):
            return UnavailableError("The answer took longer than a request is held.", retry_after=retry_after)
        return ProvisioningError("No worker is up yet.", retry_after=retry_after)

    async def _info(self, request: Request) -> Response:
        """``GET /info`` of TEI, about one model."""
        try:
            spec = self._described(request)
        except SIEError as error:
            return refuse(self._tei, error)
        return Response(tei_server.info(spec, self._inference.limits), media_type=wire.JSON)

    async def _health(self, request: Request) -> Response:
        """``GET /health`` of TEI below a model's name: there is such a model, whether a worker is up or not."""
        try:
            self._described(request)
        except SIEError as error:
            return refuse(self._tei, error)
        return Response(b"")

    def _described(self, request: Request) -> ModelSpec:
        name = request.headers.get(MODEL_HEADER) or _in_path(request)
        return self._registry.resolve(name) if name else self._default(lambda spec: True)


class Absent:
    """One of a dialect's routes that is not served, whatever the method."""

    def __init__(self, spoken: Spoken, name: str) -> None:
        self._spoken = spoken
        self._name = name

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        await refuse(self._spoken, tei_server.absent(self._name))(scope, receive, send)


def _absent_paths(name: str) -> Iterator[str]:
    """Where TEI's clients look for a route: below a model's name and, but for our own ``/metrics``, at the root."""
    yield f"/tei/{{model:path}}/{name}"
    if name != "metrics":
        yield f"/{name}"


def _in_path(request: Request) -> str:
    """The model that the path names, if it does; clients may have a base URL that ends in a slash."""
    name: str = request.path_params.get("model", "")
    return name.rstrip("/")


def named_models(setting: str) -> list[str]:
    """The names in ``SIE_DEFAULT_MODELS``.

    Raises:
        ConfigurationError: one of them is none.
    """
    names = [name.strip() for name in setting.split(",") if name.strip()]
    for name in names:
        try:
            model_name.parse(name)
        except InvalidInputError as error:
            raise ConfigurationError(f"SIE_DEFAULT_MODELS: {error}", field="SIE_DEFAULT_MODELS") from None
    return names


def absent_models(registry: Registry, names: Iterable[str]) -> Iterator[str]:
    """What is said of each name that is not in the catalogue."""
    for name in names:
        try:
            registry.resolve(name)
        except NotFoundError as error:
            yield str(error)
        except SIEError:
            continue  # it is there, and may be served later


def refuse(spoken: Spoken, error: SIEError) -> Response:
    """An error as the dialect says it, with our code in a header and when another try makes sense."""
    again = error.status in MAY_PASS and not isinstance(error, ProvisioningFailedError)
    headers = {"X-SIE-Error-Code": error.code, "x-should-retry": "true" if again else "false"}
    if error.retry_after is not None:
        headers["Retry-After"] = http_refusals.seconds(min(error.retry_after, LONGEST_RETRY_S))
    if challenge := error.details.get("challenge"):
        headers["WWW-Authenticate"] = challenge
    status, body = spoken.refuse(error)
    return Response(body, status, headers, wire.JSON)
