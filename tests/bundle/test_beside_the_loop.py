"""What may wait for a disk or a device is asked in threads, and not on the event loop."""

from __future__ import annotations

import asyncio
import shutil
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from sie_broker.memory import MemoryBroker
from sie_bundle.bundle import Bundle, Warming
from sie_bundle.models.model import Model
from sie_bundle.residency import memory
from sie_bundle.residency import residency as residency_module
from sie_bundle.residency.loading import Loader
from sie_bundle.residency.memory import Memory
from sie_bundle.settings import Settings
from sie_config.registry import Registry
from sie_sdk.errors import OutOfMemoryError, WeightsUnavailableError
from tests import tiny_model
from tests.bundle.residencies import Clock, Loads, residency, specs
from tests.conftest import eventually

Asked = set[tuple[str, bool]]


@pytest.fixture
def asked() -> Asked:
    """What was asked, and whether on the event loop."""
    return set()


def told(asked: Asked, what: str, ask: Callable[..., Any]) -> Callable[..., Any]:
    """``ask``, which also notes that it was asked."""

    def noted(*args: Any) -> Any:
        asked.add((what, threading.current_thread() is threading.main_thread()))
        return ask(*args)

    return noted


async def test_whether_absent_weights_were_brought_is_looked_up_in_a_thread_and_loads_them_once(
    tiny_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, asked: Asked
) -> None:
    loads, folder = Loads(), tmp_path / "model"
    models, spec = residency(tmp_path, loads, Clock()), tiny_model.spec(folder)
    monkeypatch.setattr(Loader, "here", told(asked, "here", Loader.here))
    for _ in range(2):
        with pytest.raises(WeightsUnavailableError):
            await models.model(spec)
    shutil.copytree(tiny_folder, folder)
    first, *others = await asyncio.gather(*(models.model(spec) for _ in range(5)))
    assert all(other is first for other in others) and loads == [spec.id]
    assert asked == {("here", False)}


async def test_whether_damaged_weights_were_fetched_is_looked_up_in_a_thread(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, asked: Asked
) -> None:
    folder = tiny_model.make(tmp_path / "model")
    (folder / "model.safetensors").write_bytes(b"torn")
    monkeypatch.setattr(Loader, "fetched", told(asked, "fetched", Loader.fetched))
    with pytest.raises(Exception, match="read"):
        await residency(tmp_path, Loads(), Clock()).model(tiny_model.spec(folder))
    assert asked == {("fetched", False)}


async def test_a_load_reads_and_frees_memory_in_threads(
    tiny_folder: Path, monkeypatch: pytest.MonkeyPatch, asked: Asked
) -> None:
    monkeypatch.setattr(residency_module, "RELEASE_S", 0.0)
    short, a, b = Memory(99, 100), *specs(tiny_folder, 2)
    models = residency(tiny_folder, Loads(), Clock(), reading=told(asked, "read", lambda: short))
    monkeypatch.setattr(memory, "give_back", told(asked, "free", lambda device: None))
    in_use = await models.model(a)
    models._models.limit = in_use.bytes
    with pytest.raises(OutOfMemoryError, match="in use"):
        await models.model(b)
    assert asked == {("read", False), ("free", False)}
    del in_use
    asked.clear()
    make, tries = Loader._made, list[None]()

    def exhausted(*args: Any) -> Model:
        tries.append(None)
        if len(tries) == 1:
            raise MemoryError
        return make(*args)

    models = residency(tiny_folder, Loads(), Clock())
    await models.model(a)
    monkeypatch.setattr(Loader, "_made", exhausted)
    await models.model(b)
    assert asked == {("free", False)} and models.resident() == (b.id,)


async def test_a_gpu_is_read_in_threads_and_heartbeats_tell_what_was_read_last(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, asked: Asked
) -> None:
    monkeypatch.setattr("torch.cuda.device_count", lambda: 1)
    readings = iter([(70, 100), (60, 100)])
    monkeypatch.setattr("torch.cuda.mem_get_info", told(asked, "read", lambda device: next(readings, (50, 100))))
    monkeypatch.setattr("torch.cuda.memory_reserved", lambda device: 0)
    monkeypatch.setattr("torch.cuda.memory_allocated", lambda device: 0)
    monkeypatch.setattr("torch.cuda.empty_cache", lambda: None)
    monkeypatch.setattr(residency_module, "WATCH_S", 0.01)
    broker = MemoryBroker()
    await broker.connect()
    bundle = Bundle(broker, Registry(), Settings(device="cuda:0", cache_dir=str(tmp_path)), asyncio.Event())
    assert bundle.presence.now().total_bytes == 0
    await bundle.start(Warming())
    assert (bundle.presence.now().device_bytes, bundle.presence.now().total_bytes) == (30, 100)
    await eventually(lambda: bundle.presence.now().device_bytes == 50)
    assert asked == {("read", False)}
    await bundle.drain()
    await broker.close()
