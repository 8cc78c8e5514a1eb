"""A bundle put together: pinned models are there unasked, and a device out of memory finds idle ones to let go."""

from __future__ import annotations

import asyncio
import shutil
import time
from collections.abc import AsyncIterator, Callable
from contextlib import aclosing
from functools import partial
from pathlib import Path
from threading import Event

import httpx
import msgspec
import pytest

from sie_broker import jobs
from sie_broker.jetstream.nats_broker import NatsBroker
from sie_broker.memory import MemoryBroker
from sie_broker.records import LoadFailure, Queue, Work
from sie_broker.room import Room
from sie_bundle.bundle import Bundle, Warming
from sie_bundle.engine.cost import Reading
from sie_bundle.settings import Settings
from sie_config.model.model_spec import Lora, Profile
from sie_config.model.sources import LocalSource
from sie_config.registry import Registry, lane_of
from sie_sdk import wire
from sie_sdk.errors import ConfigurationError, WeightsUnavailableError
from sie_sdk.types import EncodeRequest, Item
from tests import tiny_model
from tests.bundle.residencies import Made
from tests.bundle.test_door import EVENT
from tests.bundle.test_executor import HEADS, Gated, rows
from tests.conftest import eventually
from tests.golden import lora_folder

PINNED, PLAIN, ELSEWHERE = "test/pinned", "test/plain", "test/elsewhere"


@pytest.fixture
async def bundle(tiny_folder: Path, tmp_path: Path) -> AsyncIterator[Bundle]:
    specs = [tiny_model.spec(tiny_folder, name) for name in (PINNED, PLAIN, ELSEWHERE)]
    registry = Registry([*specs[:2], msgspec.structs.replace(specs[2], machine_profiles=("other",))])
    broker = MemoryBroker()
    await broker.connect()
    names = f" {PINNED.upper()}, absent/model,{ELSEWHERE} ,"
    made = Bundle(
        broker, registry, Settings(pinned_models=names, cache_dir=str(tmp_path), precision="float32"), asyncio.Event()
    )
    await made.start(Warming())
    yield made
    await made.drain()
    await broker.close()


async def test_pinned_models_of_its_lane_are_loaded_at_the_start_and_announced(bundle: Bundle) -> None:
    await eventually(lambda: bundle.presence.now().models == (PINNED,))


