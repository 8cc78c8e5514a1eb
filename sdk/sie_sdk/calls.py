"""Every call of the clients, written once: generators that build a request, settle it and read its reply.

Owns paths, headers and what counts as the answer. Not here: following jobs and trying again (``settle``), the bytes of
bodies (``formats``, ``results``), how large a request is (``chunks``), sockets (``transport``), the public methods and
their documentation (``methods``).
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, TypeAlias, TypeVar
from urllib.parse import quote

import msgspec

from sie_sdk import arguments, chunks, formats, results
from sie_sdk.chunks import Chunk, Tally
from sie_sdk.effects import Call, Cancel, Patience, Reply, Send, Terms, Together
from sie_sdk.errors import InvalidInputError, SIEError, UnexpectedReplyError
from sie_sdk.settle import read, settle
from sie_sdk.types import (
    EncodeParams,
    EncodeRequest,
    ExtractParams,
    ExtractRequest,
    Item,
    ModelInfo,
    Operation,
    OutputDtype,
    OutputType,
    Priority,
    ScoreRequest,
    ScoreResult,
)
from sie_sdk.version import __version__

T = TypeVar("T")


class Order(msgspec.Struct, frozen=True):
    """What a call asks for, whatever its items are: the request without them, and how it is sent."""

    operation: Operation
    model: str
    blank: formats.Request
    patience: Patience
    terms: Terms


Asker: TypeAlias = Callable[[Order, Sequence[Item | str]], Call[Any]]


def encode(
    model: str,
    patience: Patience,
    terms: Terms,
    *,
    output_types: Sequence[OutputType] | None = None,
    instruction: str | None = None,
    output_dtype: OutputDtype | None = None,
    is_query: bool | None = None,
    options: Mapping[str, Any] | None = None,
) -> Order:
    """For ``POST /v1/encode/{model}``: one result per item, in their order."""
    options = dict(options or {}) | ({} if is_query is None else {"is_query": is_query})
    params = EncodeParams(
        output_types=None if output_types is None else arguments.listed("output_types", output_types),
        instruction=instruction,
        output_dtype=output_dtype,
        options=options or None,
    )
    return Order("encode", model, EncodeRequest([], params), patience, terms)


def score(
    model: str,
    patience: Patience,
    terms: Terms,
    *,
    query: Item | str,
    instruction: str | None = None,
    options: Mapping[str, Any] | None = None,
) -> Order:
    """For ``POST /v1/score/{model}``: every item against the query, best first."""
    blank = ScoreRequest(_item("query", query), [], instruction, dict(options or {}) or None)
    return Order("score", model, blank, patience, terms)


def extract(
    model: str,
    patience: Patience,
    terms: Terms,
    *,
    labels: Sequence[str] | None = None,
    output_schema: Mapping[str, Any] | None = None,
    instruction: str | None = None,
    options: Mapping[str, Any] | None = None,
) -> Order:
    """For ``POST /v1/extract/{model}``: one result per item, in their order."""
    params = ExtractParams(
        labels=None if labels is None else arguments.listed("labels", labels),
        output_schema=None if output_schema is None else dict(output_schema),
        instruction=instruction,
        options=dict(options or {}) or None,
    )
    return Order("extract", model, ExtractRequest([], params), patience, terms)


ORDERS: dict[Operation, Callable[..., Order]] = {"encode": encode, "score": score, "extract": extract}
"""How the order for each operation is made of a call's keywords."""


def order(
    operation: Operation,
    model: str,
    timeout_s: float,
    own_pool: str | None,
    *,
    wait_for_capacity: bool = True,
    deadline_s: float = 300.0,
    cancel: Cancel | None = None,
    idempotency_key: str | None = None,
    priority: Priority | None = None,
    expire_s: float | None = None,
    pool: str | None = None,
    **asked: Any,
) -> Order:
    """The order that a method's keywords make, of a client with that ``timeout_s`` and a pool of its own."""
    patience = Patience(wait_for_capacity, deadline_s, timeout_s, cancel)
    return ORDERS[operation](model, patience, Terms(idempotency_key, priority, expire_s, pool or own_pool), **asked)


def many(items: Any) -> Sequence[Item | str]:
    """What a method was given as a list, one item or many.

    Raises:
        InvalidInputError: it is neither.
    """
    if isinstance(items, (str, Item)):
        return [items]
    if isinstance(items, (list, tuple)):
        return items
    if isinstance(items, (bytes, Mapping)) or not isinstance(items, Iterable):
        raise InvalidInputError(
            f"items is a {type(items).__name__}.",
            field="items",
            hint="Pass a str or Item(text=...), or a list of them.",
        )
    return [*items]


def check_width(concurrency: int) -> None:
    """Refuse a number of requests at a time that makes no sense."""
    arguments.count("concurrency", concurrency, InvalidInputError)


def ask(order: Order, items: Sequence[Item | str], width: int) -> Call[Any]:
    """All ``items`` in as many requests as it takes, ``width`` at a time; returns one result."""
    check_width(width)
    if len(cut := chunks.cut(items)) == 1:
        return (yield from _one(order, items))
    # One deadline for all of them.
    patience = msgspec.structs.replace(order.patience, started=order.patience.now())
    order = msgspec.structs.replace(order, patience=patience)
    parts: list[Any] = yield Together((part(order, chunk) for chunk in cut), width, Tally(len(items), patience.now))
    return chunks.merged(order.operation, parts)


