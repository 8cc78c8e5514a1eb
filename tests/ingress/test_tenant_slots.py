"""The place of a tenant's request is free again when it is answered, on whichever try; a try more takes no other."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from sie_broker.contract import Broker
from sie_ingress import published
from tests.ingress.conftest import Desk, opened
from tests.ingress.test_requests import lengths


@pytest.fixture
async def desk(broker: Broker) -> AsyncIterator[Desk]:
    async with opened(broker, tenant_in_flight=1) as desk:
        yield desk


async def test_a_job_that_is_answered_to_a_repeat_of_its_key_counts_no_more(desk: Desk) -> None:
    async with desk.worker():
        for number in range(3):
            desk.hold.clear()
            asked = {"X_SIE_Tenant": "shop", "Idempotency_Key": f"k{number}"}
            assert (await desk.encode("text", Prefer="wait=0.05", **asked)).status_code == 202
            assert (await desk.encode("text", Prefer="wait=0.05", **asked)).status_code == 202
            assert (await desk.encode("other", X_SIE_Tenant="shop")).status_code == 429
            desk.hold.set()
            assert lengths((await desk.encode("text", **asked)).json()) == [4]
    assert len(desk.computed) == 3


async def test_a_published_client_that_sends_its_request_again_has_its_own_place(
    desk: Desk, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = {"X_SIE_Tenant": "shop", "X_SIE_SDK_Version": "0.10.1"}
    async with desk.worker():
        for number in range(3):
            desk.hold.clear()
            with monkeypatch.context() as soon:
                soon.setattr(published, "HELD_S", 0.05)
                for _ in range(2):
                    assert (await desk.encode(f"text {number}", **asked)).status_code == 504
            desk.hold.set()
            assert lengths((await desk.encode(f"text {number}", **asked)).json()) == [6]
    assert len(desk.computed) == 3
