"""What an operation hands on of a request beside its rows."""

from __future__ import annotations

import asyncio
import copy
import threading
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from sie_broker.records import Work
from sie_bundle.engine.executor import Executor
from sie_bundle.engine.request import Forwarded, Model
from sie_bundle.engine.row import Row
from sie_bundle.models.model import EncoderModel
from sie_bundle.models.spread import LOT, Spread
from sie_bundle.operations import encode, extract, score
from sie_bundle.operations.aside import INLINE_BODY_BYTES, INLINE_BYTES
from sie_bundle.operations.operation import Operation, Plan
from sie_bundle.residency.residency import Residency
from sie_config.model.model_spec import ModelSpec
from sie_config.model.sources import LocalSource
from sie_config.model.tasks import Dense, Extract, Multivector, Score, Tasks
from sie_config.registry import Registry, lane_of
from sie_sdk import results, wire
from sie_sdk.errors import DeadlineExceededError, InferenceError
from sie_sdk.types import EncodeParams, EncodeRequest, ExtractParams, ExtractRequest, Item, Priority, ScoreRequest
from tests import tiny_model
from tests.ingress.conftest import SPEC


class Recording(Executor):
    """An executor that keeps what it was asked."""

    asked: dict[str, Any]

    async def forward(self, model: Model, rows: Sequence[Row], heads: Sequence[str], **asked: Any) -> Forwarded:
        self.asked = asked
        return await super().forward(model, rows, heads, **asked)


@pytest.mark.parametrize(("priority", "bulk"), [("interactive", False), ("bulk", True)])
async def test_the_device_is_told_the_deadline_and_whether_the_work_is_bulk(
    tiny_folder: Path, tmp_path: Path, priority: Priority, bulk: bool
) -> None:
    spec, executor, threads = tiny_model.spec(tiny_folder), Recording(), ThreadPoolExecutor(1)
    residency = Residency(None, tmp_path / "cache", 1 << 30)
    operation = Operation(
        encode.parse, encode.plan, Registry([spec]), residency, executor, {"interactive": threads, "bulk": threads}
    )
    work = Work(
        id="1",
        op="encode",
        lane=lane_of(spec),
        model=spec.id,
        data=wire.request_body(EncodeRequest([Item(text="hello")])),
        time=time.time(),
        deadline=(deadline := time.time() + 60),
        priority=priority,
    )
    await operation(work)
    executor.close()
    threads.shutdown()
    assert executor.asked == {"deadline": deadline, "bulk": bulk}


async def test_a_changed_prompt_is_that_of_the_next_request_without_a_load(tiny_folder: Path, tmp_path: Path) -> None:
    spec, executor, threads = tiny_model.spec(tiny_folder), Executor(), ThreadPoolExecutor(1)
    loads: list[str] = []
    residency = Residency(None, tmp_path / "cache", 1 << 30, loads.append)
    registry = Registry([spec])
    operation = Operation(
        encode.parse, encode.plan, registry, residency, executor, {"interactive": threads, "bulk": threads}
    )

    async def answer(text: str) -> np.ndarray:
        body = wire.request_body(EncodeRequest([Item(text=text)]))
        (found,) = results.read_encode(await operation(Work("1", "encode", lane_of(spec), spec.id, body, time.time())))
        assert found.dense is not None
        return found.dense

    plain, prompted = await answer("hello"), await answer("ship hello")
    registry.put(msgspec.structs.replace(spec, tasks=Tasks(dense=Dense(dim=32, document_prompt="ship "))))
    assert np.array_equal(await answer("hello"), prompted) and not np.array_equal(plain, prompted)
    assert loads == [spec.id]
    executor.close()
    threads.shutdown()


