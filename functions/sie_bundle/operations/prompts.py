"""Prompts: what stands around a text before it is tokenized. Pure.

Owns which of the request's, its profile's and the model's comes first. A template says everything about what becomes of
a text; without one an instruction, or else the model's prompt, stands before it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Any

from sie_bundle.operations.options import Options, longest_text
from sie_config.model import template
from sie_config.model.tasks import Dense, Tasks
from sie_sdk.errors import InputTooLongError, InvalidInputError

MAX_REPEATED = 1 << 24
"""Characters that are put beside the texts of one request: half a gigabyte while they are tokenized."""


def prompted(
    texts: Sequence[str], tasks: Tasks, options: Options, instruction: str | None, *, is_query: bool
) -> list[str]:
    """The texts as the model reads them.

    Args:
        instruction: of the request or its profile, which goes before the default one; None: it gave none.

    Raises:
        InvalidInputError: a template without ``{text}`` or with unknown places; a default instruction without a place.
        InputTooLongError: see `check_repeated`.
    """
    task = tasks.dense or Dense(dim=1)
    query = _template(options, "query_template", task.query_template)
    document = _template(options, "doc_template", task.document_template)
    default = options.text("default_instruction", task.instruction)
    if options.given("default_instruction") and "{instruction}" not in query + document:
        raise InvalidInputError(
            "No template has a place for the instruction.",
            field=options.field("default_instruction"),
            hint="Give a query_template or doc_template with {instruction}, or send the instruction itself.",
        )
    if chosen := query if is_query else document:
        place = default if instruction is None else instruction
        more = len(chosen) + chosen.count("{instruction}") * len(place)
        again = (chosen.count("{text}") - 1) * sum(map(len, texts))
        check_repeated(
            more * len(texts) + again, len(texts), options.field("query_template" if is_query else "doc_template")
        )
        return [template.filled(chosen, text=text, instruction=place) for text in texts]
    if instruction is None:
        instruction = task.query_prompt if is_query else task.document_prompt
    check_repeated(len(instruction) * len(texts), len(texts), "params.instruction")
    return [instruction + text for text in texts]


def repeated(texts: Sequence[str], tasks: Tasks, given: Mapping[str, Any] | None, instruction: str | None) -> int:
    """The most characters that `prompted` adds, whatever option is which; what is wrong with them is said there."""
    task = tasks.dense or Dense(dim=1)
    each, again = _of_model(task) if not given and instruction is None else _most(task, given, instruction)
    return each * len(texts) + (again * sum(map(len, texts)) if again else 0)


def _most(task: Dense, given: Mapping[str, Any] | None = None, instruction: str | None = None) -> tuple[int, int]:
    """The most characters that stand beside a text, and how often it may come once more."""
    chosen = [value for value in given.values() if isinstance(value, str)] if given else []
    chosen += [task.query_template, task.document_template]
    place = longest_text(given, instruction, task.instruction, task.query_prompt, task.document_prompt)
    each = max([len(one) + one.count("{instruction}") * place for one in chosen])
    return max(place, each), max(0, *[one.count("{text}") - 1 for one in chosen])


_of_model = lru_cache(maxsize=1024)(_most)
"""The same of a model's own, which most requests leave as they are."""


def check_repeated(characters: int, texts: int, field: str) -> None:
    """Whether what stands beside each of some texts is not too much in all; ``field``: what it came in.

    Raises:
        InputTooLongError: a small request would become gigabytes.
    """
    if characters > MAX_REPEATED:
        raise InputTooLongError(
            f"What stands beside each of {texts} texts is {characters} characters in all.",
            field=field,
            limit=MAX_REPEATED // texts,
            hint="Shorten it, or send fewer texts at once.",
        )


def _template(options: Options, name: str, default: str) -> str:
    """The option, else the model's own, which was checked with its spec. Empty: none."""
    if (given := options.text(name, "")) and (fault := template.fault(given)):
        raise InvalidInputError(
            f"{name} {fault}.",
            field=options.field(name),
            hint='For instance "Instruct: {instruction}\\nQuery: {text}".',
        )
    return given or default
