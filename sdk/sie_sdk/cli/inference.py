"""The commands ``sie encode``, ``sie score`` and ``sie extract``.

Owns how their inputs are asked for and their results handed on. Not here: their options (``asked``), where inputs come
from (``inputs``) and results go (``delivery``, ``sinks``, ``tables``), what they do (``sie_sdk.client``).
"""

from __future__ import annotations

import sys
from collections import deque
from collections.abc import Callable, Iterator
from itertools import chain, islice
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, TypeAlias, TypedDict, Unpack

import click

from sie_sdk.chunks import ITEMS, place
from sie_sdk.cli import delivery, inputs
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
from sie_sdk.cli.bursts import Ready, burst
from sie_sdk.cli.progress import Narrator, count_lines, meter
from sie_sdk.cli.server import as_json, asks_server
from sie_sdk.cli.sinks import JsonLines
from sie_sdk.errors import SIEError
from sie_sdk.methods import CONCURRENCY
from sie_sdk.types import ExtractResult, Item, Timing

if TYPE_CHECKING:
    from sie_sdk.client import SIEClient

Streamed: TypeAlias = Literal["encode", "extract"]

_wait = click.option("--wait/--no-wait", default=True, help="Wait for a worker to start.  [default: wait]")
_concurrency = click.option(
    "--concurrency",
    "-c",
    metavar="N",
    type=click.IntRange(1, 64),
    default=CONCURRENCY,
    show_default=True,
    help=f"Requests under way at a time; each holds up to {ITEMS} inputs.",
)


class Options(TypedDict):
    """The options of a stream beside those of its operation, as click hands them over."""

    wait: bool
    concurrency: int
    as_json: bool
    out: Path | None
    resume: bool
    quiet: bool


class EncodeCommand(EncodeOptions, Options):
    """The options of ``sie encode``."""


class ExtractCommand(ExtractOptions, Options):
    """The options of ``sie extract``."""


class ScoreCommand(RequestOptions):
    """The options of ``sie score``."""

    wait: bool
    concurrency: int
    as_json: bool
    quiet: bool


