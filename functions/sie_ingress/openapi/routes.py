"""``GET /openapi.json`` and ``GET /docs``: the document as it is now, and the page that shows it.

Owns the two answers and when they are made: on first use, and again when the catalogue has changed.
"""

from __future__ import annotations

import asyncio
import base64
import hashlib
import re
from collections.abc import Collection
from pathlib import Path

import msgspec
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Route, WebSocketRoute

from sie_config.registry import Registry
from sie_ingress.settings import Settings
from sie_sdk import wire
from sie_sdk.errors import SIEError

_PAGE = Path(__file__).parent / "docs.html"
_INLINE = re.compile(r"<(script|style)>(.*?)</\1>", re.DOTALL)


class Page(msgspec.Struct, frozen=True):
    """Something that changes seldom. ``etag``: of its bytes, and weak: they may travel compressed or not."""

    body: bytes
    media: str
    etag: str
    policy: str = ""
    """Its Content-Security-Policy."""

    def answer(self, request: Request) -> Response:
        """It, or 304 where the caller has it."""
        headers = {"ETag": self.etag, "Cache-Control": "no-cache"}  # kept, but asked about
        if self.policy:
            headers["Content-Security-Policy"] = self.policy
        seen = {each.strip().removeprefix("W/") for each in request.headers.get("if-none-match", "").split(",")}
        if self.etag.removeprefix("W/") in seen:
            return Response(b"", 304, headers)
        return Response(self.body, media_type=self.media, headers=headers)


class OpenApi:
    """The two routes of an application. ``refused``: see `document.Routes`."""

    def __init__(self, registry: Registry, settings: Settings, refused: Collection[type[SIEError]] = ()) -> None:
        self._registry = registry
        self._settings = settings
        self._refused = refused
        self._document: tuple[int, Page] | None = None
        self._page: Page | None = None

    def routes(self) -> list[Route]:
        """Both."""
        return [
            Route("/openapi.json", self.document, methods=["GET"]),
            Route("/docs", self.docs, methods=["GET"]),
        ]

    async def document(self, request: Request) -> Response:
        """The document of the application that was asked."""
        epoch = self._registry.epoch
        if self._document is None or self._document[0] != epoch:
            self._document = epoch, await asyncio.to_thread(self._made, served(request.app.routes))
        return self._document[1].answer(request)

    def _made(self, routes: list[tuple[str, str]]) -> Page:
        # Imported here: the descriptions are nothing that work waits for.
        from sie_ingress.openapi import document
        from sie_ingress.openapi.described import DESCRIBED

        about = document.Routes(routes, DESCRIBED, self._refused)
        built = document.build(about, self._settings, self._registry.specs())
        return _page_of(msgspec.json.encode(built), wire.JSON)

    async def docs(self, request: Request) -> Response:
        """The page; it asks for ``openapi.json`` and for nothing outside of this server."""
        if self._page is None:
            body = _PAGE.read_bytes()
            self._page = _page_of(body, "text/html", policy_of(body.decode()))
        return self._page.answer(request)


def served(routes: list[BaseRoute]) -> list[tuple[str, str]]:
    """Method and path of every route of an application, without converters; a websocket is a GET."""
    found: list[tuple[str, str]] = []
    for route in routes:
        if isinstance(route, Route):
            path = re.sub(r":\w+}", "}", route.path)
            found += [(method, path) for method in sorted(route.methods or ()) if method != "HEAD"]
        elif isinstance(route, WebSocketRoute):
            found.append(("GET", re.sub(r":\w+}", "}", route.path)))
    return found


def policy_of(page: str) -> str:
    """The Content-Security-Policy under which the page's own script and style run and only this server is asked."""
    hashes: dict[str, list[str]] = {"script": [], "style": []}
    for kind, text in _INLINE.findall(page):
        hashes[kind].append(f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'")
    return (
        f"default-src 'none'; script-src {' '.join(hashes['script'])}; style-src {' '.join(hashes['style'])}; "
        "connect-src 'self'; img-src data:; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    )


def _page_of(body: bytes, media: str, policy: str = "") -> Page:
    return Page(body, media, f'W/"{hashlib.blake2b(body, digest_size=12).hexdigest()}"', policy)
