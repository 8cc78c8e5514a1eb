"""Residency: one load for many callers, failures that pass, damage that heals."""

from __future__ import annotations

import asyncio
import gc
import shutil
import threading
import weakref
from pathlib import Path
from typing import Any

import msgspec
import pytest

from sie_bundle.models import model as engine
from sie_bundle.residency.residency import SUPERSEDED_S
from sie_bundle.weights import weights
from sie_bundle.weights.source import SourceError
from sie_config.model.sources import HubSource, LocalSource
from sie_config.model.tasks import Dense, Tasks
from sie_sdk.errors import ModelLoadFailedError, OutOfMemoryError, SIEError, WeightsUnavailableError
from tests import tiny_model
from tests.bundle.residencies import PAUSES, Clock, Loads, Made, residency, specs
from tests.conftest import eventually


@pytest.fixture
def loads() -> Loads:
    return Loads()


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def made(monkeypatch: pytest.MonkeyPatch) -> Made:
    return Made(monkeypatch)


async def test_requests_at_once_load_a_model_once(tiny_folder: Path, loads: Loads, clock: Clock) -> None:
    models, spec = residency(tiny_folder, loads, clock), tiny_model.spec(tiny_folder)
    assert models.resident() == ()
    first, *others = await asyncio.gather(*(models.model(spec) for _ in range(5)))
    assert all(model is first for model in others)
    assert await models.model(spec) is first
    assert loads == ["test/tiny"] and models.resident() == ("test/tiny",)
    assert models.bytes == first.bytes > 0


async def test_a_text_that_is_too_long_loses_the_side_that_its_spec_names(
    tiny_folder: Path, loads: Loads, clock: Clock
) -> None:
    models, spec = residency(tiny_folder, loads, clock), tiny_model.spec(tiny_folder)
    short = msgspec.structs.replace(spec, max_sequence_length=4)
    words = ["hello world", "ship lighthouse"]
    for side, kept in (("right", 0), ("left", 1)):
        model = await models.model(msgspec.structs.replace(short, truncation_side=side))
        (row,) = model.tokenizer.rows([" ".join(words)], 4)
        (wanted,) = model.tokenizer.rows(words[kept : kept + 1], 4)
        assert row.ids.tolist() == wanted.ids.tolist(), side


async def test_a_caller_that_leaves_does_not_stop_the_load_of_the_others(
    tiny_folder: Path, loads: Loads, clock: Clock
) -> None:
    models, spec = residency(tiny_folder, loads, clock), tiny_model.spec(tiny_folder)
    leaver, stayer = (asyncio.create_task(models.model(spec)) for _ in range(2))
    await asyncio.sleep(0)
    leaver.cancel()
    await stayer
    assert loads == ["test/tiny"]


async def test_a_load_that_all_callers_have_left_is_finished_for_the_next(
    tiny_folder: Path, loads: Loads, clock: Clock
) -> None:
    models, spec = residency(tiny_folder, loads, clock), tiny_model.spec(tiny_folder)
    leaver = asyncio.create_task(models.model(spec))
    await asyncio.sleep(0)
    leaver.cancel()
    await eventually(lambda: models.resident() == ("test/tiny",))
    assert loads == ["test/tiny"]


async def test_a_load_does_not_hold_up_requests_for_other_models(
    tiny_folder: Path, loads: Loads, clock: Clock, made: Made
) -> None:
    slow, resident, another = specs(tiny_folder, 3)
    models = residency(tiny_folder, loads, clock)
    held = await models.model(resident)
    gate = made.gates[slow.id] = threading.Event()
    loading = asyncio.create_task(models.model(slow))
    await eventually(lambda: slow.id in made.ids)
    assert await models.model(resident) is held
    await models.model(another)
    assert not loading.done()
    gate.set()
    await loading
    assert loads == [resident.id, another.id, slow.id]


async def test_a_failed_load_is_told_to_all_who_waited(tmp_path: Path, loads: Loads, clock: Clock) -> None:
    models, spec = residency(tmp_path, loads, clock), tiny_model.spec(tmp_path / "absent")
    errors = await asyncio.gather(*(models.model(spec) for _ in range(3)), return_exceptions=True)
    assert all(isinstance(error, WeightsUnavailableError) for error in errors)
    assert models.resident() == () and models.bytes == 0


