"""Loads beside serving: which threads they run on, what those may take, and what they leave alone."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import torch

from sie_bundle.engine import cores
from sie_bundle.engine.executor import Executor
from sie_bundle.engine.row import Row
from sie_bundle.models import model as engine
from sie_bundle.models.model import EncoderModel, Model
from sie_bundle.residency import memory
from sie_bundle.residency.loading import FETCHES, NICENESS, Loader
from sie_bundle.residency.residency import Residency
from sie_bundle.weights import weights
from sie_bundle.weights.weights import Weights
from sie_config.model.model_spec import ModelSpec
from sie_sdk.errors import WeightsUnavailableError
from tests import tiny_model
from tests.conftest import eventually


class Seen:
    """Of the thread that makes a model, what it may take."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.priority = self.threads = 0
        load = engine.load

        def looked(*args: object) -> Model:
            self.priority = os.getpriority(os.PRIO_PROCESS, threading.get_native_id())
            self.threads = torch.get_num_threads()
            return load(*args)  # type: ignore[arg-type]

        monkeypatch.setattr(engine, "load", looked)


@pytest.fixture
def seen(monkeypatch: pytest.MonkeyPatch) -> Seen:
    return Seen(monkeypatch)


@pytest.fixture(autouse=True)
def as_many_threads_as_at_the_start() -> None:
    """Passes of other tests have set how many those take that have not asked yet."""
    on_a_thread_of_its_own(torch.get_num_threads())


def on_a_thread_of_its_own(number: int) -> None:
    """Let torch compute on so many, as each stream of an executor does."""
    with ThreadPoolExecutor(1) as stream:
        stream.submit(cores.take, number).result()


@pytest.mark.skipif(sys.platform != "linux", reason="elsewhere a thread has no priority of its own")
@pytest.mark.parametrize("behind", [False, True])
async def test_a_load_steps_back_behind_those_that_serve_and_only_then(
    tiny_folder: Path, tmp_path: Path, seen: Seen, behind: bool
) -> None:
    own = os.getpriority(os.PRIO_PROCESS, 0)
    usual = cores.available()
    loader = Loader(None, tmp_path, "cpu", "float32")
    opened = await loader.open(tiny_model.spec(tiny_folder))
    on_a_thread_of_its_own(1)  # a pass on one core
    await loader.make(opened, behind=behind)
    lowest = 19  # of a process that is nice itself, no thread can be nicer
    assert (seen.priority, seen.threads) == ((min(own + NICENESS, lowest), 1) if behind else (own, usual))
    loader.close()


