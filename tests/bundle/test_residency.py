"""Residency: one load for many callers, failures that pass, models that make room."""

from __future__ import annotations

import asyncio
import shutil
from pathlib import Path

import msgspec
import pytest

from sie_bundle.residency import RETRY_S, Residency
from sie_config.model_spec import Dense, ModelSpec, Tasks
from sie_sdk.errors import ModelLoadFailedError, WeightsUnavailableError
from tests import tiny_model


class Clock:
    """Moves when the test says so."""

    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


class Loads(list[str]):
    """The ids of the models that were loaded, in order."""


@pytest.fixture
def loads() -> Loads:
    return Loads()


@pytest.fixture
def clock() -> Clock:
    return Clock()


def residency(folder: Path, loads: Loads, clock: Clock, max_bytes: int = 1 << 30) -> Residency:
    return Residency(None, folder / "cache", max_bytes, loads.append, clock=clock)


def specs(folder: Path, count: int) -> list[ModelSpec]:
    return [tiny_model.spec(folder, f"test/tiny-{i}") for i in range(count)]


async def test_requests_at_once_load_a_model_once(tiny_folder: Path, loads: Loads, clock: Clock) -> None:
    models, spec = residency(tiny_folder, loads, clock), tiny_model.spec(tiny_folder)
    assert models.resident() == ()
    first, *others = await asyncio.gather(*(models.model(spec) for _ in range(5)))
    assert all(model is first for model in others)
    assert await models.model(spec) is first
    assert loads == ["test/tiny"] and models.resident() == ("test/tiny",)
    assert models.bytes == first.bytes > 0


async def test_a_caller_that_leaves_does_not_stop_the_load_of_the_others(
    tiny_folder: Path, loads: Loads, clock: Clock
) -> None:
    models, spec = residency(tiny_folder, loads, clock), tiny_model.spec(tiny_folder)
    leaver, stayer = (asyncio.create_task(models.model(spec)) for _ in range(2))
    await asyncio.sleep(0)
    leaver.cancel()
    await stayer
    assert loads == ["test/tiny"]


async def test_a_failed_load_is_told_to_all_who_waited(tmp_path: Path, loads: Loads, clock: Clock) -> None:
    models, spec = residency(tmp_path, loads, clock), tiny_model.spec(tmp_path / "absent")
    errors = await asyncio.gather(*(models.model(spec) for _ in range(3)), return_exceptions=True)
    assert all(isinstance(error, WeightsUnavailableError) for error in errors)
    assert models.resident() == ()


async def test_a_failed_load_is_tried_again_after_a_pause_and_is_never_permanent(
    tmp_path: Path, loads: Loads, clock: Clock
) -> None:
    folder = tmp_path / "model"
    models, spec = residency(tmp_path, loads, clock), tiny_model.spec(folder)
    with pytest.raises(WeightsUnavailableError) as caught:
        await models.model(spec)
    assert caught.value.retry_after == RETRY_S
    tiny_model.make(folder)
    with pytest.raises(WeightsUnavailableError):
        await models.model(spec)
    clock.now += RETRY_S
    await models.model(spec)
    shutil.rmtree(folder)
    await models.model(spec)
    assert loads == ["test/tiny"]


async def test_a_repaired_spec_does_not_wait_for_the_old_ones_pause(
    tiny_folder: Path, loads: Loads, clock: Clock
) -> None:
    models, spec = residency(tiny_folder, loads, clock), tiny_model.spec(tiny_folder)
    wrong = msgspec.structs.replace(spec, tasks=Tasks(dense=Dense(dim=7)))
    with pytest.raises(ModelLoadFailedError, match="7"):
        await models.model(wrong)
    await models.model(spec)
    assert loads == ["test/tiny"]


async def test_a_changed_spec_replaces_the_loaded_model(tiny_folder: Path, loads: Loads, clock: Clock) -> None:
    models, spec = residency(tiny_folder, loads, clock), tiny_model.spec(tiny_folder)
    old = await models.model(spec)
    new = await models.model(msgspec.structs.replace(spec, max_sequence_length=16))
    assert new is not old and new.spec.max_sequence_length == 16
    assert models.resident() == ("test/tiny",)


async def test_an_unexpected_failure_becomes_a_typed_one_without_its_text(
    tmp_path: Path, loads: Loads, clock: Clock, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def explode(*_: object) -> None:
        raise ZeroDivisionError("secret")

    monkeypatch.setattr("sie_bundle.weights.resolve", explode)
    with pytest.raises(ModelLoadFailedError) as caught:
        await residency(tmp_path, loads, clock).model(tiny_model.spec(tmp_path))
    assert "secret" not in str(caught.value)
    assert "secret" in caplog.text


async def test_the_least_recently_used_makes_room(tiny_folder: Path, loads: Loads, clock: Clock) -> None:
    a, b, c = specs(tiny_folder, 3)
    size = (await residency(tiny_folder, Loads(), clock).model(a)).bytes
    models = residency(tiny_folder, loads, clock, max_bytes=2 * size)
    for spec in (a, b, a, c):
        await models.model(spec)
    assert models.resident() == (a.id, c.id)
    await models.model(b)
    assert loads == [a.id, b.id, c.id, b.id]


async def test_a_model_over_the_limit_is_kept_alone(tiny_folder: Path, loads: Loads, clock: Clock) -> None:
    a, b = specs(tiny_folder, 2)
    models = residency(tiny_folder, loads, clock, max_bytes=1)
    await models.model(a)
    await models.model(b)
    assert models.resident() == (b.id,)
