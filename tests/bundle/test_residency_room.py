"""Residency: who makes room for whom, who comes back from where, and what a scarce machine changes."""

from __future__ import annotations

import asyncio
import shutil
import threading
from pathlib import Path
from typing import Any

import pytest

from sie_bundle.models.model import Model
from sie_bundle.residency import memory
from sie_bundle.residency import residency as residency_module
from sie_bundle.residency.loading import Loader
from sie_bundle.residency.memory import Memory
from sie_bundle.residency.pressure import FREE_S
from sie_bundle.residency.residency import Residency
from sie_bundle.residency.tier import base
from sie_config.model.model_spec import ModelSpec
from sie_sdk.errors import ModelLoadFailedError, OutOfMemoryError
from tests import tiny_model
from tests.bundle.residencies import PAUSES, ROOMY, Clock, Loads, Made, residency, specs
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


@pytest.fixture
def size(tiny: Model) -> int:
    """What each of the tiny models takes."""
    return tiny.bytes


async def test_the_least_recently_used_makes_room_and_comes_back(
    tiny_folder: Path, loads: Loads, clock: Clock, size: int
) -> None:
    a, b, c = specs(tiny_folder, 3)
    models = residency(tiny_folder, loads, clock, max_bytes=2 * size)
    for spec in (a, b, a, c):
        clock.now += 10
        await models.model(spec)
    assert models.resident() == (a.id, c.id)
    await models.model(b)
    assert loads == [a.id, b.id, c.id, b.id]
    assert models.bytes == 2 * size


async def test_a_model_comes_back_from_host_memory_without_its_files_and_without_being_tried_out_again(
    tmp_path: Path, loads: Loads, clock: Clock, size: int, made: Made
) -> None:
    a, b = specs(tiny_model.make(tmp_path / "model"), 2)
    models = residency(tmp_path, loads, clock, max_bytes=size)
    first = await models.model(a)
    rows = first.tokenizer.rows(["hello world"], 32)
    vector = tiny_model.vectors(first, rows).tolist()
    fit = first.fit
    del first
    await models.model(b)
    assert models.resident() == (b.id,)
    shutil.rmtree(tmp_path / "model")
    again = await models.model(a)
    assert made.ids == [a.id, b.id, a.id] and made.from_disk == [a.id, b.id]
    assert again.fit is fit
    assert tiny_model.vectors(again, rows).tolist() == vector


async def test_without_room_in_host_memory_a_model_comes_back_from_disk(
    tiny_folder: Path, loads: Loads, clock: Clock, size: int, made: Made
) -> None:
    a, b = specs(tiny_folder, 2)
    models = residency(tiny_folder, loads, clock, max_bytes=size, host_bytes=0)
    for spec in (a, b, a):
        await models.model(spec)
    assert made.from_disk == [a.id, b.id, a.id]


async def test_a_model_over_the_limit_is_refused_with_a_typed_error_and_drives_nobody_out(
    tiny_folder: Path, loads: Loads, clock: Clock, size: int
) -> None:
    pinned, large = specs(tiny_folder, 2)
    models = residency(tiny_folder, loads, clock, max_bytes=2 * size - 1, pinned=[pinned.id])
    await models.model(pinned)
    for _ in range(2):
        with pytest.raises(OutOfMemoryError) as caught:
            await models.model(large)
        assert caught.value.limit == size - 1 and caught.value.retry_after == PAUSES["memory"].first
        clock.now += 5
    assert models.resident() == (pinned.id,) and models.bytes == size


