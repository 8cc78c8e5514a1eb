"""``sie bench``: how fast a running server answers, with a load made here.

Owns what is asked and the report. Not here: the loop (``load``). The client runs in this process and has one: from some
thousand requests a second on it is what is measured; see bench/ for engines and installations.
"""

from __future__ import annotations

import random
import sys
from itertools import islice
from typing import TYPE_CHECKING, Any, BinaryIO, get_args

import click

from sie_sdk.cli import asked as options
from sie_sdk.cli import delivery, exits, inputs
from sie_sdk.cli.load import Load, Tally
from sie_sdk.cli.progress import Bar, Meter, Narrator, Silence, duration
from sie_sdk.cli.seconds import Seconds
from sie_sdk.cli.server import as_json, asks_server, print_rows
from sie_sdk.types import Operation

if TYPE_CHECKING:
    from collections.abc import Callable

    from sie_sdk.client import SIEClient

MOST_CALLERS = 100
"""A client keeps as many connections."""

MOST_TEXTS = 10_000
WORDS = [
    "the",
    "of",
    "and",
    "to",
    "in",
    "is",
    "was",
    "that",
    "for",
    "on",
    "with",
    "as",
    "by",
    "from",
    "at",
    "this",
    "which",
    "or",
    "had",
    "not",
    "are",
    "but",
    "have",
    "an",
    "they",
    "were",
    "there",
    "one",
    "all",
    "we",
    "can",
    "her",
    "has",
    "more",
    "when",
    "some",
    "into",
    "other",
    "could",
    "time",
    "these",
    "two",
    "may",
    "then",
    "do",
    "first",
    "any",
    "my",
    "now",
    "such",
    "like",
    "our",
    "over",
    "water",
    "city",
    "river",
    "house",
    "light",
    "work",
    "world",
    "people",
    "history",
    "science",
    "music",
    "story",
    "garden",
    "winter",
    "market",
    "engine",
    "letter",
]


@click.command()
@options.model
@click.option("--op", type=click.Choice(get_args(Operation)), help="What to ask for.  [default: what the model does]")
@click.option(
    "--clients",
    "-c",
    metavar="N",
    type=click.IntRange(1, MOST_CALLERS),
    default=8,
    show_default=True,
    help="Callers at a time.",
)
@click.option(
    "--texts",
    "-n",
    metavar="N",
    type=click.IntRange(1, 4096),
    default=1,
    show_default=True,
    help="Texts of one request.",
)
@click.option(
    "--words", metavar="N", type=click.IntRange(1, 10_000), default=16, show_default=True, help="Words of one text."
)
@click.option("--file", "-f", type=click.File("rb"), help="Take texts from a file instead, a line each.")
@click.option("--label", "-l", "labels", multiple=True, help="For extract: what to look for; repeatable.")
@click.option(
    "--seconds", "-s", metavar="S", type=Seconds(0.1, 3600), default=10.0, show_default=True, help="How long."
)
@click.option(
    "--requests", metavar="N", type=click.IntRange(1), help="Stop after so many requests, if that is earlier."
)
@click.option("--pool", metavar="NAME", help="The pool whose workers are to compute it.")
@as_json
@delivery.quiet
@asks_server
def bench(
    client: SIEClient,
    model: str,
    op: Operation | None,
    clients: int,
    texts: int,
    words: int,
    file: BinaryIO | None,
    labels: tuple[str, ...],
    seconds: float,
    requests: int | None,
    pool: str | None,
    as_json: bool,
    quiet: bool,
) -> None:
    """Measure how fast the server answers for MODEL: texts a second, and how long a request takes.

    A closed loop: each of --clients asks again as soon as it was answered, for --seconds. The first request, which may
    start a worker, is not counted. Texts are words put together at random, the same ones every time.

    \b
    Examples:
      sie bench all-MiniLM-L6-v2
      sie bench all-MiniLM-L6-v2 --clients 32 --texts 64 --seconds 30
      sie bench ms-marco-MiniLM-L-6-v2 --texts 20 --file passages.txt
      sie bench all-MiniLM-L6-v2 --json | jq .latency_ms.p99
    """
    op = op or _operation(client, model)
    pile = _from_file(file) if file else _made_up(words)
    ask = _asker(client, op, model, labels, pool)
    shown: Meter = Silence() if quiet else Meter()

    def lot(number: int) -> list[str]:
        return [pile[(number * texts + place) % len(pile)] for place in range(texts)]

    ask(lot(0), wait_for_capacity=True, progress=Narrator(shown.say))
    load = Load(lambda number: ask(lot(number), wait_for_capacity=False), clients, seconds, requests)
    interrupted = False
    if not quiet and sys.stderr.isatty():
        shown = Bar(requests, sums_up=False)
    try:
        with shown:
            load.run(shown.reach)
    except KeyboardInterrupt:
        interrupted = True
    tally = load.tally
    if not tally.latencies_s and tally.last_error is not None:
        raise tally.last_error
    row = report(tally, texts)
    if as_json:
        print_rows([{"model": model, "operation": op, "clients": clients, "texts_per_request": texts, **row}])
    else:
        _print(row, f"{op} with {model}, {_counted(clients, 'client')}, {_counted(texts, 'text')} a request")
    if interrupted:
        raise click.exceptions.Exit(exits.INTERRUPTED)


