"""The JSON schema in the documents is the one of this build, and says of every spec what the validation says."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given
from jsonschema import Draft202012Validator

from sie_config import catalog
from sie_config.model import model_spec, schema, validation
from sie_config.model.model_spec import ModelSpec
from tests.config.spec_reference import MARK, PAGE, examples, reference
from tests.config.specs import specs
from tests.config.test_validation import WRITTEN, changed

FILE = Path(__file__).parents[2] / "docs" / "schemas" / "model-spec.json"
SCHEMA = Draft202012Validator(json.loads(FILE.read_text()))
PACKAGED = sorted(catalog.PACKAGED.glob("*.yaml"))


def test_the_file_is_what_the_command_writes() -> None:
    written = subprocess.run(
        [sys.executable, "-m", "sie_config.model.schema"], capture_output=True, text=True, check=True
    )
    assert written.stdout == FILE.read_text(), "python -m sie_config.model.schema > docs/schemas/model-spec.json"
    assert json.loads(written.stdout) == schema.document()
    Draft202012Validator.check_schema(schema.document())


@pytest.mark.parametrize("path", PACKAGED, ids=lambda path: path.stem)
def test_every_packaged_spec_is_valid_by_it(path: Path) -> None:
    assert list(SCHEMA.iter_errors(yaml.load(path.read_text(), Loader=yaml.CSafeLoader))) == []


@given(specs())
def test_every_valid_spec_is_valid_by_it(spec: ModelSpec) -> None:
    assert list(SCHEMA.iter_errors(model_spec.document(spec))) == []


@pytest.mark.parametrize(
    ("path", "value"),
    [
        ("id", "org/a__b"),
        ("id", "org/model/status"),
        ("max_sequence_length", ...),
        ("status", "planned"),
        ("colour", "red"),
        ("tasks.dense.dim", 0),
        ("sources.0.kind", "hubb"),
        ("sources.1.revision", "main"),
        ("profiles.fast.options.speed", 1),
        ("profiles.fast.options.threshold", 2),
        ("profiles.fast.options.muvera.seed", -1),
        ("profiles.Fast One", {}),
        ("options", ["top_kk"]),
    ],
)
def test_what_is_wrong_is_wrong_by_it_too(path: str, value: Any) -> None:
    document = changed(path, value)
    assert not SCHEMA.is_valid(document)
    assert validation.faults(document)
    assert SCHEMA.is_valid(WRITTEN)


def test_the_page_has_every_field_as_it_is_and_its_examples_are_valid() -> None:
    written = PAGE.read_text().partition(MARK)[2]
    assert written == "\n" + reference(), "python -m tests.config.spec_reference"
    for document in examples():
        assert validation.faults(document) == []
        assert list(SCHEMA.iter_errors(document)) == []


def test_the_faults_on_the_page_are_what_one_gets() -> None:
    document = changed("tasks.dense.dim", 0, changed("tasks.dense.poling", "cls"))
    document = changed("sources.0", {"kind": "hub", "repo": "a/b", "revision": "main"}, document)
    document = changed("profiles.fast.options.top_k", 0, document)
    told = "\n".join(map(str, validation.faults(document)))
    assert f"```\n{told}\n```" in PAGE.read_text()


def test_every_field_says_what_it_is() -> None:
    for name, record in schema.records().items():
        assert schema.notes(record).keys() == set(record.__struct_fields__), name
