"""What is said of a route: the records that descriptions are made of.

Owns their names and defaults. Not here: what is said of which route (one module for each route module, under the same
name), JSON Schema (``schemas``), the document they become (``document``).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, Literal, TypeAlias

import msgspec

from sie_sdk import wire
from sie_sdk.errors import SIEError

MODEL = "{model}"
"""Stands in an example for the id of a model that is served and offers what the example asks for."""
BOTH = (wire.JSON, wire.MSGPACK)
ONLY_JSON = (wire.JSON,)

Said: TypeAlias = type | Any
"""What msgspec can make a JSON Schema of, or a tuple of such: one of them."""


class Parameter(msgspec.Struct, frozen=True):
    """Something a request says beside its body. ``kind`` is its type, limits in ``Annotated`` included."""

    name: str
    summary: str
    kind: Said = str
    where: Literal["header", "path", "query"] = "header"
    example: Any = None


class Header(msgspec.Struct, frozen=True):
    """A header of a reply."""

    name: str
    summary: str
    kind: Said = str
    always: bool = False


class Body(msgspec.Struct, frozen=True):
    """The body of a request: one type in each of some formats, or a type for each format (``others``)."""

    kind: Said
    media: tuple[str, ...] = BOTH
    others: dict[str, Said] = {}
    required: bool = True


class Reply(msgspec.Struct, frozen=True):
    """One way a request ends well. ``kind`` None is a reply without a body, or one in words (``media``)."""

    status: int
    summary: str
    kind: Said | None = None
    media: tuple[str, ...] = ONLY_JSON
    headers: tuple[Header, ...] = ()
    others: dict[str, Said] = {}


class Example(msgspec.Struct, frozen=True):
    """A request as it is sent, and the status that answers it. A test sends every one.

    ``offers``: the output a model must offer for `MODEL` to stand for it, or the kind of extraction (``entities``,
    ``classes``, ``entailment``); without such a model the example is left out.
    ``body`` is what JSON can say; None sends none. ``media``: its format, where that is not JSON.
    """

    name: str
    status: int
    body: Any = None
    path: dict[str, str] = {}
    headers: dict[str, str] = {}
    query: dict[str, str] = {}
    offers: str = ""
    media: str = wire.JSON


class Operation(msgspec.Struct, frozen=True):
    """One method of one route. ``id`` names it in generated clients; ``errors`` are all it may be refused with.

    ``error_kind``: the type of an error's body, where it is not `ErrorReply`'s; ``error_others``: in further formats;
    ``statuses_of``: with which statuses an error may be answered. ``socket``: a websocket; of its messages
    ``description`` tells. ``open``: nobody needs a token for it.
    """

    id: str
    summary: str
    tag: str
    description: str = ""
    parameters: tuple[Parameter, ...] = ()
    body: Body | None = None
    replies: tuple[Reply, ...] = ()
    errors: tuple[type[SIEError], ...] = ()
    error_kind: Said | None = None
    error_others: dict[str, Said] = {}
    statuses_of: Callable[[type[SIEError]], Iterable[int]] = lambda error: (error.status,)
    examples: tuple[Example, ...] = ()
    socket: bool = False
    open: bool = False


Described: TypeAlias = dict[tuple[str, str], Operation]
"""Operations by method and path, as the application names them but without converters: ``("POST", "/v1/pools")``."""
