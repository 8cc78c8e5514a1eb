"""A folder of specs with a tiny model of random weights for every task, for ``sie serve --models``."""

from __future__ import annotations

from pathlib import Path

import msgspec
import yaml

from sie_config.model.model_spec import ModelSpec
from sie_config.model.sources import LocalSource
from sie_config.model.tasks import Extract, Score, Tasks
from tests.bundle.test_families import tasks_of
from tests.golden import gliner_folder, random_models

_EXTRA = {"bge-m3": ("sparse_linear.pt", "colbert_linear.pt")}


def make(folder: Path) -> Path:
    """Write models and specs; returns ``folder``."""
    for kind, family, tasks in (
        ("bge-m3", "xlm-roberta", tasks_of("bge-m3")),
        ("bert-reranker", "bert", Tasks(score=Score())),
        ("bert-ner", "bert", Tasks(extract=Extract("entities"))),
        ("bert-nli", "bert", Tasks(extract=Extract("classes"))),
    ):
        random_models.make(kind, folder / kind)
        spec = ModelSpec(
            id=f"test/{kind}",
            family=family,
            tasks=tasks,
            sources=(LocalSource(path=kind),),
            max_sequence_length=40,
            revision="0",
            files=_EXTRA.get(kind, ()),
        )
        _write(spec, folder)
    for kind in gliner_folder.KINDS:
        gliner_folder.make(kind, folder / f"gliner-{kind}")
        _write(
            ModelSpec(
                id=f"test/gliner-{kind}",
                family="gliner",
                tasks=Tasks(extract=Extract("spans")),
                sources=(LocalSource(path=f"gliner-{kind}"),),
                max_sequence_length=200,
                revision="0",
            ),
            folder,
        )
    return folder


def _write(spec: ModelSpec, folder: Path) -> None:
    written = yaml.safe_dump(_without_nulls(msgspec.to_builtins(spec)))
    (folder / f"{spec.id.removeprefix('test/')}.yaml").write_text(written)


def _without_nulls(value: object) -> object:
    if isinstance(value, dict):
        return {name: _without_nulls(each) for name, each in value.items() if each is not None}
    return value
