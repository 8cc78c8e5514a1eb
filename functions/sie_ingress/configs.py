"""``/v1/configs`` at the ingress: the config service's reads, answered from the mirror of the catalogue.

Owns which of its workers have applied a model's spec, and the refusal of what only the config service does: writes and
the history. Its address an operator may tell (``SIE_CONFIG_URL``).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from starlette.routing import BaseRoute, Route
from starlette.types import Receive, Scope, Send

from sie_config.api.auth import Access
from sie_config.api.reads import Reads
from sie_config.api.watch import Watch
from sie_config.epochs.state import State
from sie_config.registry import Registry
from sie_ingress.applied import Applied
from sie_ingress.config_status import ConfigStatus
from sie_ingress.lanes import Lanes
from sie_sdk.errors import MethodNotAllowedError

READS = ("GET", "HEAD")
ELSEWHERE = {
    "/v1/configs/models": READS,
    "/v1/configs/models/{model:path}": READS,
    "/v1/configs/apply": (),
    "/v1/configs/rollback/{epoch}": (),
    "/v1/configs/history": (),
    "/v1/configs/history/{epoch}": (),
}
"""Where the config service does more, and the methods that are taken here too."""


class Configs:
    """What the ingress has of the config service: ``reads``, and ``changes`` for who watches.

    Args:
        registry: the models as they are served.
        state: the catalogue as it was written; None: nobody writes it.
        lanes: who serves them.
        ingresses: how far each ingress is.
        access: who may read.
    """

    def __init__(
        self,
        registry: Registry,
        state: Callable[[], State] | None,
        lanes: Lanes,
        ingresses: Callable[[], Sequence[Applied]],
        access: Access,
    ) -> None:
        state = state or baseline(registry)
        self._access = access
        self._lanes = lanes
        self._status = ConfigStatus(registry, state, lanes, ingresses)
        self.reads = Reads(registry, state, access, self._workers)
        self.changes = Watch(state, access)

    def routes(self, config_url: str) -> list[BaseRoute]:
        """All routes; ``config_url``: where the config service is, if that is known."""
        status = self._access.reading(self._status.__call__)
        return [
            Route("/v1/configs/models/{model:path}/status", status, methods=["GET"]),
            *self.reads.routes(),
            *self.changes.routes(),
            # Behind the reads, and for every method that these do not take.
            *(Route(path, Elsewhere(config_url, allowed)) for path, allowed in ELSEWHERE.items()),
        ]

    def _workers(self, bundle: str) -> int:
        return sum(worker.lane.bundle == bundle for worker in self._lanes.workers())


def baseline(registry: Registry) -> Callable[[], State]:
    """The state of a catalogue that nobody writes, of which ``registry`` has all there is to know."""
    known: list[tuple[int, State]] = []

    def state() -> State:
        if not known or known[0][0] != registry.epoch:
            known[:] = [(registry.epoch, State.of(registry.written(spec.id) for spec in registry.specs()))]
        return known[0][1]

    return state


class Elsewhere:
    """What is asked of the ingress and is the config service's to do. ``allowed``: the methods that are taken here."""

    def __init__(self, config_url: str, allowed: Sequence[str]) -> None:
        self._allowed = list(allowed)
        self._url = config_url.rstrip("/")
        self._hint = (
            f"Writes and the history are at the config service (SIE_CONFIG_URL): {self._url}."
            if self._url
            else "The config service (SIE_CONFIG_URL) does that; `sie serve` reads its specs once, at its start."
        )

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        error = MethodNotAllowedError(
            f"{scope['method']} is not allowed on {scope['path'][:200]}: the ingress only reads the catalogue.",
            field="method",
            hint=self._hint,
            allowed=self._allowed,
        )
        if self._url:
            error.details["config_url"] = self._url
        raise error
