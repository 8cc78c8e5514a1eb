"""What a name leads to in the catalogue: models, profiles, bundles and aliases, and what is said of other names."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec
import pytest

from sie_config import aliases, catalog
from sie_config.model.model_spec import Profile
from sie_config.registry import Registry
from sie_sdk.errors import (
    BundleConflictError,
    BundleNotFoundError,
    ConfigurationError,
    InvalidInputError,
    ModelNotFoundError,
    UnknownProfileError,
)
from tests.ingress.conftest import EVERYTHING, RERANKER, SPEC

MODEL = msgspec.structs.replace(
    SPEC, id="Org/Model-A", profiles={"fast": Profile({"dimensions": 2}), "small": Profile({"normalize": False})}
)
ELSEWHERE = msgspec.structs.replace(RERANKER, bundle="Sglang")
ALIASES = {
    "House": "org/model-a",
    "quick/house": "default:/model-a:fast",
    "gone": "org/absent",
    "odd": "org/model-a:no",
}


def registry(names: Mapping[str, str] | None = None) -> Registry:
    return Registry([MODEL, ELSEWHERE, EVERYTHING], names)


@pytest.mark.parametrize(
    "name",
    [
        "Org/Model-A",
        "org/model-a",
        "ORG/MODEL-A",
        "model-a",
        "default:/org/model-a",
        "DEFAULT:/Model-A",
        "org/model-a:default",
        "default:/model-a:default",
    ],
)
def test_case_the_organisation_the_own_bundle_and_the_default_profile_change_nothing(name: str) -> None:
    assert registry().resolve(name) == MODEL


@pytest.mark.parametrize("name", ["org/model-a:fast", "MODEL-A:Fast", "default:/org/model-a:FAST"])
def test_a_profile_is_the_model_with_another_default_profile(name: str) -> None:
    chosen = registry().resolve(name)
    assert (chosen.id, chosen.default_profile) == (MODEL.id, "fast")
    assert chosen.chosen.options == {"dimensions": 2}
    assert registry().model(name) == MODEL


def test_an_unknown_profile_is_refused_with_those_there_are() -> None:
    with pytest.raises(UnknownProfileError) as refused:
        registry().resolve("org/model-a:slow", "ce-model")
    assert refused.value.details["profiles"] == ["default", "fast", "small"]
    assert refused.value.field == "ce-model" and refused.value.status == 400


def test_a_model_without_profiles_has_the_default_one() -> None:
    with pytest.raises(UnknownProfileError) as refused:
        registry().resolve("org/everything:fast")
    assert refused.value.details["profiles"] == ["default"]


def test_an_unknown_bundle_is_not_found_and_the_bundles_are_listed() -> None:
    with pytest.raises(BundleNotFoundError) as refused:
        registry().resolve("nowhere:/org/model-a")
    assert refused.value.details["bundles"] == ["Sglang", "default"] and refused.value.status == 404


def test_a_bundle_that_does_not_serve_the_model_is_a_conflict_and_the_one_that_does_is_listed() -> None:
    with pytest.raises(BundleConflictError) as refused:
        registry().resolve("sglang:/org/model-a")
    assert refused.value.details["compatible_bundles"] == ["default"] and refused.value.status == 409
    assert registry().resolve("SGLANG:/org/reranker") == ELSEWHERE


@pytest.mark.parametrize(
    "name",
    [
        "org/model-b",
        " org/model-a",
        "org/model-a ",
        "/org/model-a",
        "org/model-a/",
        "org//model-a",
        "org/../org/model-a",
        "org%2Fmodel-a",
        "org／model-a",  # noqa: RUF001
        "org/model\u0000-a",
    ],
)
def test_a_name_that_is_nearly_right_is_not_found_and_the_right_one_is_proposed(name: str) -> None:
    with pytest.raises(ModelNotFoundError) as refused:
        registry().resolve(name)
    assert MODEL.id in refused.value.details["nearest"]


@pytest.mark.parametrize("name", ["", "/", "..", "../../etc/passwd", "\ufffd", "İ", "m" * 512])
def test_a_name_that_is_nothing_is_refused_with_a_hint(name: str) -> None:
    with pytest.raises((ModelNotFoundError, InvalidInputError)) as refused:
        registry().resolve(name)
    assert refused.value.hint and len(str(refused.value)) < 600


def test_a_short_name_of_two_models_leads_to_neither() -> None:
    twin = msgspec.structs.replace(MODEL, id="other/model-a")
    with pytest.raises(ModelNotFoundError) as refused:
        Registry([MODEL, twin]).resolve("model-a")
    assert sorted(refused.value.details["nearest"]) == [MODEL.id, twin.id]


def test_an_alias_stands_for_a_model_and_for_the_profile_it_was_set_to() -> None:
    named = registry(ALIASES)
    assert named.resolve("house") == named.resolve("HOUSE:default") == MODEL
    assert named.resolve("quick/house").default_profile == "fast"
    assert named.resolve("quick/house:small").default_profile == "small"
    assert named.resolve("default:/house:fast").default_profile == "fast"
    assert named.aliases_of(MODEL.id) == ["house", "quick/house"]


def test_an_alias_comes_before_a_model_of_the_same_name() -> None:
    assert registry({"org/everything": "org/model-a"}).resolve("org/everything").id == MODEL.id


def test_aliases_that_lead_nowhere_are_told_with_the_reason_and_not_found() -> None:
    named = registry(ALIASES)
    absent, odd = named.dangling()
    assert absent.startswith("'gone' leads nowhere: There is no model 'org/absent'")
    assert odd.startswith("'odd' leads nowhere: Org/Model-A has no profile 'no'")
    with pytest.raises(ModelNotFoundError):
        named.resolve("gone")


def test_an_alias_follows_the_catalogue() -> None:
    named = Registry([], {"house": "org/model-a"})
    with pytest.raises(ModelNotFoundError):
        named.resolve("house")
    named.put(MODEL)
    assert named.resolve("house") == MODEL
    named.put(msgspec.structs.replace(MODEL, revision="2"))
    assert named.resolve("house").revision == named.resolve("org/model-a:fast").revision == "2"
    named.remove(MODEL.id)
    with pytest.raises(ModelNotFoundError):
        named.resolve("house")


@pytest.mark.parametrize(
    ("setting", "entry"),
    [
        ("small", "SIE_MODEL_ALIASES is not a JSON map"),
        ('["small"]', "SIE_MODEL_ALIASES is not a JSON map"),
        ('{"small": 1}', "small"),
        ('{"ok": "a/b", "": "a/b"}', "''"),
        ('{"ok": "a/b", "small:fast": "a/b"}', "'small:fast'"),
        ('{"ok": "a/b", "small": "a:b:c"}', "'small'"),
        ('{"small": "a/b", "SMALL": "a/c"}', "'SMALL' is there twice"),
    ],
)
def test_a_wrong_alias_stops_the_start_and_is_named(setting: str, entry: str) -> None:
    with pytest.raises(ConfigurationError, match="SIE_MODEL_ALIASES") as refused:
        aliases.read(setting)
    assert entry in str(refused.value)


def test_no_aliases_are_set_by_an_empty_setting() -> None:
    assert aliases.read("") == aliases.read("  ") == aliases.read("{}") == {}


def test_models_to_serve_are_the_catalogue_s_own_whatever_profile_they_are_named_with() -> None:
    (spec,) = catalog.select("default:/all-MiniLM-L6-v2:default")
    assert spec == catalog.load()["sentence-transformers/all-MiniLM-L6-v2"]
