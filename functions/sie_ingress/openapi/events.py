"""The description of ``POST /v1/events`` and of ``GET /v1/jobs/{job}``, where answers wait."""

from __future__ import annotations

from typing import Annotated, Any, Final, Literal, TypeAlias

from cloudevents.core.v1.event import CloudEvent
from msgspec import UNSET, Meta, Struct, UnsetType

from sie_broker.events.envelope import RESULT_TYPE, work_type
from sie_broker.events.event_format import BATCH, STRUCTURED
from sie_broker.events.exchange import http_status
from sie_ingress.event_requests import job_of
from sie_ingress.openapi import bodies
from sie_ingress.openapi.headers import BAD_BODY, COMPUTED, NOT_COMPUTED, NOT_PLACED, TRACE
from sie_ingress.openapi.inference import QUEUED
from sie_ingress.openapi.operation import BOTH, MODEL, Body, Described, Example, Header, Operation, Parameter, Reply
from sie_sdk.errors import JobNotFoundError
from sie_sdk.types import EncodeRequest, ExtractRequest, Priority, ScoreRequest

_ATTRIBUTES: Final = {
    "specversion": "1.0",
    "id": "example-1",
    "source": "/docs/example",
    "type": work_type("encode"),
    "model": MODEL,
}
_DATA: Final = {"items": [{"text": "A cat sits."}]}
_BINARY: Final = {f"ce-{name}": value for name, value in _ATTRIBUTES.items()}
_JOB: Final = job_of(CloudEvent(dict(_ATTRIBUTES), None), "")


Attribute: TypeAlias = str | int | bool | None
"""CloudEvents knows numbers and truth values; they are read as text, and null as nothing."""


class Event(Struct):
    """A request as a CloudEvent in structured mode; attributes beyond these are ignored."""

    specversion: Annotated[str, Meta(pattern=r"^1\.0$")]
    id: Annotated[str, Meta(min_length=1)]
    source: Annotated[str, Meta(min_length=1)]
    type: Annotated[str, Meta(min_length=1)]
    """``dev.sie.encode.v1``, ``dev.sie.score.v1``, ``dev.sie.extract.v1``; or any, with ``operation``."""
    model: Annotated[str, Meta(min_length=1)]
    data: dict[str, Any]
    """The body of the route of that name."""
    operation: Attribute | UnsetType = UNSET
    """``encode``, ``score`` or ``extract``; nothing where the type is one of ours."""
    datacontenttype: str | UnsetType | None = UNSET
    priority: Priority | Literal[""] | UnsetType | None = UNSET
    tenant: Attribute | UnsetType = UNSET
    expirytime: str | UnsetType | None = UNSET
    pool: Attribute | UnsetType = UNSET
    replyto: Attribute | UnsetType = UNSET
    traceparent: Attribute | UnsetType = UNSET


class ResultEvent(Struct):
    """An answer as a CloudEvent in structured mode: ``data`` is the route's reply, or an error's body."""

    specversion: str
    id: str
    source: str
    type: Annotated[str, Meta(pattern=RESULT_TYPE.replace(".", r"\."))]
    status: int
    data: Any | UnsetType = UNSET
    data_base64: str | UnsetType = UNSET


