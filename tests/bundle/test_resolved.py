"""Work in flight is computed by the spec it was resolved with, while that is remembered."""

from __future__ import annotations

import asyncio
import time

import msgspec
import pytest

from sie_broker import jobs
from sie_broker.contract import Broker
from sie_broker.records import Work
from sie_bundle import resolved, worker
from sie_bundle.resolved import spec_of
from sie_bundle.worker import Worker
from sie_config.model.model_spec import etag
from sie_config.registry import Registry, lane_of
from sie_sdk.errors import ModelNotFoundError
from tests.ingress.conftest import MODEL, SPEC

LANE = lane_of(SPEC)
NEWER = msgspec.structs.replace(SPEC, revision="newer")


def work(spec: str, work_id: str = "w") -> Work:
    now = round(time.time(), 6)
    return Work(id=work_id, op="encode", lane=LANE, model=MODEL, data=b"", time=now, spec=spec)


async def test_what_was_replaced_or_removed_meanwhile_is_computed_as_it_was_resolved() -> None:
    registry = Registry([SPEC])
    old, new = work(etag(SPEC)), work(etag(NEWER))
    registry.put(NEWER)
    assert (await spec_of(registry, old), await spec_of(registry, new)) == (SPEC, NEWER)
    registry.remove(MODEL)
    assert (await spec_of(registry, old), await spec_of(registry, new)) == (SPEC, NEWER)


async def test_who_names_no_spec_or_one_that_is_forgotten_gets_the_model_as_it_stands() -> None:
    registry = Registry([NEWER])
    assert await spec_of(registry, work("")) == await spec_of(registry, work("0" * 16)) == NEWER
    registry.remove(MODEL)
    with pytest.raises(ModelNotFoundError):
        await spec_of(registry, work(""))


async def test_a_model_that_the_ingress_knew_first_is_waited_for() -> None:
    registry = Registry()
    waiting = asyncio.create_task(spec_of(registry, work(etag(SPEC))))
    await asyncio.sleep(0)
    assert not waiting.done()
    registry.put(SPEC)
    assert await waiting == SPEC


@pytest.mark.parametrize("comes", [True, False])
async def test_work_of_a_model_that_stays_unknown_is_given_back_once_and_then_answered(
    broker: Broker, monkeypatch: pytest.MonkeyPatch, comes: bool
) -> None:
    monkeypatch.setattr(resolved, "MIRRORED_S", 0.0)
    monkeypatch.setattr(worker, "UNKNOWN_S", 0.01)
    await broker.provision([(LANE, MODEL)])
    registry, tried = Registry([SPEC]), 0

    async def compute(work: Work) -> bytes:
        nonlocal tried
        tried += 1
        registry.remove(MODEL) if tried == 1 else None
        if comes and tried == 2:
            registry.put(NEWER)
        return (await spec_of(registry, msgspec.structs.replace(work, spec="0" * 16))).revision.encode()

    here = Worker(broker, registry, LANE, "w", {"encode": compute}, lambda: [MODEL], max_in_hand=4)
    here.start()
    await broker.submit(work("0" * 16))
    reply = await jobs.wait_result(broker.jobs, "w", 20)
    assert reply is not None
    if comes:
        assert (reply.status, reply.data, tried) == (200, b"newer", 2)
    else:
        assert (reply.status, tried) == (404, 2)
    await here.drain(5)
