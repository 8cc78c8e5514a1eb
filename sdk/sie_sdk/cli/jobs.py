"""The commands ``sie jobs``: queue work without waiting for it, look at it, wait for it, fetch its result.

Owns their arguments and what they say. Not here: what is asked (``asked``), how a job is followed (``sie_sdk.settle``).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any, Unpack

import click

from sie_sdk.cli import delivery, inputs
from sie_sdk.cli.asked import (
    DEADLINE_S,
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
from sie_sdk.cli.progress import Meter, Narrator, Silence
from sie_sdk.cli.seconds import Seconds
from sie_sdk.cli.server import as_json, asks_server, print_rows
from sie_sdk.errors import (
    ConnectionFailedError,
    DeadlineExceededError,
    JobNotFoundError,
    SIEError,
    UnexpectedReplyError,
)
from sie_sdk.types import JobStatus, Operation

if TYPE_CHECKING:
    from sie_sdk.client import SIEClient
    from sie_sdk.effects import Reply

BATCH = 1000
"""Inputs of one job: the server splits it among its workers, and keeps its result in one piece."""

_batch = click.option(
    "--batch", metavar="N", type=click.IntRange(1, 4096), default=BATCH, show_default=True, help="Inputs of one job."
)
_ids = click.argument("ids", nargs=-1, required=True, metavar="ID...")
_deadline = click.option(
    "--deadline",
    metavar="SECONDS",
    type=Seconds(min=0),
    default=DEADLINE_S,
    show_default=True,
    help="Seconds to wait for each; the job goes on.",
)


@click.group()
def jobs() -> None:
    """Work that is queued and kept: submit it, go away, fetch its result within an hour.

    \b
    Examples:
      sie jobs submit encode all-MiniLM-L6-v2 --file texts.jsonl > ids
      sie jobs status $(cat ids)
      sie jobs result $(cat ids) --json > vectors.jsonl
    """


@jobs.group()
def submit() -> None:
    """Queue work and print its ids, one line for each lot. One too large for a job is several: their ids, with commas.

    \b
    Examples:
      sie jobs submit encode all-MiniLM-L6-v2 --file texts.jsonl > ids
      sie jobs submit score ms-marco-MiniLM-L-6-v2 "capital of France?" --file passages.txt
      sie jobs submit extract distilbert-NER "Ada Lovelace lived in London."
    """


@submit.command("encode")
@model
@encode_options
@_batch
@as_json
@asks_server
def submit_encode(client: SIEClient, model: str, batch: int, as_json: bool, **asked: Unpack[EncodeOptions]) -> None:
    """Queue the work of `sie encode MODEL TEXT...`, a job for each --batch of inputs.

    \b
    Examples:
      id=$(sie jobs submit encode all-MiniLM-L6-v2 "hello" "world")
      sie jobs submit encode all-MiniLM-L6-v2 --file big.txt --priority bulk > ids
    """
    _submit(client, "encode", model, asked, encode_keywords(asked), batch, as_json)


@submit.command("score")
@model
@click.argument("query")
@score_options
@as_json
@asks_server
def submit_score(client: SIEClient, model: str, query: str, as_json: bool, **asked: Unpack[RequestOptions]) -> None:
    """Queue the work of `sie score MODEL QUERY TEXT...`, whose result is one ranking.

    \b
    Examples:
      id=$(sie jobs submit score ms-marco-MiniLM-L-6-v2 "capital of France?" --file passages.txt)
    """
    _submit(client, "score", model, asked, score_keywords(asked) | {"query": query}, None, as_json)


@submit.command("extract")
@model
@extract_options
@_batch
@as_json
@asks_server
def submit_extract(client: SIEClient, model: str, batch: int, as_json: bool, **asked: Unpack[ExtractOptions]) -> None:
    """Queue the work of `sie extract MODEL TEXT...`, a job for each --batch of inputs.

    \b
    Examples:
      id=$(sie jobs submit extract distilbert-NER "Ada Lovelace lived in London.")
    """
    _submit(client, "extract", model, asked, extract_keywords(asked), batch, as_json)


@jobs.command()
@_ids
@as_json
@asks_server
def status(client: SIEClient, ids: tuple[str, ...], as_json: bool) -> None:
    """Show how the job of each ID stands now: queued, done or failed. The exit code is 0 however they stand.

    \b
    Examples:
      sie jobs status 018f3c...
      sie jobs status $(cat ids) --json | jq -r .state | sort | uniq -c
    """
    _show([_status(client, part) for id in ids for part in _parts(id)], as_json)


@jobs.command()
@_ids
@_deadline
@delivery.quiet
@as_json
@asks_server
def wait(client: SIEClient, ids: tuple[str, ...], deadline: float, quiet: bool, as_json: bool) -> None:
    """Wait until the job of each ID is done or failed. The exit code is 1 if one failed.

    \b
    Examples:
      sie jobs wait 018f3c... && echo done
      sie jobs wait $(cat ids) --deadline 3600
    """
    from sie_sdk.settle import is_of_the_server

    rows = []
    for part in (part for id in ids for part in _parts(id)):
        try:
            _followed(client, part, deadline, _meter(quiet))
        except (ConnectionFailedError, DeadlineExceededError, UnexpectedReplyError, JobNotFoundError):
            raise
        except SIEError as error:
            if is_of_the_server(error) or error.request_id is None:  # without a request, nobody said that it failed
                raise
            rows.append(JobStatus(part, "failed", message=error.message))
        else:
            rows.append(JobStatus(part, "done"))
    _show(rows, as_json)
    if any(row.state == "failed" for row in rows):
        raise click.exceptions.Exit(1)


@jobs.command()
@_ids
@_deadline
@as_json
@delivery.out(".jsonl, or the dense vectors alone as .npy or .npz")
@delivery.quiet
@asks_server
def result(
    client: SIEClient, ids: tuple[str, ...], deadline: float, as_json: bool, out: Path | None, quiet: bool
) -> None:
    """Print the results of the job of each ID, one after another, as `sie encode`, `score` or `extract` would have.

    Waits for each, up to --deadline. Results are kept for an hour after the work was accepted.

    \b
    Examples:
      sie jobs result 018f3c...
      sie jobs result 018f3c... --deadline 0          only if it is there
      sie jobs result $(cat ids) --json > vectors.jsonl
      sie jobs result $(cat ids) --out vectors.npy
    """
    from sie_sdk.cli import tables

    meter = _meter(quiet)
    with delivery.opened(out, as_json=as_json, vectors=True) as (sink, _):
        for id in ids:
            operation, found = _read([_followed(client, part, deadline, meter) for part in _parts(id)])
            if sink is None:
                tables.of_job(operation, found)
                continue
            for one in found:
                sink.write(one)


def _submit(
    client: SIEClient,
    operation: Operation,
    model: str,
    asked: EncodeOptions | ExtractOptions | RequestOptions,
    keywords: dict[str, Any],
    batch: int | None,
    as_json: bool,
) -> None:
    ask: Callable[..., Any] = client.submit
    items = islice(inputs.read(asked), asked["skip"], None)
    count = 0
    try:
        while lot := list(islice(items, batch)):
            job = ask(operation, model, lot, progress=Narrator(Meter().say), **keywords)
            count += len(lot)
            if as_json:
                print_rows([{"id": job.id, "operation": operation, "items": len(lot)}])
            else:
                click.echo(job.id)
    except (SIEError, click.ClickException):
        if count:
            click.echo(f"{count:,} inputs were submitted. Go on with --skip {asked['skip'] + count}.", err=True)
        raise


def _status(client: SIEClient, id: str) -> JobStatus:
    from sie_sdk import refusals, results
    from sie_sdk.effects import Call
    from sie_sdk.settle import is_of_the_server, read, still_queued

    def call() -> Call[JobStatus]:
        reply: Reply = yield _look(id)
        if reply.status == 202:
            return read(reply, results.read_job)
        if reply.status < 300:
            read(reply, lambda body, _: results.operation_of(body))  # a page of a proxy is no result
            return JobStatus(id, "done")
        error = refusals.read_error(reply.status, reply.headers, reply.body)
        error.request_id = reply.request_id
        if (queued := still_queued(id, error)) is not None:
            return queued
        if is_of_the_server(error) or isinstance(error, (JobNotFoundError, UnexpectedReplyError)):
            raise error
        return JobStatus(id, "failed", message=error.message)

    found: JobStatus = client._run(call())
    return found


def _followed(client: SIEClient, id: str, deadline_s: float, meter: Meter) -> Reply:
    """The final reply of a job. Raises what became of the work instead of a result."""
    from sie_sdk.effects import Patience
    from sie_sdk.settle import follow

    reply: Reply = client._run(follow(id, _look(id), Patience(deadline_s=deadline_s)), Narrator(meter.say))
    return reply


def _look(id: str) -> Any:
    from sie_sdk import calls, jobs, wire
    from sie_sdk.effects import Send

    return Send("GET", jobs.path(id), calls.request_headers(wire.MSGPACK), None)


def _parts(id: str) -> list[str]:
    """The jobs that one id stands for."""
    return id.split(",")


def _read(replies: Sequence[Reply]) -> tuple[Operation, Sequence[Any]]:
    """The results in the replies of a job's parts, whose operation is seen by what they hold."""
    from sie_sdk import calls, chunks, results
    from sie_sdk.settle import read

    held: Operation | None = read(replies[0], lambda body, _: results.operation_of(body))
    operation = held or "encode"
    found = chunks.merged(operation, [calls.answer(operation, reply) for reply in replies])
    return operation, found.scores if operation == "score" else found


def _meter(quiet: bool) -> Meter:
    return Silence() if quiet else Meter()


def _show(rows: Sequence[JobStatus], as_json: bool) -> None:
    from sie_sdk.cli import tables

    if as_json:
        print_rows(rows)
    else:
        tables.jobs(rows)
