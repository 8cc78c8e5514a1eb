"""The OpenAPI 3.1 document of an application: a pure function of its routes, their descriptions and its settings.

Owns the form of OpenAPI. What is said of each route stands in the modules named like the routes' own.
"""

from __future__ import annotations

import inspect
from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import msgspec

from sie_config.model.model_spec import ModelSpec
from sie_ingress.openapi import bodies, schemas, security
from sie_ingress.openapi.headers import CODE, EVERYWHERE, IDENTITY, RETRY
from sie_ingress.openapi.operation import MODEL, Body, Described, Example, Header, Operation, Parameter, Reply, Said
from sie_ingress.openapi.sharing import share
from sie_ingress.settings import Settings
from sie_sdk import wire
from sie_sdk.errors import NotFoundError, SIEError
from sie_sdk.refusals import MAY_PASS
from sie_sdk.version import __version__

TAGS = {
    "inference": "Vectors, scores and entities, by any model of the catalogue.",
    "dialects": "The same models, asked as other services are asked.",
    "events and jobs": "Work as CloudEvents, and answers that come later.",
    "catalogue": "What can be asked for.",
    "pools": "Named capacity with a lease.",
    "operation": "What operators and people look at.",
}

_ABOUT = """One deployment that serves a whole catalogue of embedding, reranking and extraction models.

The model is a parameter of the request. Work that nobody can do yet is queued and answered `202` with the address of \
its job; `Prefer: wait=N` holds the request instead. Bodies are JSON or msgpack, by `Content-Type`; replies by \
`Accept`, else in the request's own format. Every error has a stable code, in its body and in `X-SIE-Error-Code`."""


class Routes(NamedTuple):
    """What an application serves, by method and path, and what is said of it."""

    served: Sequence[tuple[str, str]]
    described: Described
    refused: Collection[type[SIEError]] = ()
    """Errors with which this application answers all that may end with them: it has nothing to do it with."""


def build(routes: Routes, settings: Settings, models: Iterable[ModelSpec]) -> dict[str, Any]:
    """The document of the served routes that are described; ``models`` give the examples their names."""
    known = set(routes.served)
    here = {key: _here(each, routes.refused) for key, each in routes.described.items() if key in known}
    operations = {key: security.guarded(each, settings) for key, each in here.items()}
    kinds = [kind for operation in operations.values() for kind in _kinds(operation)]
    schema_of, components = schemas.of(kinds, settings)
    writer = _Writer(schema_of, _by_output(each for each in models if each.status == "ready"))
    paths: dict[str, dict[str, Any]] = defaultdict(dict)
    for (method, path), operation in operations.items():
        paths[path][method.lower()] = writer.operation(operation) | security.of(operation, settings)
    shared = share(paths)
    used = {operation.tag for operation in operations.values()}
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "sie-knative",
            "version": __version__,
            "description": _ABOUT,
            "license": {"name": "Apache-2.0", "identifier": "Apache-2.0"},
        },
        "servers": [{"url": "/", "description": "This server."}],
        "tags": [{"name": name, "description": text} for name, text in TAGS.items() if name in used],
        "security": security.usual(settings),
        "paths": dict(paths),
        "components": {
            "schemas": components,
            "headers": writer.shared_headers(),
            "securitySchemes": security.SCHEMES,
            **shared,
        },
    }


def _here(operation: Operation, refused: Collection[type[SIEError]]) -> Operation:
    """The operation as this application does it."""
    for error in refused:
        if error in operation.errors:
            examples = tuple(
                msgspec.structs.replace(each, status=error.status) for each in operation.examples if each.status < 400
            )
            operation = msgspec.structs.replace(operation, examples=examples)
    return operation


def _kinds(operation: Operation) -> Iterable[Said]:
    """Every type an operation mentions."""
    yield bodies.ErrorReply
    if operation.error_kind is not None:
        yield operation.error_kind
    yield from operation.error_others.values()
    for parameter in (*operation.parameters, *EVERYWHERE):
        yield parameter.kind
    if operation.body is not None:
        yield operation.body.kind
        yield from operation.body.others.values()
    for header in (*IDENTITY, CODE, RETRY):
        yield header.kind
    for reply in operation.replies:
        yield from (header.kind for header in reply.headers)
        yield from reply.others.values()
        if reply.kind is not None:
            yield reply.kind


def _by_output(models: Iterable[ModelSpec]) -> dict[str, str]:
    """A model for each output, and for each kind of extraction; the one that has least else is the clearest example."""
    chosen: dict[str, str] = {}
    for spec in sorted(models, key=lambda spec: (len(spec.outputs), spec.max_sequence_length, spec.id)):
        for offered in (*spec.outputs, *([spec.tasks.extract.kind] if spec.tasks.extract else [])):
            chosen.setdefault(offered, spec.id)
    return chosen