def part(order: Order, chunk: Chunk, ask: Asker | None = None) -> Call[Any]:
    """What ``ask`` (by default: one request) makes of one chunk of many; an error is placed in the whole."""
    key, priority = order.terms.idempotency_key, order.terms.priority or "bulk"
    key = key and f"{key}:{chunk.start}-{chunk.stop}"
    terms = msgspec.structs.replace(order.terms, idempotency_key=key, priority=priority)
    try:
        items = chunk.items if order.operation == "encode" else chunk.named
        return (yield from (ask or _one)(msgspec.structs.replace(order, terms=terms), items))
    except SIEError as error:
        chunks.place(error, chunk.start, chunk.stop)
        raise


def _one(order: Order, items: Sequence[Item | str]) -> Call[Any]:
    reply: Reply = yield from settle(request(order, items), order.patience, items=len(items))
    return answer(order.operation, reply, len(items))


def request(order: Order, items: Sequence[Item | str]) -> Send:
    """The request that asks for ``items``.

    Raises:
        InvalidInputError: it cannot be sent.
    """
    headers = request_headers(formats.MSGPACK) | {"Content-Type": formats.MSGPACK} | order.terms.headers()
    # The same on every try, so that a request whose reply was lost is not computed twice.
    headers.setdefault("Idempotency-Key", fresh_key())
    body = formats.request_body(msgspec.structs.replace(order.blank, items=_items(items)))
    return Send("POST", _path(order.operation, order.model), headers, body, order.patience.timeout_s)


def answer(operation: Operation, reply: Reply, asked: int | None = None) -> Any:
    """The result in a reply of ``operation`` to ``asked`` items.

    Raises:
        UnexpectedReplyError: it is none, or of another number of items.
    """
    result = read(reply, lambda body, _: _READERS[operation](body))
    answered = len(result.scores if isinstance(result, ScoreResult) else result)
    if asked is not None and answered != asked:
        raise UnexpectedReplyError(f"{answered} results came back for {asked} items.", request_id=reply.request_id)
    return result


_READERS: dict[Operation, Callable[[bytes], Any]] = {
    "encode": results.read_encode,
    "score": results.read_score,
    "extract": results.read_extract,
}


def first(call: Call[list[T]]) -> Call[T]:
    """The call for one item out of the call for a list of one."""
    return (yield from call)[0]


def list_models(patience: Patience) -> Call[list[ModelInfo]]:
    """``GET /v1/models``."""
    send = Send("GET", "/v1/models", request_headers(formats.JSON), timeout_s=patience.timeout_s)
    return read((yield from settle(send, patience)), results.read_models)


def get_model(name: str, patience: Patience) -> Call[ModelInfo]:
    """``GET /v1/models/{name}``."""
    send = Send("GET", _path("models", name), request_headers(formats.JSON), timeout_s=patience.timeout_s)
    return read((yield from settle(send, patience)), results.read_model)


def fresh_key() -> str:
    """32 hex digits that sort by time, laid out as a UUIDv7: 48 bits of milliseconds, then random ones."""
    noise = int.from_bytes(os.urandom(10))
    noise = noise & ~(0xF << 76) & ~(0x3 << 62) | 0x7 << 76 | 0x2 << 62
    return f"{time.time_ns() // 1_000_000 << 80 | noise:032x}"


def request_headers(accept: str) -> dict[str, str]:
    """What every request of ours carries, whatever it asks for."""
    # Never X-SIE-SDK-Version: a server takes it for a published client, which cannot read a 202.
    return {"Accept": accept, "User-Agent": f"sie-knative/{__version__}", "X-Request-ID": fresh_key()}


def _path(route: str, model: str) -> str:
    # Parts of dots would lead to another route.
    if not isinstance(model, str) or not model or {".", ".."} & {*model.split("/")}:
        wrong = "The model's name is empty" if model == "" else f"{model!r} is no model's name"
        raise InvalidInputError(f"{wrong}.", field="model", hint="client.list_models() lists them.")
    # Slashes and colons are part of a model's name; servers take the rest of the path as it is.
    return f"/v1/{route}/" + escaped("model", model, safe="/:@!$&'()*+,;=~")


def escaped(field: str, name: str, safe: str) -> str:
    """A name as it stands in a path."""
    try:
        return quote(name, safe=safe)
    except UnicodeEncodeError:
        raise InvalidInputError(f"{field} {name!r} has half of a surrogate pair.", field=field) from None


def _items(items: Sequence[Item | str]) -> list[Item]:
    return [_item(f"items[{index}]", item) for index, item in enumerate(items)]


def _item(field: str, item: Item | str) -> Item:
    if isinstance(item, str):
        return Item(text=item)
    if isinstance(item, Item):
        for name, value in (("text", item.text), ("id", item.id)):
            if value is not None and not isinstance(value, str):
                wrong = f"{field}.{name}"
                raise InvalidInputError(f"{wrong} is a {type(value).__name__}.", field=wrong, hint="Pass a str.")
        return item
    raise InvalidInputError(f"{field} is a {type(item).__name__}.", field=field, hint="Pass a str or Item(text=...).")
