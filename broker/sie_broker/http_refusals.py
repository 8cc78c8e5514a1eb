"""Errors as HTTP answers: the one way in which our applications refuse. Pure, but for reading an application's routes.

Owns status, headers and body of a refusal, and the words of the router's own 404 and 405. What the codes mean is
``sie_sdk.errors``'.
"""

from __future__ import annotations

from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Match, Route

from sie_sdk import formats, refusals
from sie_sdk.errors import MethodNotAllowedError, NotFoundError, SIEError


def refused(error: SIEError, *, detail: bool = False) -> Response:
    """A typed error as JSON ``{"error": {...}}`` with its status, its code and what headers it has to come with.

    ``detail``: as `refusals.error_body`.
    """
    headers = {"X-SIE-Error-Code": error.code}
    if error.retry_after is not None:
        headers["Retry-After"] = seconds(error.retry_after)
    if (allowed := error.details.get("allowed")) is not None:
        headers["Allow"] = ", ".join(allowed)
    if accepted := error.details.get("accept_encoding"):
        headers["Accept-Encoding"] = ", ".join(accepted)
    if challenge := error.details.get("challenge"):
        headers["WWW-Authenticate"] = challenge
    return Response(refusals.error_body(error, detail=detail), error.status or 500, headers, formats.JSON)


def of_router(request: Request, error: HTTPException, hint: str) -> SIEError:
    """The router's own 404 or 405 as a typed error; ``hint``: where to look for what there is."""
    if error.status_code == 405:
        allowed = _methods(request)
        return MethodNotAllowedError(
            f"{request.method} is not allowed on {request.url.path}.",
            field="method",
            hint=f"Use {' or '.join(allowed)}.",
            allowed=allowed,
        )
    return NotFoundError(f"There is nothing at {request.url.path}.", hint=hint)


def unknown() -> SIEError:
    """What every other exception becomes; the trace goes to the log, never to the caller."""
    return SIEError("Something went wrong on the server.", hint="The request id finds it in the server's log.")


def seconds(retry_after: float) -> str:
    """A ``Retry-After``, to the millisecond."""
    return f"{max(0.0, round(retry_after, 3)):g}"


def _methods(request: Request) -> list[str]:
    """The methods of all routes at this path; the router names those of the first one only."""
    routes = [route for route in request.app.routes if isinstance(route, Route)]
    here = [route.methods or set() for route in routes if route.matches(request.scope)[0] is not Match.NONE]
    return sorted(set().union(*here))
