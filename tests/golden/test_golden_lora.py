"""MiniLM with a LoRA has the vectors that PEFT computes, and without it those it always had, at the same time."""

from __future__ import annotations

import asyncio
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest

from sie_broker.records import Work
from sie_bundle.engine.executor import Executor
from sie_bundle.operations import encode
from sie_bundle.operations.operation import Operation
from sie_bundle.residency.residency import Residency
from sie_config import catalog
from sie_config.model.model_spec import Lora, ModelSpec, Profile
from sie_config.model.profile import with_profile
from sie_config.model.sources import LocalSource
from sie_config.registry import Registry, lane_of
from sie_sdk import results, wire
from sie_sdk.types import EncodeParams, EncodeRequest, Item
from tests.golden import golden, lora_folder
from tests.golden.checkpoints import checkpoint

pytestmark = pytest.mark.weights

REFERENCE = 1e-5
PARITY = 0.9999


@pytest.fixture
def spec(tmp_path: Path) -> ModelSpec:
    lora = lora_folder.make(tmp_path / "lora", **lora_folder.MINILM)
    return msgspec.structs.replace(
        catalog.load()["sentence-transformers/all-MiniLM-L6-v2"],
        sources=(LocalSource(str(checkpoint("minilm"))),),
        profiles={"law": Profile(lora=Lora((LocalSource(str(lora)),)))},
    )


class Serving:
    """What a bundle has for one model, without its broker."""

    def __init__(self, spec: ModelSpec, folder: Path, precision: str) -> None:
        self.spec = spec
        self.executor, self._threads = Executor(), ThreadPoolExecutor(2)
        self.residency = Residency(None, folder, 1 << 30, precision=precision)
        threads: Any = {"interactive": self._threads, "bulk": self._threads}
        parts = (Registry([spec]), self.residency, self.executor, threads)
        self._operation = Operation(encode.parse, encode.plan, *parts)

    async def vectors(self, texts: list[str], **options: object) -> np.ndarray:
        """As a request gets them, whose profile the ingress applies."""
        asked = EncodeRequest([Item(text=text) for text in texts], EncodeParams(options=options))
        body = wire.request_body(with_profile(asked, self.spec))
        work = Work("1", "encode", lane_of(self.spec), self.spec.id, body, time.time())
        found = results.read_encode(await self._operation(work))
        return np.stack([each.dense for each in found if each.dense is not None])

    def close(self) -> None:
        self.executor.close()
        self.residency.close()
        self._threads.shutdown()


@pytest.mark.parametrize("precision", ["float32", "auto"])
async def test_the_vectors_are_pefts_while_the_base_models_stay_what_they_are(
    spec: ModelSpec, tmp_path: Path, precision: str
) -> None:
    stored, base = golden.arrays("minilm-lora"), golden.arrays("minilm")
    texts = [golden.texts()[name] for name in stored["names"]]
    assert stored["names"].tolist() == base["names"].tolist()
    assert (stored["vectors"] * base["vectors"]).sum(axis=1).max() < 0.95, "the LoRA matters"
    serving = Serving(spec, tmp_path, precision)
    options: list[dict[str, object]] = [{"profile": "law"}, {}, {"lora_id": "law"}, {"profile": "default"}]
    answers = await asyncio.gather(
        *(serving.vectors([text], **own) for text in texts for own in options), serving.vectors(texts, profile="law")
    )
    *alone, together = answers
    for number, found in enumerate(alone):
        wanted = (stored if number % 2 == 0 else base)["vectors"][number // len(options)]
        _close(found[0], wanted, precision)
    for found, wanted in zip(together, stored["vectors"], strict=True):
        _close(found, wanted, precision)
    assert sorted(serving.residency.resident()) == [spec.id, f"{spec.id}:law"]
    serving.close()


def _close(found: np.ndarray, wanted: np.ndarray, precision: str) -> None:
    assert found @ wanted >= PARITY
    if precision == "float32":
        assert np.abs(found - wanted).max() < REFERENCE
