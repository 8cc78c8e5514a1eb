"""The routes of the history: which writes there were, and one of them whole. At the config service alone.

Owns reading the parameters. What is told of a write stands in ``history_page``.
"""

from __future__ import annotations

import msgspec
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from sie_config.api import history_page
from sie_config.api.auth import Access
from sie_config.epochs.writer import Writer
from sie_sdk import formats
from sie_sdk.errors import InvalidInputError, NotFoundError

LIMIT, MOST = 50, 500
_DIGITS = 15


class History:
    """The routes, for those whom ``access`` lets read."""

    def __init__(self, writer: Writer, access: Access) -> None:
        self._writer = writer
        self._access = access

    def routes(self) -> list[Route]:
        """Both."""
        return [
            Route("/v1/configs/history", self._access.reading(self.page), methods=["GET"]),
            Route("/v1/configs/history/{epoch}", self._access.reading(self.one), methods=["GET"]),
        ]

    async def page(self, request: Request) -> Response:
        """Writes, the newest first; ``before`` an epoch, ``limit`` of them."""
        query = request.query_params
        before = whole_number("before", query["before"]) if "before" in query else None
        limit = whole_number("limit", query.get("limit", str(LIMIT)))
        if not 0 < limit <= MOST:
            raise InvalidInputError(f"limit is {limit}.", field="limit", limit=f"1 to {MOST}")
        events = await self._writer.history(before, limit)
        return _json(history_page.page(events, limit))

    async def one(self, request: Request) -> Response:
        """One write with whole specs before and after."""
        epoch = whole_number("epoch", request.path_params["epoch"])
        event = await self._writer.event(epoch)
        if event is None:
            raise NotFoundError(
                f"There is no write of epoch {epoch}, or it is no longer kept.",
                field="epoch",
                hint="GET /v1/configs/history lists them.",
            )
        return _json(history_page.whole(event))


def whole_number(name: str, value: str) -> int:
    """A parameter that is a whole number, not negative.

    Raises:
        InvalidInputError: it is none.
    """
    if not (value.isascii() and value.isdigit() and len(value) <= _DIGITS):
        raise InvalidInputError(f"{name} is {value[:64]!r}.", field=name, limit="a whole number")
    return int(value)


def _json(value: object) -> Response:
    return Response(msgspec.json.encode(value), media_type=formats.JSON)