async def test_a_pass_that_hangs_does_not_keep_a_drained_bundle_from_leaving(
    bundle: Bundle, tiny_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sie_bundle.bundle.LEAVE_S", 0.1)
    model, hanging, go_on = await bundle.residency.model(tiny_model.spec(tiny_folder, PINNED)), asyncio.Event(), Event()
    loop = asyncio.get_running_loop()

    def hang(*_: object) -> object:
        loop.call_soon_threadsafe(hanging.set)
        go_on.wait()
        return {}

    model.forward = hang  # type: ignore[method-assign, assignment]
    rows = model.tokenizer.rows(["hello"], 32)
    caller = asyncio.create_task(bundle.executor.forward(model, rows, ["dense"]))
    await hanging.wait()
    caller.cancel()
    try:
        async with asyncio.timeout(10):
            await bundle.drain()
    finally:
        go_on.set()


async def test_an_event_that_is_in_hand_is_computed_before_its_worker_leaves(
    bundle: Bundle, monkeypatch: pytest.MonkeyPatch
) -> None:
    made, drain = Made(monkeypatch), bundle.worker.drain
    made.gates[PLAIN] = Event()

    async def drained(within_s: float) -> None:
        await drain(within_s)
        made.gates[PLAIN].set()

    monkeypatch.setattr(bundle.worker, "drain", drained)
    client = httpx.AsyncClient(transport=httpx.ASGITransport(bundle.door.app()), base_url="http://bundle")
    headers = EVENT | {"ce-type": "dev.sie.encode.v1", "ce-model": PLAIN}
    asked = asyncio.create_task(client.post("/", json={"items": [{"text": "hello"}]}, headers=headers))
    await eventually(lambda: PLAIN in made.ids)  # the event waits for its model
    await bundle.drain()
    assert (await asked).status_code == 200


async def test_a_bundle_that_leaves_says_so_in_its_log(bundle: Bundle, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO", "sie.bundle")
    await bundle.drain()
    assert caplog.messages[-2:] == ["draining: 0 requests in hand", "drained: 0 requests answered in all"]


async def test_a_pinned_name_with_a_profile_is_the_model_with_its_lora(tiny_folder: Path, tmp_path: Path) -> None:
    lora = lora_folder.make(tmp_path / "law", lora_folder.bert(tiny_model.HIDDEN, tiny_model.INTERMEDIATE, 2))
    profiles = {"law": Profile(lora=Lora((LocalSource(str(lora)),)))}
    registry = Registry([msgspec.structs.replace(tiny_model.spec(tiny_folder, PINNED), profiles=profiles)])
    broker = MemoryBroker()
    await broker.connect()
    made = Bundle(broker, registry, Settings(pinned_models=f"{PINNED}:law", cache_dir=str(tmp_path)), asyncio.Event())
    await made.start(Warming())
    await eventually(lambda: made.presence.now().models == (f"{PINNED}:law",))
    assert not made.residency.relieve()
    await made.drain()
    await broker.close()


@pytest.fixture
async def pinning(tmp_path: Path) -> AsyncIterator[tuple[Bundle, Registry]]:
    """A bundle that keeps a model loaded, and its catalogue, which has no model yet."""
    registry, broker = Registry(), MemoryBroker()
    await broker.connect()
    settings = Settings(pinned_models=PINNED, cache_dir=str(tmp_path / "cache"), precision="float32")
    made = Bundle(broker, registry, settings, asyncio.Event())
    await made.start(Warming())
    yield made, registry
    await made.drain()
    await broker.close()


async def test_a_pinned_model_that_comes_later_is_loaded_then_and_one_that_is_gone_from_the_catalogue_may_go(
    pinning: tuple[Bundle, Registry], tiny_folder: Path, caplog: pytest.LogCaptureFixture
) -> None:
    bundle, registry = pinning
    registry.put(tiny_model.spec(tiny_folder, PLAIN))
    bundle.catalogue_changed()
    registry.put(tiny_model.spec(tiny_folder, PINNED))
    bundle.catalogue_changed()
    await eventually(lambda: bundle.presence.now().models == (PINNED,))
    assert not bundle.residency.relieve()
    caplog.clear()
    registry.remove(PINNED)
    bundle.catalogue_changed()
    await eventually(bundle.residency.relieve)
    assert bundle.residency.resident() == ()
    assert [line for line in caplog.messages if "not pinned" in line and PINNED in line]


async def test_a_pinned_model_that_is_changed_is_loaded_as_it_is_now_before_anybody_asks(
    pinning: tuple[Bundle, Registry], tiny_folder: Path, tmp_path: Path
) -> None:
    bundle, registry = pinning
    registry.put(tiny_model.spec(tiny_folder, PINNED))
    bundle.catalogue_changed()
    await eventually(lambda: bundle.presence.now().models == (PINNED,))
    one = bundle.residency.bytes
    registry.put(tiny_model.spec(shutil.copytree(tiny_folder, tmp_path / "new"), PINNED))
    bundle.catalogue_changed()
    await eventually(lambda: bundle.residency.bytes == 2 * one)  # the old one stays for what is in flight


async def test_a_device_out_of_memory_is_relieved_by_the_residency(bundle: Bundle, tiny_folder: Path) -> None:
    plain = tiny_model.spec(tiny_folder, PLAIN)
    await bundle.residency.model(plain)
    await eventually(lambda: len(bundle.residency.resident()) == 2)
    model = await bundle.residency.model(tiny_model.spec(tiny_folder, PINNED))
    forward, tries = model.forward, 0

    def short(*args: object) -> object:
        nonlocal tries
        tries += 1
        if PLAIN in bundle.residency.resident():
            raise MemoryError
        return forward(*args)  # type: ignore[arg-type]

    model.forward = short  # type: ignore[method-assign, assignment]
    rows = model.tokenizer.rows(["hello"], 32)
    async with asyncio.timeout(10):
        done = await bundle.executor.forward(model, rows, ["dense"])
    assert tries == 3 and len(done.outputs["dense"]) == 1
    assert bundle.residency.resident() == (PINNED,)


async def test_a_model_on_its_way_in_and_one_that_did_not_load_are_announced_with_the_memory_there_is(
    bundle: Bundle, tiny_folder: Path, tmp_path: Path
) -> None:
    absent = msgspec.structs.replace(tiny_model.spec(tiny_folder, PLAIN), sources=(LocalSource(str(tmp_path / "no")),))
    loading = asyncio.create_task(bundle.residency.model(absent))
    await asyncio.sleep(0)  # up to its first wait
    assert PLAIN in bundle.presence.now().loading
    with pytest.raises(WeightsUnavailableError):
        await loading
    state = bundle.presence.now()
    assert PLAIN not in state.loading
    assert state.failed == {PLAIN: LoadFailure("not_found", f"No source has the weights of {PLAIN}", 1)}
    assert state.total_bytes > state.memory_bytes > 0 and (state.device, state.device_bytes) == ("cpu", 0)
    await bundle.residency.model(tiny_model.spec(tiny_folder, PLAIN))
    assert bundle.presence.now().failed == {}


async def test_a_model_that_is_no_more_is_not_announced_as_one_that_did_not_load(
    pinning: tuple[Bundle, Registry], tiny_folder: Path, tmp_path: Path
) -> None:
    bundle, registry = pinning
    absent = msgspec.structs.replace(tiny_model.spec(tiny_folder, PLAIN), sources=(LocalSource(str(tmp_path / "no")),))
    registry.put(absent)
    with pytest.raises(WeightsUnavailableError):
        await bundle.residency.model(absent)
    assert [*bundle.presence.now().failed] == [PLAIN]
    registry.remove(PLAIN)
    assert bundle.presence.now().failed == {}
    bundle.catalogue_changed()
    registry.put(absent)
    assert bundle.presence.now().failed == {} and bundle.residency.failed(1) == []


async def test_a_worker_without_its_device_takes_nothing_and_says_why(
    tiny_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, nats_url: str
) -> None:
    monkeypatch.setattr("torch.cuda.device_count", lambda: 0)
    spec, broker = tiny_model.spec(tiny_folder, PLAIN), NatsBroker(nats_url, "test")
    await broker.connect()
    await broker.provision([(lane_of(spec), spec.id)])
    body = wire.request_body(EncodeRequest([Item(text="hello")]))
    await broker.submit(Work("w", "encode", lane_of(spec), spec.id, body, time.time()))
    for name in ("first", "again"):  # a platform restarts it
        own = NatsBroker(nats_url, name)
        await own.connect()
        # No device of any machine, for a load must fail.
        made = Bundle(own, Registry([spec]), Settings(device="cuda:99", cache_dir=str(tmp_path)), asyncio.Event())
        # Until it has begun to load what waits, and for as long as it takes to pull something.
        caplog.clear()
        warming = Warming()
        monkeypatch.setattr(warming, "join", partial(_until, lambda: f"loading {PLAIN} failed" in caplog.text))
        with pytest.raises(ConfigurationError) as caught:
            await made.start(warming)
        await made.cannot_start(caught.value)
        assert made.worker.in_hand == 0
        assert made.presence.now().fault.startswith("CONFIGURATION") and made.presence.now().failed == {}
        made.residency.close()
        made.executor.close()
        await own.close()
    assert await jobs.result(broker.jobs, "w") is None
    async with aclosing(broker.pull(Queue(lane_of(spec), spec.id), Room(1), lambda: 0)) as deliveries:
        assert (await anext(deliveries)).attempt == 1
    await broker.close()


def _until(holds: Callable[[], bool]) -> None:
    """As `eventually`, in a thread."""
    end = time.monotonic() + 30
    while not holds() and time.monotonic() < end:
        time.sleep(0.005)


async def test_the_model_of_what_waits_is_loaded_while_the_engine_is_imported_and_nothing_is_taken(
    tiny_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    spec, broker, ready = tiny_model.spec(tiny_folder, PLAIN), MemoryBroker(), Event()
    await broker.connect()
    made = Bundle(broker, Registry([spec]), Settings(cache_dir=str(tmp_path)), asyncio.Event())
    body = wire.request_body(EncodeRequest([Item(text="hello")]))
    await broker.submit(Work("w", "encode", lane_of(spec), spec.id, body, time.time()))
    warming = Warming()
    warming.join()
    monkeypatch.setattr(warming, "join", partial(_until, ready.is_set))
    starting = asyncio.create_task(made.start(warming))
    await eventually(lambda: made.residency.resident() == (PLAIN,))
    assert made.worker.in_hand == 0 and made.presence.now().state == "starting"
    ready.set()
    await starting
    reply = await jobs.wait_result(broker.jobs, "w", 10)
    assert reply is not None and reply.status == 200
    await made.drain()
    await broker.close()


@pytest.mark.parametrize(
    ("wanted", "room"),
    [(Settings(), 2048), (Settings(batch_tokens=512), 512), (Settings(streams=2), 512)],
)
async def test_a_batch_that_has_a_core_to_itself_may_be_of_four_times_as_many_tokens_if_they_are_quick(
    bundle: Bundle, monkeypatch: pytest.MonkeyPatch, wanted: Settings, room: int
) -> None:
    monkeypatch.setattr("sie_bundle.engine.cores.available", lambda: 1)
    executor, model = bundle._executor(wanted), Gated()
    model.gate.set()
    model.fit.observe(Reading(1024, 1, 0.01))
    try:
        await executor.forward(model, rows(*[1] * 32, length=128), HEADS)
    finally:
        await asyncio.to_thread(executor.close)
    assert {len(batch) * 128 for batch in model.batches} == {room}
