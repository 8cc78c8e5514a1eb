"""One operation of a bundle, from a request's bytes to the reply's: the way encode, score and extract share.

Parse, load, tokenize, forward, finish, and the clock readings between them. Owns the order; where each step is done is
``aside``'s. What each operation does differently stands in ``encode``, ``score``, ``extract``.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Executor as Threads
from typing import TYPE_CHECKING, Generic, NamedTuple, Protocol, TypeAlias, TypeVar

from sie_broker import clock
from sie_broker.records import Work
from sie_bundle.engine.executor import Executor
from sie_bundle.engine.outputs import Outputs
from sie_bundle.engine.request import Forwarded
from sie_bundle.engine.row import Row
from sie_bundle.operations.aside import (
    INLINE_BYTES,
    INLINE_ITEMS,
    Aside,
    bytes_read_at_once,
    parsed_at_once,
    written_at_once,
)
from sie_bundle.residency.residency import Residency
from sie_bundle.resolved import spec_of
from sie_config.model.model_spec import ModelSpec
from sie_config.model.profile import LORA, lora_of, options_of
from sie_config.registry import Registry
from sie_sdk.errors import InferenceError
from sie_sdk.types import Priority, Timing, Usage
from sie_sdk.wire import Request as AnyRequest

if TYPE_CHECKING:
    from sie_bundle.models.model import Model  # brings torch

Request = TypeVar("Request", contravariant=True)
Parsed = TypeVar("Parsed", bound=AnyRequest)


class Plan(NamedTuple):
    """What a request needs of the device, and how its outputs become the reply."""

    rows: Sequence[Row]
    heads: Sequence[str]
    finish: Callable[[Mapping[str, Outputs], Timing, Usage], bytes]
    """(outputs by head, one per row; timing so far; usage) to the reply body."""
    long: bool = False
    """Whether finishing takes longer than the size of its outputs suggests."""
    item: Callable[[int], str] = "items[{}]".format
    """What errors call a row, by its number."""


Repeated: TypeAlias = Callable[[ModelSpec, Parsed], int]
"""About how many characters a plan makes a request longer by, at most: a prompt, a query or labels, for each text."""


class Planner(Protocol[Request]):
    """Turns a parsed request into a plan: tokenization and the checks that need the model."""

    def __call__(self, model: Model, spec: ModelSpec, request: Request) -> Plan:
        """``spec``: the one the request was resolved with; the model's own has what its loading depends on, no more."""
        ...


class Operation(Generic[Parsed]):
    """``parse``: the request's body, checked. ``plan``: see `Planner`. ``threads``: each class of work has its own, so
    that no interactive request waits for the texts of bulk ones. ``repeated``: see `Repeated`."""

    def __init__(
        self,
        parse: Callable[[bytes], Parsed],
        plan: Planner[Parsed],
        registry: Registry,
        residency: Residency,
        executor: Executor,
        threads: Mapping[Priority, Threads],
        inline_bytes: int = INLINE_BYTES,
        repeated: Repeated[Parsed] = lambda spec, request: 0,
    ) -> None:
        self._parse = parse
        self._plan = plan
        self._registry = registry
        self._residency = residency
        self._executor = executor
        self._aside = Aside(threads)
        self._inline_bytes = inline_bytes
        self._repeated = repeated

    async def __call__(self, work: Work) -> bytes:
        """The reply body (wire protocol 2.3) of one request.

        Raises:
            SIEError: bad input, a model that does not load, an output that is not finite.
        """
        taken, queued_s = time.monotonic(), max(0.0, clock.now() - work.time)
        size = len(work.data)
        request = await self._aside(work, parsed_at_once(size), lambda: self._parse(work.data))
        spec = await spec_of(self._registry, work)
        asked = time.monotonic()
        model = await self._residency.model(spec, lora_of(spec, options_of(request).get(LORA)))
        waited_s = time.monotonic() - asked  # for the load of a model that was not there
        most = bytes_read_at_once(self._inline_bytes, model.tokenizer.plain, bulk=work.priority == "bulk")
        small = size <= most and len(request.items) <= INLINE_ITEMS
        small = small and size + self._repeated(spec, request) <= most
        plan = await self._aside(work, small, lambda: self._plan(model, spec, request))
        done = await self._forward(model, plan, work)

        def finish() -> bytes:
            timing = Timing(
                queue_ms=_ms(queued_s + waited_s),
                tokenization_ms=_ms(done.queued - taken - waited_s),
                batch_wait_ms=_ms(done.started - done.queued),
                inference_ms=_ms(done.ended - done.started),
                postprocessing_ms=_ms((replied := time.monotonic()) - done.ended),
                total_ms=_ms(queued_s + replied - taken),
            )
            return plan.finish(done.outputs, timing, Usage(input_tokens=sum(len(row) for row in plan.rows)))

        short = not plan.long and written_at_once(len(plan.rows), done.outputs.values())
        return await self._aside(work, short, finish)

    async def _forward(self, model: Model, plan: Plan, work: Work) -> Forwarded:
        if not plan.rows:  # MaxSim over vectors that all came with the request
            return Forwarded({}, now := time.monotonic(), now, now)
        bulk = work.priority == "bulk"
        try:
            return await self._executor.forward(model, plan.rows, plan.heads, deadline=work.deadline, bulk=bulk)
        except InferenceError as error:
            if (row := error.details.pop("row", None)) is not None:
                error.field = plan.item(row)
            raise


def _ms(seconds: float) -> float:
    return round(seconds * 1000, 3)
