"""What each operation needs of a model: the checks that need its spec but not the model itself.

What can never succeed is refused here, before it is queued. How a request is read stands in ``sie_sdk.wire``; its way
is the same for all operations (``inference``), and so are its parts (``parts``).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from sie_config.model.model_spec import ModelSpec
from sie_sdk import outputs
from sie_sdk.errors import InvalidInputError
from sie_sdk.labels import labels_to_try
from sie_sdk.types import EncodeRequest, ExtractRequest, Operation, ScoreRequest

ROUTES: dict[str, Operation] = {
    "dense": "encode",
    "sparse": "encode",
    "multivector": "encode",
    "score": "score",
    "json": "extract",
}
"""Which operation computes each output a model may offer."""


def _check_encode(request: EncodeRequest, spec: ModelSpec) -> None:
    _check_offered("encode", spec)
    outputs.wanted(request, spec.id, spec.outputs)


def _check_score(request: ScoreRequest, spec: ModelSpec) -> None:
    _check_offered("score", spec)
    task, vectors = spec.tasks.score, spec.tasks.multivector
    dims = vectors.dim if task is not None and task.kind == "maxsim" and vectors is not None else None
    for name, item in (("query", request.query), *((f"items[{i}]", item) for i, item in enumerate(request.items))):
        if item.multivector is None:
            continue
        if dims is None and item.text is None:
            raise InvalidInputError(
                f"{name}.multivector cannot be read: this model reads text.",
                field=f"{name}.multivector",
                hint=f"{spec.id} does not score by MaxSim; send texts.",
            )
        if dims is not None and item.multivector.shape[1] != dims:
            raise InvalidInputError(
                f"{name}.multivector has {item.multivector.shape[1]} dimensions.",
                field=f"{name}.multivector",
                limit=dims,
                hint=f"The vectors of {spec.id} have {dims}.",
            )


def _check_extract(request: ExtractRequest, spec: ModelSpec) -> None:
    _check_offered("extract", spec)
    if spec.tasks.extract is not None and spec.tasks.extract.kind in ("entailment", "spans"):
        labels_to_try(request, spec.id)


def _check_offered(operation: Operation, spec: ModelSpec) -> None:
    """Refuse a model on a route that it has nothing for, and say which routes it is for."""
    if any(ROUTES.get(output) == operation for output in spec.outputs):
        return
    routes: dict[str, list[str]] = {}
    for output in spec.outputs:
        routes.setdefault(ROUTES.get(output, output), []).append(output)
    uses = [f"{', '.join(names)} with POST /v1/{route}/{spec.id}" for route, names in routes.items()]
    raise InvalidInputError(
        f"{spec.id} has nothing to {operation} with.",
        field="route",
        limit=", ".join(spec.outputs),
        hint=f"It offers {' and '.join(uses) or 'nothing'}.",
    )


CHECKS: dict[Operation, Callable[[Any, ModelSpec], None]] = {
    "encode": _check_encode,
    "score": _check_score,
    "extract": _check_extract,
}
"""Every operation of this server, each with what raises `InvalidInputError` for a request its model cannot do."""
