"""Which operations need a token, as OpenAPI says it. Pure.

Owns the scheme and what follows from the settings. Who is let in is ``authorization``'s.
"""

from __future__ import annotations

from typing import Any, Final

import msgspec

from sie_ingress.openapi.operation import Operation
from sie_ingress.settings import Settings
from sie_sdk.errors import UnauthorizedError

SCHEMES: Final[dict[str, Any]] = {
    "bearer": {
        "type": "http",
        "scheme": "bearer",
        "description": "One of the server's tokens (`SIE_AUTH_TOKENS`), where it asks for any; at `/v1/configs` one of "
        "its readers' (`SIE_CONFIG_READ_TOKEN`), where these have their own.",
    }
}
Security = list[dict[str, list[str]]]
"""One of these is enough; an empty one is none at all."""
NEEDED: Final[Security] = [{"bearer": []}]
TAKEN: Final[Security] = [{}, {"bearer": []}]


def usual(settings: Settings) -> Security:
    """What holds where an operation does not say otherwise."""
    return NEEDED if settings.auth_tokens else TAKEN


def guarded(operation: Operation, settings: Settings) -> Operation:
    """The operation with the refusal of who has no token, where one is needed."""
    if operation.open or not settings.auth_tokens or UnauthorizedError in operation.errors:
        return operation
    return msgspec.structs.replace(operation, errors=(*operation.errors, UnauthorizedError))


def of(operation: Operation, settings: Settings) -> dict[str, Security]:
    """What an operation says otherwise."""
    if operation.open:
        return {"security": []}
    own = UnauthorizedError in operation.errors and bool(settings.config_read_token)
    return {"security": NEEDED} if own else {}
