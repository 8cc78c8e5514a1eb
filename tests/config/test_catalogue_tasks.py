"""The packaged catalogue's models that score, extract, or encode to sparse or token vectors: rules of their tasks.

What holds for every entry is in ``test_catalogue``; that the ready ones compute, in ``bundle/test_catalogue_entries``.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from sie_config import catalog
from sie_config.deployment import bundle_spec, placement
from sie_config.model import runtime_options
from sie_config.model.model_spec import ModelSpec
from sie_config.model.sources import HubSource, LocalSource
from sie_config.model.tasks import Score
from tests.golden.checkpoint_table import CHECKPOINTS

ROOT = Path(__file__).parents[2]
SPECS = [spec for spec in catalog.load().values() if spec.tasks.dense is None]
READY = [spec for spec in SPECS if spec.status == "ready"]
WITH_CHECKPOINT = {record.model for record in CHECKPOINTS.values()}
LAPTOP = placement.deployment("cpu")
BUNDLES = {bundle.id: bundle for bundle in bundle_spec.load()}


def each(specs: list[ModelSpec]) -> list[Any]:
    return [pytest.param(spec, id=spec.id) for spec in specs]


def scoring(kind: str) -> list[ModelSpec]:
    return [spec for spec in SPECS if spec.tasks.score and spec.tasks.score.kind == kind]


def extracting(kind: str) -> list[ModelSpec]:
    return [spec for spec in SPECS if spec.tasks.extract and spec.tasks.extract.kind == kind]


@pytest.mark.parametrize("spec", each(SPECS))
def test_weights_come_from_a_folder_of_its_name_and_then_from_the_hub_at_its_commit(spec: ModelSpec) -> None:
    local, hub = spec.sources
    assert local == LocalSource(path=spec.id)
    assert isinstance(hub, HubSource) and hub.revision == spec.revision


@pytest.mark.parametrize("spec", each(READY))
def test_a_ready_model_is_of_a_family_of_its_bundle_and_says_what_it_was_compared_with(spec: ModelSpec) -> None:
    bundle = BUNDLES[placement.place(spec, LAPTOP).bundle]
    assert spec.family in bundle.families and bundle.status == "ready"
    assert spec.parity and all((ROOT / own.test).is_file() for own in spec.parity)


@pytest.mark.parametrize("spec", each([spec for spec in SPECS if spec.id in WITH_CHECKPOINT]))
def test_a_model_with_a_golden_checkpoint_names_its_golden_test(spec: ModelSpec) -> None:
    assert any(own.test.startswith("tests/golden/") for own in spec.parity)


def test_some_models_of_each_task_have_a_golden_checkpoint() -> None:
    checked = [spec for spec in SPECS if spec.id in WITH_CHECKPOINT]
    for task in ("score", "extract"):
        assert [spec for spec in checked if getattr(spec.tasks, task) is not None]


@pytest.mark.parametrize("spec", each([spec for spec in SPECS if spec.bundle == "gliner"]))
def test_gliner_serves_what_its_libraries_know(spec: ModelSpec) -> None:
    assert spec.tasks.extract and spec.family in BUNDLES["gliner"].families
    assert spec.tasks.extract.kind in BUNDLES["gliner"].tasks


@pytest.mark.parametrize("family", BUNDLES["gliner"].families)
def test_every_family_of_gliners_bundle_has_a_model_there(family: str) -> None:
    assert [spec for spec in SPECS if spec.family == family and spec.bundle == "gliner"]


# -- score -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["cross_encoder", "yes_no", "maxsim"])
def test_every_way_to_score_has_a_ready_model(kind: str) -> None:
    assert [spec for spec in scoring(kind) if spec.status == "ready"]


@pytest.mark.parametrize("spec", each(scoring("yes_no")))
def test_a_prompt_has_a_place_for_query_and_document_and_one_for_its_instruction(spec: ModelSpec) -> None:
    task = spec.tasks.score
    assert task is not None
    assert [task.template.count(place) for place in ("{query}", "{document}")] == [1, 1]
    assert bool(task.instruction) <= task.template.count("{instruction}") <= 1
    assert not any("{" in part for part in (task.prefix, task.suffix))
    assert task.yes != task.no


@pytest.mark.parametrize("spec", each([spec for spec in scoring("yes_no") if spec.status == "ready"]))
def test_a_ready_judge_is_asked_in_the_words_of_its_chat(spec: ModelSpec) -> None:
    task = spec.tasks.score
    assert task is not None
    turns = task.prefix + task.template + task.suffix
    assert turns.count("<|im_start|>") == turns.count("<|im_end|>") + 1 == 3
    assert "<|im_start|>assistant\n" in task.suffix


def test_prompts_of_other_kinds_of_score_are_left_alone() -> None:
    for spec in [*scoring("cross_encoder"), *scoring("maxsim")]:
        assert spec.tasks.score in (Score("cross_encoder"), Score("maxsim"))


# -- late interaction --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("spec", each([spec for spec in SPECS if spec.tasks.multivector]))
def test_token_vectors_of_texts_are_compared_by_maxsim_and_marked_on_both_sides(spec: ModelSpec) -> None:
    task = spec.tasks.multivector
    assert task is not None and task.dim > 1
    assert bool(task.query_marker) == bool(task.document_marker)
    assert task.query_marker != task.document_marker or not task.query_marker
    assert 0 <= task.query_length <= spec.max_sequence_length
    if spec.inputs == ("text",):
        assert spec.tasks.score == Score("maxsim") and task.query_marker


@pytest.mark.parametrize("spec", each([spec for spec in READY if spec.tasks.multivector]))
def test_a_projection_in_a_folder_of_its_own_is_among_the_files(spec: ModelSpec) -> None:
    assert spec.tasks.multivector is not None
    folder, _, layer = spec.tasks.multivector.projection.rpartition(".")
    assert layer == "linear"
    assert spec.files == ((f"{folder}/model.safetensors",) if folder else ())


# -- sparse ------------------------------------------------------------------------------------------------------------


def test_sparse_models_weigh_a_vocabulary_and_some_are_ready() -> None:
    sparse = [spec for spec in SPECS if spec.tasks.sparse]
    assert {spec.family for spec in sparse if spec.status == "ready"} >= {"bert", "distilbert", "roberta"}
    for spec in sparse:
        assert spec.tasks.sparse and spec.tasks.sparse.kind == "splade" and spec.tasks.sparse.dim >= 30_522


# -- extract -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", runtime_options.EXTRACT)
def test_every_kind_of_extraction_that_is_computed_has_a_ready_model(kind: str) -> None:
    assert [spec for spec in extracting(kind) if spec.status == "ready"]


@pytest.mark.parametrize("kind", ["zero_shot", "relations", "objects", "document"])
def test_every_other_kind_is_planned(kind: str) -> None:
    assert {spec.status for spec in extracting(kind)} == {"planned"}


@pytest.mark.parametrize("spec", each(extracting("entailment")))
def test_a_hypothesis_is_a_sentence_with_one_place(spec: ModelSpec) -> None:
    assert spec.tasks.extract is not None
    assert spec.tasks.extract.hypothesis.count("{}") == 1 and spec.tasks.extract.hypothesis.endswith(".")


@pytest.mark.parametrize("spec", each(extracting("entities")))
def test_labels_of_tokens_are_of_a_scheme(spec: ModelSpec) -> None:
    assert spec.tasks.extract is not None
    names = spec.tasks.extract.labels
    assert all(name == "O" or name[:2] in ("B-", "I-") for name in names) and len(set(names)) == len(names)


@pytest.mark.parametrize("spec", each([spec for spec in SPECS if "image" in spec.inputs]))
def test_images_wait_for_something_that_is_named(spec: ModelSpec) -> None:
    assert spec.status == "planned" and spec.blocked_by
