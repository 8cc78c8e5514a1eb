"""The description of ``/v1/pools``."""

from __future__ import annotations

from typing import Final

from msgspec import Struct

from sie_ingress.openapi import bodies
from sie_ingress.openapi.headers import NOT_SERVED
from sie_ingress.openapi.operation import BOTH, Body, Described, Example, Operation, Parameter, Reply
from sie_sdk import errors
from sie_sdk.pools import PoolInfo, PoolSpec


class PoolList(Struct):
    """The pools by name, the default pool first."""

    pools: list[PoolInfo]


_NAME: Final = Parameter("pool", "The pool's name; case does not matter.", where="path", example="team-a")
_ONE: Final = {"pool": "team-a"}
_NO_POOL: Final = (errors.PoolNotFoundError,)
_CHANGES: Final = (errors.PoolForbiddenError, errors.PoolsUnsupportedError, errors.QueueUnavailableError)

DESCRIBED: Final[Described] = {
    ("GET", "/v1/pools"): Operation(
        id="pools",
        summary="The pools",
        tag="pools",
        replies=(Reply(200, "All of them.", PoolList),),
        errors=(errors.QueueUnavailableError,),
        error_kind=bodies.DetailedErrorReply,
        examples=(Example("all", 200),),
    ),
    ("POST", "/v1/pools"): Operation(
        id="createPool",
        summary="Make a pool, or change and renew it",
        tag="pools",
        description="Named capacity with a lease: workers that compute only what is asked of them by `X-SIE-Pool`, "
        "until the lease ends. A POST of a living pool's name changes and renews it.",
        body=Body(PoolSpec, BOTH),
        replies=(Reply(201, "The pool.", PoolInfo),),
        errors=(
            errors.InvalidInputError,
            errors.PayloadTooLargeError,
            errors.UnsupportedMediaTypeError,
            errors.ModelNotFoundError,
            *NOT_SERVED,
            errors.PoolCapacityError,
            *_CHANGES,
        ),
        error_kind=bodies.DetailedErrorReply,
        examples=(
            Example("one worker", 201, {"name": "team-a", "gpus": {"cpu": 1}, "ttl_seconds": 600}),
            Example("no name", 400, {"gpus": {"cpu": 1}}),
        ),
    ),
    ("GET", "/v1/pools/{pool}"): Operation(
        id="pool",
        summary="One pool",
        tag="pools",
        parameters=(_NAME,),
        replies=(Reply(200, "The pool.", PoolInfo),),
        errors=(*_NO_POOL, errors.QueueUnavailableError),
        error_kind=bodies.DetailedErrorReply,
        examples=(
            Example("the default pool", 200, None, {"pool": "default"}),
            Example("no such pool", 404, None, {"pool": "nobodys"}),
        ),
    ),
    ("POST", "/v1/pools/{pool}/renew"): Operation(
        id="renewPool",
        summary="Start a pool's lease anew",
        tag="pools",
        parameters=(_NAME,),
        replies=(Reply(200, "It is renewed.", bodies.Message),),
        errors=_NO_POOL + _CHANGES,
        error_kind=bodies.DetailedErrorReply,
        examples=(Example("renew", 200, None, _ONE),),
    ),
    ("DELETE", "/v1/pools/{pool}"): Operation(
        id="deletePool",
        summary="End a pool",
        tag="pools",
        description="Its workers leave once the last of its work is done.",
        parameters=(_NAME,),
        replies=(Reply(200, "It is deleted.", bodies.Message),),
        errors=(errors.DefaultPoolError, *_NO_POOL, *_CHANGES),
        error_kind=bodies.DetailedErrorReply,
        examples=(
            Example("delete", 200, None, _ONE),
            Example("the default pool stays", 403, None, {"pool": "default"}),
        ),
    ),
}