@click.command()
@model
@encode_options
@_concurrency
@_wait
@as_json
@delivery.out(".jsonl, or the dense vectors alone as .npy or .npz")
@delivery.resume
@delivery.quiet
@asks_server
def encode(client: SIEClient, model: str, **asked: Unpack[EncodeCommand]) -> None:
    """Turn texts into vectors with MODEL.

    A TEXT of - reads standard input. There and in a file each line is one input: a JSON object such as
    {"text": "hello", "id": "7"}, or else the text itself; empty lines are left out. What begins like a JSON array is
    one, of texts and such objects, and is held as a whole. Results come in the inputs' order as soon as they are there,
    and lines are read as they are needed: a file of them may be of any size.

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

    tables.time_of(_stream(client, "encode", model, asked, encode_keywords(asked), tables.vector))


@click.command()
@model
@extract_options
@_concurrency
@_wait
@as_json
@delivery.out(".jsonl")
@delivery.resume
@delivery.quiet
@asks_server
def extract(client: SIEClient, model: str, **asked: Unpack[ExtractCommand]) -> None:
    """Find entities in texts, or classify them, with MODEL.

    Each TEXT, or a file of them, is read, and results are written, as by `sie encode`.

    \b
    Examples:
      sie extract distilbert-NER "Ada Lovelace lived in London."
      sie extract deberta-v3-base-zeroshot-v2.0 -l praise -l complaint "It broke on the first day."
      sie extract distilbert-NER --file articles.jsonl --json | jq -r '.entities[].text' | sort | uniq -c
    """
    from sie_sdk.cli import tables

    found: list[tuple[Item, ExtractResult]] = []

    def show(item: Item, result: ExtractResult) -> None:
        found.append((item, result))

    timings = _stream(client, "extract", model, asked, extract_keywords(asked), show)
    if found:
        tables.extractions(found)
    tables.time_of(timings)


@click.command()
@model
@click.argument("query")
@score_options
@_concurrency
@_wait
@click.option("--top", type=click.IntRange(min=1), metavar="N", help="Only the N best.")
@as_json
@delivery.quiet
@asks_server
def score(client: SIEClient, model: str, query: str, top: int | None, **asked: Unpack[ScoreCommand]) -> None:
    """Rank texts by their relevance to QUERY with MODEL, best first.

    Each TEXT, or a file of them, is read as by `sie encode`. With --json each text's score is one line of JSON;
    "index" is its place.

    \b
    Examples:
      sie score ms-marco-MiniLM-L-6-v2 "capital of France?" "Paris is." "Rome is not."
      sie score ms-marco-MiniLM-L-6-v2 "capital of France?" --file passages.txt --top 3
      sie score ms-marco-MiniLM-L-6-v2 "capital of France?" --file passages.jsonl --json | jq -r .item_id
    """
    from sie_sdk.cli import tables

    items = list(islice(inputs.read(asked), asked["skip"], None))
    with meter(len(items), quiet=asked["quiet"], plain=len(items) <= ITEMS) as shown:
        result = client.score(
            model,
            query,
            items,
            wait_for_capacity=asked["wait"],
            concurrency=asked["concurrency"],
            progress=Narrator(shown.say, shown.reach),
            **score_keywords(asked),
        )
    best = result.scores[:top]
    if asked["as_json"]:
        lines = JsonLines(sys.stdout.buffer)
        for entry in best:
            lines.write(entry)
    else:
        tables.ranking(items, best)
        tables.time_of([result.timing])


def _stream(
    client: SIEClient,
    operation: Streamed,
    model: str,
    asked: EncodeCommand | ExtractCommand,
    keywords: dict[str, Any],
    show: Callable[[Item, Any], object],
) -> list[Timing | None]:
    """Ask for all inputs, and write or show what comes as it comes; returns the timings of what was shown."""
    file = inputs.stream(asked)
    lines = count_lines(file)
    items, ready = inputs.coming(asked)
    kept: deque[Item] = deque()
    timings: list[Timing | None] = []
    out, as_json, resume = asked["out"], asked["as_json"], asked["resume"]
    vectors = operation == "encode"
    with delivery.opened(out, as_json=as_json, resume=resume, vectors=vectors, source=file) as (sink, written):
        skip = asked["skip"] + written
        on_screen = out is None and sys.stdout.isatty()
        left = None if lines is None else max(0, lines - skip)
        shown = meter(left, quiet=asked["quiet"], plain=file is None or on_screen)

        def write(result: Any) -> None:
            if sink is not None:
                sink.write(result)
                return
            show(kept.popleft(), result)
            if not timings or timings[-1] is not result.timing:
                timings.append(result.timing)

        rest = islice(items, skip, None)
        results = _results(
            client,
            operation,
            model,
            rest if sink is not None else _keeping(rest, kept),
            ready,
            wait_for_capacity=asked["wait"],
            concurrency=asked["concurrency"],
            progress=Narrator(shown.say),
            **keywords,
        )
        delivery.deliver(results, write, shown, skip, out=out)
    return timings


def _results(
    client: SIEClient, operation: Streamed, model: str, items: Iterator[Item], ready: Ready, **keywords: Any
) -> Iterator[Any]:
    """What comes at once is asked for at once: by one call where that is enough, else by a stream."""
    stream: Callable[..., Iterator[Any]] = getattr(client, f"{operation}_stream")
    ask: Callable[..., list[Any]] = getattr(client, operation)
    done = 0
    for first in items:
        coming = burst(first, items, ready)
        few, fault = _taken(islice(coming, ITEMS + 1))
        start = done
        try:
            for result in (
                stream(model, chain(few, coming), **keywords) if len(few) > ITEMS else ask(model, few, **keywords)
            ):
                done += 1
                yield result
        except SIEError as error:
            place(error, start, start + len(few))
            raise
        if fault is not None:
            raise fault


def _taken(items: Iterator[Item]) -> tuple[list[Item], Exception | None]:
    """The items until one is wrong, and what was said of that: those before it are to be asked for first."""
    taken: list[Item] = []
    try:
        taken.extend(items)
    except Exception as error:
        return taken, error
    return taken, None


def _keeping(items: Iterator[Item], kept: deque[Item]) -> Iterator[Item]:
    for item in items:
        kept.append(item)
        yield item