class _Writer:
    """From descriptions to OpenAPI. ``models``: the id that stands for `MODEL`, by the output it offers."""

    def __init__(self, schema_of: Mapping[Said, dict[str, Any]], models: Mapping[str, str]) -> None:
        self._schema_of = schema_of
        self._models = models

    def operation(self, operation: Operation) -> dict[str, Any]:
        examples = [each for example in operation.examples if (each := self._example(example)) is not None]
        written: dict[str, Any] = {
            "operationId": operation.id,
            "summary": operation.summary,
            "tags": [operation.tag],
            "parameters": [self._parameter(each, examples) for each in (*operation.parameters, *EVERYWHERE)],
            "responses": self._replies(operation),
        }
        if operation.description:
            written["description"] = operation.description
        if operation.body is not None:
            written["requestBody"] = self._body(operation.body, examples)
        if operation.socket:
            written["x-websocket"] = True
        if examples:
            written["x-examples"] = examples
        return written

    def _example(self, example: Example) -> dict[str, Any] | None:
        """The request with a model's id in it; None when no model offers what it asks for."""
        model = self._models.get(example.offers, "")
        if example.offers and not model:
            return None
        whole = {
            name: value
            for name in ("name", "status", "path", "query", "headers", "body")
            if (value := getattr(example, name))
        }
        if example.body is not None:
            whole["media"] = example.media
        written: dict[str, Any] = msgspec.json.decode(
            msgspec.json.encode(whole).replace(MODEL.encode(), model.encode())
        )
        return written

    def _parameter(self, parameter: Parameter, examples: Sequence[dict[str, Any]]) -> dict[str, Any]:
        written = {
            "name": parameter.name,
            "in": parameter.where,
            "description": parameter.summary,
            "required": parameter.where == "path",
            "schema": self._schema_of[parameter.kind],
        }
        # In the path, the examples' own: they name what is served.
        shown = [each["path"][parameter.name] for each in examples if parameter.name in each.get("path", {})]
        if parameter.where == "path" and shown:
            written["example"] = shown[0]
        elif parameter.example is not None and parameter.example != MODEL:
            written["example"] = parameter.example
        return written

    def _body(self, body: Body, examples: Sequence[dict[str, Any]]) -> dict[str, Any]:
        content: dict[str, Any] = {}
        for media, kind in {**dict.fromkeys(body.media, body.kind), **body.others}.items():
            content[media] = {"schema": self._schema_of[kind]}
            named = {
                each["name"]: {"summary": each["name"], "value": each["body"]}
                for each in examples
                if each.get("media") == media and each["status"] < 400
            }
            if named:
                content[media]["examples"] = named
        return {"required": body.required, "content": content}

    def _replies(self, operation: Operation) -> dict[str, Any]:
        written = {str(reply.status): self._reply(reply) for reply in operation.replies}
        known: list[type[SIEError]] = [*operation.errors, SIEError]
        if any(parameter.where == "path" for parameter in operation.parameters):
            known.append(NotFoundError)  # where the parameter makes it another path
        by_status: defaultdict[int, list[type[SIEError]]] = defaultdict(list)
        for error in dict.fromkeys(known):
            for status in operation.statuses_of(error):
                by_status[status].append(error)
        for status, errors in sorted(by_status.items()):
            written[str(status)] = self._refusal(operation, errors)
        return written

    def _reply(self, reply: Reply) -> dict[str, Any]:
        written: dict[str, Any] = {"description": reply.summary, "headers": self._headers(reply.headers)}
        contents = dict(reply.others)
        if reply.kind is not None:
            contents = dict.fromkeys(reply.media, reply.kind) | contents
        if contents:
            written["content"] = {media: {"schema": self._schema_of[kind]} for media, kind in contents.items()}
        return written

    def _refusal(self, operation: Operation, errors: Sequence[type[SIEError]]) -> dict[str, Any]:
        codes = sorted(error.code for error in errors)
        body = self._schema_of[operation.error_kind or bodies.ErrorReply]
        if NotFoundError in errors and operation.error_kind is not None:
            body = {"anyOf": [body, self._schema_of[bodies.ErrorReply]]}  # of a route that is none
        coded = {"properties": {"error": {"properties": {"code": {"enum": codes}}}}}
        own = operation.error_kind is not None and not issubclass(operation.error_kind, bodies.ErrorReply)
        content = {wire.JSON: {"schema": body if own else {"allOf": [body, coded]}}}
        content |= {media: {"schema": self._schema_of[kind]} for media, kind in operation.error_others.items()}
        headers = self._headers((CODE, *((RETRY,) if any(each.status in MAY_PASS for each in errors) else ())))
        headers[CODE.name]["schema"] = {"enum": codes}
        return {
            "description": "\n".join(f"- `{error.code}`: {_first_line(error)}" for error in errors),
            "headers": headers,
            "content": content,
        }

    def shared_headers(self) -> dict[str, Any]:
        """The headers of every reply, which replies refer to."""
        return {header.name: self._header(header) for header in IDENTITY}

    def _headers(self, headers: Iterable[Header]) -> dict[str, Any]:
        shared = {header.name: {"$ref": f"#/components/headers/{header.name}"} for header in IDENTITY}
        return {header.name: self._header(header) for header in headers} | shared

    def _header(self, header: Header) -> dict[str, Any]:
        schema = self._schema_of[header.kind]
        return {"description": header.summary, "required": header.always, "schema": schema}


def _first_line(error: type[SIEError]) -> str:
    return inspect.cleandoc(error.__doc__ or "").replace("\n", " ").replace("``", "`")
