"""The commands ``sie encode``, ``sie score`` and ``sie extract``.

Owns how their inputs are asked for and their results handed on. Not here: their options (``asked``), where inputs come
from (``inputs``) and results go (``delivery``, ``sinks``, ``tables``), what they do (``sie_sdk.client``).
"""

from __future__ import annotations

import sys
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from itertools import islice
from typing import TYPE_CHECKING, Any, Unpack

import click

from sie_sdk.cli import inputs
from sie_sdk.cli.asked import (
    EncodeOptions,
    ExtractOptions,
    RequestOptions,
    encode_keywords,
    encode_options,
    extract_keywords,
    extract_options,
    model,
    score_keywords,
    score_options,
)
from sie_sdk.cli.delivery import OutputOptions, deliver, opened, output_options
from sie_sdk.cli.progress import Narrator, meter
from sie_sdk.cli.server import asks_server
from sie_sdk.cli.sinks import JsonLines
from sie_sdk.types import ExtractResult, Item, Timing

if TYPE_CHECKING:
    from sie_sdk.client import SIEClient

BATCH = 256

_wait = click.option("--wait/--no-wait", default=True, help="Wait for a worker to start.  [default: wait]")
_batch = click.option(
    "--batch", type=click.IntRange(1, 4096), default=BATCH, show_default=True, help="Inputs of one request."
)


class Options(OutputOptions):
    """The options of every command here beside those of its operation, as click hands them over."""

    wait: bool
    batch: int


class EncodeCommand(EncodeOptions, Options):
    """The options of ``sie encode``."""


class ExtractCommand(ExtractOptions, Options):
    """The options of ``sie extract``."""


class ScoreCommand(RequestOptions):
    """The options of ``sie score``."""

    wait: bool
    as_json: bool
    quiet: bool


@click.command()
@model
@encode_options
@_batch
@_wait
@output_options(endings=".jsonl, or the dense vectors alone as .npy or .npz")
@asks_server
def encode(client: SIEClient, model: str, **asked: Unpack[EncodeCommand]) -> None:
    """Turn texts into vectors with MODEL.

    A TEXT of - reads standard input. There and in a file each line is one input: a JSON object such as
    {"text": "hello", "id": "7"}, or else the text itself; empty lines are left out. Results come in the inputs' order
    as soon as they are there, and inputs are read as they are needed: a file may be of any size.

    \b
    Examples:
      sie encode all-MiniLM-L6-v2 "hello" "world"
      echo hello | sie encode all-MiniLM-L6-v2 -
      sie encode all-MiniLM-L6-v2 --file texts.jsonl --json > vectors.jsonl
      sie encode all-MiniLM-L6-v2 --file books.csv --field title --out titles.npy
      sie encode all-MiniLM-L6-v2 --file big.txt --out vectors.jsonl --resume
      sie encode bge-m3 -t dense -t sparse "hello"
    """
    from sie_sdk.cli import tables

    timings = _stream(client.encode, model, asked, encode_keywords(asked), tables.vectors, vectors=True)
    tables.time_of(timings)


@click.command()
@model
@extract_options
@_batch
@_wait
@output_options(endings=".jsonl")
@asks_server
def extract(client: SIEClient, model: str, **asked: Unpack[ExtractCommand]) -> None:
    """Find entities in texts, or classify them, with MODEL.

    Texts are read, and results written, as by `sie encode`.

    \b
    Examples:
      sie extract bert-base-NER "Ada Lovelace lived in London."
      sie extract deberta-v3-base-zeroshot -l praise -l complaint "It broke on the first day."
      sie extract bert-base-NER --file articles.jsonl --json | jq -r '.entities[].text' | sort | uniq -c
    """
    from sie_sdk.cli import tables

    found: list[tuple[Item, ExtractResult]] = []
    timings = _stream(
        client.extract, model, asked, extract_keywords(asked), lambda *lot: found.extend(zip(*lot, strict=True))
    )
    if found:
        tables.extractions(found)
    tables.time_of(timings)


@click.command()
@model
@click.argument("query")
@score_options
@_wait
@click.option("--top", type=click.IntRange(min=1), metavar="N", help="Only the N best.")
@output_options()
@asks_server
def score(client: SIEClient, model: str, query: str, top: int | None, **asked: Unpack[ScoreCommand]) -> None:
    """Rank texts by their relevance to QUERY with MODEL, best first.

    Texts are read as by `sie encode`. With --json each text's score is one line of JSON; "index" is its place.

    \b
    Examples:
      sie score ms-marco-MiniLM-L-6-v2 "capital of France?" "Paris is." "Rome is not."
      sie score ms-marco-MiniLM-L-6-v2 "capital of France?" --file passages.txt --top 3
      sie score ms-marco-MiniLM-L-6-v2 "capital of France?" --file passages.jsonl --json | jq -r .item_id
    """
    from sie_sdk.cli import tables

    items = list(islice(inputs.read(asked), asked["skip"], None))
    with meter(inputs.stream(asked), asked["skip"], quiet=asked["quiet"], shown_elsewhere=False) as shown:
        result = client.score(
            model,
            query,
            items,
            wait_for_capacity=asked["wait"],
            progress=Narrator(shown.say),
            **score_keywords(asked),
        )
    best = result.scores[:top]
    if asked["as_json"]:
        JsonLines(sys.stdout.buffer).write(best)
    else:
        tables.ranking(items, best)
        tables.time_of([result.timing])


def _stream(
    ask: Callable[..., Any],
    model: str,
    asked: EncodeCommand | ExtractCommand,
    keywords: dict[str, Any],
    show: Callable[[list[Item], Sequence[Any]], object],
    *,
    vectors: bool = False,
) -> list[Timing | None]:
    """Ask for all inputs, and write or show what comes; returns the requests' timings where results were shown."""
    items = inputs.read(asked)
    timings: list[Timing | None] = []
    pending: deque[Item] = deque()
    with opened(asked, vectors=vectors) as (sink, written):
        skip = asked["skip"] + written
        on_screen = asked["out"] is None and sys.stdout.isatty()
        shown = meter(inputs.stream(asked), skip, quiet=asked["quiet"], shown_elsewhere=on_screen)

        def results() -> Iterator[list[Any]]:
            rest = islice(items, skip, None)
            while lot := list(islice(rest, asked["batch"])):
                pending.extend(lot if sink is None else ())
                yield ask(model, lot, wait_for_capacity=asked["wait"], progress=Narrator(shown.say), **keywords)

        def write(lot: Sequence[Any]) -> None:
            if sink is not None:
                sink.write(lot)
            else:
                show([pending.popleft() for _ in lot], lot)
                timings.append(lot[0].timing)

        how = "Go on with --resume." if asked["out"] else "Go on with --skip {skip}."
        deliver(results(), write, shown, how)
    return timings
