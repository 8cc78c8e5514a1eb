"""The in-memory broker keeps what has ended no longer than it must: `sie serve` runs for weeks."""

from __future__ import annotations

import pytest

from sie_broker.memory import SWEEP_AT, MemoryBucket


async def test_a_bucket_lets_go_of_values_that_have_ended_though_nobody_asks_for_them(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    now = 0.0
    monkeypatch.setattr("sie_broker.memory.time.monotonic", lambda: now)
    bucket = MemoryBucket(ttl_s=10)
    for number in range(20 * SWEEP_AT):
        now += 0.1  # a hundred are alive at any time
        await bucket.put(str(number), b"value")
        assert len(bucket._values) <= 2 * SWEEP_AT
    assert len(await bucket.entries()) == 100
