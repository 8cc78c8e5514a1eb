"""The description of ``POST /v1/events`` and of ``GET /v1/jobs/{job}``, where their answers are."""

from __future__ import annotations

from typing import Annotated, Any, Final

from msgspec import Meta, Struct

from sie_broker.events.event_format import BATCH, STRUCTURED
from sie_ingress.event_requests import job_id_of
from sie_ingress.openapi import bodies
from sie_ingress.openapi.headers import ASK_AGAIN, BAD_BODY, CODE, COMPUTED, NOT_COMPUTED, NOT_PLACED, TRACE
from sie_ingress.openapi.inference import QUEUED
from sie_ingress.openapi.operation import BOTH, MODEL, Body, Described, Example, Header, Operation, Parameter, Reply
from sie_sdk import wire
from sie_sdk.errors import JobNotFoundError
from sie_sdk.types import EncodeRequest, ExtractRequest, ScoreRequest

_SOURCE, _ID, _DATA = "/docs/example", "example-1", {"items": [{"text": "A cat sits."}]}
_TYPES: Final = ("dev.sie.encode.v1", "dev.sie.score.v1", "dev.sie.extract.v1")


class Event(Struct):
    """An event in structured mode; attributes beyond these are ignored."""

    specversion: Annotated[str, Meta(pattern=r"^1\.0$")]
    id: Annotated[str, Meta(min_length=1)]
    source: Annotated[str, Meta(min_length=1)]
    type: Annotated[str, Meta(pattern=r"^dev\.sie\.(encode|score|extract)\.v1$")]
    model: Annotated[str, Meta(min_length=1)]
    data: EncodeRequest | ScoreRequest | ExtractRequest
