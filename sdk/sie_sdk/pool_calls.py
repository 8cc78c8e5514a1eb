"""What each call on pools sends and reads: generators of effects, for whichever driver runs them.

Owns the routes and what counts as "not there". Not here: records (``pools``), trying again (``settle``), keeping a pool
alive (``leases``).
"""

from __future__ import annotations

from typing import TypeVar

from sie_sdk import formats, pools
from sie_sdk.calls import escaped, request_headers
from sie_sdk.effects import Call, Patience, Reply, Send
from sie_sdk.errors import InvalidInputError, PoolNotFoundError
from sie_sdk.pools import PoolInfo, PoolSpec
from sie_sdk.settle import read, settle

T = TypeVar("T")


def create(spec: PoolSpec, patience: Patience) -> Call[PoolInfo]:
    """``POST /v1/pools``."""
    reply = yield from _ask("POST", "", patience, formats.json_body(spec))
    return read(reply, lambda body, _: pools.read_pool(body))


def every(patience: Patience) -> Call[list[PoolInfo]]:
    """``GET /v1/pools``."""
    reply = yield from _ask("GET", "", patience)
    return read(reply, lambda body, _: pools.read_pools(body))


def one(name: str, patience: Patience) -> Call[PoolInfo | None]:
    """``GET /v1/pools/{name}``; None when there is none."""
    try:
        reply = yield from _ask("GET", _path(name), patience)
    except PoolNotFoundError:
        return None
    return read(reply, lambda body, _: pools.read_pool(body))


def delete(name: str, patience: Patience) -> Call[bool]:
    """``DELETE /v1/pools/{name}``; False when there was none."""
    return (yield from _there(_ask("DELETE", _path(name), patience)))


def renew(name: str, patience: Patience) -> Call[bool]:
    """``POST /v1/pools/{name}/renew``; False when there is none any more."""
    return (yield from _there(_ask("POST", f"{_path(name)}/renew", patience, b"")))


def _there(call: Call[Reply]) -> Call[bool]:
    try:
        yield from call
    except PoolNotFoundError:
        return False
    return True


def _ask(method: str, path: str, patience: Patience, body: bytes | None = None) -> Call[Reply]:
    headers = request_headers(formats.JSON) | ({} if body is None else {"Content-Type": formats.JSON})
    return (yield from settle(Send(method, f"/v1/pools{path}", headers, body, patience.timeout_s), patience))


def _path(name: str) -> str:
    if not name:
        raise InvalidInputError("The pool's name is empty.", field="name", hint="client.list_pools() lists them.")
    return "/" + escaped("name", name, safe="")
