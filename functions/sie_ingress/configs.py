"""``/v1/configs`` at the ingress: the config service's reads, answered from the mirror of the catalogue.

Owns the refusal of writes: they are the config service's, whose address an operator may tell (``SIE_CONFIG_URL``).
"""

from __future__ import annotations

from starlette.routing import BaseRoute, Route
from starlette.types import Receive, Scope, Send

from sie_config.reads import Reads
from sie_config.registry import Registry
from sie_ingress.lanes import Lanes
from sie_sdk.errors import MethodNotAllowedError

READS = ("GET", "HEAD")


def routes(registry: Registry, lanes: Lanes, config_url: str) -> list[BaseRoute]:
    """The routes; ``config_url``: where the config service is, if that is known."""

    def workers(bundle: str) -> int:
        return sum(worker.lane.bundle == bundle for worker in lanes.workers())

    # Behind the reads, and for every method that these do not take.
    elsewhere = Elsewhere(config_url)
    paths = ("/v1/configs/models", "/v1/configs/models/{model:path}")
    return [*Reads(registry, workers).routes(), *(Route(path, elsewhere) for path in paths)]


class Elsewhere:
    """What writes get."""

    def __init__(self, config_url: str) -> None:
        self._hint = (
            f"Writes go to the config service (SIE_CONFIG_URL): {config_url.rstrip('/')}."
            if config_url
            else "Writes go to the config service (SIE_CONFIG_URL); `sie serve` reads its specs once, at its start."
        )

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        raise MethodNotAllowedError(
            f"{scope['method']} is not allowed on {scope['path'][:200]}: the ingress only reads the catalogue.",
            field="method",
            hint=self._hint,
            allowed=list(READS),
        )