def report(tally: Tally, texts: int) -> dict[str, Any]:
    """What was measured, for programs; ``texts`` are those of one request."""
    done = len(tally.latencies_s)
    shares = {"p50": 0.5, "p90": 0.9, "p99": 0.99, "max": 1.0}
    return {
        "seconds": round(tally.elapsed_s, 3),
        "requests": done,
        "texts": done * texts,
        "requests_per_s": round(done / tally.elapsed_s, 2),
        "texts_per_s": round(done * texts / tally.elapsed_s, 2),
        "latency_ms": {name: round(tally.latency_ms(share), 3) for name, share in shares.items()} if done else {},
        "errors": tally.errors,
    }


def _print(row: dict[str, Any], what: str) -> None:
    from sie_sdk.cli import tables

    errors = ", ".join(f"{count} {code}" for code, count in sorted(row["errors"].items()))
    click.echo(what)
    tables.facts(
        {
            "texts": f"{row['texts_per_s']:,.1f}/s",
            "requests": f"{row['requests_per_s']:,.1f}/s; {row['requests']:,} in {duration(row['seconds'])}",
            "latency": ", ".join(f"{name} {ms:.1f} ms" for name, ms in row["latency_ms"].items()),
            "errors": errors or "none",
        }
    )


def _counted(count: int, what: str) -> str:
    return f"{count:,} {what}{'' if count == 1 else 's'}"


def _operation(client: SIEClient, model: str) -> Operation:
    outputs = client.get_model(model).outputs
    if "score" in outputs and "dense" not in outputs and "multivector" not in outputs:
        return "score"
    return "extract" if "json" in outputs else "encode"


def _asker(
    client: SIEClient, op: Operation, model: str, labels: tuple[str, ...], pool: str | None
) -> Callable[..., object]:
    match op:
        case "encode":
            return lambda texts, **keywords: client.encode(model, texts, pool=pool, **keywords)
        case "score":
            return lambda texts, **keywords: client.score(model, texts[0], texts, pool=pool, **keywords)
        case "extract":
            asked = labels or None
            return lambda texts, **keywords: client.extract(model, texts, labels=asked, pool=pool, **keywords)


def _from_file(file: BinaryIO) -> list[str]:
    plain = inputs.InputOptions(texts=(), file=file, format="auto", field=None, skip=0)
    return [item.text or "" for item in islice(inputs.read(plain), MOST_TEXTS)]


def _made_up(words: int) -> list[str]:
    chance = random.Random(0)
    count = max(64, min(MOST_TEXTS, 1_000_000 // words))
    return [" ".join(chance.choices(WORDS, k=words)) for _ in range(count)]