_PARAMETERS: Final = (
    Parameter("ce-specversion", "In binary mode the event's attributes are headers: `1.0`.", example="1.0"),
    Parameter("ce-id", "With the source and the tenant it is the request: sent again, it is the same job."),
    Parameter("ce-source", "Who asks; a URI of your own."),
    Parameter("ce-type", "What for: `dev.sie.encode.v1`, `dev.sie.score.v1` or `dev.sie.extract.v1`."),
    Parameter("ce-operation", "With a type of your own: `encode`, `score` or `extract`."),
    Parameter("ce-model", "The model's id.", example=MODEL),
    Parameter("ce-priority", "`interactive` or `bulk`."),
    Parameter("ce-tenant", "On whose behalf."),
    Parameter("ce-expirytime", "When nobody wants the answer any more, RFC 3339."),
    Parameter("ce-pool", "The pool that is to compute it."),
    Parameter("ce-replyto", "Where the result event is sent: a URL or a `nats:` subject the server allows."),
    Parameter("replyto", "The same, for events that do not say it themselves.", where="query"),
    Parameter(
        "Prefer",
        "`wait=N`: hold up to N seconds for the result event; `reply`: as long as the server holds anything.",
        example="wait=30",
    ),
    TRACE,
)
_EXAMPLES: Final = (
    Example("binary mode", 202, _DATA, headers=_BINARY, offers="dense"),
    Example("structured mode", 202, {**_ATTRIBUTES, "data": _DATA}, offers="dense", media=STRUCTURED),
    Example("a batch", 202, [{**_ATTRIBUTES, "id": "example-2", "data": _DATA}], offers="dense", media=BATCH),
    Example("held for its result", 200, _DATA, {}, {**_BINARY, "Prefer": "wait=30"}, offers="dense"),
    Example("no event", 400, _DATA),
)

DESCRIBED: Final[Described] = {
    ("POST", "/v1/events"): Operation(
        id="submitEvents",
        summary="Ask for work with CloudEvents",
        tag="events and jobs",
        description="One event in binary mode (attributes in `ce-` headers, the body is the data) or structured mode, "
        "or a batch of at most 1000. What is posted to `/` and is an event is taken here. 2xx comes once the work is "
        "kept. To senders an error of status 404, 409 or 504 comes as 400, with the same code: they would send the "
        "event again.",
        parameters=_PARAMETERS,
        body=Body((EncodeRequest, ScoreRequest, ExtractRequest), BOTH, others={STRUCTURED: Event, BATCH: list[Event]}),
        replies=(
            Reply(
                200,
                "The result event, for a sender that takes one: in binary mode unless `Accept` asks for "
                f"`{STRUCTURED}`.",
                (bodies.EncodeReply, bodies.ScoreReply, bodies.ExtractReply),
                BOTH,
                (*COMPUTED, Header("ce-type", RESULT_TYPE), Header("ce-id", "The job's id.")),
                {STRUCTURED: ResultEvent},
            ),
            Reply(
                202,
                "Accepted. For a batch the body names each job; for one event there is no body, and `Location` does.",
                bodies.AcceptedJobs,
                headers=(
                    Header("Location", "Where the answer of the one event will be."),
                    Header("Retry-After", "Whole seconds until it is expected there.", int),
                    Header("Preference-Applied", "`wait=N` when it was honoured."),
                ),
            ),
        ),
        errors=BAD_BODY + NOT_PLACED + NOT_COMPUTED,
        error_others={STRUCTURED: ResultEvent},
        statuses_of=lambda error: (http_status(error.status),),
        examples=_EXAMPLES,
    ),
    ("GET", "/v1/jobs/{job}"): Operation(
        id="job",
        summary="The answer of queued work",
        tag="events and jobs",
        description="202 until the job is answered, then its answer or its error. Jobs are kept for an hour, or as the "
        "platform is set.",
        parameters=(
            Parameter("job", "The id that a 202 named.", where="path", example=_JOB),
            Parameter("Prefer", "`wait=N`: hold up to N seconds for the answer.", example="wait=30"),
        ),
        replies=(
            Reply(200, "The answer.", (bodies.EncodeReply, bodies.ScoreReply, bodies.ExtractReply), BOTH, COMPUTED),
            QUEUED,
        ),
        errors=(JobNotFoundError, *BAD_BODY, *NOT_COMPUTED),
        examples=(
            Example("of the example event", 200, None, {"job": _JOB}, {"Prefer": "wait=30"}, offers="dense"),
            Example("no such job", 404, None, {"job": "0" * 32}),
        ),
    ),
}
