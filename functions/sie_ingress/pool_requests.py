"""What a caller asks of pools: the body of a POST checked against its limits and the catalogue, and the header. Pure.

Owns names, limits and the wording of what is wrong with them. What is then done stands in ``pools``.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import msgspec

from sie_broker.pools.pool import DEFAULT, Pool, service_of
from sie_broker.records import Lane
from sie_config.model.model_spec import ModelSpec
from sie_config.model.variant import name_of
from sie_config.registry import Registry, lanes_of
from sie_sdk import complaints, wire
from sie_sdk import pools as wire_pools
from sie_sdk.errors import InvalidInputError, PoolCapacityError, PoolForbiddenError
from sie_sdk.pools import PoolSpec

EXAMPLE = '{"name": "team-a", "gpus": {"cpu": 1}}'

SPOT = "-spot"
"""What the name of a machine profile ends with whose machines may be taken away at any time."""

_NAME = re.compile(rf"[a-z0-9-]{{1,{wire_pools.MAX_NAME}}}")


def named(headers: Mapping[str, str]) -> str:
    """The pool a request asks for, in lower case; empty: none. Header names are lower case.

    ``X-SIE-Pool: team-a``, or ``X-SIE-MACHINE-PROFILE: team-a/l4``.
    """
    pool, slash, _ = headers.get("x-sie-machine-profile", "").rpartition("/")
    return (headers.get("x-sie-pool") or (pool if slash else "")).strip().lower()


def is_name(name: str) -> bool:
    """Whether a pool can be called so."""
    return _NAME.fullmatch(name) is not None


def chosen(headers: Mapping[str, str], lanes: Sequence[Lane]) -> Lane:
    """Of the lanes that serve a model, its own first, the one on the machine profile that a request asks for.

    ``X-SIE-MACHINE-PROFILE: l4``, with or without a pool before it; ``l4`` takes ``l4-spot``, too, and the other way
    round. A wish: where the model is not on it, its own first serves it, so that a client need not know what is
    deployed.
    """
    asked = headers.get("x-sie-machine-profile", "").rpartition("/")[2].strip().lower()
    if not asked:
        return lanes[0]
    by_name = {lane.profile.lower(): lane for lane in lanes}
    for name in (asked, f"{asked}{SPOT}", asked.removesuffix(SPOT)):
        if name in by_name:
            return by_name[name]
    return lanes[0]


def read_spec(body: bytes, content_type: str | None) -> PoolSpec:
    """The body of ``POST /v1/pools``; fields that are null or unknown count as left out.

    Raises:
        UnsupportedMediaTypeError: neither JSON nor msgpack.
        InvalidInputError: it does not parse, or a field has a wrong type or is over its limit.
    """
    media = wire.body_type(content_type or wire.JSON)
    try:
        raw = (msgspec.json if media == wire.JSON else msgspec.msgpack).decode(body, type=dict[Any, Any])
        spec = msgspec.convert({name: value for name, value in raw.items() if value is not None}, PoolSpec)
    except msgspec.ValidationError as error:
        raise complaints.wrong_field(error, EXAMPLE) from None
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise complaints.malformed(error, body, media, EXAMPLE) from None
    spec = msgspec.structs.replace(spec, name=spec.name.strip().lower())
    _check_limits(spec)
    return spec


def _check_limits(spec: PoolSpec) -> None:
    if not is_name(spec.name):
        raise InvalidInputError(
            f"{spec.name[: wire_pools.MAX_NAME + 1]!r} is no name of a pool.",
            field="name",
            limit=f"1 to {wire_pools.MAX_NAME} letters, digits and hyphens",
        )
    if spec.queue_pool != DEFAULT:
        raise InvalidInputError(
            f"A pool cannot draw on {spec.queue_pool!r}.", field="queue_pool", limit=DEFAULT, hint="Leave it out."
        )
    if not wire_pools.MIN_TTL_S <= spec.ttl_seconds <= wire_pools.MAX_TTL_S:
        raise InvalidInputError(
            f"A lease cannot last {spec.ttl_seconds:g} s.",
            field="ttl_seconds",
            limit=f"{wire_pools.MIN_TTL_S:g} to {wire_pools.MAX_TTL_S:g}",
            hint="Renew it before it ends.",
        )
    if len(spec.pinned_models) > wire_pools.MAX_PINNED:
        raise InvalidInputError(
            f"{len(spec.pinned_models)} models cannot be pinned.", field="pinned_models", limit=wire_pools.MAX_PINNED
        )
    _check_workers(spec)


def _check_workers(spec: PoolSpec) -> None:
    if not (profiles := spec.gpus.keys() | spec.gpu_caps.keys()):
        raise InvalidInputError("A pool needs a machine profile.", field="gpus", hint=f"The body looks like {EXAMPLE}.")
    for field, counts in (("gpus", spec.gpus), ("gpu_caps", spec.gpu_caps)):
        for profile, count in counts.items():
            if not 1 <= count <= wire_pools.MAX_WORKERS:
                raise InvalidInputError(
                    f"A pool cannot have {count} workers of {profile!r}.",
                    field=f"{field}.{profile}",
                    limit=f"1 to {wire_pools.MAX_WORKERS}",
                )
    minimum, fewest = (
        spec.minimum_worker_count,
        min(spec.gpu_caps.get(each, spec.gpus.get(each, 0)) for each in profiles),
    )
    allowed = min(fewest, wire_pools.MAX_MINIMUM // len(profiles))
    if not 0 <= minimum <= allowed:
        raise InvalidInputError(
            f"{minimum} workers of each of {len(profiles)} machine profiles cannot be kept up.",
            field="minimum_worker_count",
            limit=allowed,
            hint=f"At most {wire_pools.MAX_MINIMUM} in all, and not more of a profile than the pool may have.",
        )


def check_catalogue(spec: PoolSpec, registry: Registry) -> list[str]:
    """Refuse a pool that could serve no model; returns the names of the models to pin, with the LoRAs they chose.

    Raises:
        InvalidInputError: no model of the default pool has that bundle or machine profile.
        ModelNotFoundError: a model to pin is not in the catalogue.
        PoolCapacityError: the pool's workers do not serve a model to pin.
    """
    lanes = {lane for each in registry.specs() if each.pool == DEFAULT for lane in lanes_of(each)}
    _known("bundle", [spec.bundle], {lane.bundle for lane in lanes})
    _known(
        "gpus", spec.gpus.keys() | spec.gpu_caps.keys(), {lane.profile for lane in lanes if lane.bundle == spec.bundle}
    )
    pinned = [registry.resolve(name) for name in spec.pinned_models]
    for model in pinned:
        lanes_for(to_pool(spec, [], 0.0), model)
    return [name_of(model) for model in pinned]


def _known(field: str, names: Iterable[str], known: set[str]) -> None:
    for name in names:
        if name not in known:
            listed = ", ".join(sorted(known))
            raise InvalidInputError(
                f"No model runs on {name!r}.", field=field, limit=listed, hint=f"There is {listed or 'nothing'}."
            )


def to_pool(spec: PoolSpec, pinned: Iterable[str], now: float) -> Pool:
    """The record of a pool that is made at ``now``, seconds since the epoch."""
    return Pool(
        name=spec.name,
        gpus=spec.gpus,
        gpu_caps=spec.gpu_caps,
        created_at=now,
        last_renewed=now,
        ttl_s=spec.ttl_seconds,
        bundle=spec.bundle,
        minimum=spec.minimum_worker_count,
        pinned_models=tuple(pinned),
    )


def succeeded(before: Pool | None, wanted: Pool, now: float) -> Pool:
    """What a pool of that name becomes: the living one is changed and renewed, else it is made anew.

    Raises:
        PoolForbiddenError: work may wait in a lane that the pool would lose.
    """
    if before is None:
        return wanted
    if not set(before.lanes()) <= set(wanted.lanes()):
        raise PoolForbiddenError(
            f"Work of pool {before.name} may still wait for {', '.join(before.profiles)} of bundle {before.bundle}.",
            field="gpus" if before.bundle == wanted.bundle else "bundle",
            hint="Keep these, delete the pool and make it again when it is gone, or choose another name.",
        )
    return msgspec.structs.replace(wanted, created_at=before.created_at) if before.living(now) else wanted


def lanes_for(pool: Pool, model: ModelSpec) -> list[Lane]:
    """The lanes of the pool that serve the model, in the model's order.

    Raises:
        PoolCapacityError: none does, for its bundle, machine profiles or own pool are others.
    """
    lanes = {service_of(lane): lane for lane in pool.lanes()}
    own = lanes_of(model)
    if not (both := [lanes[lane] for lane in own if lane in lanes]):
        runs = " or ".join(lane.profile for lane in own)
        raise PoolCapacityError(
            f"Pool {pool.name} has no workers for {model.id}.",
            field="X-SIE-Pool",
            limit=f"bundle {pool.bundle} on {', '.join(pool.profiles)}",
            hint=f"The model runs in bundle {model.bundle} on {runs} of pool {model.pool}.",
        )
    return both
