"""The commands every install has: `sie encode`, `sie score`, `sie extract` and `sie models`.

Owns their arguments, how items are read from files and what is told while a call waits. Not here: the group they belong
to (``cli``), what their results look like (``tables``), what they do (``client``).
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable
from typing import Any, TextIO, TypedDict, TypeVar, Unpack, get_args

import click
import msgspec

from sie_sdk import wire
from sie_sdk.cli import tables
from sie_sdk.client import SIEClient
from sie_sdk.errors import ConnectionFailedError
from sie_sdk.types import Item, OutputDtype, OutputType, Priority, Progress

F = TypeVar("F", bound=Callable[..., Any])

_item = msgspec.json.Decoder(Item, dec_hook=wire.read_array)


class Inputs(TypedDict):
    """The arguments of every inference command, as click hands them over."""

    texts: tuple[str, ...]
    file: TextIO | None
    instruction: str | None
    wait: bool
    deadline: float
    priority: Priority | None
    pool: str | None
    url: str | None
    as_json: bool


_url = click.option(
    "--url", envvar="SIE_BASE_URL", show_envvar=True, help="The server. [default: http://127.0.0.1:8080]"
)
_json = click.option("--json", "as_json", is_flag=True, help="Print JSON, one line per result, for programs.")
_INPUTS = (
    click.argument("texts", nargs=-1, metavar="[TEXT]..."),
    click.option("--file", "-f", type=click.File(), help="Read one input per line; - is standard input."),
    click.option("--instruction", help="What is asked of the model, if it was trained with instructions."),
    click.option("--wait/--no-wait", default=True, help="Wait for a worker to start.  [default: wait]"),
    click.option("--priority", type=click.Choice(get_args(Priority)), help="How urgent it is. [default: by size]"),
    click.option("--pool", help="The pool whose workers are to compute it."),
    click.option("--deadline", type=float, default=300.0, show_default=True, help="Give up after this many seconds."),
    _url,
    _json,
)


def _inputs(command: F) -> F:
    for decorate in reversed(_INPUTS):
        command = decorate(command)
    return command


@click.command()
@click.argument("model")
@_inputs
@click.option("--query/--document", "is_query", default=None, help="What the texts are, if the model tells them apart.")
@click.option(
    "--output", "-o", "outputs", multiple=True, type=click.Choice(get_args(OutputType)), help="What to compute."
)
@click.option("--dtype", type=click.Choice(get_args(OutputDtype)), help="The vectors' dtype.  [default: float32]")
def encode(
    model: str,
    is_query: bool | None,
    outputs: tuple[OutputType, ...],
    dtype: OutputDtype | None,
    **inputs: Unpack[Inputs],
) -> None:
    """Turn texts into vectors with MODEL.

    A TEXT of - reads standard input. In a file or standard input each line is one input: a JSON object such as
    {"text": "hello", "id": "7"}, or else the text itself. With --json each result is one line of JSON.

    \b
    Examples:
      sie encode all-MiniLM-L6-v2 "hello" "world"
      echo hello | sie encode all-MiniLM-L6-v2 -
      sie encode all-MiniLM-L6-v2 --file texts.jsonl --json > vectors.jsonl
      sie encode bge-m3 -o dense -o sparse "hello"
    """
    items = _items(inputs)
    with SIEClient(inputs["url"]) as client:
        results = client.encode(
            model,
            items,
            output_types=outputs or None,
            instruction=inputs["instruction"],
            is_query=is_query,
            output_dtype=dtype,
            wait_for_capacity=inputs["wait"],
            deadline_s=inputs["deadline"],
            priority=inputs["priority"],
            pool=inputs["pool"],
            progress=Narrator(),
        )
    if inputs["as_json"]:
        tables.lines(results)
    else:
        tables.vectors(items, results)


@click.command()
@click.argument("model")
@click.argument("query")
@_inputs
def score(model: str, query: str, **inputs: Unpack[Inputs]) -> None:
    """Rank texts by their relevance to QUERY with MODEL, best first.

    Texts are read as by `sie encode`. With --json each text's score is one line of JSON; "index" is its place.

    \b
    Examples:
      sie score ms-marco-MiniLM-L-6-v2 "capital of France?" "Paris is." "Rome is not."
      sie score ms-marco-MiniLM-L-6-v2 "capital of France?" --file passages.txt --json | head -3
    """
    items = _items(inputs)
    with SIEClient(inputs["url"]) as client:
        result = client.score(
            model,
            query,
            items,
            instruction=inputs["instruction"],
            wait_for_capacity=inputs["wait"],
            deadline_s=inputs["deadline"],
            priority=inputs["priority"],
            pool=inputs["pool"],
            progress=Narrator(),
        )
    if inputs["as_json"]:
        tables.lines(result.scores)
    else:
        tables.ranking(items, result)


@click.command()
@click.argument("model")
@_inputs
@click.option("--label", "-l", "labels", multiple=True, help="What to look for, if the model can be told; repeatable.")
@click.option("--threshold", type=float, help="Leave out what is less certain; 0 to 1.")
def extract(model: str, labels: tuple[str, ...], threshold: float | None, **inputs: Unpack[Inputs]) -> None:
    """Find entities in texts, or classify them, with MODEL.

    Texts are read as by `sie encode`. With --json each text's result is one line of JSON.

    \b
    Examples:
      sie extract bert-base-NER "Ada Lovelace lived in London."
      sie extract deberta-v3-base-zeroshot -l praise -l complaint "It broke on the first day."
    """
    items = _items(inputs)
    with SIEClient(inputs["url"]) as client:
        results = client.extract(
            model,
            items,
            labels=labels or None,
            instruction=inputs["instruction"],
            options=None if threshold is None else {"threshold": threshold},
            wait_for_capacity=inputs["wait"],
            deadline_s=inputs["deadline"],
            priority=inputs["priority"],
            pool=inputs["pool"],
            progress=Narrator(),
        )
    if inputs["as_json"]:
        tables.lines(results)
    else:
        tables.extractions(items, results)


@click.command()
@_url
@_json
def models(url: str | None, as_json: bool) -> None:
    """List the models the server can run."""
    with SIEClient(url) as client:
        rows = client.list_models()
    if as_json:
        click.echo(msgspec.json.encode({"models": rows}))
    else:
        tables.models(rows)


class Narrator:
    """Says on standard error what a call waits for, each thing once."""

    def __init__(self) -> None:
        self._said = ""

    def __call__(self, progress: Progress) -> None:
        # A program may wait for a server to come up. A person who mistyped its address should learn so at once.
        if progress.state == "unreachable" and progress.job is None:
            raise ConnectionFailedError(
                progress.message or "The server could not be reached.",
                hint="Check --url and that the server runs (`sie up` starts one on this machine).",
            )
        line = f"{progress.state}: {progress.message}" if progress.message else progress.state
        if progress.state != "done" and line != self._said:
            self._said = line
            click.echo(line, err=True)


def _items(inputs: Inputs) -> list[Item]:
    texts, file = inputs["texts"], inputs["file"]
    if texts == ("-",):
        items = _read_items(sys.stdin)
    else:
        items = [Item(text=text) for text in texts] + ([] if file is None else _read_items(file))
    if not items:
        raise click.UsageError("There is no text. Give TEXT, --file FILE, or - to read standard input.")
    return items


def _read_items(lines: Iterable[str]) -> list[Item]:
    items = []
    for number, line in enumerate(lines, 1):
        line = line.rstrip("\r\n")
        if line.startswith("{"):
            try:
                items.append(_item.decode(line))
            except msgspec.DecodeError as error:
                raise click.UsageError(f"Line {number} is not an item: {error}.") from None
        elif line:
            items.append(Item(text=line))
    return items
