"""Prompts and templates: whose comes first, and what is refused."""

from __future__ import annotations

from typing import Any

import pytest

from sie_bundle.operations import prompts
from sie_bundle.operations.options import Options
from sie_bundle.operations.prompts import prompted, repeated
from sie_config.model import runtime_options
from sie_config.model.tasks import Dense, Multivector, Tasks
from sie_sdk.errors import InputTooLongError, InvalidInputError

PLAIN = Tasks(dense=Dense(dim=8, query_prompt="q: ", document_prompt="d: "))
TEMPLATED = Tasks(
    dense=Dense(dim=8, query_prompt="q: ", query_template="<{instruction}> {text}", instruction="find", dims=(4,))
)


def one(tasks: Tasks, instruction: str | None = None, *, is_query: bool = True, **options: Any) -> str:
    read = Options(options, runtime_options.ENCODE, "params.options")
    (found,) = prompted(["ship"], tasks, read, instruction, is_query=is_query)
    return found


def refused(tasks: Tasks, **options: Any) -> InvalidInputError:
    with pytest.raises(InvalidInputError) as caught:
        one(tasks, **options)
    return caught.value


def test_without_a_template_an_instruction_or_else_the_prompt_stands_before_the_text() -> None:
    assert (one(PLAIN), one(PLAIN, is_query=False), one(PLAIN, "x ")) == ("q: ship", "d: ship", "x ship")
    assert one(PLAIN, "") == "ship"
    assert one(Tasks(multivector=Multivector(dim=8))) == "ship"


def test_a_template_is_filled_with_the_instruction_of_the_request_or_the_models_own() -> None:
    assert one(TEMPLATED) == "<find> ship"
    assert one(TEMPLATED, "sort") == "<sort> ship"
    assert one(TEMPLATED, "") == "<> ship"
    assert one(TEMPLATED, default_instruction="rank") == "<rank> ship"
    assert one(TEMPLATED, "sort", default_instruction="rank") == "<sort> ship"
    assert one(TEMPLATED, is_query=False) == "ship", "documents have neither template nor prompt"


def test_a_requests_template_goes_before_the_models_template_and_prompt() -> None:
    assert one(TEMPLATED, query_template="{text}!") == "ship!"
    assert one(PLAIN, query_template="{text} ({instruction})", default_instruction="find") == "ship (find)"
    assert one(PLAIN, query_template="{text}!", is_query=False) == "d: ship"
    assert one(PLAIN, doc_template="{text}!", is_query=False) == "ship!"
    assert one(Tasks(multivector=Multivector(dim=8)), query_template="{text}!") == "ship!"


def test_a_template_without_a_place_for_an_instruction_takes_none() -> None:
    assert one(PLAIN, "sort", query_template="{text}!") == "ship!"


@pytest.mark.parametrize("name", ["query_template", "doc_template"])
def test_a_template_that_is_none_is_refused_by_name(name: str) -> None:
    for written in ("query: ", "{text} {passage}"):
        error = refused(PLAIN, **{name: written})
        assert error.field == f"params.options.{name}" and "place" in error.message
    assert refused(PLAIN, **{name: 7}).field == f"params.options.{name}"


def test_a_default_instruction_that_no_template_takes_is_refused() -> None:
    assert refused(PLAIN, default_instruction="find").field == "params.options.default_instruction"
    assert one(PLAIN, doc_template="{instruction}{text}", default_instruction="find") == "q: ship"


def test_a_long_text_many_times_is_refused_though_template_and_texts_are_small() -> None:
    text, many = "x" * 20_000, {"query_template": "{text}" * 1000}
    assert repeated([text], PLAIN, many, None) > prompts.MAX_REPEATED
    with pytest.raises(InputTooLongError) as caught:
        prompted([text], PLAIN, Options(many, runtime_options.ENCODE, "params.options"), None, is_query=True)
    assert caught.value.field == "params.options.query_template"


@pytest.mark.parametrize(
    ("instruction", "options", "field"),
    [
        ("x" * 50_000, {}, "params.instruction"),
        ("x" * 1000, {"query_template": "{instruction}" * 50 + "{text}"}, "params.options.query_template"),
        (None, {"query_template": "{text}" * 20_000}, "params.options.query_template"),
    ],
    ids=["an instruction", "an instruction many times", "a text many times"],
)
def test_what_stands_beside_many_texts_is_refused_before_it_is_gigabytes(
    instruction: str | None, options: dict[str, str], field: str
) -> None:
    read = Options(options, runtime_options.ENCODE, "params.options")
    assert len(prompted(["ship"] * 10, PLAIN, read, instruction, is_query=True)) == 10
    with pytest.raises(InputTooLongError) as caught:
        prompted(["ship"] * 4096, PLAIN, read, instruction, is_query=True)
    assert (caught.value.field, caught.value.limit) == (field, prompts.MAX_REPEATED // 4096)
