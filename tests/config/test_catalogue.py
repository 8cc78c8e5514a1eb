"""The packaged models: every file is what its name says, complete, pinned, honest about what runs, and as surveyed."""

from __future__ import annotations

import csv
import re
from collections.abc import Mapping
from pathlib import Path

import pytest
import yaml

from sie_bundle.models.family import FAMILIES, GLINER
from sie_config import catalog
from sie_config.model.model_spec import ModelSpec
from sie_config.model.sources import HubSource, LocalSource
from tests.config import catalogue_page
from tests.golden.checkpoint_table import CHECKPOINTS

ROOT = Path(__file__).parents[2]
SURVEY = ROOT.parent / "shared/reference/sie-catalogue.csv"
NO_MODEL = {"sie-fake"}
"""A test double of the field's own."""
OURS = ("text", "image")
TASKS = {"encode", "score", "extract"}
FILES = sorted(catalog.PACKAGED.glob("*.yaml"))
SPECS = catalog.load()


def surveyed() -> list[Mapping[str, str]]:
    """The rows of the field's catalogue that encode, score or extract something out of texts or images."""
    if not SURVEY.is_file():
        return []
    with SURVEY.open() as lines:
        rows = [row for row in csv.DictReader(lines) if row["model_id"] not in NO_MODEL]
    return [
        row
        for row in rows
        if TASKS.intersection(row["tasks"].split("|")) and set(OURS).intersection(row["modalities"].split("|"))
    ]


def dims(spec: ModelSpec) -> dict[str, int]:
    tasks = spec.tasks
    named = {"dense": tasks.dense, "sparse": tasks.sparse, "multivector": tasks.multivector}
    return {name: task.dim for name, task in named.items() if task is not None}


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_a_file_is_named_after_its_model_and_says_where_its_facts_come_from(path: Path) -> None:
    text = path.read_text()
    assert path.stem == yaml.safe_load(text)["id"].replace("/", "__")
    assert re.match(r"# .+ (Facts|Dimensions) from .+\.\n", text), text.splitlines()[0]


@pytest.mark.parametrize("spec", SPECS.values(), ids=lambda spec: spec.id)
def test_a_model_is_complete_and_its_weights_are_pinned(spec: ModelSpec) -> None:
    assert isinstance(spec.sources[0], LocalSource), "a folder of one's own comes first"
    for source in spec.sources:
        if isinstance(source, HubSource):
            assert source.revision == spec.revision
    assert spec.licence
    assert all(16 <= size <= 300_000 for size in dims(spec).values())
    assert not spec.max_sequence_length or 16 <= spec.max_sequence_length <= 1 << 20
    if dense := spec.tasks.dense:
        assert list(dense.dims) == sorted(set(dense.dims)) and all(shorter < dense.dim for shorter in dense.dims)
        for template in (dense.query_template, dense.document_template):
            assert not template or "{text}" in template
            assert "{instruction}" not in template or dense.instruction, "a template with nothing to fill it"
    if spec.bytes and spec.parameters:
        assert 0.5 <= spec.bytes / spec.parameters <= 4.2, "what a number takes"


@pytest.mark.parametrize("spec", SPECS.values(), ids=lambda spec: spec.id)
def test_ready_is_said_of_what_runs_here_alone_and_planned_says_what_is_missing(spec: ModelSpec) -> None:
    if spec.status == "planned":
        assert len(spec.blocked_by) > 8
        return
    assert not spec.blocked_by
    assert spec.family in (*FAMILIES, GLINER)
    assert spec.inputs == ("text",)
    assert spec.max_sequence_length
    assert spec.parity, "a model is ready when it was compared with its reference"
    for evidence in spec.parity:
        assert evidence.test.startswith("tests/") and (ROOT / evidence.test).is_file()
        assert re.fullmatch(r"[a-z0-9-]+ [0-9][0-9.]+", evidence.reference)


def test_there_are_well_over_150_models() -> None:
    assert len(SPECS) >= 200


def test_every_family_of_a_ready_model_has_evidence() -> None:
    assert not {spec.family for spec in SPECS.values() if spec.status == "ready" and not spec.parity}


@pytest.mark.parametrize("key", [key for key, record in CHECKPOINTS.items() if record.task == "dense"])
def test_an_entry_says_what_its_golden_vectors_were_made_with(key: str) -> None:
    record, spec = CHECKPOINTS[key], SPECS[CHECKPOINTS[key].model]
    dense = spec.tasks.dense
    assert dense and dense.normalize and spec.max_sequence_length == record.max_length
    assert (dense.pooling, dense.query_prompt, dense.document_prompt) == (
        record.pooling,
        record.query_prompt,
        record.document_prompt,
    )
    assert any(own.weights == "real" and own.cosine and own.cosine > 0.999 for own in spec.parity)


def test_the_page_lists_the_catalogue_as_it_is() -> None:
    _, mark, written = catalogue_page.PAGE.read_text().partition(catalogue_page.MARK)
    assert mark and written == "\n" + catalogue_page.page(), "run python -m tests.config.catalogue_page"


@pytest.mark.skipif(not SURVEY.is_file(), reason="the survey of the field's catalogue is not here")
def test_every_model_of_the_field_s_catalogue_is_here() -> None:
    assert not [row["model_id"] for row in surveyed() if row["model_id"] not in SPECS]


@pytest.mark.parametrize("row", surveyed(), ids=lambda row: row["model_id"])
def test_a_model_of_the_field_s_catalogue_has_its_revision_and_dimensions(row: Mapping[str, str]) -> None:
    spec = SPECS[row["model_id"]]
    assert spec.revision == (row["hf_revision_if_any"] or spec.revision)
    given = dict(pair.split(":") for pair in row["dims"].split("|") if ":" in pair)
    assert dims(spec) == {name: int(size) for name, size in given.items()}
    assert not row["max_seq"] or spec.max_sequence_length == int(row["max_seq"])
    assert {name for name in row["modalities"].split("|") if name in OURS} <= set(spec.inputs)
