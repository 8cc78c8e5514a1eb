"""``GET /v1/models`` and ``GET /v1/models/{model}``: what can be asked for, and what is loaded somewhere right now.

Both in the words of the published protocol and of OpenAI at once. Owns these words; what each worker has is ``lanes``'.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Final, get_args

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from sie_broker.records import LoadFailure, WorkerState
from sie_config.model.model_spec import ModelSpec
from sie_config.registry import Registry
from sie_ingress import answer
from sie_ingress.lanes import Lanes
from sie_sdk.types import ModelInfo, ModelLoadError, OutputType, ProfileInfo

CODES: Final = {"memory": "OOM", "too_large": "OOM", "corrupt": "STORAGE"}
"""What the protocol calls a reason why a model did not load; the others are the same in capitals."""
PLANNED: Final = "planned"
"""The state of a model that nothing serves; its error says why. A word of our own, which published clients pass on."""
LOCAL: Final[dict[str, Any]] = {"policy": None, "upstream_kind": None}
"""The protocol's word for a model that is computed here and nowhere else."""


class OpenAIModel(msgspec.Struct, frozen=True, kw_only=True):
    """A model as OpenAI's clients read it. ``created``: the catalogue does not know; 0."""

    id: str
    object: str = "model"
    created: int = 0
    owned_by: str


class OneModel(ModelInfo, frozen=True, kw_only=True):
    """One model in both words at once."""

    id: str
    object: str = "model"
    created: int = 0
    owned_by: str


class ModelList(msgspec.Struct, frozen=True):
    """All models; in OpenAI's words, which know no state, those that are served."""

    models: list[ModelInfo]
    data: list[OpenAIModel]
    object: str = "list"


class Fleet(msgspec.Struct, frozen=True):
    """Which models are where, of all workers together."""

    loaded: frozenset[str]
    loading: frozenset[str]
    failed: dict[str, LoadFailure]

    def state(self, model: str) -> str:
        """The state of a model wherever it is furthest."""
        if model in self.loaded:
            return "loaded"
        if model in self.loading:
            return "loading"
        return "failed" if model in self.failed else "available"


def fleet(workers: Iterable[WorkerState]) -> Fleet:
    """What these workers have."""
    every = list(workers)
    return Fleet(
        frozenset(model for worker in every for model in worker.models),
        frozenset(model for worker in every for model in worker.loading),
        {model: failure for worker in every for model, failure in worker.failed.items()},
    )


class Models:
    """The two catalogue routes."""

    def __init__(self, registry: Registry, lanes: Lanes) -> None:
        self._registry = registry
        self._lanes = lanes

    async def list(self, request: Request) -> Response:
        """All models, by name."""
        specs, here = self._registry.specs(), fleet(self._lanes.workers())
        rows = [info(spec, here, self._registry) for spec in specs]
        served = [OpenAIModel(id=spec.id, owned_by=_owner(spec)) for spec in specs if spec.status == "ready"]
        return answer.json(ModelList(rows, served))

    async def one(self, request: Request) -> Response:
        """One model; 404 with the nearest names."""
        spec = self._registry.model(request.path_params["model"])
        row = info(spec, fleet(self._lanes.workers()), self._registry)
        return answer.json(OneModel(**msgspec.structs.asdict(row), id=spec.id, owned_by=_owner(spec)))


def info(spec: ModelSpec, here: Fleet, registry: Registry) -> ModelInfo:
    """The public row of a model."""
    state = PLANNED if spec.status == PLANNED else here.state(spec.id)
    return ModelInfo(
        name=spec.id,
        inputs=[*spec.inputs],
        outputs=[*spec.outputs],
        dims=dims(spec),
        max_sequence_length=spec.max_sequence_length,
        revision=spec.revision,
        bundle=spec.bundle,
        loaded=state == "loaded",
        state=state,
        last_error=_error(spec, here, registry) if state in ("failed", PLANNED) else None,
        profiles={name: ProfileInfo(is_default=name == spec.default_profile) for name in spec.profile_names},
        aliases=registry.aliases_of(spec.id),
        routing=LOCAL,
    )


def dims(spec: ModelSpec) -> dict[str, int]:
    """The width of each output that has one."""
    widths = {name: getattr(getattr(spec.tasks, name), "dim", None) for name in get_args(OutputType)}
    return {name: dim for name, dim in widths.items() if dim is not None}


def _error(spec: ModelSpec, here: Fleet, registry: Registry) -> ModelLoadError:
    if spec.status == PLANNED:
        return ModelLoadError(registry.refusal(spec).code, spec.blocked_by, 0, permanent=True)
    failure = here.failed[spec.id]
    code = CODES.get(failure.reason, failure.reason.upper())
    return ModelLoadError(code, failure.message, failure.attempts, permanent=False)


def _owner(spec: ModelSpec) -> str:
    """The organisation in its name."""
    return spec.id.rpartition("/")[0] or "sie"
