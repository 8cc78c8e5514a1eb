"""How a model is named: parts, case, escapes and nonsense; every name is read or refused, never half of either."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sie_config import model_name
from sie_config.model_name import MAX_LENGTH, ModelName, parse
from sie_sdk.errors import InvalidInputError

PARTS = st.text(st.characters(exclude_characters=":/", exclude_categories=["Cs"]), min_size=1, max_size=40)
MODELS = st.lists(PARTS, min_size=1, max_size=3).map("/".join)


@given(MODELS, st.just("") | PARTS, st.just("") | PARTS)
def test_what_is_put_together_is_taken_apart_again_in_lower_case(model: str, bundle: str, profile: str) -> None:
    name = ModelName(model, bundle, profile)
    assert parse(str(name)) == ModelName(*(part.lower() for part in name))


@given(st.text(max_size=2 * MAX_LENGTH))
def test_any_text_is_a_name_that_reads_the_same_again_or_is_refused_with_its_field(text: str) -> None:
    try:
        name = parse(text, "ce-model")
    except InvalidInputError as error:
        assert error.field == "ce-model" and error.hint
    else:
        assert name.model and str(name) == text.lower()


@pytest.mark.parametrize(
    ("written", "read"),
    [
        ("org/model", ModelName("org/model")),
        ("Org/MODEL:Fast", ModelName("org/model", profile="fast")),
        ("default:/org/model", ModelName("org/model", "default")),
        ("Default:/org/model:fast", ModelName("org/model", "default", "fast")),
        ("model", ModelName("model")),
        ("a/b/c", ModelName("a/b/c")),
    ],
)
def test_a_name_has_a_bundle_before_its_first_colon_and_slash_and_a_profile_behind_its_last_colon(
    written: str, read: ModelName
) -> None:
    assert parse(written) == read


@pytest.mark.parametrize(
    "kept", [" org/model", "org/model ", "org//model", "/org/model", "org/model/", "../org", "örg/ß"]
)
def test_spaces_dots_slashes_and_other_alphabets_are_kept_as_they_are(kept: str) -> None:
    assert parse(kept).model == kept


@pytest.mark.parametrize(
    "wrong",
    ["", ":", ":/", ":/org/model", "default:/", "org/model:", ":fast", "a:b:c", "org/m:p/q", "a/b:/m", "a:b:/m"],
)
def test_colons_without_a_meaning_are_refused_with_the_grammar(wrong: str) -> None:
    with pytest.raises(InvalidInputError) as refused:
        parse(wrong)
    assert refused.value.limit == model_name.GRAMMAR and refused.value.field == "model"


def test_a_name_over_the_limit_is_refused_without_being_repeated() -> None:
    with pytest.raises(InvalidInputError) as refused:
        parse("m" * (MAX_LENGTH + 1))
    assert refused.value.limit == MAX_LENGTH and len(str(refused.value)) < 200
