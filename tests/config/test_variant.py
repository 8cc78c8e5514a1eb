"""Which changes of a spec make another model in memory, and which do not."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from sie_config.model.model_spec import Lora, ModelSpec, Parity, Profile
from sie_config.model.sources import LocalSource
from sie_config.model.tasks import Dense, Extract, Multivector, Score, Sparse, Tasks
from sie_config.model.variant import LATER, loras, name_of, variant

LORA = Lora((LocalSource("adapter"),))
SPEC = ModelSpec(
    id="org/model",
    family="bert",
    tasks=Tasks(
        dense=Dense(dim=8), multivector=Multivector(dim=8), score=Score(kind="maxsim"), extract=Extract("entities")
    ),
    sources=(LocalSource("model"),),
    revision="1",
    max_sequence_length=16,
    profiles={"law": Profile(lora=LORA), "plain": Profile({"normalize": False})},
)
STAYS: dict[str, Any] = {
    "owner": "team",
    "licence": "mit",
    "pool": "other",
    "machine_profiles": ("l4",),
    "bytes": 7,
    "parameters": 7,
    "profiles": {},
    "default_profile": "plain",
    "parity": (Parity("transformers", "random", "tests"),),
    "bundle": "other",
    "status": "planned",
    "blocked_by": "something",
    "inputs": ("text", "image"),
    "options": {"normalize": False},
}
CHANGES: dict[str, Any] = {
    "revision": "2",
    "family": "roberta",
    "sources": (LocalSource("another"),),
    "files": ("1_Dense/model.safetensors",),
    "precision": "float32",
    "max_sequence_length": 32,
    "tokenizer": (LocalSource("another"),),
    "truncation_side": "left",
    "tasks": Tasks(dense=Dense(dim=8)),
}


def test_every_field_is_one_or_the_other() -> None:
    assert sorted([*STAYS, *CHANGES, "id"]) == sorted(ModelSpec.__struct_fields__)


@pytest.mark.parametrize("field", STAYS)
def test_a_field_that_loading_does_not_read_makes_no_other_model(field: str) -> None:
    assert variant(msgspec.structs.replace(SPEC, **{field: STAYS[field]})) == variant(SPEC)


@pytest.mark.parametrize("field", CHANGES)
def test_a_field_that_loading_reads_makes_another_model(field: str) -> None:
    assert variant(msgspec.structs.replace(SPEC, **{field: CHANGES[field]})) != variant(SPEC)


def test_what_is_read_with_each_request_makes_no_other_model() -> None:
    prompts = Dense(dim=8, query_prompt="q: ", document_template="{text}", instruction="find", dims=(4,))
    tasks = Tasks(
        dense=prompts,
        multivector=Multivector(dim=8, query_marker="[Q]", document_length=9, skip_first=True),
        score=Score(kind="maxsim", activation="sigmoid"),
        extract=Extract("entities", aggregation="max", overlap=5),
    )
    assert variant(msgspec.structs.replace(SPEC, tasks=tasks)) == variant(SPEC)


def test_every_task_says_what_of_it_is_read_later() -> None:
    assert tuple(LATER) == Tasks.__struct_fields__
    for task, fields in LATER.items():
        kind = {"dense": Dense, "multivector": Multivector, "score": Score, "extract": Extract}.get(task, Sparse)
        assert set(fields) < set(kind.__struct_fields__)


def test_a_lora_makes_another_model_and_so_does_its_change() -> None:
    law = variant(SPEC, "law")
    assert law != variant(SPEC) and law.chosen.lora == LORA
    assert (name_of(law), name_of(variant(SPEC)), name_of(SPEC)) == ("org/model:law", "org/model", "org/model")
    assert loras(SPEC) == ["law"]
    profiles = {"law": Profile({"is_query": True}, LORA)}
    assert variant(msgspec.structs.replace(SPEC, profiles=profiles), "law") == law
    stronger = {"law": Profile(lora=msgspec.structs.replace(LORA, scale=2.0))}
    assert variant(msgspec.structs.replace(SPEC, profiles=stronger), "law") != law
