"""Encode: one request's texts become vectors. Tokenize, forward, serialise, and the timing of each.

Owns the order of the steps and the clock readings between them; each step stands in its own module. Everything that
takes longer than a hop between threads runs off the event loop.
"""

from __future__ import annotations

import asyncio
import time
from concurrent.futures import Executor as Threads

from sie_broker.contract import Work
from sie_bundle.executor import Executor
from sie_bundle.residency import Residency
from sie_bundle.tokenization import Overflow
from sie_config.model_spec import Dense
from sie_config.registry import Registry
from sie_sdk import wire
from sie_sdk.errors import InvalidInputError
from sie_sdk.types import EncodeRequest, Timing, Usage

OVERFLOW_POLICIES = ("default", "truncate_text", "error")


class Encode:
    """The encode operation of a bundle."""

    def __init__(self, registry: Registry, residency: Residency, executor: Executor, threads: Threads) -> None:
        self._registry = registry
        self._residency = residency
        self._executor = executor
        self._threads = threads

    async def __call__(self, work: Work) -> bytes:
        """The reply body (wire protocol 2.3) of one request.

        Raises:
            SIEError: bad input, a model that does not load, an output that is not finite.
        """
        taken, queued_s = time.monotonic(), max(0.0, time.time() - work.time)
        request = wire.parse_encode(work.data, wire.MSGPACK)
        spec = self._registry.resolve(work.model)
        if (dense := spec.tasks.dense) is None:
            raise InvalidInputError(f"{spec.id} computes no dense vectors.", field="params.output_types")
        texts, overflow = prompted(request, dense), overflow_policy(request)
        model = await self._residency.model(spec)
        in_thread = asyncio.get_running_loop().run_in_executor
        rows = await in_thread(self._threads, model.tokenizer.tokenize, texts, spec.max_sequence_length, overflow)
        done = await self._executor.forward(model, rows, deadline=work.deadline)
        tokens = Usage(input_tokens=sum(len(row) for row in rows))

        def serialise() -> bytes:
            replied = time.monotonic()
            timing = Timing(
                queue_ms=_ms(queued_s),
                tokenization_ms=_ms(done.queued - taken),
                batch_wait_ms=_ms(done.started - done.queued),
                inference_ms=_ms(done.ended - done.started),
                postprocessing_ms=_ms(replied - done.ended),
                total_ms=_ms(queued_s + replied - taken),
            )
            ids = [item.id for item in request.items]
            dtype = request.params.output_dtype or "float32"
            return wire.encode_result(spec.id, ids, done.vectors, dtype, timing, tokens)

        return await in_thread(self._threads, serialise)


def prompted(request: EncodeRequest, dense: Dense) -> list[str]:
    """The texts with the instruction, or the model's query or document prompt, in front."""
    options = request.params.options or {}
    if request.params.instruction is not None:
        prompt = request.params.instruction
    else:
        prompt = dense.query_prompt if options.get("is_query") else dense.document_prompt
    return [prompt + (item.text or "") for item in request.items]


def overflow_policy(request: EncodeRequest) -> Overflow:
    """What to do with a text over the model's token limit: ``truncate_text`` (the default) or ``error``."""
    policy = (request.params.options or {}).get("overflow_policy", "default")
    if policy not in OVERFLOW_POLICIES:
        raise InvalidInputError(
            f"overflow_policy={policy!r} is unknown.",
            field="params.options.overflow_policy",
            limit=", ".join(OVERFLOW_POLICIES),
            hint=f"Use one of: {', '.join(OVERFLOW_POLICIES)}.",
        )
    return "error" if policy == "error" else "truncate_text"


def _ms(seconds: float) -> float:
    return round(seconds * 1000, 3)
