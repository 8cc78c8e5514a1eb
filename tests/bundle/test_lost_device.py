"""What fails beside a pass is told and stops no thread; a device that is lost answers nothing and ends its worker."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from sie_broker.memory import MemoryBroker
from sie_broker.records import Work
from sie_bundle.bundle import Bundle, Warming
from sie_bundle.engine.executor import Executor
from sie_bundle.models.model import EncoderModel
from sie_bundle.residency.residency import Residency
from sie_bundle.settings import Settings
from sie_config.model.model_spec import ModelSpec
from sie_config.registry import Registry, lane_of
from sie_sdk import wire
from sie_sdk.errors import InferenceError, ModelLoadFailedError, UnavailableError
from sie_sdk.types import EncodeRequest, Item
from tests import tiny_model
from tests.bundle.test_executor import HEADS, Gated, Odd, busy, queued, raises, rows, vectors

ILLEGAL = "CUDA error: an illegal memory access was encountered"


def broken(*_: object) -> Any:
    raise RuntimeError(ILLEGAL)


class Unfit(Gated):
    """A model of an adapter whose account of its cost fails."""

    def __init__(self) -> None:
        super().__init__()
        self.fit.observe = broken  # type: ignore[method-assign, assignment]


@pytest.mark.parametrize(
    ("model", "made"),
    [
        (Odd(raises(MemoryError)), partial(Executor, free=broken)),
        (Odd(raises(MemoryError)), partial(Executor, relieve=broken)),
        (Odd(lambda count: dict.fromkeys(range(count))), Executor),
    ],
    ids=["free", "relieve", "outputs"],
)
async def test_whatever_fails_beside_a_pass_is_told_and_its_thread_goes_on(
    model: Gated, made: Callable[[], Executor]
) -> None:
    executor, healthy = made(), Gated()
    model.gate.set()
    healthy.gate.set()
    async with asyncio.timeout(10):
        with pytest.raises(InferenceError):
            await executor.forward(model, rows(1), HEADS)
        assert vectors(await executor.forward(healthy, rows(4), HEADS)).tolist() == [[4]]
    assert not executor.lost.done()
    await asyncio.to_thread(executor.close)


async def test_what_fails_when_all_are_answered_takes_no_answer_back(caplog: pytest.LogCaptureFixture) -> None:
    executor, unfit = Executor(), Unfit()
    unfit.gate.set()
    async with asyncio.timeout(10):
        for count in (1, 4):
            assert vectors(await executor.forward(unfit, rows(count), HEADS)).tolist() == [[count]]
    await asyncio.to_thread(executor.close)
    assert caplog.text.count(f"RuntimeError: {ILLEGAL}") == 2
    assert not executor.lost.done()


async def test_of_a_device_that_is_lost_all_who_wait_are_told_that_this_worker_leaves() -> None:
    model, other = Gated(), Gated()
    executor = Executor(sound=lambda: False)
    failing = Odd(raises(ZeroDivisionError))
    async with asyncio.timeout(10):
        first = await busy(executor, failing, 1)
        others = [*await queued(executor, model, rows(2), rows(3)), *await queued(executor, other, rows(4), bulk=True)]
        failing.gate.set()
        told = await asyncio.gather(first, *others, return_exceptions=True)
        assert [type(each) for each in told] == [UnavailableError] * 4
        assert model.batches == other.batches == []
        with pytest.raises(UnavailableError):
            await executor.forward(model, rows(5), HEADS)
    assert executor.waiting_tokens == 0
    assert isinstance(executor.lost.exception(10), ZeroDivisionError)
    await asyncio.to_thread(executor.close)


async def test_a_thread_that_ends_all_the_same_loses_the_device(monkeypatch: pytest.MonkeyPatch) -> None:
    executor, model = Executor(), Gated()
    monkeypatch.setattr("sie_bundle.engine.executor.form", broken)
    async with asyncio.timeout(10):
        with pytest.raises(UnavailableError):
            await executor.forward(model, rows(1), HEADS)
    assert ILLEGAL in str(executor.lost.exception(10))


class Bench:
    """A request, and workers that come for it one after the other; the device of the first is lost."""

    def __init__(self, spec: ModelSpec, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.spec, self.broker, self.stop = spec, MemoryBroker(), asyncio.Event()
        self.sound = threading.Event()
        self._folder = folder
        monkeypatch.setattr("sie_bundle.bundle.is_sound", lambda device: self.sound.is_set())

    async def worker(self) -> Bundle:
        settings = Settings(cache_dir=str(self._folder), precision="float32")
        made = Bundle(self.broker, Registry([self.spec]), settings, self.stop)
        await made.start(Warming())
        return made

    async def submit(self, inbox: str) -> None:
        body = wire.request_body(EncodeRequest([Item(text="hello")]))
        work = Work("0", "encode", lane_of(self.spec), self.spec.id, body, time.time(), reply_to=inbox)
        await self.broker.submit(work)

    async def left(self, first: Bundle) -> None:
        """Return when the first has left with nothing answered; what was lost is back."""
        async with asyncio.timeout(30):
            await self.stop.wait()
        with pytest.raises(Exception, match=ILLEGAL):
            await first.drain()
        assert first.worker.completed == 0 and first.worker.in_hand == 0
        self.sound.set()
        self.stop = asyncio.Event()


async def test_a_worker_whose_device_is_lost_leaves_and_another_answers_what_it_had(
    tiny_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    bench = Bench(tiny_model.spec(tiny_folder), tmp_path, monkeypatch)
    await bench.broker.connect()
    first = await bench.worker()
    (await first.residency.model(bench.spec)).forward = broken  # type: ignore[method-assign, assignment]
    with bench.broker.expect("0") as (inbox, answer):
        await bench.submit(inbox)
        await bench.left(first)
        assert ILLEGAL in caplog.text and not answer.done()
        second = await bench.worker()
        async with asyncio.timeout(30):
            reply = await answer
        assert reply.status == 200 and second.worker.completed == 1
    await second.drain()
    await bench.broker.close()


async def test_a_device_that_is_lost_in_a_load_is_nothing_against_the_model_and_another_worker_answers(
    tiny_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    bench = Bench(tiny_model.spec(tiny_folder), tmp_path, monkeypatch)
    await bench.broker.connect()
    first = await bench.worker()
    with bench.broker.expect("0") as (inbox, answer):
        with monkeypatch.context() as lost:
            lost.setattr(EncoderModel, "forward", broken)
            await bench.submit(inbox)
            await bench.left(first)
        assert ILLEGAL in caplog.text and not answer.done()
        assert first.residency.failed(1) == []
        second = await bench.worker()
        async with asyncio.timeout(30):
            reply = await answer
        assert reply.status == 200 and second.worker.completed == 1
    await second.drain()
    await bench.broker.close()


async def test_a_load_that_fails_on_a_sound_device_is_told_as_its_own_failure(
    tiny_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked, spec = list[str](), tiny_model.spec(tiny_folder)

    def sound() -> bool:
        asked.append(threading.current_thread().name)
        return True

    models = Residency(None, tmp_path, 1 << 30, precision="float32", sound=sound)
    monkeypatch.setattr(EncoderModel, "forward", broken)
    with pytest.raises(ModelLoadFailedError):
        await models.model(spec)
    assert [failure.spec.id for failure in models.failed(1)] == [spec.id] and not models.lost.done()
    assert asked and threading.current_thread().name not in asked, "asking waits for all that the device is at"
