"""Proposals for the real checkpoints of the golden tests equal the specs that those tests write by hand."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Final

import pytest
import yaml

from sie_config import catalog
from sie_config.model import model_spec
from sie_config.model.model_spec import ModelSpec
from sie_config.model.sources import LocalSource
from sie_config.model.tasks import Dense, Extract, Multivector, Score, Tasks
from sie_config.propose import local, spec, written
from tests.golden.checkpoint_table import CHECKPOINTS
from tests.golden.checkpoints import checkpoint

pytestmark = pytest.mark.weights

TASKS: Final[Mapping[str, Tasks]] = {
    "minilm": Tasks(dense=Dense(dim=384, pooling="mean")),
    "mpnet": Tasks(dense=Dense(dim=768, pooling="mean")),
    "gte-small": Tasks(dense=Dense(dim=384, pooling="mean")),
    "e5-small": Tasks(dense=Dense(dim=384, pooling="mean")),
    "bge-small": Tasks(dense=Dense(dim=384, pooling="cls")),
    "msmarco-reranker": Tasks(score=Score()),
    "two-logit-reranker": Tasks(extract=Extract("classes")),  # labels that say no more than yes and no
    "answerai-colbert": Tasks(
        multivector=Multivector(
            dim=96, query_marker="[unused0]", document_marker="[unused1]", query_length=32, skip_punctuation=True
        ),
        score=Score(kind="maxsim"),
    ),
    "bert-ner": Tasks(extract=Extract("entities")),
    "tinybert-ner": Tasks(extract=Extract("entities")),
    "grammar-tagger": Tasks(extract=Extract("entities")),
    "prompt-guard": Tasks(extract=Extract("classes")),
    "question-classifier": Tasks(extract=Extract("classes")),
    "injection-classifier": Tasks(
        extract=Extract("classes", head="2_Dense.linear relu 3_Dense.linear", pooling="mean")
    ),
}


def proposed(folder: Path) -> ModelSpec:
    read = local.read(folder)
    made = spec(read, id="acme/model", revision="r1", sources=(LocalSource(path=str(folder)),))
    again = model_spec.parse(yaml.safe_load(written.document(made, str(folder))), origin="written")
    assert again == made.spec
    return again


@pytest.mark.parametrize("key", CHECKPOINTS)
def test_the_proposal_is_what_the_golden_tests_write_by_hand(key: str) -> None:
    record = CHECKPOINTS[key]
    found = proposed(checkpoint(key))
    assert found.tasks == TASKS[key]
    assert found.max_sequence_length == record.max_length
    kinds = {"mpnet": "mpnet", "prompt-guard": "deberta-v2", "grammar-tagger": "distilbert"}
    assert (found.family, found.status) == (kinds.get(key, "bert"), "ready")
    further = [name for name in record.documents if name.endswith("_Dense/config.json")]
    assert list(found.files) == [name.replace("config.json", "model.safetensors") for name in further]


def test_the_default_models_folder_gives_the_catalogues_spec() -> None:
    found, known = proposed(checkpoint("minilm")), catalog.load()["sentence-transformers/all-MiniLM-L6-v2"]
    assert (found.tasks, found.family, found.max_sequence_length) == (
        known.tasks,
        known.family,
        known.max_sequence_length,
    )
    assert found.parameters == known.parameters


def test_the_version_of_a_folder_is_the_digest_of_what_is_computed(tmp_path: Path) -> None:
    for name in ("config.json", "tokenizer.json", "model.safetensors"):
        (tmp_path / name).write_bytes((checkpoint("question-classifier") / name).read_bytes())
    before = local.revision(tmp_path, local.read(tmp_path))
    (tmp_path / "README.md").write_text("words")
    assert local.revision(tmp_path, local.read(tmp_path)) == before
    content = bytearray((tmp_path / "model.safetensors").read_bytes())
    content[-1] ^= 1
    (tmp_path / "model.safetensors").write_bytes(content)
    assert local.revision(tmp_path, local.read(tmp_path)) != before
