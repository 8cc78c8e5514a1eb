"""The clock readings of an answer: which stage the time of a model's load belongs to."""

from __future__ import annotations

import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace

import msgspec
import pytest

from sie_broker.records import Work
from sie_bundle.engine.executor import Executor
from sie_bundle.operations import encode
from sie_bundle.operations.operation import Operation
from sie_bundle.residency.residency import Residency
from sie_config.registry import Registry, lane_of
from sie_sdk import wire
from sie_sdk.types import EncodeRequest, Item, Timing
from tests import tiny_model

LOAD_S = 1000.0


async def test_the_load_of_a_model_is_time_in_the_queue_and_none_of_tokenization(
    tiny_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    loads: list[str] = []
    clock = SimpleNamespace(monotonic=lambda: time.monotonic() + LOAD_S * len(loads))
    monkeypatch.setattr("sie_bundle.operations.operation.time", clock)
    spec, executor, threads = tiny_model.spec(tiny_folder), Executor(), ThreadPoolExecutor(1)
    residency = Residency(None, tmp_path / "cache", 1 << 30, loads.append)
    operation = Operation(
        encode.parse, encode.plan, Registry([spec]), residency, executor, {"interactive": threads, "bulk": threads}
    )
    body = wire.request_body(EncodeRequest([Item(text="hello")]))
    reply = await operation(Work("1", "encode", lane_of(spec), spec.id, body, time.time()))
    timing = msgspec.convert(msgspec.msgpack.decode(reply)["timing"], Timing)
    executor.close()
    threads.shutdown()
    assert timing.queue_ms >= LOAD_S * 1000 > timing.tokenization_ms
    stages = [value for name, value in msgspec.structs.asdict(timing).items() if name != "total_ms"]
    assert sum(stages) == pytest.approx(timing.total_ms, abs=0.01)
