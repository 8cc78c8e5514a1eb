"""The routes that change the catalogue: what came is read, made an edit, and answered with what it did.

Owns the way from a request to `Writer.write` and back, and that an Idempotency-Key is obeyed once. What an edit may do
is ``edits``', the answers are ``answers``', the terms ``write_terms``'.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple
from weakref import WeakValueDictionary

import msgspec
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from sie_config.api import answers, edits, preconditions, write_terms
from sie_config.api.answers import Done, Seen, Told
from sie_config.api.auth import Access
from sie_config.api.body import read_body
from sie_config.api.edits import Wanted
from sie_config.api.history import whole_number
from sie_config.api.write_terms import Terms
from sie_config.epochs.state import State
from sie_config.epochs.store import Event, Kind, Recorded
from sie_config.epochs.writer import Edit, Writer
from sie_config.epochs.writer import Request as Asked
from sie_config.model import plain
from sie_config.model.model_spec import ModelSpec
from sie_sdk import complaints, formats
from sie_sdk.errors import IdempotencyMismatchError, InvalidInputError

SHORT_BYTES = 16 * 1024
"""A body up to this is read at once; reading a longer one would hold up everybody's reads."""
_FIELDS = ("models", "owner", "prune", "adopt")
_EXAMPLE = '{"owner": "team-a", "models": [...]}'

Answered = Callable[[Done], tuple[int, msgspec.Struct]]


class Sent(NamedTuple):
    """A request for a write, read."""

    documents: list[Any]
    terms: Terms
    query: Mapping[str, str]


class Writes:
    """The routes. ``access`` says who may."""

    def __init__(self, writer: Writer, access: Access, told: Told) -> None:
        self._writer = writer
        self._access = access
        self._told = told
        self._turns: WeakValueDictionary[str, asyncio.Lock] = WeakValueDictionary()
        """A lock for each Idempotency-Key that is being obeyed."""

    def routes(self) -> list[Route]:
        """All of them."""
        one = "/v1/configs/models/{model:path}"
        every = [
            ("POST", "/v1/configs/models", self.append),
            ("PUT", one, self.put),
            ("PATCH", one, self.patch),
            ("DELETE", one, self.delete),
            ("POST", "/v1/configs/apply", self.apply),
            ("POST", "/v1/configs/rollback/{epoch}", self.rollback),
        ]
        return [Route(path, self._access.writing(endpoint), methods=[method]) for method, path, endpoint in every]

    async def append(self, request: Request) -> Response:
        """A new model, or new profiles of one that is there."""
        sent = await _read(request)
        document = plain.mapping(sent.documents)
        model = str(document.get("id", ""))
        edit = edits.append(document)
        return await self._write(
            sent.terms, "append", edit, model, lambda done: answers.appended(done, document, self._told)
        )

    async def put(self, request: Request) -> Response:
        """The whole spec of a model."""
        sent, model = await _read(request), _model(request)
        edit = edits.put(model, plain.mapping(sent.documents))
        return await self._write(sent.terms, "put", edit, model, lambda done: answers.replaced(done, self._told))

    async def patch(self, request: Request) -> Response:
        """Some fields of a model."""
        sent, model = await _read(request), _model(request)
        edit = edits.patch(model, plain.mapping(sent.documents))
        return await self._write(sent.terms, "patch", edit, model, lambda done: answers.replaced(done, self._told))

    async def delete(self, request: Request) -> Response:
        """No such model any more."""
        sent, model = await _read(request), _model(request)
        if sent.documents:
            raise InvalidInputError("A DELETE has no body.", field="body", hint="The path says which model.")
        edit = edits.delete(model)
        return await self._write(
            sent.terms, "delete", edit, model, lambda done: answers.deleted(done, model, self._told)
        )

    async def apply(self, request: Request) -> Response:
        """Many models in one epoch."""
        sent = await _read(request, _FIELDS[1:])
        wanted = _wanted(sent)
        edit = await asyncio.to_thread(edits.apply, wanted)
        models = [str(each.get("id")) for each in wanted.models]
        return await self._write(
            sent.terms, "apply", edit, None, lambda done: answers.applied(done, models, self._told)
        )

    async def rollback(self, request: Request) -> Response:
        """The catalogue as it was after an epoch."""
        sent = await _read(request)
        if sent.documents:
            raise InvalidInputError("A rollback has no body.", field="body", hint="The path says which epoch.")
        target = await self._writer.at(whole_number("epoch", request.path_params["epoch"]))
        models = [each.spec.id for each in target.values() if each.spec is not None]
        edit = edits.rollback(target)
        return await self._write(
            sent.terms, "rollback", edit, None, lambda done: answers.applied(done, models, self._told)
        )

    async def _write(self, terms: Terms, kind: Kind, edit: Edit, model: str | None, answered: Answered) -> Response:
        """Make the write, or only try it; once for each Idempotency-Key."""
        if not terms.key or terms.dry_run:
            return await self._once(terms, kind, edit, model, answered)
        turn = self._turns.setdefault(terms.key, asyncio.Lock())
        async with turn:
            recorded = await self._writer.request(terms.key)
            if recorded is None:
                return await self._once(terms, kind, edit, model, answered)
        return _again(recorded, terms)

    async def _once(self, terms: Terms, kind: Kind, edit: Edit, model: str | None, answered: Answered) -> Response:
        seen: list[Seen] = []

        def noticed(state: State) -> Mapping[str, ModelSpec | None]:
            seen[:] = [Seen(state.epoch, None if model is None else state.get(model))]
            return edits.guarded(edit, terms.precondition, model)(state)

        def answer(event: Event | None) -> tuple[int, bytes]:
            status, record = answered(Done(seen[0], event, terms.dry_run))
            return status, msgspec.json.encode(record)

        request = Asked(terms.key, terms.digest, answer) if terms.key and not terms.dry_run else None
        event = await self._writer.write(
            noticed, actor=terms.actor, kind=kind, note=terms.note, request=request, dry_run=terms.dry_run
        )
        if isinstance(event, Recorded):  # another copy of the service was asked it, too, and was faster
            return _again(event, terms)
        return _answer(*answer(event))


