"""The description of ``/v1/configs``: the catalogue for who keeps it."""

from __future__ import annotations

from typing import Final

from sie_config import reads
from sie_config.model_spec import ModelSpec
from sie_ingress.openapi.headers import NOT_NAMED
from sie_ingress.openapi.inference import NAME, ONE_PATH
from sie_ingress.openapi.operation import BOTH, MODEL, Body, Described, Example, Operation, Parameter, Reply
from sie_sdk import errors, wire

_FORMATS: Final = (reads.YAML, wire.JSON)
_AS_JSON: Final = {"Accept": wire.JSON}

DESCRIBED: Final[Described] = {
    ("GET", "/v1/configs/models"): Operation(
        id="configModels",
        summary="Where each model runs",
        tag="catalogue",
        description="From the ingress's own copy of the catalogue. Writes are the config service's.",
        replies=(Reply(200, "All models.", reads.ModelRows),),
        examples=(Example("all", 200),),
    ),
    ("GET", "/v1/configs/models/{model}"): Operation(
        id="configModel",
        summary="One model's spec",
        tag="catalogue",
        description="YAML as one would write it; JSON, with every default, where `Accept` names it.",
        parameters=(NAME,),
        replies=(Reply(200, "The spec.", ModelSpec, _FORMATS),),
        errors=(errors.InvalidInputError, *NOT_NAMED),
        examples=(
            Example("as YAML", 200, None, ONE_PATH, offers="dense"),
            Example("as JSON", 200, None, ONE_PATH, _AS_JSON, offers="dense"),
            Example("no such model", 404, None, {"model": "no/such-model"}),
        ),
    ),
    ("GET", "/v1/configs/bundles"): Operation(
        id="configBundles",
        summary="The bundles and their workers",
        tag="catalogue",
        replies=(Reply(200, "All bundles.", reads.BundleRows),),
        examples=(Example("all", 200),),
    ),
    ("GET", "/v1/configs/bundles/{bundle}"): Operation(
        id="configBundle",
        summary="One bundle and its models",
        tag="catalogue",
        parameters=(Parameter("bundle", "The bundle's name; case does not matter.", where="path", example="default"),),
        replies=(Reply(200, "The bundle.", reads.Bundle, _FORMATS),),
        errors=(errors.BundleNotFoundError,),
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
        body=Body(reads.Resolve, BOTH),
        replies=(Reply(200, "What would serve it.", reads.Resolved),),
        errors=(
            errors.InvalidInputError,
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