async def test_a_failed_load_is_tried_again_after_a_pause_and_is_never_permanent(
    tiny_folder: Path, loads: Loads, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    models, spec = residency(tiny_folder, loads, clock), tiny_model.spec(tiny_folder)
    with monkeypatch.context() as away:

        def unreachable(*_: object, **__: object) -> None:
            raise WeightsUnavailableError("The hub is away.", reason="network")

        away.setattr(weights, "resolve", unreachable)
        for pause in (1.0, 2.0, 4.0):
            with pytest.raises(WeightsUnavailableError) as caught:
                await models.model(spec)
            assert (caught.value.retry_after, caught.value.details["reason"]) == (pause, "network")
            clock.now += pause
        with pytest.raises(WeightsUnavailableError):
            await models.model(spec)
    clock.now += 7.9
    with pytest.raises(WeightsUnavailableError) as caught:
        await models.model(spec)
    assert caught.value.retry_after == pytest.approx(0.1)
    clock.now += 0.1
    await models.model(spec)
    assert loads == ["test/tiny"]


async def test_weights_that_somebody_brings_end_the_pause(tmp_path: Path, loads: Loads, clock: Clock) -> None:
    folder = tmp_path / "model"
    models, spec = residency(tmp_path, loads, clock), tiny_model.spec(folder)
    with pytest.raises(WeightsUnavailableError) as caught:
        await models.model(spec)
    assert (caught.value.retry_after, caught.value.details["reason"]) == (PAUSES["not_found"].first, "not_found")
    with pytest.raises(WeightsUnavailableError):
        await models.model(spec)
    tiny_model.make(folder)
    await models.model(spec)
    shutil.rmtree(folder)
    await models.model(spec)
    assert loads == ["test/tiny"]


async def test_weights_that_somebody_brings_and_that_do_not_load_pause_like_any_other(
    tmp_path: Path, loads: Loads, clock: Clock
) -> None:
    folder = tmp_path / "model"
    models, spec = residency(tmp_path, loads, clock), tiny_model.spec(folder)
    with pytest.raises(WeightsUnavailableError):
        await models.model(spec)
    (tiny_model.make(folder) / "model.safetensors").write_bytes(b"torn")
    for retry_after in (60, 59):
        with pytest.raises(ModelLoadFailedError) as caught:
            await models.model(spec)
        assert caught.value.retry_after == retry_after
        clock.now += 1


async def test_of_specs_that_were_changed_and_of_models_that_are_gone_nothing_is_kept(
    tiny_folder: Path, tmp_path: Path, loads: Loads, clock: Clock
) -> None:
    models, spec = residency(tmp_path, loads, clock), tiny_model.spec(tiny_folder)
    absent = tiny_model.spec(tmp_path / "absent")
    for length in range(8, 16):
        await models.model(msgspec.structs.replace(spec, max_sequence_length=length))
        with pytest.raises(WeightsUnavailableError):
            await models.model(msgspec.structs.replace(absent, max_sequence_length=length))
    assert len(models._sizes) == len(models.failed(9)) == 1
    models.forget_all_but(lambda model: model != spec.id)
    assert not models._sizes and models.failed(9) == []


async def test_a_repaired_spec_does_not_wait_for_the_old_ones_pause(
    tiny_folder: Path, loads: Loads, clock: Clock
) -> None:
    models, spec = residency(tiny_folder, loads, clock), tiny_model.spec(tiny_folder)
    wrong = msgspec.structs.replace(spec, tasks=Tasks(dense=Dense(dim=7)))
    with pytest.raises(ModelLoadFailedError, match="7"):
        await models.model(wrong)
    await models.model(spec)
    assert loads == ["test/tiny"]


async def test_a_change_that_loading_does_not_depend_on_reloads_nothing(
    tiny_folder: Path, loads: Loads, clock: Clock
) -> None:
    models, spec = residency(tiny_folder, loads, clock), tiny_model.spec(tiny_folder)
    old = await models.model(spec)
    tasks = Tasks(dense=Dense(dim=32, query_prompt="ship "))
    changed = msgspec.structs.replace(spec, owner="team", licence="mit", tasks=tasks, machine_profiles=("l4",))
    assert await models.model(changed) is old
    assert loads == ["test/tiny"]


async def test_a_changed_spec_has_a_model_of_its_own_beside_the_old_one_until_nobody_uses_that(
    tiny_folder: Path, loads: Loads, clock: Clock
) -> None:
    models, spec = residency(tiny_folder, loads, clock), tiny_model.spec(tiny_folder)
    changed = msgspec.structs.replace(spec, max_sequence_length=16)
    old = await models.model(spec)
    alone = models.bytes
    new = await models.model(changed)
    assert new is not old and new.spec.max_sequence_length == 16
    assert models.resident() == ("test/tiny",) and models.bytes == 2 * alone
    clock.now += SUPERSEDED_S
    assert await models.model(spec) is old, "work in flight is still computed by it"
    clock.now += SUPERSEDED_S / 2
    assert await models.model(changed) is new
    clock.now += SUPERSEDED_S / 2 + 0.1
    models.retire()
    assert models.bytes == 2 * alone, "somebody computes with it"
    del old
    models.retire()
    assert models.bytes == alone and models.resident() == ("test/tiny",)
    assert await models.model(changed) is new and loads == ["test/tiny"] * 2


async def test_a_changed_spec_that_does_not_load_leaves_the_old_model_to_work_in_flight(
    tiny_folder: Path, loads: Loads, clock: Clock
) -> None:
    models, spec = residency(tiny_folder, loads, clock), tiny_model.spec(tiny_folder)
    old = await models.model(spec)
    with pytest.raises(ModelLoadFailedError):
        await models.model(msgspec.structs.replace(spec, tasks=Tasks(dense=Dense(dim=7))))
    assert await models.model(spec) is old and loads == ["test/tiny"]


async def test_a_pinned_model_makes_room_for_its_own_successor(tiny_folder: Path, loads: Loads, clock: Clock) -> None:
    spec = tiny_model.spec(tiny_folder)
    size = (await residency(tiny_folder, Loads(), clock).model(spec)).bytes
    models = residency(tiny_folder, loads, clock, max_bytes=int(1.5 * size), pinned=[spec.id])
    await models.model(spec)
    new = await models.model(msgspec.structs.replace(spec, max_sequence_length=16))
    assert new.spec.max_sequence_length == 16 and models.bytes == size and models.resident() == ("test/tiny",)


async def test_an_unexpected_failure_becomes_a_typed_one_without_its_text(
    tmp_path: Path, loads: Loads, clock: Clock, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def explode(*_: object, **__: object) -> None:
        raise ZeroDivisionError("secret")

    monkeypatch.setattr(weights, "resolve", explode)
    with pytest.raises(ModelLoadFailedError) as caught:
        await residency(tmp_path, loads, clock).model(tiny_model.spec(tmp_path))
    assert "secret" not in str(caught.value)
    assert "secret" in caplog.text


async def test_damaged_weights_of_the_users_are_told_and_left_alone(tmp_path: Path, loads: Loads, clock: Clock) -> None:
    folder = tiny_model.make(tmp_path / "model")
    torn = folder / "model.safetensors"
    torn.write_bytes(torn.read_bytes()[:-100])
    models = residency(tmp_path, loads, clock)
    with pytest.raises(ModelLoadFailedError) as caught:
        await models.model(tiny_model.spec(folder))
    assert caught.value.details["reason"] == "corrupt" and caught.value.retry_after == PAUSES["corrupt"].first
    assert torn.is_file()


async def test_damaged_weights_that_were_fetched_are_fetched_again_once(
    tmp_path: Path, loads: Loads, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    good, revision = tiny_model.make(tmp_path / "good"), "0" * 40
    fetches: list[bool] = []

    def fetch(source: HubSource, files: tuple[str, ...], into: Path, *, cached: bool) -> None:
        fetches.append(cached)
        for name in files:
            shutil.copyfile(good / name, into / name)

    monkeypatch.setattr("sie_bundle.weights.hub.fetch", fetch)
    local = LocalSource(path=str(tmp_path / "absent"))
    hub = HubSource(repo="acme/tiny", revision=revision)
    spec = msgspec.structs.replace(tiny_model.spec(good), sources=(local, hub))
    kept = tmp_path / "cache/weights/test--tiny" / revision
    shutil.copytree(good, kept)
    for name in ("model.safetensors", "tokenizer.json", "config.json"):
        (kept / name).write_bytes(b"torn")
        models = residency(tmp_path, loads, clock)
        await models.model(spec)
        assert (kept / name).read_bytes() == (good / name).read_bytes()
    assert fetches == [False] * 3, "not from Hugging Face's cache, which may be what is damaged"
    (kept / "model.safetensors").write_bytes(b"torn")
    (good / "model.safetensors").write_bytes(b"torn too")
    models = residency(tmp_path, loads, clock)
    for _ in range(2):
        with pytest.raises(ModelLoadFailedError) as caught:
            await models.model(spec)
        assert caught.value.details["reason"] == "corrupt"
        clock.now += 60
    assert len(fetches) == 4, "a source that gives damaged files is not asked for them every minute"


async def test_of_damaged_weights_nothing_is_in_memory_any_more_while_they_are_fetched_again(
    tmp_path: Path, loads: Loads, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    good, revision = tiny_model.make(tmp_path / "good"), "0" * 40
    init, made, left = engine.EncoderModel.__init__, list[weakref.ref[engine.EncoderModel]](), list[object]()

    def torn(model: engine.EncoderModel, *args: Any) -> None:
        init(model, *args)
        made.append(weakref.ref(model))
        if len(made) == 1:
            raise ModelLoadFailedError("torn", reason="corrupt")

    def fetch(source: HubSource, files: tuple[str, ...], into: Path, *, cached: bool) -> None:
        left.append(made[0]())
        for name in files:
            shutil.copyfile(good / name, into / name)

    monkeypatch.setattr(engine.EncoderModel, "__init__", torn)
    monkeypatch.setattr("sie_bundle.weights.hub.fetch", fetch)
    spec = msgspec.structs.replace(tiny_model.spec(good), sources=(HubSource(repo="acme/tiny", revision=revision),))
    shutil.copytree(good, tmp_path / "cache/weights/test--tiny" / revision)
    await residency(tmp_path, loads, clock).model(spec)
    assert left == [None] and loads == ["test/tiny"]


async def test_damaged_weights_are_fetched_again_when_a_source_that_could_not_be_reached_is_back(
    tmp_path: Path, loads: Loads, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    good, revision = tiny_model.make(tmp_path / "good"), "0" * 40
    failures = [SourceError("cannot connect", "network")]

    def fetch(source: HubSource, files: tuple[str, ...], into: Path, *, cached: bool) -> None:
        if failures:
            raise failures.pop()
        for name in files:
            shutil.copyfile(good / name, into / name)

    monkeypatch.setattr("sie_bundle.weights.hub.fetch", fetch)
    spec = msgspec.structs.replace(tiny_model.spec(good), sources=(HubSource(repo="acme/tiny", revision=revision),))
    kept = tmp_path / "cache/weights/test--tiny" / revision
    shutil.copytree(good, kept)
    (kept / "model.safetensors").write_bytes(b"torn")
    models = residency(tmp_path, loads, clock)
    with pytest.raises(WeightsUnavailableError) as caught:
        await models.model(spec)
    assert caught.value.details["reason"] == "network"
    clock.now += PAUSES["network"].first
    await models.model(spec)
    assert loads == ["test/tiny"]


@pytest.mark.parametrize("raised", [OutOfMemoryError("none"), ModelLoadFailedError("torn")], ids=["memory", "torn"])
async def test_a_failed_load_leaves_nothing_in_memory_of_what_it_had_made(
    tiny_folder: Path, loads: Loads, clock: Clock, monkeypatch: pytest.MonkeyPatch, raised: SIEError
) -> None:
    init, made = engine.EncoderModel.__init__, list[weakref.ref[engine.EncoderModel]]()

    def half(model: engine.EncoderModel, *args: Any) -> None:
        init(model, *args)
        made.append(weakref.ref(model))
        raise type(raised)(raised.message)

    monkeypatch.setattr(engine.EncoderModel, "__init__", half)
    models = residency(tiny_folder, loads, clock)
    gc.disable()
    try:
        with pytest.raises(SIEError):
            await models.model(tiny_model.spec(tiny_folder))
        await eventually(lambda: [model() for model in made] == [None])
    finally:
        gc.enable()


@pytest.mark.parametrize(
    "raised", [SystemExit, KeyboardInterrupt, asyncio.CancelledError, StopIteration, GeneratorExit]
)
async def test_an_adapter_that_raises_what_is_no_error_fails_its_load_alone(
    tiny_folder: Path, loads: Loads, clock: Clock, monkeypatch: pytest.MonkeyPatch, raised: type[BaseException]
) -> None:
    def leave(*_: object) -> None:
        raise raised

    models, spec = residency(tiny_folder, loads, clock), tiny_model.spec(tiny_folder)
    with monkeypatch.context() as broken:
        broken.setattr(engine, "load", leave)
        async with asyncio.timeout(10):
            with pytest.raises(ModelLoadFailedError) as caught:
                await models.model(spec)
    assert caught.value.details["reason"] == "unknown" and models.loading() == ()
    clock.now += caught.value.retry_after or 0.0
    await models.model(spec)
