"""Residencies of tiny models with a clock and a memory that move when the test says so."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import pytest

from sie_bundle.models import model as engine
from sie_bundle.models.checkpoint import Checkpoint
from sie_bundle.models.model import Model
from sie_bundle.residency import load_failure
from sie_bundle.residency.memory import Memory
from sie_bundle.residency.residency import Residency
from sie_config.model.model_spec import ModelSpec
from tests import tiny_model

PAUSES = load_failure.PAUSES
ROOMY = Memory(1 << 30, 100 << 30)


class Clock:
    """Moves when the test says so."""

    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


class Loads(list[str]):
    """The ids of the models that were loaded, in order."""


def residency(folder: Path, loads: Loads, clock: Clock, max_bytes: int = 1 << 30, **settings: Any) -> Residency:
    """A residency with room, a cache under ``folder`` and no jitter."""
    told = {"reading": lambda: ROOMY, "chance": lambda: 0.5, "precision": "float32", **settings}
    return Residency(None, folder / "cache", max_bytes, loads.append, clock=clock, **told)


def specs(folder: Path, count: int) -> list[ModelSpec]:
    """Models of the same files under several names."""
    return [tiny_model.spec(folder, f"test/tiny-{i}") for i in range(count)]


class Made:
    """Counts the models made on the device; each waits in front of the gate, if it is shut."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.ids: list[str] = []
        self.from_disk: list[str] = []
        self.gates: dict[str, threading.Event] = {}
        load, init = engine.load, engine.EncoderModel.__init__

        def made(model: engine.EncoderModel, checkpoint: Checkpoint, *args: Any, **kwargs: Any) -> None:
            self.ids.append(checkpoint.spec.id)
            if checkpoint.spec.id in self.gates:
                assert self.gates[checkpoint.spec.id].wait(10)
            init(model, checkpoint, *args, **kwargs)

        def loaded(checkpoint: Checkpoint, *how: Any) -> Model:
            self.from_disk.append(checkpoint.spec.id)
            return load(checkpoint, *how)

        monkeypatch.setattr(engine.EncoderModel, "__init__", made)
        monkeypatch.setattr(engine, "load", loaded)
