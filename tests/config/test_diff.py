"""What differs between two specs: every path once, and enough to make one of the other."""

from __future__ import annotations

import copy
import re
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sie_config import catalog
from sie_config.model import diff, model_spec
from sie_config.model.diff import FieldChange

SPEC = next(iter(catalog.load().values()))
WRITTEN = model_spec.document(SPEC)
LEAVES = st.booleans() | st.integers(-2, 2) | st.sampled_from(["", "a", "b"])
VALUES = st.recursive(
    LEAVES,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from("xyz"), inner, max_size=3),
    max_leaves=8,
)
DOCUMENTS = st.dictionaries(st.sampled_from("abcd"), VALUES, max_size=4)


def changed(document: dict[str, Any], changes: list[FieldChange]) -> dict[str, Any]:
    """The document with the changes made: what a reader of them would do."""
    made: Any = copy.deepcopy(document)
    for change in changes:
        *way, last = [int(number) if number else name for number, name in re.findall(r"\[(\d+)\]|(\w+)", change.path)]
        at = made
        for step in way:
            at = at[step]
        assert change.before == (at.get(last) if isinstance(at, dict) else at[last])
        at[last] = change.after
        if change.after is None:
            del at[last]
    assert isinstance(made, dict)
    return made


def written(document: dict[str, Any]) -> bytes:
    """As JSON, in which true is not 1."""
    return msgspec.json.encode(document, order="deterministic")


@given(DOCUMENTS, DOCUMENTS)
def test_the_changes_made_to_the_one_document_are_the_other(before: dict[str, Any], after: dict[str, Any]) -> None:
    changes = diff.fields(before, after)
    assert written(changed(before, changes)) == written(after)
    assert bool(changes) == (written(before) != written(after))
    assert len({change.path for change in changes}) == len(changes)


@given(DOCUMENTS)
def test_a_document_differs_in_nothing_from_itself_and_in_all_from_none(document: dict[str, Any]) -> None:
    assert diff.fields(document, copy.deepcopy(document)) == []
    assert diff.fields(None, document) == [FieldChange(name, None, value) for name, value in document.items()]
    assert diff.fields(document, None) == [FieldChange(name, value, None) for name, value in document.items()]


def test_a_change_is_named_by_its_path() -> None:
    after = copy.deepcopy(WRITTEN)
    after["tasks"]["dense"]["dim"] = 7
    after["sources"][1]["revision"] = "0" * 40
    after["profiles"] = {"v1.5": {"options": {"normalize": False}}}
    assert [change.path for change in diff.fields(WRITTEN, after)] == [
        "tasks.dense.dim",
        "sources[1].revision",
        "profiles",
    ]
    profiled = after | {"profiles": {"v1.5": {"options": {"normalize": True}}}}
    assert diff.fields(after, profiled) == [FieldChange('profiles["v1.5"].options.normalize', False, True)]


def test_a_list_is_one_value_unless_the_other_is_as_long() -> None:
    assert diff.fields({"dims": [1, 2]}, {"dims": [1, 3]}) == [FieldChange("dims[1]", 2, 3)]
    assert diff.fields({"dims": [1, 2]}, {"dims": [1]}) == [FieldChange("dims", [1, 2], [1])]


@pytest.mark.parametrize(("before", "after"), [(1, True), (0, False), (1, 1.0)])
def test_a_truth_value_is_no_number(before: Any, after: Any) -> None:
    assert diff.fields({"a": before}, {"a": after}) == [FieldChange("a", before, after)]


def test_a_plan_says_what_comes_goes_and_becomes_another() -> None:
    before = {"id": "org/model", "licence": "mit", "max_sequence_length": 256}
    after = {"id": "org/model", "max_sequence_length": 512, "owner": "search"}
    assert diff.plan_lines("org/model", diff.fields(before, after)) == [
        "~ org/model",
        '    - licence: "mit"',
        "    ~ max_sequence_length: 256 -> 512",
        '    + owner: "search"',
    ]
    assert diff.plan_lines("org/new", diff.fields(None, {"id": "org/new"}), "added")[0] == "+ org/new"
    assert diff.plan_lines("org/old", [], "deleted") == ["- org/old"]
