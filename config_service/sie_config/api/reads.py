"""``/v1/configs``: the catalogue for who keeps it, read from memory; the same at the config service and the ingress.

Owns the forms of the answers: a spec as the YAML one would write or as JSON that says everything, and what a name would
lead to. Nothing is written here.
"""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

import msgspec
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from sie_broker import clock
from sie_broker.ending import cancelled
from sie_config.api import preconditions
from sie_config.api.auth import Access
from sie_config.api.body import read_body
from sie_config.api.bundle_reads import Bundles
from sie_config.api.export import Export, as_yaml
from sie_config.deployment import placement
from sie_config.deployment.placement import Deployment
from sie_config.epochs.state import State
from sie_config.model import model_spec, schema
from sie_config.model.model_spec import ModelSpec
from sie_config.model.plain import YAML
from sie_config.registry import Registry, lane_of, lanes_of
from sie_sdk import formats
from sie_sdk.errors import InvalidInputError

EPOCH = "X-SIE-Config-Epoch"
"""The header that says of which epoch an answer is."""
MAX_BODY_BYTES = 64 * 1024
READY_S = 5.0
"""How often what was written since is made ready for exports."""


class ModelRow(msgspec.Struct, frozen=True):
    """A model in the list of all: where it runs, and what is known of its spec as it was written."""

    model_id: str
    bundle: str
    pool: str
    machine_profile: str
    revision: str
    profiles: list[str]
    machine_profiles: list[str]
    """All that it is placed on, its own first; none where it is not served."""
    status: str
    """As requests meet it: ``planned`` also where nothing that is deployed runs it."""
    origin: str
    owner: str
    etag: str


class ModelRows(msgspec.Struct, frozen=True):
    """The catalogue after ``epoch``."""

    epoch: int
    models: list[ModelRow]


class Epoch(msgspec.Struct, frozen=True):
    """How far this process has come. Two that say the same have the same catalogue."""

    epoch: int
    hash: str
    """Of every entry."""
    bundles_hash: str
    """Of the bundles there are."""
    bundle_config_hashes_hash: str
    """Of what each lane's workers are to know."""
    writer: str | None
    """The config service that writes, where this is it; null elsewhere."""


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
    """The routes, for those whom ``access`` lets read.

    Args:
        registry: the models as they are served.
        state: the catalogue as it was written, of the same epoch.
        workers: how many workers a bundle has, as far as this process knows.
        writer: the name of this process, while it writes.
    """

    def __init__(
        self,
        registry: Registry,
        state: Callable[[], State],
        access: Access,
        workers: Callable[[str], int] = lambda _: 0,
        writer: Callable[[], str | None] = lambda: None,
    ) -> None:
        self._registry = registry
        self._state = state
        self._access = access
        self._bundles = Bundles(registry, workers)
        self._writer = writer
        self._export = Export(lambda spec: bundles_of(spec, registry))
        self._deployed: tuple[Deployment | None, str] = (None, "")

    def routes(self) -> list[Route]:
        """All of them."""
        every = [
            ("GET", "/v1/configs/models", self.models),
            ("GET", "/v1/configs/models/{model:path}", self.model),
            ("GET", "/v1/configs/bundles", self.bundles),
            ("GET", "/v1/configs/bundles/{bundle}", self.bundle),
            ("GET", "/v1/configs/epoch", self.epoch),
            ("GET", "/v1/configs/export", self.export),
            ("GET", "/v1/configs/schema", self.schema),
            ("POST", "/v1/configs/resolve", self.resolve),
        ]
        return [Route(path, self._access.reading(endpoint), methods=[method]) for method, path, endpoint in every]

    async def keep_ready(self) -> None:
        """Make what an export takes most time for before anybody asks for one, until cancelled."""
        while not cancelled():
            await self._export.prepare(self._state())
            await asyncio.sleep(READY_S)

    async def models(self, request: Request) -> Response:
        """All models, by name, or those that the parameters name."""
        wanted = _Filter.of(request.query_params)
        state = self._state()
        if preconditions.is_known(request.headers, etag := self._tag(state)):
            return self._unchanged(etag)
        rows = [row for spec in self._registry.specs() if wanted.takes(row := self._row(spec, state))]
        return self._json(ModelRows(state.epoch, rows), etag)

    async def model(self, request: Request) -> Response:
        """One spec as it was written: YAML, or JSON where ``Accept`` names it."""
        spec = self._registry.written(request.path_params["model"])
        etag = self._registry.etag(spec.id)
        if preconditions.is_known(request.headers, etag):
            return self._unchanged(etag)
        return self._either(request, spec, model_spec.document(spec), etag)

    async def bundles(self, request: Request) -> Response:
        """All bundles, as they are preferred."""
        return self._json(self._bundles.rows())

    async def bundle(self, request: Request) -> Response:
        """One bundle: YAML, or JSON where ``Accept`` names it."""
        told = self._bundles.one(request.path_params["bundle"])
        return self._either(request, told, msgspec.to_builtins(told))

    async def epoch(self, request: Request) -> Response:
        """How far this process has come."""
        state, registry = self._state(), self._registry
        lanes = {lane for spec in registry.specs() for lane in lanes_of(spec)}
        hashes = {str(lane): registry.hash_of(lane) for lane in lanes}
        digest = hashlib.sha256(msgspec.json.encode(hashes, order="deterministic")).hexdigest()
        told = Epoch(state.epoch, state.digest, self._bundles.hash, digest, self._writer())
        return self._json(told)

    async def export(self, request: Request) -> Response:
        """The whole catalogue: JSON, or a YAML stream where ``format`` says so."""
        form = _one_of("format", request.query_params.get("format", "json"), ("json", "yaml"))
        if preconditions.is_known(request.headers, etag := f"{self._tag(self._state())}-{form}"):
            return self._unchanged(etag)
        await self._export.prepare(self._state())
        state = self._state()  # somebody may have written meanwhile
        etag = f"{self._tag(state)}-{form}"
        if form == "yaml":
            return Response(self._export.yaml(state), headers=self._headers(etag), media_type=YAML)
        written = self._export.json(state, clock.now(), self._bundles.every())
        return Response(written, headers=self._headers(etag), media_type=formats.JSON)

    async def schema(self, request: Request) -> Response:
        """The JSON schema of a spec."""
        return Response(msgspec.json.encode(schema.document()), media_type="application/schema+json")

    async def resolve(self, request: Request) -> Response:
        """What a name would lead to; errors as a request of that name gets them."""
        wanted = await _read(request)
        name = wanted.model if not wanted.bundle else f"{wanted.bundle}:/{wanted.model}"
        spec = self._registry.resolve(name)
        names = self._registry.model(spec.id).profile_names
        bundles = bundles_of(self._registry.written(spec.id), self._registry)
        return self._json(Resolved(spec.id, spec.bundle, bundles, spec.default_profile, names))

    def _row(self, spec: ModelSpec, state: State) -> ModelRow:
        lane, stored = lane_of(spec), state.get(spec.id)
        return ModelRow(
            spec.id,
            lane.bundle,
            lane.pool,
            lane.profile,
            spec.revision,
            spec.profile_names,
            [lane.profile for lane in lanes_of(spec)],
            spec.status,
            "baseline" if stored is None else stored.origin,
            spec.owner,
            self._registry.etag(spec.id),
        )

    def _tag(self, state: State) -> str:
        """Of the whole catalogue, and of what is deployed: where models run is told, too."""
        there = self._registry.deployment
        if there is not self._deployed[0]:
            self._deployed = there, hashlib.blake2b(msgspec.json.encode(there), digest_size=4).hexdigest()
        return f"{state.digest}-{self._deployed[1]}"

    def _headers(self, etag: str = "") -> dict[str, str]:
        tag = {"ETag": preconditions.quoted(etag), "Cache-Control": "no-cache"} if etag else {}
        return {EPOCH: str(self._state().epoch), **tag}

    def _unchanged(self, etag: str) -> Response:
        return Response(b"", 304, self._headers(etag))

    def _json(self, value: object, etag: str = "") -> Response:
        return Response(msgspec.json.encode(value), headers=self._headers(etag), media_type=formats.JSON)

    def _either(self, request: Request, value: object, written: object, etag: str = "") -> Response:
        """As YAML, or JSON where ``Accept`` names it."""
        headers = {**self._headers(etag), "Vary": "Accept"}
        if _wants_json(request):
            return Response(msgspec.json.encode(value), headers=headers, media_type=formats.JSON)
        return Response(as_yaml(written), headers=headers, media_type=YAML)


