"""What schemathesis has to be told in Python: msgpack, and two headers that would only make it wait.

Loaded by ``schemathesis.toml``; not a test.
"""

from __future__ import annotations

import contextlib
from typing import Any

import msgspec
import schemathesis

from sie_sdk import replies, wire


@schemathesis.hook
def before_call(context: Any, case: Any, kwargs: Any) -> None:
    """What expires before it is read, or is not held at all, is refused with 504 and 503, as documented."""
    for name, least, instead in (("X-SIE-Expires-In", 1.0, "60"), ("Prefer", 20.0, "wait=20")):
        value = (case.headers or {}).get(name)
        if value is not None and _is_number(str(value).removeprefix("wait="), below=least):
            case.headers[name] = instead


def _is_number(text: str, *, below: float) -> bool:
    with contextlib.suppress(ValueError):
        return 0 <= float(text) < below
    return False


@schemathesis.serializer(wire.MSGPACK)
def to_msgpack(context: Any, value: Any) -> bytes:
    """A body, as far as msgpack can say it."""
    try:
        return msgspec.msgpack.encode(value)
    except (OverflowError, UnicodeEncodeError, TypeError):
        return msgspec.msgpack.encode(repr(value))


@schemathesis.deserializer(wire.MSGPACK)
def from_msgpack(context: Any, response: Any) -> Any:
    """A reply, with its arrays as lists."""
    return msgspec.json.decode(replies.to_json(response.content))
