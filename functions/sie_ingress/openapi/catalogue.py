"""The description of ``/v1/models``: what can be asked for."""

from __future__ import annotations

from typing import Final

from sie_ingress.models import ModelList, OneModel
from sie_ingress.openapi.headers import NOT_NAMED
from sie_ingress.openapi.inference import NAME, ONE_PATH
from sie_ingress.openapi.operation import Described, Example, Operation, Reply
from sie_sdk import errors

DESCRIBED: Final[Described] = {
    ("GET", "/v1/models"): Operation(
        id="models",
        summary="The catalogue",
        tag="catalogue",
        description="What each model computes, and whether it is loaded somewhere right now.",
        replies=(Reply(200, "All models.", ModelList),),
        examples=(Example("all", 200),),
    ),
    ("GET", "/v1/models/{model}"): Operation(
        id="model",
        summary="One model",
        tag="catalogue",
        parameters=(NAME,),
        replies=(Reply(200, "The model.", OneModel),),
        errors=(errors.InvalidInputError, *NOT_NAMED),
        examples=(
            Example("one", 200, None, ONE_PATH, offers="dense"),
            Example("no such model", 404, None, {"model": "no/such-model"}),
        ),
    ),
}