def _again(recorded: Recorded, terms: Terms) -> Response:
    """The answer that the key was given before."""
    if recorded.digest != terms.digest:
        raise IdempotencyMismatchError(
            "This Idempotency-Key was used for another request.",
            field="Idempotency-Key",
            hint="Send a key of its own with each write, and the same again only with the same write.",
        )
    return _answer(recorded.status, recorded.body, {"Idempotency-Replayed": "true"})


def _answer(status: int, written: bytes, headers: Mapping[str, str] | None = None) -> Response:
    """A write's answer, with the etag of the model that it left."""
    etag = msgspec.json.decode(written, type=_Etag).etag
    tagged = {"ETag": preconditions.quoted(etag)} if etag else {}
    return Response(written, status, {**tagged, **(headers or {})}, formats.JSON)


class _Etag(msgspec.Struct):
    etag: str | None = None


async def _read(request: Request, further: tuple[str, ...] = ()) -> Sent:
    query = dict(request.query_params)
    content = await read_body(request, plain.MAX_BYTES)
    place = f"{request.method} {request.url.path}"
    terms = write_terms.read(place, query, request.headers, content, further)
    media = request.headers.get("content-type")
    if not content:
        return Sent([], terms, query)
    long = len(content) > SHORT_BYTES
    documents = await asyncio.to_thread(plain.read, content, media) if long else plain.read(content, media)
    return Sent(documents, terms, query)


def _model(request: Request) -> str:
    model: str = request.path_params["model"]
    return model


def _wanted(sent: Sent) -> Wanted:
    """What an apply asks for: ``models`` of a map, or the documents themselves, with the rest as parameters."""
    given = {
        "owner": sent.query.get("owner", ""),
        "prune": write_terms.truth("prune", sent.query.get("prune", "false")),
        "adopt": write_terms.truth("adopt", sent.query.get("adopt", "false")),
    }
    match sent.documents:
        case []:
            raise InvalidInputError(
                "There is no model in the body.", field="models", hint="To delete all of an owner, send models: []."
            )
        case [{"models": _} as one]:
            told = given | one
        case several:
            told = {**given, "models": several}
    if unknown := [name for name in told if name not in _FIELDS]:
        raise InvalidInputError(
            f"There is no field {str(unknown[0])[:64]!r}.", field=str(unknown[0])[:64], limit=", ".join(_FIELDS)
        )
    try:
        return msgspec.convert(told, Wanted)
    except msgspec.ValidationError as error:
        raise complaints.wrong_field(error, _EXAMPLE) from None
