"""``GET /v1/models`` and ``GET /v1/models/{model}``: what can be asked for, and what is loaded somewhere right now."""

from __future__ import annotations

from typing import get_args

from starlette.requests import Request
from starlette.responses import Response

from sie_config.model_spec import ModelSpec
from sie_config.registry import Registry
from sie_ingress import answer
from sie_ingress.lanes import Lanes
from sie_sdk.types import ModelInfo, OutputType


class Models:
    """The two catalogue routes."""

    def __init__(self, registry: Registry, lanes: Lanes) -> None:
        self._registry = registry
        self._lanes = lanes

    async def list(self, request: Request) -> Response:
        """All models, by name."""
        loaded = self._loaded()
        return answer.json({"models": [info(spec, spec.id in loaded) for spec in self._registry.specs()]})

    async def one(self, request: Request) -> Response:
        """One model; 404 with the nearest names."""
        spec = self._registry.resolve(request.path_params["model"])
        return answer.json(info(spec, spec.id in self._loaded()))

    def _loaded(self) -> set[str]:
        return {model for worker in self._lanes.workers() for model in worker.models}


def info(spec: ModelSpec, loaded: bool) -> ModelInfo:
    """The public row of a model."""
    widths = {name: getattr(getattr(spec.tasks, name), "dim", None) for name in get_args(OutputType)}
    return ModelInfo(
        name=spec.id,
        outputs=spec.outputs,
        dims={name: dim for name, dim in widths.items() if dim is not None},
        max_sequence_length=spec.max_sequence_length,
        revision=spec.revision,
        bundle=spec.bundle,
        loaded=loaded,
        state="loaded" if loaded else "available",
    )
