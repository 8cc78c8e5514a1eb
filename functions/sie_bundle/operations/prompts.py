"""Prompts: what stands around a text before it is tokenized. Pure.

Owns which of the request's, its profile's and the model's comes first. A template says everything about what becomes of
a text; without one an instruction, or else the model's prompt, stands before it.
"""

from __future__ import annotations

from collections.abc import Sequence

from sie_bundle.operations.options import Options
from sie_config.model import template
from sie_config.model.tasks import Dense, Tasks
from sie_sdk.errors import InvalidInputError


def prompted(
    texts: Sequence[str], tasks: Tasks, options: Options, instruction: str | None, *, is_query: bool
) -> list[str]:
    """The texts as the model reads them.

    Args:
        instruction: of the request or its profile, which goes before the default one; None: it gave none.

    Raises:
        InvalidInputError: a template without ``{text}`` or with unknown places; a default instruction without a place.
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
        return [template.filled(chosen, text=text, instruction=place) for text in texts]
    if instruction is None:
        instruction = task.query_prompt if is_query else task.document_prompt
    return [instruction + text for text in texts]


def _template(options: Options, name: str, default: str) -> str:
    """The option, else the model's own, which was checked with its spec. Empty: none."""
    if (given := options.text(name, "")) and (fault := template.fault(given)):
        raise InvalidInputError(
            f"{name} {fault}.",
            field=options.field(name),
            hint='For instance "Instruct: {instruction}\\nQuery: {text}".',
        )
    return given or default
