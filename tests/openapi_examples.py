"""The examples of an OpenAPI document of ours as requests, and what is wrong with an answer to one.

Owns the way from ``x-examples`` to HTTP, and the check of an answer against the document. Who sends is the caller.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple
from urllib.parse import quote

import httpx
import jsonschema
import msgspec

from sie_sdk import replies, wire

_DIALECT = jsonschema.Draft202012Validator


class Sent(NamedTuple):
    """One example, ready to be sent. ``status``: what the document promises."""

    name: str
    method: str
    target: str
    query: dict[str, str]
    headers: dict[str, str]
    content: bytes
    status: int
    operation: dict[str, Any]

    def value(self) -> Any:
        """What the body says; an empty map where there is none."""
        if not self.content:
            return {}
        packed = self.headers.get("Content-Type") == wire.MSGPACK
        return (msgspec.msgpack if packed else msgspec.json).decode(self.content)


def examples_of(document: dict[str, Any]) -> list[Sent]:
    """Every example in the document's order, deletions last; where a route takes msgpack, in each format."""
    every = [
        sent
        for route, methods in document["paths"].items()
        for method, operation in methods.items()
        for example in operation.get("x-examples", ())
        for sent in _sent(route, method.upper(), operation, example)
    ]
    return sorted(every, key=lambda sent: sent.method == "DELETE")


def _sent(route: str, method: str, operation: dict[str, Any], example: dict[str, Any]) -> Iterator[Sent]:
    for name, value in example.get("path", {}).items():
        route = route.replace(f"{{{name}}}", quote(value, safe="/"))
    headers, body, media = example.get("headers", {}), example.get("body"), example.get("media", "")
    if not media:
        formats = [("", b"")]
    else:
        formats = [(media, msgspec.json.encode(body))]
        if media == wire.JSON and wire.MSGPACK in operation["requestBody"]["content"]:
            formats.append((wire.MSGPACK, msgspec.msgpack.encode(body)))
    for content_type, content in formats:
        said = {**headers, **({"Content-Type": content_type} if content_type else {})}
        name = f"{operation['operationId']}: {example['name']} {content_type}".strip()
        yield Sent(name, method, route, example.get("query", {}), said, content, example["status"], operation)


def failures(document: dict[str, Any], sent: Sent, answer: httpx.Response) -> list[str]:
    """What in the answer is not as the document says; empty when all is."""
    if answer.status_code != sent.status:
        return [f"{sent.name}: {answer.status_code} instead of {sent.status}: {answer.text[:300]}"]
    promised = _resolved(document, sent.operation["responses"][str(answer.status_code)])
    wrong = [
        f"{sent.name}: header {name} is missing"
        for name, header in promised["headers"].items()
        if _resolved(document, header).get("required") and name not in answer.headers
    ]
    if not answer.content:
        return wrong
    media = answer.headers["content-type"].partition(";")[0]
    if media not in promised.get("content", {}):
        return [*wrong, f"{sent.name}: answered in {media}"]
    if media == wire.MSGPACK or media.endswith("json"):
        body = msgspec.json.decode(replies.to_json(answer.content) if media == wire.MSGPACK else answer.content)
        schema = {**promised["content"][media]["schema"], "components": document["components"]}
        wrong += [f"{sent.name}: {error.message[:300]}" for error in _DIALECT(schema).iter_errors(body)]
    return wrong


def _resolved(document: dict[str, Any], thing: dict[str, Any]) -> dict[str, Any]:
    if "$ref" not in thing:
        return thing
    for step in thing["$ref"].removeprefix("#/").split("/"):
        document = document[step]
    return document