async def test_work_of_before_and_after_a_change_of_the_weights_is_computed_at_once_by_its_own(
    tiny_folder: Path, tmp_path: Path
) -> None:
    before, other = tiny_model.spec(tiny_folder), tiny_model.make(tmp_path / "new", seed=1)
    after = msgspec.structs.replace(before, sources=(LocalSource(str(other)),), revision="new")
    executor, threads, loads = Executor(), ThreadPoolExecutor(1), list[str]()
    registry = Registry([before])
    residency = Residency(None, tmp_path / "cache", 1 << 30, loads.append, precision="float32")
    first = registry.etag(before.id)
    registry.put(after)
    operation = Operation(
        encode.parse, encode.plan, registry, residency, executor, {"interactive": threads, "bulk": threads}
    )

    async def answer(etag: str) -> np.ndarray:
        body = wire.request_body(EncodeRequest([Item(text="hello")]))
        work = Work("1", "encode", lane_of(before), before.id, body, time.time(), spec=etag)
        (found,) = results.read_encode(await operation(work))
        assert found.dense is not None
        return found.dense

    wanted = {etag: (await answer(etag)).copy() for etag in (first, registry.etag(after.id))}
    assert len({vector.tobytes() for vector in wanted.values()}) == 2
    asked = [*wanted] * 8
    for etag, found in zip(asked, await asyncio.gather(*map(answer, asked)), strict=True):
        assert np.abs(found - wanted[etag]).max() < 1e-6
    assert loads == [before.id] * 2
    executor.close()
    threads.shutdown()


async def test_interactive_texts_do_not_wait_for_bulk_ones(tiny_folder: Path, tmp_path: Path) -> None:
    spec, executor = tiny_model.spec(tiny_folder), Executor()
    threads: dict[Priority, ThreadPoolExecutor] = {"interactive": ThreadPoolExecutor(1), "bulk": ThreadPoolExecutor(1)}
    go_on = threading.Event()
    threads["bulk"].submit(go_on.wait)  # as long as it takes
    residency = Residency(None, tmp_path / "cache", 1 << 30)
    operation = Operation(encode.parse, encode.plan, Registry([spec]), residency, executor, threads)

    def work(priority: Priority) -> Work:
        texts = [Item(text="hello " * 50) for _ in range(20)]  # over INLINE_BYTES, so a thread reads it
        data = wire.request_body(EncodeRequest(texts))
        return Work("1", "encode", lane_of(spec), spec.id, data, time.time(), priority=priority)

    bulk = asyncio.create_task(operation(work("bulk")))
    async with asyncio.timeout(30):
        await operation(work("interactive"))
    assert not bulk.done()
    go_on.set()
    await bulk
    executor.close()
    for pool in threads.values():
        pool.shutdown()


class Counted(ThreadPoolExecutor):
    """Counts what it is given."""

    given = 0

    def submit(self, *args: Any, **named: Any) -> Any:
        self.given += 1
        return super().submit(*args, **named)


async def test_texts_of_words_that_are_kept_are_tokenized_on_the_event_loop_and_others_and_bulk_ones_beside_it(
    tiny_folder: Path, tmp_path: Path
) -> None:
    spec, executor = tiny_model.spec(tiny_folder), Executor()
    threads: dict[Priority, Counted] = {"interactive": Counted(1), "bulk": Counted(1)}
    residency = Residency(None, tmp_path / "cache", 1 << 30)
    operation = Operation(encode.parse, encode.plan, Registry([spec]), residency, executor, threads)

    async def given(text: str, count: int = 20, priority: Priority = "interactive") -> int:
        before = threads[priority].given
        data = wire.request_body(EncodeRequest([Item(text=text)] * count))
        await operation(Work("1", "encode", lane_of(spec), spec.id, data, time.time(), priority=priority))
        return threads[priority].given - before

    plain = "hello " * 50
    assert len(plain) * 20 > INLINE_BYTES
    assert await given(plain) == 1, "nobody knows yet"
    assert await given(plain) == 0
    assert await given(plain, priority="bulk") == 1
    assert await given(plain, 64) == 2, "too many, to be read there and to be written"
    assert await given("h\xe9llo " * 50, 30) == 0, "it was quick so far"
    for _ in range(2):
        await given("h\xe9llo " * 50, 30)
    assert await given(plain) == 1, "texts are of other letters these days"
    executor.close()
    for pool in threads.values():
        pool.shutdown()


async def test_an_item_whose_output_is_not_finite_is_named_however_many_rows_those_before_it_take(
    tmp_path: Path,
) -> None:
    folder = tiny_model.make(tmp_path / "tagger", nan_token="poison")
    tensors = load_file(folder / "model.safetensors")
    tensors["classifier.weight"] = np.ones((3, tiny_model.HIDDEN), dtype=np.float32)
    save_file(tensors, folder / "model.safetensors")
    task = Extract("entities", labels=("O", "B-SHIP", "I-SHIP"), overlap=8)
    spec = msgspec.structs.replace(tiny_model.spec(folder), tasks=Tasks(extract=task))
    executor, threads = Executor(), ThreadPoolExecutor(1)
    residency = Residency(None, tmp_path / "cache", 1 << 30)
    operation = Operation(extract.parse, extract.plan, Registry([spec]), residency, executor, {"interactive": threads})
    texts = ["hello " * 100, "", "ship " * 100 + "poison", "world"]
    body = wire.request_body(ExtractRequest([Item(text=text) for text in texts]))
    with pytest.raises(InferenceError) as caught:
        await operation(Work("1", "extract", lane_of(spec), spec.id, body, time.time()))
    assert caught.value.field == "items[2]" and not caught.value.details
    executor.close()
    threads.shutdown()