async def test_a_model_comes_back_from_host_memory_on_one_core_without_stepping_back(
    tiny_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    loader = Loader(None, tmp_path, "cpu", "float32")
    opened = await loader.open(tiny_model.spec(tiny_folder))
    kept = await loader.keep(opened, loader.fit_of(await loader.make(opened, behind=False)))
    seen: list[tuple[int, int]] = []
    init = EncoderModel.__init__

    def looked(*args: object) -> None:
        seen.append((os.getpriority(os.PRIO_PROCESS, threading.get_native_id()), torch.get_num_threads()))
        init(*args)  # type: ignore[arg-type]

    monkeypatch.setattr(EncoderModel, "__init__", looked)
    await loader.make(kept, behind=False)
    assert seen == [(os.getpriority(os.PRIO_PROCESS, 0), 1)]
    loader.close()


async def test_what_the_loads_may_take_does_not_limit_the_device(
    tiny: EncoderModel, tiny_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    usual = torch.get_num_threads()
    loader = Loader(None, tmp_path, "cpu", "float32")
    executor = Executor()  # its thread asks torch for its threads after the loads' have set theirs
    await loader.make(await loader.open(tiny_model.spec(tiny_folder)), behind=True)
    counts: list[int] = []
    forward = tiny.forward

    def counted(*args: object) -> object:
        counts.append(torch.get_num_threads())
        return forward(*args)  # type: ignore[arg-type]

    monkeypatch.setattr(tiny, "forward", counted)
    await executor.forward(tiny, tiny.tokenizer.rows(["hello"], 32), ["dense"])
    executor.close()
    with ThreadPoolExecutor(1) as fresh:
        counts.append(fresh.submit(torch.get_num_threads).result())
    assert counts == [usual, usual] and torch.get_num_threads() == usual
    loader.close()


async def test_the_thread_of_a_load_on_all_cores_ends_with_it(tiny_folder: Path, tmp_path: Path) -> None:
    loader = Loader(None, tmp_path, "cpu", "float32")
    await loader.make(await loader.open(tiny_model.spec(tiny_folder)), behind=False)
    await eventually(lambda: not [each for each in threading.enumerate() if each.name.startswith("load_")])
    loader.close()


# In a process of its own, whose memory nobody else has used.
LOADED = """
import asyncio, sys
from pathlib import Path
import psutil
from sie_bundle.residency.loading import Loader
from sie_bundle.residency.memory import keep_freed
from tests import tiny_model

async def main(folder, precision):
    keep_freed()
    loader = Loader(None, folder, "cpu", precision)
    opened = await loader.open(tiny_model.spec(folder))
    before = psutil.Process().memory_info()
    model = await loader.make(opened, behind=False)
    after = psutil.Process().memory_info()
    print(after.rss - after.shared - before.rss + before.shared)
    loader.close()

asyncio.run(main(Path(sys.argv[1]), sys.argv[2]))
"""


@pytest.mark.skipif(sys.platform != "linux", reason="another system's memory")
@pytest.mark.parametrize(("precision", "bytes_each"), [("float32", 4), ("float16", 2)])
def test_a_model_takes_its_weights_and_little_of_what_was_made_on_the_way(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, precision: str, bytes_each: int
) -> None:
    monkeypatch.setattr(tiny_model, "INTERMEDIATE", 2**15)
    monkeypatch.setattr(tiny_model, "LAYERS", 16)
    folder = tiny_model.make(tmp_path)
    done = subprocess.run([sys.executable, "-c", LOADED, folder, precision], check=True, capture_output=True)
    laid_out = 16 * 2 * tiny_model.HIDDEN * 2**15 * bytes_each
    assert laid_out < int(done.stdout) < laid_out * 1.4


async def test_a_model_is_released_by_the_thread_that_made_it(tiny_folder: Path, tmp_path: Path) -> None:
    loader = Loader(None, tmp_path, "cpu", "float32")
    opened = await loader.open(tiny_model.spec(tiny_folder))
    model = await loader.make(opened, behind=True)
    assert sys.getrefcount(model) == 2
    loader.close()


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
async def test_a_cuda_devices_checkpoints_are_pinned_and_give_the_same_model(tiny_folder: Path, tmp_path: Path) -> None:
    loader = Loader(None, tmp_path, "cuda", "float32")
    opened = await loader.open(tiny_model.spec(tiny_folder))
    model = await loader.make(opened, behind=False)
    kept = await loader.keep(opened, loader.fit_of(model))
    assert kept.checkpoint.tensors and all(tensor.is_pinned() for tensor in kept.checkpoint.tensors.values())
    again = await loader.make(kept, behind=False)
    rows: list[Row] = model.tokenizer.rows(["hello world"], 32)
    assert (tiny_model.vectors(again, rows) == tiny_model.vectors(model, rows)).all()
    loader.close()


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
async def test_a_cuda_device_has_its_memory_back_when_a_model_is_let_go(tiny_folder: Path, tmp_path: Path) -> None:
    first, second = (tiny_model.spec(tiny_folder, name) for name in ("test/first", "test/second"))
    residency = Residency(None, tmp_path, 1 << 30, device="cuda", precision="float32")
    await residency.model(first)
    taken = torch.cuda.memory_allocated()
    await residency.model(second)
    assert torch.cuda.memory_allocated() > taken
    assert residency.relieve()
    assert torch.cuda.memory_allocated() <= taken
    assert memory.of("cuda")().used > 0
    residency.close()


async def test_a_model_whose_files_are_here_waits_for_no_fetch(
    tiny_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fetched, resolve = threading.Event(), weights.resolve

    def slow(spec: ModelSpec, own: Path | None, cache: Path, *, anew: bool) -> Weights:
        if spec.sources[0] != tiny_model.spec(tiny_folder).sources[0]:
            fetched.wait()
        return resolve(spec, own, cache, anew=anew)

    monkeypatch.setattr(weights, "resolve", slow)
    loader = Loader(None, tmp_path, "cpu", "float32")
    absent = [tiny_model.spec(tmp_path / "absent", f"test/{number}") for number in range(FETCHES)]
    fetches = [asyncio.ensure_future(loader.open(spec)) for spec in absent]
    try:
        async with asyncio.timeout(30):
            await loader.open(tiny_model.spec(tiny_folder))
        assert not any(fetch.done() for fetch in fetches)
    finally:
        fetched.set()
    for failed in await asyncio.gather(*fetches, return_exceptions=True):
        assert isinstance(failed, WeightsUnavailableError)
    loader.close()
