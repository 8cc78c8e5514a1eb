"""Which web pages of other origins may read this ingress's answers: those of ``SIE_CORS_ORIGINS``, if there are any.

Owns the setting and what such a page may send and read. The protocol (Fetch, section 3.2) is Starlette's.
"""

from __future__ import annotations

import re
from typing import Final

from starlette.applications import Starlette
from starlette.middleware.cors import CORSMiddleware

from sie_sdk.errors import ConfigurationError

ANY: Final = "*"
METHODS: Final = ("GET", "HEAD", "POST", "DELETE")
_ORIGIN: Final = re.compile(r"[a-z][a-z0-9+.-]*://[^/?#@\s]+")


def origins(setting: str) -> tuple[str, ...]:
    """The origins in ``SIE_CORS_ORIGINS``, as browsers write them; none in an empty one.

    Raises:
        ConfigurationError: one of them is none.
    """
    named = tuple(name for each in setting.split(",") if (name := each.strip().lower().rstrip("/")))
    for name in named:
        if name != ANY and not _ORIGIN.fullmatch(name):
            raise ConfigurationError(
                f"SIE_CORS_ORIGINS: {name[:80]!r} is no origin.",
                field="SIE_CORS_ORIGINS",
                hint="Origins are like https://app.example.org or http://localhost:3000, without a path; or * for any.",
            )
    return named


def make_readable(app: Starlette, setting: str) -> None:
    """Let pages of the origins in ``SIE_CORS_ORIGINS`` read the answers and refusals of ``app``, before it has any.

    They may send any header, an ``Authorization`` that they set themselves too; what a browser would add by itself,
    cookies and the like, is not asked for, and means nothing here.

    Raises:
        ConfigurationError: see `origins`.
    """
    if allowed := origins(setting):
        # Around all of it: a page is to read the answer to an exception, too, which Starlette gives outermost.
        app.middleware_stack = CORSMiddleware(
            app.build_middleware_stack(),
            allow_origins=allowed,
            allow_methods=METHODS,
            allow_headers=(ANY,),
            expose_headers=(ANY,),
        )
