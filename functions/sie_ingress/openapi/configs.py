"""The description of ``/v1/configs``: the catalogue for who keeps it."""

from __future__ import annotations

from typing import Any, Final, Literal

from sie_config.api import bundle_reads, reads
from sie_config.api.export import Snapshot
from sie_config.model.model_spec import ModelSpec
from sie_config.model.plain import YAML
from sie_ingress.config_status import ModelStatus
from sie_ingress.openapi.headers import NOT_NAMED
from sie_ingress.openapi.inference import NAME, ONE_PATH
from sie_ingress.openapi.operation import BOTH, MODEL, Body, Described, Example, Header, Operation, Parameter, Reply
from sie_sdk import errors, wire

_FORMATS: Final = (YAML, wire.JSON)
_AS_JSON: Final = {"Accept": wire.JSON}
_TOKEN: Final = Parameter(
    "Authorization", "`Bearer` and a token, where the server asks for one (`SIE_CONFIG_READ_TOKEN`)."
)
_KNOWN: Final = Parameter("If-None-Match", "The etag of what the caller has; 304 if it is still that.")
_EPOCH: Final = Header(reads.EPOCH, "The last write that the answer knows of.", int, always=True)
_TAG: Final = Header("ETag", "Of the answer as it stands, whatever its format.", always=True)
_SAME: Final = Reply(304, "The caller has it.", headers=(_EPOCH, _TAG))