def bundles_of(spec: ModelSpec, registry: Registry) -> list[str]:
    """Of a spec as it is written: the bundle that serves it, then the others that could; none if there is none."""
    there = () if registry.deployment is None else registry.deployment.bundles
    could = [each.id for each in placement.compatible(spec, there) if each.status == "ready"]
    return list(dict.fromkeys(filter(None, (registry.placed(spec).bundle, *could))))


async def _read(request: Request) -> Resolve:
    media = formats.body_type(request.headers.get("content-type") or formats.JSON)
    body = await read_body(request, MAX_BODY_BYTES)
    try:
        decode = msgspec.json.decode if media == formats.JSON else msgspec.msgpack.decode
        return decode(body, type=Resolve)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise InvalidInputError(
            f"The body cannot be read: {str(error).rstrip('.')}.",
            field="body",
            hint='It looks like {"model": "org/model", "bundle": "default"}.',
        ) from None


class _Filter(NamedTuple):
    """Which rows are asked for; empty: all."""

    origin: str
    owner: str
    status: str

    @classmethod
    def of(cls, params: Mapping[str, str]) -> _Filter:
        origin = _one_of("origin", params.get("origin", "all"), ("all", "written", "baseline"))
        status = _one_of("status", params.get("status", ""), ("", "ready", "planned"))
        return cls("" if origin == "all" else origin, params.get("owner", ""), status)

    def takes(self, row: ModelRow) -> bool:
        """Whether the row is one of them."""
        asked = ((self.origin, row.origin), (self.owner, row.owner), (self.status, row.status))
        return all(not wanted or wanted == has for wanted, has in asked)


def _one_of(name: str, value: str, allowed: Sequence[str]) -> str:
    if value in allowed:
        return value
    listed = ", ".join(filter(None, allowed))
    raise InvalidInputError(f"{name}={value[:64]} is not known.", field=name, limit=listed, hint=f"Say {listed}.")


def _wants_json(request: Request) -> bool:
    """Whether ``Accept`` names JSON, and YAML not before it."""
    accepted = [each.partition(";")[0].strip().lower() for each in request.headers.get("accept", "").split(",")]
    return formats.JSON in accepted and YAML not in accepted[: accepted.index(formats.JSON)]
