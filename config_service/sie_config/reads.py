"""``/v1/configs``: the catalogue for who keeps it, read from memory; the same at the config service and the ingress.

Owns the forms of the answers: a spec as the YAML one would write or as JSON that says everything, and what a name would
lead to. Nothing is written here.
"""

from __future__ import annotations

from collections.abc import Callable

import msgspec
import yaml
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from sie_broker.http_body import read_body
from sie_config import model_spec
from sie_config.registry import Registry, lane_of
from sie_sdk import wire
from sie_sdk.errors import BundleNotFoundError, InvalidInputError

YAML = "application/yaml"
MAX_BODY_BYTES = 64 * 1024
PRIORITY = 100
"""The protocol's default: a model names its bundle, so none comes before another."""


class ModelRow(msgspec.Struct, frozen=True):
    """A model in the list of all."""

    model_id: str
    bundle: str
    pool: str
    machine_profile: str
    revision: str
    profiles: list[str]


class ModelRows(msgspec.Struct, frozen=True):
    """The catalogue. ``epoch`` counts the changes that this process has seen."""

    epoch: int
    models: list[ModelRow]


class BundleRow(msgspec.Struct, frozen=True):
    """A bundle; its adapters are the families of its models."""

    bundle_id: str
    priority: int
    adapter_count: int
    model_count: int
    source: str
    connected_workers: int


class BundleRows(msgspec.Struct, frozen=True):
    """Every bundle that serves a model."""

    bundles: list[BundleRow]


class Bundle(msgspec.Struct, frozen=True):
    """One bundle, with the families and the ids of its models."""

    name: str
    priority: int
    source: str
    adapters: list[str]
    models: list[str]


class Resolve(msgspec.Struct, frozen=True):
    """What to look up: a name as requests have it, and the bundle that is to serve it."""

    model: str
    bundle: str | None = None


class Resolved(msgspec.Struct, frozen=True):
    """What a request of that name would be served by."""

    model: str
    resolved_bundle: str
    compatible_bundles: list[str]
    profile: str
    profiles: list[str]


class Reads:
    """The routes. ``workers``: how many workers a bundle has, as far as this process knows."""

    def __init__(self, registry: Registry, workers: Callable[[str], int] = lambda _: 0) -> None:
        self._registry = registry
        self._workers = workers

    def routes(self) -> list[Route]:
        """All of them."""
        return [
            Route("/v1/configs/models", self.models, methods=["GET"]),
            Route("/v1/configs/models/{model:path}", self.model, methods=["GET"]),
            Route("/v1/configs/bundles", self.bundles, methods=["GET"]),
            Route("/v1/configs/bundles/{bundle}", self.bundle, methods=["GET"]),
            Route("/v1/configs/resolve", self.resolve, methods=["POST"]),
        ]

    async def models(self, request: Request) -> Response:
        """All models, by name."""
        rows = [
            ModelRow(spec.id, lane.bundle, lane.pool, lane.profile, spec.revision, spec.profile_names)
            for spec in self._registry.specs()
            for lane in [lane_of(spec)]
        ]
        return _json(ModelRows(self._registry.epoch, rows))

    async def model(self, request: Request) -> Response:
        """One spec: YAML, or JSON where ``Accept`` names it."""
        spec = self._registry.model(request.path_params["model"])
        return _json(spec, vary=True) if _wants_json(request) else _yaml(model_spec.document(spec))

    async def bundles(self, request: Request) -> Response:
        """All bundles, by name."""
        rows = []
        for name in self._registry.bundles():
            told = self._bundle(name)
            adapters, models = len(told.adapters), len(told.models)
            rows.append(BundleRow(name, told.priority, adapters, models, told.source, self._workers(name)))
        return _json(BundleRows(rows))

    async def bundle(self, request: Request) -> Response:
        """One bundle: YAML, or JSON where ``Accept`` names it."""
        told = self._bundle(request.path_params["bundle"])
        return _json(told, vary=True) if _wants_json(request) else _yaml(msgspec.to_builtins(told))

    async def resolve(self, request: Request) -> Response:
        """What a name would lead to; errors as a request of that name gets them."""
        wanted = await _read(request)
        name = wanted.model if not wanted.bundle else f"{wanted.bundle}:/{wanted.model}"
        spec = self._registry.resolve(name)
        names = self._registry.model(spec.id).profile_names
        return _json(Resolved(spec.id, spec.bundle, [spec.bundle], spec.default_profile, names))

    def _bundle(self, name: str) -> Bundle:
        specs = [spec for spec in self._registry.specs() if spec.bundle.lower() == name.lower()]
        if not specs:
            bundles = self._registry.bundles()
            raise BundleNotFoundError(
                f"There is no bundle {name[:64]!r}.",
                field="bundle",
                hint=f"There is {' and '.join(bundles) or 'none'}.",
                bundles=bundles,
            )
        adapters = sorted({spec.family for spec in specs})
        return Bundle(specs[0].bundle, PRIORITY, "catalogue", adapters, [spec.id for spec in specs])


async def _read(request: Request) -> Resolve:
    media = wire.body_type(request.headers.get("content-type") or wire.JSON)
    body = await read_body(request, MAX_BODY_BYTES)
    try:
        decode = msgspec.json.decode if media == wire.JSON else msgspec.msgpack.decode
        return decode(body, type=Resolve)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise InvalidInputError(
            f"The body cannot be read: {str(error).rstrip('.')}.",
            field="body",
            hint='It looks like {"model": "org/model", "bundle": "default"}.',
        ) from None


def _wants_json(request: Request) -> bool:
    """Whether ``Accept`` names JSON, and YAML not before it."""
    accepted = [each.partition(";")[0].strip().lower() for each in request.headers.get("accept", "").split(",")]
    return wire.JSON in accepted and YAML not in accepted[: accepted.index(wire.JSON)]


def _json(value: object, vary: bool = False) -> Response:
    return Response(msgspec.json.encode(value), headers={"Vary": "Accept"} if vary else None, media_type=wire.JSON)


def _yaml(value: object) -> Response:
    text = yaml.safe_dump(value, sort_keys=False, allow_unicode=True, width=120)
    return Response(text, headers={"Vary": "Accept"}, media_type=YAML)
