"""The work says by which spec it is to be computed."""

from __future__ import annotations

import msgspec

from sie_broker.records import Work
from sie_config.model.model_spec import etag
from tests.ingress.conftest import SPEC, Desk

NEWER = msgspec.structs.replace(SPEC, revision="newer")


async def test_the_ingress_names_the_spec_that_it_resolved_a_request_with(desk: Desk) -> None:
    seen: list[str] = []

    async def compute(work: Work) -> bytes:
        seen.append(work.spec)
        return await desk.count(work)

    async with desk.worker(compute):
        assert (await desk.encode("one")).status_code == 200
        desk.registry.put(NEWER)
        assert (await desk.encode("two")).status_code == 200
    assert seen == [etag(SPEC), etag(NEWER)]