DESCRIBED: Final[Described] = {
    ("GET", "/v1/configs/models"): Operation(
        id="configModels",
        summary="Where each model runs",
        tag="catalogue",
        description="From the ingress's own copy of the catalogue. Writes are the config service's.",
        parameters=(
            Parameter("origin", "Only these.", Literal["all", "baseline", "written"], "query"),
            Parameter("owner", "Only those that this owner applied.", where="query"),
            Parameter("status", "Only these.", Literal["", "ready", "planned"], "query"),
            _KNOWN,
            _TOKEN,
        ),
        replies=(Reply(200, "All models, or those asked for.", reads.ModelRows, headers=(_EPOCH, _TAG)), _SAME),
        errors=(errors.InvalidInputError, errors.UnauthorizedError),
        examples=(
            Example("all", 200),
            Example("written over the catalogue", 200, query={"origin": "written"}),
            Example("an origin that is none", 400, query={"origin": "elsewhere"}),
        ),
    ),
    ("GET", "/v1/configs/models/{model}"): Operation(
        id="configModel",
        summary="One model's spec",
        tag="catalogue",
        description="YAML as one would write it; JSON, with every default, where `Accept` names it.",
        parameters=(NAME, _KNOWN, _TOKEN),
        replies=(Reply(200, "The spec.", ModelSpec, _FORMATS, (_EPOCH, _TAG)), _SAME),
        errors=(errors.InvalidInputError, errors.UnauthorizedError, *NOT_NAMED),
        examples=(
            Example("as YAML", 200, None, ONE_PATH, offers="dense"),
            Example("as JSON", 200, None, ONE_PATH, _AS_JSON, offers="dense"),
            Example("no such model", 404, None, {"model": "no/such-model"}),
        ),
    ),
    ("GET", "/v1/configs/models/{model}/status"): Operation(
        id="configModelStatus",
        summary="Who serves a model as its spec stands now",
        tag="catalogue",
        description="By what the workers' heartbeats say, and what the ingresses tell each other.",
        parameters=(NAME, _TOKEN),
        replies=(Reply(200, "How far its newest spec has come.", ModelStatus),),
        errors=(errors.InvalidInputError, errors.UnauthorizedError, *NOT_NAMED),
        examples=(
            Example("a model", 200, None, ONE_PATH, offers="dense"),
            Example("no such model", 404, None, {"model": "no/such-model"}),
        ),
    ),
    ("GET", "/v1/configs/epoch"): Operation(
        id="configEpoch",
        summary="How far this server is with the catalogue",
        tag="catalogue",
        parameters=(_TOKEN,),
        replies=(Reply(200, "Its last write, and hashes of what it led to.", reads.Epoch, headers=(_EPOCH,)),),
        errors=(errors.UnauthorizedError,),
        examples=(Example("now", 200),),
    ),
    ("GET", "/v1/configs/export"): Operation(
        id="exportConfig",
        summary="The whole catalogue",
        tag="catalogue",
        description="`format=yaml` is a stream of specs as one would write them.",
        parameters=(Parameter("format", "Of the answer.", Literal["json", "yaml"], "query"), _KNOWN, _TOKEN),
        replies=(Reply(200, "All of it.", Snapshot, headers=(_EPOCH, _TAG), others={YAML: str}), _SAME),
        errors=(errors.InvalidInputError, errors.UnauthorizedError),
        examples=(
            Example("a snapshot", 200),
            Example("for a folder in git", 200, query={"format": "yaml"}),
            Example("a format that is none", 400, query={"format": "toml"}),
        ),
    ),
    ("GET", "/v1/configs/watch"): Operation(
        id="watchConfig",
        summary="The changes of the catalogue, as they are made",
        tag="catalogue",
        description="Server-sent events that go on until one side leaves: `config.changed` with the CloudEvent"
        " `dev.sie.config.changed.v1` in structured mode; `config.reset` where writes were missed.",
        parameters=(Parameter("Last-Event-ID", "The last epoch that was seen.", int), _TOKEN),
        replies=(Reply(200, "The stream.", None, ("text/event-stream",)),),
        errors=(errors.InvalidInputError, errors.UnauthorizedError, errors.UnavailableError),
        examples=(Example("an epoch that is none", 400, headers={"Last-Event-ID": "yesterday"}),),
    ),
    ("GET", "/v1/configs/schema"): Operation(
        id="configSchema",
        summary="The JSON schema of a spec",
        tag="catalogue",
        description="For editors, and for checks before a spec is sent.",
        parameters=(_TOKEN,),
        replies=(Reply(200, "The schema.", dict[str, Any], ("application/schema+json",)),),
        errors=(errors.UnauthorizedError,),
        examples=(Example("the schema", 200),),
    ),
    ("GET", "/v1/configs/bundles"): Operation(
        id="configBundles",
        summary="The bundles and their workers",
        tag="catalogue",
        parameters=(_TOKEN,),
        replies=(Reply(200, "All bundles.", bundle_reads.BundleRows),),
        errors=(errors.UnauthorizedError,),
        examples=(Example("all", 200),),
    ),
    ("GET", "/v1/configs/bundles/{bundle}"): Operation(
        id="configBundle",
        summary="One bundle and its models",
        tag="catalogue",
        parameters=(
            Parameter("bundle", "The bundle's name; case does not matter.", where="path", example="default"),
            _TOKEN,
        ),
        replies=(Reply(200, "The bundle.", bundle_reads.Bundle, _FORMATS),),
        errors=(errors.BundleNotFoundError, errors.UnauthorizedError),
        examples=(
            Example("as JSON", 200, None, {"bundle": "default"}, _AS_JSON),
            Example("no such bundle", 404, None, {"bundle": "nowhere"}),
        ),
    ),
    ("POST", "/v1/configs/resolve"): Operation(
        id="resolveModel",
        summary="What a name leads to",
        tag="catalogue",
        description="Looks up a name as requests have it, and computes nothing.",
        parameters=(_TOKEN,),
        body=Body(reads.Resolve, BOTH),
        replies=(Reply(200, "What would serve it.", reads.Resolved),),
        errors=(
            errors.InvalidInputError,
            errors.UnauthorizedError,
            errors.PayloadTooLargeError,
            errors.UnsupportedMediaTypeError,
            *NOT_NAMED,
        ),
        examples=(
            Example("a model", 200, {"model": MODEL}, offers="dense"),
            Example("a bundle that is not", 404, {"model": MODEL, "bundle": "nowhere"}, offers="dense"),
        ),
    ),
}
