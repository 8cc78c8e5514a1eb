"""A folder of specs with a model for every task: real weights where a package has them, small random ones else.

Owns what is served to the integrations; the models themselves are those of ``tests/golden``.
"""

from __future__ import annotations

import shutil
from pathlib import Path

import msgspec
import yaml

from sie_config import catalog
from sie_config.model.model_spec import ModelSpec
from sie_config.model.sources import LocalSource
from sie_config.model.tasks import Dense, Extract, Tasks
from tests.bundle.test_families import tasks_of
from tests.golden import random_models
from tests.golden.checkpoints import checkpoint

DENSE = "sentence-transformers/all-MiniLM-L6-v2"
RERANKER = "cross-encoder/ms-marco-MiniLM-L-12-v2"
TAGGER = "dslim/bert-base-NER"
RANDOM = "test/m3"
"""Dense with a query prompt and shorter lengths, sparse and multivector, of random weights."""


def make(folder: Path) -> Path:
    """Write the specs and link or make the weights beside them; returns ``folder``, for ``sie serve --models``."""
    (folder / RERANKER).parent.mkdir(parents=True)
    (folder / RERANKER).symlink_to(checkpoint("msmarco-reranker"))
    random_models.make("bge-m3", folder / "m3")
    dense = Dense(dim=32, pooling="cls", dims=(8, 16), query_prompt="query ")
    made = [
        _spec(TAGGER, "bert", checkpoint("bert-ner"), Tasks(extract=Extract("entities")), 512),
        _spec(
            RANDOM,
            "xlm-roberta",
            folder / "m3",
            msgspec.structs.replace(tasks_of("bge-m3"), dense=dense),
            40,
            files=("sparse_linear.pt", "colbert_linear.pt"),
        ),
    ]
    for spec in made:
        document = {name: value for name, value in msgspec.to_builtins(spec).items() if value is not None}
        document["tasks"] = {name: task for name, task in document["tasks"].items() if task is not None}
        (folder / f"{spec.id.replace('/', '__')}.yaml").write_text(yaml.safe_dump(document))
    for model in (DENSE, RERANKER):
        shutil.copy(catalog.PACKAGED / f"{model.replace('/', '__')}.yaml", folder)
    return folder


def _spec(model: str, family: str, weights: Path, tasks: Tasks, longest: int, files: tuple[str, ...] = ()) -> ModelSpec:
    source = (LocalSource(path=str(weights)),)
    return ModelSpec(model, family, tasks, source, max_sequence_length=longest, revision="test", files=files)