def test_of_an_item_that_is_tried_with_several_labels_each_row_is_that_item(tiny: EncoderModel) -> None:
    task = Extract("entailment", labels=("entailment", "contradiction"))
    tiny = copy.copy(tiny)
    tiny.labels = task.labels
    spec = msgspec.structs.replace(tiny.spec, tasks=Tasks(extract=task))
    request = ExtractRequest([Item(text="hello"), Item(text="ship")], ExtractParams(labels=["one", "two", "three"]))
    plan = extract.plan(tiny, spec, request)
    assert [plan.item(row) for row in range(len(plan.rows))] == ["items[0]"] * 3 + ["items[1]"] * 3


@pytest.mark.parametrize("text", ["hello", "hello " * 1000], ids=["inline", "aside"])
async def test_a_panic_while_a_text_is_read_fails_its_request_alone(
    tiny_folder: Path, tmp_path: Path, text: str
) -> None:
    class Panic(BaseException):
        """What a library in Rust raises."""

    def plan(model: object, spec: ModelSpec, request: EncodeRequest) -> Plan:
        raise Panic("no entry found for key")

    spec, executor, threads = tiny_model.spec(tiny_folder), Executor(), ThreadPoolExecutor(1)
    residency = Residency(None, tmp_path / "cache", 1 << 30)
    operation = Operation(
        encode.parse, plan, Registry([spec]), residency, executor, {"interactive": threads, "bulk": threads}
    )
    body = wire.request_body(EncodeRequest([Item(text=text)]))
    with pytest.raises(RuntimeError, match="Panic: no entry found for key"):
        await operation(Work("1", "encode", lane_of(spec), spec.id, body, time.time()))
    executor.close()
    threads.shutdown()


def beside(texts: int, options: dict[str, Any] | None = None, instruction: str | None = None) -> int:
    request = EncodeRequest([Item(text="hello")] * texts, EncodeParams(options=options, instruction=instruction))
    return encode.repeated(SPEC, request)


def test_what_a_request_repeats_for_each_text_counts_with_its_size() -> None:
    assert beside(16) == 0
    assert beside(16, instruction="Find it.") == 16 * 8
    assert beside(2, {"query_template": "{instruction} {instruction}: {text}"}, "i" * 100) >= 2 * 200
    assert beside(3, {"doc_template": "{text}" * 10}) >= 3 * 5 * 9
    judged = msgspec.structs.replace(SPEC, tasks=Tasks(score=Score(kind="yes_no")))
    assert score.repeated(judged, ScoreRequest(Item(text="q" * 2000), [Item(text="a")] * 290)) > 290 * 2000
    tried = msgspec.structs.replace(SPEC, tasks=Tasks(extract=Extract("entailment")))
    params = ExtractParams(labels=["a"] * 290, options={"hypothesis_template": "t" * 1600 + "{}"})
    assert extract.repeated(tried, ExtractRequest([Item(text="a")], params)) > 290 * 1600
    named = msgspec.structs.replace(SPEC, tasks=Tasks(extract=Extract("spans")))
    assert extract.repeated(named, ExtractRequest([Item(text="a")] * 9, ExtractParams(labels=["name"]))) == 9 * 4


