"""What is asked of a model: the options of encode, score and extract, and the keywords of the client they become.

Owns these options, which `sie encode` and `sie jobs submit encode` share. Not here: inputs (``inputs``), what becomes
of results (``inference``, ``jobs``).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar, get_args

import click
import msgspec

from sie_sdk.cli import inputs
from sie_sdk.cli.completion import model_names
from sie_sdk.cli.inputs import InputOptions
from sie_sdk.cli.seconds import Seconds
from sie_sdk.types import OutputDtype, OutputType, Priority

F = TypeVar("F", bound=Callable[..., Any])

DEADLINE_S = 300.0

model = click.argument("model", shell_complete=model_names)


class RequestOptions(InputOptions):
    """The options of every operation, as click hands them over."""

    instruction: str | None
    options: tuple[str, ...]
    priority: Priority | None
    pool: str | None
    deadline: float


class EncodeOptions(RequestOptions):
    """And of encode."""

    is_query: bool | None
    types: tuple[OutputType, ...]
    dtype: OutputDtype | None


class ExtractOptions(RequestOptions):
    """And of extract."""

    labels: tuple[str, ...]
    threshold: float | None


_EVERY = (
    *inputs.OPTIONS,
    click.option("--instruction", help="What is asked of the model, if it was trained with instructions."),
    click.option(
        "--option", "options", multiple=True, metavar="KEY=VALUE", help="A choice of the model's own; repeatable."
    ),
    click.option("--priority", type=click.Choice(get_args(Priority)), help="How urgent it is.  [default: by size]"),
    click.option("--pool", metavar="NAME", help="The pool whose workers are to compute it."),
    click.option(
        "--deadline",
        metavar="SECONDS",
        type=Seconds(min=0),
        default=DEADLINE_S,
        show_default=True,
        help="Seconds a request may take, waits included.",
    ),
)
_ENCODE = (
    click.option(
        "--type",
        "-t",
        "types",
        multiple=True,
        type=click.Choice(get_args(OutputType)),
        help="What to compute; repeatable.  [default: dense, if it has that]",
    ),
    click.option("--dtype", type=click.Choice(get_args(OutputDtype)), help="The vectors' dtype.  [default: float32]"),
    click.option(
        "--query/--document", "is_query", default=None, help="What the texts are, if the model tells them apart."
    ),
    *_EVERY,
)
_EXTRACT = (
    click.option(
        "--label",
        "-l",
        "labels",
        multiple=True,
        help="What to look for, or which of its own labels to keep; repeatable.",
    ),
    click.option("--threshold", type=float, help="Leave out what is less certain; 0 to 1."),
    *_EVERY,
)


def encode_options(command: F) -> F:
    """The options of encode."""
    return _decorated(command, _ENCODE)


def score_options(command: F) -> F:
    """The options of score."""
    return _decorated(command, _EVERY)


def extract_options(command: F) -> F:
    """The options of extract."""
    return _decorated(command, _EXTRACT)


def encode_keywords(asked: EncodeOptions) -> dict[str, Any]:
    """The client's keywords for encode."""
    return score_keywords(asked) | {
        "output_types": asked["types"] or None,
        "output_dtype": asked["dtype"],
        "is_query": asked["is_query"],
    }


def score_keywords(asked: RequestOptions) -> dict[str, Any]:
    """The client's keywords for any operation."""
    return {
        "instruction": asked["instruction"],
        "options": dict(map(_choice, asked["options"])) or None,
        "priority": asked["priority"],
        "pool": asked["pool"],
        "deadline_s": asked["deadline"],
    }


def extract_keywords(asked: ExtractOptions) -> dict[str, Any]:
    """The client's keywords for extract."""
    keywords = score_keywords(asked) | {"labels": asked["labels"] or None}
    if asked["threshold"] is not None:
        keywords["options"] = {**(keywords["options"] or {}), "threshold": asked["threshold"]}
    return keywords


def _choice(text: str) -> tuple[str, Any]:
    """``KEY=VALUE``; the value is JSON where it can be read as that, else a text."""
    key, equals, value = text.partition("=")
    if not key or not equals:
        raise click.UsageError(f"--option {text} is not KEY=VALUE, such as dimensions=256.")
    try:
        return key, msgspec.json.decode(value)
    except (msgspec.DecodeError, UnicodeEncodeError):
        return key, value


def _decorated(command: F, decorators: tuple[Callable[[F], F], ...]) -> F:
    for decorate in reversed(decorators):
        command = decorate(command)
    return command
