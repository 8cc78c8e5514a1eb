"""GLiNERs with random weights give the entities of their own library, alone and in any company.

What the library said is stored (``make_gliner_golden``), since it wants an older transformers than ours.
"""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from sie_bundle.models.checkpoint import Checkpoint
from sie_bundle.models.model import EncoderModel
from sie_bundle.operations import extract
from sie_config.model.model_spec import ModelSpec
from sie_config.model.sources import LocalSource
from sie_config.model.tasks import Extract, Tasks
from sie_sdk import results
from sie_sdk.types import Entity, ExtractParams, ExtractRequest, Item, Timing, Usage
from tests.golden import gliner_folder

GOLDEN: dict[str, Any] = json.loads((Path(__file__).parent / "gliner.json").read_text())
TEXTS: dict[str, str] = GOLDEN["texts"]
CASES: dict[str, dict[str, Any]] = GOLDEN["cases"]


@pytest.fixture(scope="module")
def load(tmp_path_factory: pytest.TempPathFactory) -> Any:
    @cache
    def loaded(kind: str, precision: str = "float32") -> EncoderModel:
        folder = tmp_path_factory.mktemp(kind)
        gliner_folder.make(kind, folder, GOLDEN["models"][kind]["config"])
        spec = ModelSpec(
            id=f"random/{kind}",
            family="gliner",
            tasks=Tasks(extract=Extract(kind="spans")),
            sources=(LocalSource(path=str(folder)),),
            max_sequence_length=400,
            revision="golden",
        )
        model = EncoderModel(Checkpoint(spec, folder), precision_wanted=precision)
        model.try_out()
        return model

    return loaded


def found(model: EncoderModel, texts: list[str], labels: list[str], **options: object) -> list[list[Entity]]:
    """The entities of a request with these texts."""
    request = ExtractRequest([Item(text=text) for text in texts], ExtractParams(labels=labels, options=options))
    plan = extract.plan(model, model.spec, request)
    computed = model.forward(plan.rows, {"spans": range(len(plan.rows))}) if plan.rows else {}
    reply = plan.finish(computed, Timing(*[0.0] * 6), Usage(input_tokens=1))
    return [own.entities for own in results.read_extract(reply)]


def same(entities: list[Entity], wanted: list[list[Any]], text: str) -> None:
    assert [(each.start, each.end, each.label) for each in entities] == [tuple(each[:3]) for each in wanted]
    assert np.allclose([each.score for each in entities], [each[3] for each in wanted], atol=1e-4)
    assert all(each.text == text[each.start : each.end] for each in entities)


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("kind", gliner_folder.KINDS)
def test_the_entities_are_those_of_the_library(load: Any, kind: str, case: str) -> None:
    model = load(kind)
    wanted, asked = GOLDEN["models"][kind]["found"][case], CASES[case]
    together = found(model, list(TEXTS.values()), **asked)
    for (name, text), own in zip(TEXTS.items(), together, strict=True):
        same(own, wanted[name], text)
        same(found(model, [text], **asked)[0], wanted[name], text)


@pytest.mark.parametrize("kind", gliner_folder.KINDS)
def test_in_the_precision_of_the_machine_scores_are_close(load: Any, kind: str) -> None:
    exact, quick = load(kind), load(kind, "auto")
    request = ExtractRequest(
        [Item(text=text) for text in TEXTS.values()], ExtractParams(labels=CASES["flat"]["labels"])
    )
    rows = extract.plan(exact, exact.spec, request).rows
    wanted, found = (each.forward(rows, {"spans": range(len(rows))})["spans"] for each in (exact, quick))
    errors = [float(np.linalg.norm(a - b) / np.linalg.norm(b)) for a, b in zip(found, wanted, strict=True)]
    assert max(errors) < 0.2 and np.mean(errors) < 0.1, "a wrong one is apart by 1"
