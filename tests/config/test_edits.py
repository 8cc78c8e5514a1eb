"""What people may ask of the catalogue: what each edit wants, and what it refuses; on a state, without a broker."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sie_config.api import edits, preconditions
from sie_config.api.edits import Wanted
from sie_config.api.preconditions import Precondition
from sie_config.epochs.state import State
from sie_config.epochs.store import Change, Event
from sie_config.epochs.writer import Edit
from sie_config.model import model_spec
from sie_config.model.model_spec import ModelSpec, Profile
from sie_sdk.errors import (
    ContentConflictError,
    InvalidInputError,
    InvalidSpecError,
    ModelNotFoundError,
    OwnedElsewhereError,
    PreconditionFailedError,
)
from tests.ingress.conftest import EVERYTHING, SPEC, TAGGER

DOCUMENT = model_spec.document(SPEC)
LIGHT = {"options": {"output_dtype": "int8"}}


def made(state: State, edit: Edit) -> tuple[Change, ...]:
    """Do the edit; what it changed."""
    changes = state.changes(edit(state))
    if changes:
        state.apply(Event(state.epoch + 1, 0.0, "", "put", changes))
    return changes


def catalogue(*baseline: ModelSpec) -> State:
    return State.of(baseline)


def spec_of(state: State, model: str) -> ModelSpec | None:
    stored = state.get(model)
    return None if stored is None else stored.spec


def changed(spec: ModelSpec, **fields: Any) -> dict[str, Any]:
    return model_spec.document(msgspec.structs.replace(spec, **fields))


# -- append ------------------------------------------------------------------------------------------------------------


def test_append_adds_a_model_and_again_changes_nothing() -> None:
    state = catalogue()
    assert [change.model for change in made(state, edits.append(DOCUMENT))] == [SPEC.id]
    assert spec_of(state, SPEC.id) == SPEC
    assert made(state, edits.append(DOCUMENT)) == ()
    assert made(state, edits.append({"id": SPEC.id})) == ()


def test_append_adds_profiles_to_a_model_of_which_only_the_id_is_said() -> None:
    state = catalogue(SPEC)
    made(state, edits.append({"id": SPEC.id, "profiles": {"light": LIGHT}}))
    made(state, edits.append({**DOCUMENT, "profiles": {"light": LIGHT, "v1.5": {}}}))
    assert spec_of(state, SPEC.id) == msgspec.structs.replace(
        SPEC, profiles={"light": Profile({"output_dtype": "int8"}), "v1.5": Profile()}
    )


@pytest.mark.parametrize(
    ("fields", "paths"),
    [
        ({"revision": "2", "owner": "me"}, ["revision", "owner"]),
        ({"tasks": {"dense": {"dim": 3}}}, ["tasks.dense.dim"]),
        ({"profiles": {"light": {}, "new": {}}}, ["profiles.light.options"]),
        ({"profiles": {"new": {}}, "default_profile": "new"}, ["default_profile"]),
        ({"id": SPEC.id.upper()}, ["id"]),
    ],
    ids=lambda value: str(value)[:30],
)
def test_append_lists_what_it_would_change_and_changes_nothing(fields: dict[str, Any], paths: list[str]) -> None:
    state = catalogue(msgspec.structs.replace(SPEC, profiles={"light": Profile({"output_dtype": "int8"})}))
    with pytest.raises(ContentConflictError) as refused:
        made(state, edits.append({"id": SPEC.id, **fields}))
    assert refused.value.details["conflicts"] == paths
    assert refused.value.field == paths[0]


def test_append_of_a_model_that_was_deleted_is_a_new_one() -> None:
    state = catalogue(SPEC)
    made(state, edits.delete(SPEC.id))
    other = changed(SPEC, revision="2")
    made(state, edits.append(other))
    assert spec_of(state, SPEC.id) == model_spec.parse(other, origin="test")


# -- put and patch -----------------------------------------------------------------------------------------------------


def test_put_replaces_whatever_was_there_and_needs_no_id_in_its_spec() -> None:
    state = catalogue(EVERYTHING)
    without_id = {name: value for name, value in DOCUMENT.items() if name != "id"}
    made(state, edits.put(EVERYTHING.id, without_id))
    assert spec_of(state, EVERYTHING.id) == msgspec.structs.replace(SPEC, id=EVERYTHING.id)
    assert made(state, edits.put(EVERYTHING.id.upper(), {**DOCUMENT, "id": EVERYTHING.id})) == ()


def test_put_of_another_model_s_spec_is_refused() -> None:
    with pytest.raises(InvalidInputError, match="path says org/other"):
        edits.put("org/other", DOCUMENT)(catalogue())


@pytest.mark.parametrize("model", ["org/a__b", "org/..", "org//a", "org/a/", "org/a/status", "../a", "/a", "-a", ""])
def test_an_id_that_a_path_or_a_file_could_not_hold_is_refused(model: str) -> None:
    with pytest.raises(InvalidSpecError) as refused:
        edits.put(model, {**DOCUMENT, "id": model})(catalogue())
    assert "id" in str(refused.value.details["faults"])


def test_a_patch_changes_what_it_names_and_null_takes_away() -> None:
    state = catalogue(msgspec.structs.replace(SPEC, licence="mit", parameters=5))
    made(state, edits.patch(SPEC.id, {"licence": None, "tasks": {"dense": {"normalize": False}}}))
    after = spec_of(state, SPEC.id)
    assert after is not None and after.tasks.dense is not None
    assert (after.licence, after.parameters, after.tasks.dense.dim, after.tasks.dense.normalize) == (
        "unknown",
        5,
        2,
        False,
    )
    assert made(state, edits.patch(SPEC.id, {})) == ()


@pytest.mark.parametrize("patch", [{"id": "org/other"}, {"id": None}, {"tasks": None}, {"nothing": 1}])
def test_a_patch_that_leaves_no_spec_of_that_name_is_refused(patch: dict[str, Any]) -> None:
    state = catalogue(SPEC)
    with pytest.raises(InvalidInputError):
        made(state, edits.patch(SPEC.id, patch))
    assert state.epoch == 0


def test_a_patch_of_no_model_names_the_nearest() -> None:
    with pytest.raises(ModelNotFoundError) as refused:
        edits.patch("org/counting-mode", {})(catalogue(SPEC))
    assert refused.value.details["nearest"] == [SPEC.id]


JSON = st.recursive(
    st.none() | st.integers() | st.text(max_size=3),
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(st.sampled_from("abc"), inner, max_size=3),
)


@pytest.mark.parametrize(
    ("target", "patch", "result"),
    [  # the examples of RFC 7396, appendix A
        ({"a": "b"}, {"a": "c"}, {"a": "c"}),
        ({"a": "b"}, {"b": "c"}, {"a": "b", "b": "c"}),
        ({"a": "b"}, {"a": None}, {}),
        ({"a": "b", "b": "c"}, {"a": None}, {"b": "c"}),
        ({"a": ["b"]}, {"a": "c"}, {"a": "c"}),
        ({"a": "c"}, {"a": ["b"]}, {"a": ["b"]}),
        ({"a": {"b": "c"}}, {"a": {"b": "d", "c": None}}, {"a": {"b": "d"}}),
        ({"a": [{"b": "c"}]}, {"a": [1]}, {"a": [1]}),
        (["a", "b"], ["c", "d"], ["c", "d"]),
        ({"a": "b"}, ["c"], ["c"]),
        ({"a": "foo"}, None, None),
        ({"a": "foo"}, "bar", "bar"),
        ({"e": None}, {"a": 1}, {"e": None, "a": 1}),
        ([1, 2], {"a": "b", "c": None}, {"a": "b"}),
        ({}, {"a": {"bb": {"ccc": None}}}, {"a": {"bb": {}}}),
    ],
)
def test_a_merge_patch_is_that_of_the_rfc(target: Any, patch: Any, result: Any) -> None:
    assert edits.merged(target, patch) == result


@given(JSON, JSON)
def test_a_merge_patch_twice_is_as_once_and_leaves_what_it_was_given(target: Any, patch: Any) -> None:
    before = msgspec.json.encode([target, patch])
    once = edits.merged(target, patch)
    assert edits.merged(once, patch) == once
    assert msgspec.json.encode([target, patch]) == before


# -- delete ------------------------------------------------------------------------------------------------------------


def test_delete_of_what_was_written_over_the_baseline_reveals_it_and_again_leaves_a_tombstone() -> None:
    state = catalogue(SPEC)
    made(state, edits.put(SPEC.id, changed(SPEC, revision="2")))
    made(state, edits.delete(SPEC.id))
    assert spec_of(state, SPEC.id) == SPEC
    made(state, edits.delete(SPEC.id.upper()))
    assert (stored := state.get(SPEC.id)) is not None and stored.spec is None
    assert made(state, edits.delete(SPEC.id)) == ()
    assert state.seed() == {}  # the next start does not bring it back


def test_delete_of_what_never_was_is_not_found() -> None:
    state = catalogue()
    made(state, edits.put(SPEC.id, DOCUMENT))
    made(state, edits.delete(SPEC.id))
    assert state.get(SPEC.id) is None
    with pytest.raises(ModelNotFoundError):
        made(state, edits.delete(SPEC.id))


# -- apply -------------------------------------------------------------------------------------------------------------


def wanted(*models: Mapping[str, Any], **fields: Any) -> Edit:
    return edits.apply(Wanted(models, **fields))


def test_apply_marks_its_models_and_prunes_only_its_own() -> None:
    state = catalogue(TAGGER)
    made(state, wanted(DOCUMENT, changed(EVERYTHING), owner="a"))
    made(state, wanted(changed(SPEC, id="org/b"), owner="b"))
    changes = made(state, wanted(changed(SPEC, id="org/b2"), owner="b", prune=True))
    assert [(change.model, change.after is not None) for change in changes] == [("org/b", False), ("org/b2", True)]
    made(state, wanted(DOCUMENT, owner="a", prune=True))
    assert {spec.id: spec.owner for spec in state.specs()} == {SPEC.id: "a", "org/b2": "b", TAGGER.id: ""}
    assert made(state, wanted(DOCUMENT, owner="a", prune=True)) == ()


def test_prune_of_a_model_that_was_written_over_the_baseline_reveals_it() -> None:
    state = catalogue(SPEC)
    made(state, wanted(DOCUMENT, owner="a"))
    made(state, wanted(owner="a", prune=True))
    assert state.specs() == [SPEC]


def test_what_another_owner_applied_is_refused_whole_unless_adopted() -> None:
    state = catalogue()
    made(state, wanted(DOCUMENT, owner="a"))
    for owner in ("b", ""):
        with pytest.raises(OwnedElsewhereError) as refused:
            made(state, wanted(changed(EVERYTHING), DOCUMENT, owner=owner))
        assert refused.value.details["owned"] == {SPEC.id: "a"}
    assert state.epoch == 1
    made(state, wanted(changed(EVERYTHING), DOCUMENT, owner="b", adopt=True))
    assert {spec.owner for spec in state.specs()} == {"b"}


def test_apply_lists_the_faults_of_all_models_each_with_its_place() -> None:
    with pytest.raises(InvalidSpecError) as refused:
        wanted(DOCUMENT, {"id": "org/x"}, {**DOCUMENT, "owner": "b", "pool": 3}, DOCUMENT, owner="a", prune=True)
    paths = {fault["path"] for fault in refused.value.details["faults"]}
    assert {"models[1].tasks", "models[1].family", "models[2].owner", "models[2].pool", "models"} <= paths


def test_apply_of_a_model_twice_and_prune_without_an_owner_are_refused() -> None:
    with pytest.raises(InvalidSpecError, match="2 times"):
        wanted(DOCUMENT, {**DOCUMENT, "id": SPEC.id.upper()})
    with pytest.raises(InvalidSpecError, match="owner"):
        wanted(prune=True)


# -- rollback ----------------------------------------------------------------------------------------------------------


def test_rollback_makes_the_catalogue_what_it_was() -> None:
    state = catalogue(SPEC, TAGGER)
    made(state, edits.put(EVERYTHING.id, changed(EVERYTHING)))
    then, digest = dict(state.stored), {spec.id: spec for spec in state.specs()}
    made(state, edits.delete(TAGGER.id))
    made(state, edits.put(SPEC.id, changed(SPEC, revision="2")))
    made(state, edits.put("org/new", changed(SPEC, id="org/new")))
    made(state, edits.delete(EVERYTHING.id))
    made(state, edits.rollback(then))
    assert {spec.id: spec for spec in state.specs()} == digest
    assert {model: stored.origin for model, stored in state.stored.items()} == {
        model: stored.origin for model, stored in then.items()
    }
    assert made(state, edits.rollback(then)) == ()


# -- preconditions -----------------------------------------------------------------------------------------------------


def condition(**headers: str) -> Precondition:
    return preconditions.read({name.replace("_", "-"): value for name, value in headers.items()})


@pytest.mark.parametrize(
    ("held", "present", "absent"),
    [
        (condition(), True, True),
        (condition(if_match="*"), True, False),
        (condition(if_match=f'"0", W/"{model_spec.etag(SPEC)}"'), True, False),
        (condition(if_match='"0123456789abcdef"'), False, False),
        (condition(if_none_match="*"), False, True),
        (condition(if_none_match=f'"{model_spec.etag(SPEC)}"'), False, True),
    ],
)
def test_a_precondition_is_held_against_what_is_there(held: Precondition, present: bool, absent: bool) -> None:
    for state, passes in ((catalogue(SPEC), present), (catalogue(), absent)):
        guarded = edits.guarded(edits.put(SPEC.id, DOCUMENT), held, SPEC.id)
        if passes:
            guarded(state)
        else:
            with pytest.raises(PreconditionFailedError) as refused:
                guarded(state)
            there = spec_of(state, SPEC.id)
            assert refused.value.details["etag"] == (None if there is None else model_spec.etag(there))


def test_a_precondition_of_a_write_of_many_is_on_the_whole_catalogue() -> None:
    state = catalogue(SPEC)
    for suffix in ("", "-0a1b2c3d", "-0a1b2c3d-json"):
        guarded = edits.guarded(wanted(changed(TAGGER)), condition(if_match=f'"{state.digest}{suffix}"'), None)
        guarded(state)
        with pytest.raises(PreconditionFailedError):
            guarded(catalogue(SPEC, EVERYTHING))


@pytest.mark.parametrize("value", ["abc", '"a" "b"', '"a",', ""])
def test_what_is_no_etag_is_refused(value: str) -> None:
    with pytest.raises(InvalidInputError):
        condition(if_match=value)