@pytest.mark.parametrize(
    ("texts", "instruction", "inline"), [(16, None, True), (16, "i" * 50, True), (16, "i" * 2000, False)]
)
async def test_a_small_request_whose_texts_become_long_is_not_tokenized_on_the_event_loop(
    tiny_folder: Path, tmp_path: Path, texts: int, instruction: str | None, inline: bool
) -> None:
    spec, executor, threads = tiny_model.spec(tiny_folder), Executor(), ThreadPoolExecutor(1)
    residency, places = Residency(None, tmp_path / "cache", 1 << 30), list[bool]()

    def plan(model: Any, spec: ModelSpec, request: EncodeRequest) -> Plan:
        places.append(threading.current_thread() is threading.main_thread())
        return encode.plan(model, spec, request)

    pools: dict[Priority, ThreadPoolExecutor] = {"interactive": threads}
    operation = Operation(encode.parse, plan, Registry([spec]), residency, executor, pools, repeated=encode.repeated)
    request = EncodeRequest([Item(text="hello world, my ship")] * texts, EncodeParams(instruction=instruction))
    await operation(Work("1", "encode", lane_of(spec), spec.id, wire.request_body(request), time.time()))
    assert places == [inline]
    executor.close()
    threads.shutdown()


@pytest.mark.parametrize(
    ("texts", "params", "inline"),
    [
        (["a"] * 500, EncodeParams(output_dtype="uint8"), "parse"),
        (["a"] * 30, EncodeParams(output_types=["multivector"]), "parse plan finish"),
        (["hello world " * 300] * 16, EncodeParams(), "parse finish"),
        (["hello " * 500] * 24, EncodeParams(output_types=["multivector"]), "parse"),
        (["hello " * (INLINE_BODY_BYTES // 6 + 1)], EncodeParams(), "finish"),
    ],
    ids=["many", "few", "long", "long-reply", "large"],
)
async def test_the_event_loop_does_what_is_little_by_what_has_to_be_done(
    tiny_folder: Path, tmp_path: Path, texts: list[str], params: EncodeParams, inline: str
) -> None:
    tasks = Tasks(dense=Dense(dim=32), multivector=Multivector(dim=32, projection=""))
    spec = msgspec.structs.replace(tiny_model.spec(tiny_folder), tasks=tasks)
    executor, threads, here = Executor(), ThreadPoolExecutor(1), list[str]()
    residency = Residency(None, tmp_path / "cache", 1 << 30)

    def told(name: str, run: Any) -> Any:
        def noted(*args: Any) -> Any:
            here.extend([name] if threading.current_thread() is threading.main_thread() else [])
            return run(*args)

        return noted

    def plan(model: Any, spec: ModelSpec, request: EncodeRequest) -> Plan:
        made = encode.plan(model, spec, request)
        return made._replace(finish=told("finish", made.finish))

    operation = Operation(
        told("parse", encode.parse),
        told("plan", plan),
        Registry([spec]),
        residency,
        executor,
        {"interactive": threads},
        repeated=encode.repeated,
    )
    body = wire.request_body(EncodeRequest([Item(text=text) for text in texts], params))
    await operation(Work("1", "encode", lane_of(spec), spec.id, body, time.time()))
    assert here == inline.split()
    executor.close()
    threads.shutdown()


@pytest.mark.parametrize("late", [False, True])
async def test_texts_that_nobody_waits_for_any_more_are_not_tokenized_further(
    tiny_folder: Path, tmp_path: Path, late: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    spec, executor, threads = tiny_model.spec(tiny_folder), Executor(), ThreadPoolExecutor(1)
    residency = Residency(None, tmp_path / "cache", 1 << 30)
    begun, go_on, lots = threading.Event(), threading.Event(), list[int]()

    def each(texts: Sequence[str]) -> list[str]:
        lots.append(len(texts))
        begun.set()
        assert go_on.wait(30)
        return [*texts]

    def plan(model: object, spec: ModelSpec, request: EncodeRequest) -> Plan:
        Spread(1)(each, [item.text or "" for item in request.items])
        raise AssertionError("all texts were tokenized")

    operation = Operation(encode.parse, plan, Registry([spec]), residency, executor, {"interactive": threads})
    await residency.model(spec)
    body = wire.request_body(EncodeRequest([Item(text="a" * LOT) for _ in range(3)]))
    work = Work("1", "encode", lane_of(spec), spec.id, body, time.time(), deadline=time.time() + 60)
    task = asyncio.create_task(operation(work))
    await asyncio.to_thread(begun.wait, 30)
    if late:
        now = time.time() + 120
        monkeypatch.setattr("sie_broker.clock.now", lambda: now)
    else:
        task.cancel()
        await asyncio.wait([task])
    go_on.set()
    with pytest.raises(DeadlineExceededError if late else asyncio.CancelledError):
        await task
    await asyncio.to_thread(threads.shutdown)
    assert lots == [1]
    executor.close()