async def test_a_model_whose_layers_alone_are_over_the_limit_is_refused_before_it_is_made(
    tiny_folder: Path, loads: Loads, clock: Clock, size: int, made: Made
) -> None:
    (large,) = specs(tiny_folder, 1)
    models = residency(tiny_folder, loads, clock, max_bytes=size // 2)
    for _ in range(2):  # the second is told by what is known of the first
        with pytest.raises(ModelLoadFailedError, match="more than SIE_MODEL_BYTES allows") as caught:
            await models.model(large)
        assert (caught.value.limit, caught.value.details["reason"]) == (size // 2, "too_large")
        assert caught.value.retry_after is None and "pinned" not in str(caught.value)
    assert made.from_disk == [] and models.bytes == 0


async def test_pinned_models_are_loaded_unasked_and_stay(
    tiny_folder: Path, loads: Loads, clock: Clock, size: int
) -> None:
    pinned, b, c = specs(tiny_folder, 3)
    models = residency(tiny_folder, loads, clock, max_bytes=2 * size, pinned=[pinned.id])
    await models.hold(pinned)
    for spec in (b, c, b):
        clock.now += 10
        await models.model(spec)
    assert set(models.resident()) == {pinned.id, b.id}
    assert loads == [pinned.id, b.id, c.id, b.id]
    await eventually(models.relieve)  # once this task has let go of what it was given
    assert not models.relieve()
    assert models.resident() == (pinned.id,)


async def test_a_model_in_use_goes_last_and_its_bytes_count_until_it_is_released(
    tiny_folder: Path, loads: Loads, clock: Clock, size: int
) -> None:
    a, b, c = specs(tiny_folder, 3)
    models = residency(tiny_folder, loads, clock, max_bytes=2 * size)
    in_use = await models.model(a)
    clock.now += 10
    await models.model(b)
    clock.now += 10
    await models.model(c)
    assert models.resident() == (a.id, c.id)
    also_in_use = await models.model(c)
    waiting = asyncio.create_task(models.model(b))
    await eventually(lambda: models.resident() == (c.id,))
    assert not waiting.done() and models.bytes == 2 * size
    del in_use
    await waiting
    assert set(models.resident()) == {b.id, c.id} and models.bytes == 2 * size
    assert also_in_use.spec == c


async def test_a_load_does_not_wait_for_ever_for_requests_that_keep_the_others(
    tiny_folder: Path, loads: Loads, clock: Clock, size: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sie_bundle.residency.residency.RELEASE_S", 0.05)
    a, b, c = specs(tiny_folder, 3)
    used = ROOMY
    models = residency(tiny_folder, loads, clock, max_bytes=size, reading=lambda: used)
    in_use = await models.model(a)
    also_in_use = await models.model(b)
    assert models.bytes == 2 * size, "over the limit, and the account says so"
    used = Memory(99, 100)
    with pytest.raises(OutOfMemoryError, match="in use") as caught:
        await models.model(c)
    assert caught.value.details["reason"] == "memory"
    del in_use, also_in_use
    assert models.bytes == 0


def looking(models: Residency, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Every look for room from now on."""
    looks, make_room = list[str](), models._models.make_room

    def looked(name: str, size: int, *, scarce: int = 0) -> bool:
        looks.append(name)
        return make_room(name, size, scarce=scarce)

    monkeypatch.setattr(models._models, "make_room", looked)
    return looks


async def some_more(looks: list[str]) -> None:
    before = len(looks)
    await eventually(lambda: len(looks) > before + 2)


async def test_a_load_waits_for_one_that_arrives_and_then_again_for_who_uses_it(
    tiny_folder: Path, loads: Loads, clock: Clock, size: int, made: Made, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(residency_module, "RELEASE_S", 0.0)
    a, b = specs(tiny_folder, 2)
    models = residency(tiny_folder, loads, clock, max_bytes=size)
    made.gates[a.id] = threading.Event()
    arriving = asyncio.create_task(models.model(a))
    await eventually(lambda: made.ids == [a.id])
    looks = looking(models, monkeypatch)
    waiting = asyncio.create_task(models.model(b))
    await some_more(looks)
    monkeypatch.setattr(residency_module, "RELEASE_S", 60.0)
    await some_more(looks)
    made.gates[a.id].set()
    in_use = await arriving
    await some_more(looks)
    assert models.bytes == size and not waiting.done()
    del in_use, arriving
    await waiting
    assert models.resident() == (b.id,)


async def test_a_scarce_machine_drives_nobody_out_a_second_time_for_the_same_load(
    tiny_folder: Path, loads: Loads, clock: Clock, size: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    used = ROOMY
    models = residency(tiny_folder, loads, clock, max_bytes=2 * size, reading=lambda: used)
    a, b, c = specs(tiny_folder, 3)
    leaving = await models.model(a)
    clock.now += 10
    staying = await models.model(b)
    looks, used = looking(models, monkeypatch), Memory(950 << 20, 1000 << 20)
    waiting = asyncio.create_task(models.model(c))
    await some_more(looks)
    assert models.resident() == (b.id,)
    del staying
    await some_more(looks)
    del leaving
    await waiting
    assert models.resident() == (b.id, c.id)


async def test_loads_at_once_share_the_limit(tiny_folder: Path, loads: Loads, clock: Clock, size: int) -> None:
    models = residency(tiny_folder, loads, clock, max_bytes=2 * size)
    most = 0

    async def use(spec: ModelSpec) -> None:
        nonlocal most
        await models.model(spec)
        most = max(most, models.bytes)

    some = specs(tiny_folder, 5)
    await asyncio.gather(*(use(spec) for spec in some))
    assert sorted(loads) == [spec.id for spec in some]
    assert most <= 2 * size


async def test_a_scarce_machine_lets_the_largest_go_first_but_not_the_only_one(
    tiny_folder: Path, tmp_path: Path, loads: Loads, clock: Clock
) -> None:
    used = ROOMY
    models = residency(tmp_path, loads, clock, reading=lambda: used)
    specs_ = specs(tiny_folder, 3)
    for spec in specs_:
        clock.now += 10
        await models.model(spec)
    assert not models.ease() and len(models.resident()) == 3
    used = Memory(95, 100)
    assert models.ease() and len(models.resident()) == 2
    assert models.ease() and models.ease()
    assert models.resident() == (specs_[-1].id,)


async def test_what_is_kept_of_freed_memory_is_returned_before_a_model_goes_but_not_again_at_once(
    tiny_folder: Path, tmp_path: Path, loads: Loads, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    kept, returned = 90, 0

    def free() -> None:
        nonlocal kept, returned
        kept, returned = 0, returned + 1

    models = residency(tmp_path, loads, clock, reading=lambda: Memory(5 + kept << 30, 100 << 30))
    monkeypatch.setattr(memory, "give_back", lambda device: free())
    kept = 0
    for spec in specs(tiny_folder, 2):
        await models.model(spec)
    kept = 90
    assert not models.ease() and (kept, returned, len(models.resident())) == (0, 1, 2)
    kept = 90
    assert models.ease() and len(models.resident()) == 1
    clock.now += FREE_S
    kept, returned = 90, 0
    assert not models.ease() and (returned, len(models.resident())) == (1, 1)


async def test_on_a_scarce_machine_a_load_is_paid_for_by_an_eviction(
    tiny_folder: Path, loads: Loads, clock: Clock
) -> None:
    used = ROOMY
    models = residency(tiny_folder, loads, clock, reading=lambda: used)
    a, b, c = specs(tiny_folder, 3)
    for spec in (a, b):
        clock.now += 10
        await models.model(spec)
    used = Memory(950 << 20, 1000 << 20)
    await models.model(c)
    assert models.resident() == (b.id, c.id)


async def test_what_was_let_go_is_returned_to_the_system_before_another_has_to_go(
    tiny_folder: Path, loads: Loads, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    used = ROOMY

    def free() -> None:
        nonlocal used
        if len(models.resident()) == 1:
            used = ROOMY

    models = residency(tiny_folder, loads, clock, reading=lambda: used)
    monkeypatch.setattr(memory, "give_back", lambda device: free())
    a, b, c = specs(tiny_folder, 3)
    for spec in (a, b):
        clock.now += 10
        await models.model(spec)
    used = Memory(950 << 20, 1000 << 20)
    assert models.ease()
    assert models.resident() == (b.id,)
    await models.model(c)
    assert models.resident() == (b.id, c.id)


async def test_a_load_that_runs_out_of_memory_lets_others_go_and_tries_again(
    tiny_folder: Path, loads: Loads, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    a, b, c = specs(tiny_folder, 3)
    models = residency(tiny_folder, loads, clock)
    for spec in (a, b):
        await models.model(spec)
    make = Loader._made

    def short(*args: Any) -> Model:
        if len(models.resident()) > 0:
            raise MemoryError
        return make(*args)

    monkeypatch.setattr(Loader, "_made", short)
    await models.model(c)
    assert models.resident() == (c.id,)
    with pytest.raises(OutOfMemoryError):
        monkeypatch.setattr(Loader, "_made", lambda *_: (_ for _ in ()).throw(MemoryError()))
        await models.model(a)


async def test_a_checkpoint_that_host_memory_cannot_hold_drives_no_other_out(
    tiny_folder: Path,
    tmp_path: Path,
    loads: Loads,
    clock: Clock,
    size: int,
    made: Made,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    (small,) = specs(tiny_folder, 1)
    monkeypatch.setattr(tiny_model, "INTERMEDIATE", 1024)
    large = tiny_model.spec(tiny_model.make(tmp_path / "large"), "test/large")
    models = residency(tmp_path, loads, clock, max_bytes=10 * size, host_bytes=2 * size)
    await models.model(small)
    await models.model(large)
    await eventually(lambda: not models._host.busy)
    while models.relieve():
        pass
    await models.model(small)
    assert made.from_disk == [small.id, large.id]


async def test_a_load_that_finds_no_room_keeps_its_checkpoint_in_host_memory(
    tiny_folder: Path, loads: Loads, clock: Clock, size: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(residency_module, "RELEASE_S", 0.05)
    used = ROOMY
    models = residency(tiny_folder, loads, clock, max_bytes=size, reading=lambda: used)
    a, b = specs(tiny_folder, 2)
    await models.model(a)
    in_use = await models.model(b)
    used = Memory(99, 100)
    with pytest.raises(OutOfMemoryError, match="while others are in use"):
        await models.model(a)
    assert {a.id, b.id} == {base(name) for name in models._host.kept.names()}, in_use
