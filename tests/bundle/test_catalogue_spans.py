"""Every ready GLiNER of the packaged catalogue, computed: its spec as it is, but for where its files are.

A small model with random weights stands for it, its tokenizer in a folder of its own where the entry says so. A request
goes the whole way and has the answer of GLiNER's own library.
"""

from __future__ import annotations

import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import msgspec
import pytest

from sie_broker.records import Work
from sie_bundle.engine.executor import Executor
from sie_bundle.operations import extract
from sie_bundle.operations.operation import Operation
from sie_bundle.residency.residency import Residency
from sie_config import catalog
from sie_config.model.model_spec import ModelSpec
from sie_config.model.sources import LocalSource
from sie_config.registry import Registry, lane_of
from sie_sdk import results, wire
from sie_sdk.types import ExtractParams, ExtractRequest, Item
from tests.golden import gliner_folder
from tests.golden.test_golden_gliner import CASES, GOLDEN, TEXTS, same

READY = [spec for spec in catalog.load().values() if spec.status == "ready" and spec.family == "gliner"]


@pytest.mark.parametrize("spec", READY, ids=lambda spec: spec.id)
async def test_a_gliner_of_the_catalogue_extracts_as_its_library(spec: ModelSpec, tmp_path: Path) -> None:
    kind = "bert" if "bert" in spec.id else "deberta"
    folder = gliner_folder.make(kind, tmp_path / "model", GOLDEN["models"][kind]["config"])
    changed: dict[str, Any] = {"sources": (LocalSource(path=str(folder)),)}
    if spec.tokenizer:
        (tmp_path / "elsewhere").mkdir()
        (folder / "tokenizer.json").rename(tmp_path / "elsewhere/tokenizer.json")
        changed["tokenizer"] = (LocalSource(path=str(folder)), LocalSource(path=str(tmp_path / "elsewhere")))
    own = msgspec.structs.replace(spec, **changed)
    executor, residency = Executor(), Residency(None, tmp_path / "cache", 1 << 30, precision="float32")
    with ThreadPoolExecutor(1) as threads:
        pool: Any = {"interactive": threads, "bulk": threads}
        operation = Operation(extract.parse, extract.plan, Registry([own]), residency, executor, pool)
        params = ExtractParams(labels=CASES["flat"]["labels"])
        body = wire.request_body(ExtractRequest([Item(text=text) for text in TEXTS.values()], params))
        found = results.read_extract(await operation(Work("1", "extract", lane_of(own), own.id, body, time.time())))
    executor.close()
    residency.close()
    for (name, text), each in zip(TEXTS.items(), found, strict=True):
        same(each.entities, GOLDEN["models"][kind]["found"]["flat"][name], text)


def test_the_first_gliners_take_their_tokenizer_from_elsewhere() -> None:
    assert {spec.id for spec in READY if spec.tokenizer} >= {"urchade/gliner_medium-v2.1", "urchade/gliner_multi-v2.1"}
    assert len(READY) >= 15
