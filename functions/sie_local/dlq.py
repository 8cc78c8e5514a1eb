"""The commands ``sie dlq``: work that was given up, looked at, tried again or thrown away. They talk to NATS directly.

Owns the arguments and what is said. The verbs are ``sie_broker.jetstream.deadletter_stream``'s, the layout is in
``deadletter_tables``.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any, TypeVar

import click

from sie_broker.contract import DeadLetters
from sie_broker.jetstream.nats_broker import NatsBroker
from sie_broker.records import DeadLetter
from sie_local import deadletter_tables as tables
from sie_local.state import StateFolder, default_folder
from sie_sdk.cli.group import Noun
from sie_sdk.errors import ConfigurationError, ConnectionFailedError, QueueUnavailableError, SIEError

F = TypeVar("F", bound=Callable[..., Any])
T = TypeVar("T")

_json = click.option("--json", "as_json", is_flag=True, help="Print JSON, one line per dead letter, for programs.")
_ids = click.argument("ids", nargs=-1, metavar="[ID]...")
_every = click.option("--all", "every", is_flag=True, help="All dead letters, or with --model all of that model.")
_model = click.option("--model", help="Only this model's; its organisation may be left out.")


def _where(command: F) -> F:
    state = click.option(
        "--state",
        type=click.Path(file_okay=False, path_type=Path),
        envvar="SIE_STATE_DIR",
        show_envvar=True,
        help="Folder of a running `sie up`.  [default: ~/.local/state/sie-knative]",
    )
    url = click.option(
        "--nats-url", envvar="SIE_NATS_URL", show_envvar=True, help="The NATS server.  [default: that of `sie up`]"
    )
    return url(state(command))


@click.group(cls=Noun)
def dlq() -> None:
    """Work that was given up: look at it, try it again, throw it away. Without a verb: list.

    A request is given up when five workers were given it and none finished it (reason "exhausted": it may make them
    crash), or when what came in is no request (reason "malformed"). Its caller got an error. A result is given up when
    the sink it was to go to does not take it (reason "undeliverable"). Each is kept for 7 days with all it came with.

    \b
    Examples:
      sie dlq                               what was given up, oldest first
      sie dlq show 018f3c...                one of it with headers and payload
      sie dlq replay 018f3c...              try it again; then `sie jobs result 018f3c...`
      sie dlq replay --all --model bge-m3   after a fix
      sie dlq drop --all                    throw everything away
    """


@dlq.command("list")
@_model
@_json
@_where
def list_letters(model: str | None, as_json: bool, nats_url: str | None, state: Path | None) -> None:
    """List what was given up, oldest first.

    \b
    Examples:
      sie dlq list --model bge-m3
      sie dlq list --json | jq -r 'select(.reason == "exhausted") | .id'
    """
    letters = _run(nats_url, state, lambda dead: _chosen(dead, model))
    if as_json:
        tables.lines(letters)
    elif letters:
        tables.table(letters)
    else:
        click.echo(f"There are no dead letters{f' of {model}' if model else ''}.")


@dlq.command()
@click.argument("letter_id", metavar="ID")
@click.option("--json", "as_json", is_flag=True, help="Print one line of JSON with everything, nothing cut.")
@_where
def show(letter_id: str, as_json: bool, nats_url: str | None, state: Path | None) -> None:
    """Show the dead letter ID: why, its headers, its payload with long values cut.

    \b
    Examples:
      sie dlq show 018f3c...
      sie dlq show 018f3c... --json | jq .payload
    """
    letter = _run(nats_url, state, lambda dead: dead.get(letter_id))
    if as_json:
        tables.whole(letter)
    else:
        tables.details(letter)


@dlq.command()
@_ids
@_every
@_model
@_where
def replay(ids: tuple[str, ...], every: bool, model: str | None, nats_url: str | None, state: Path | None) -> None:
    """Try it again: a request is queued as it was, with the same id and reply address, without its deadline.

    Its result is then that of job ID (`sie jobs result ID`), in place of the error. What is given up again comes back
    here.

    \b
    Examples:
      sie dlq replay 018f3c...
      sie dlq replay --all --model bge-m3
    """
    _check(ids, every, model)

    async def run(dead: DeadLetters) -> list[str]:
        return await _each(ids or await _all_ids(dead, model), dead.replay, "Queued {}.")

    _report(_run(nats_url, state, run), "replayed")


@dlq.command()
@_ids
@_every
@_model
@click.option("--yes", "-y", is_flag=True, help="Do not ask.")
@_where
def drop(
    ids: tuple[str, ...], every: bool, model: str | None, yes: bool, nats_url: str | None, state: Path | None
) -> None:
    """Throw the dead letters of each ID away, for good.

    \b
    Examples:
      sie dlq drop 018f3c...
      sie dlq drop --all --yes
    """
    _check(ids, every, model)
    chosen = list(ids) or _run(nats_url, state, lambda dead: _all_ids(dead, model))
    if chosen and not yes:
        click.confirm(f"Throw away {len(chosen)} dead letter{'s' if len(chosen) > 1 else ''} for good?", abort=True)

    async def run(dead: DeadLetters) -> list[str]:
        return await _each(chosen, dead.drop, "Dropped {}.")

    _report(_run(nats_url, state, run), "dropped")


def _check(ids: Sequence[str], every: bool, model: str | None) -> None:
    if bool(ids) == every:
        raise click.UsageError("Give the ID of a dead letter (`sie dlq list` shows them), or --all, not both.")
    if model and not every:
        raise click.UsageError("--model goes with --all.")


async def _chosen(dead: DeadLetters, model: str | None) -> list[DeadLetter]:
    wanted = (model or "").lower()
    letters = [(letter, tables.summary(letter)["model"].lower()) for letter in await dead.entries()]
    return [letter for letter, name in letters if model is None or wanted in (name, name.rpartition("/")[2])]


async def _all_ids(dead: DeadLetters, model: str | None) -> list[str]:
    return list(dict.fromkeys(letter.id for letter in await _chosen(dead, model)))


async def _each(ids: Sequence[str], verb: Callable[[str], Awaitable[None]], said: str) -> list[str]:
    """Do it to each and go on after a failure; returns what failed."""
    failed = []
    for letter_id in ids:
        try:
            await verb(letter_id)
        except SIEError as error:
            failed.append(f"{letter_id}: {error}")
        else:
            click.echo(said.format(letter_id))
    if not ids:
        click.echo("There are no dead letters.")
    return failed


def _report(failed: Sequence[str], done: str) -> None:
    if failed:
        raise SIEError(f"Not {done}: " + "\n  ".join(failed))


def _run(nats_url: str | None, state: Path | None, act: Callable[[DeadLetters], Awaitable[T]]) -> T:
    async def run() -> T:
        async with _connected(_url(nats_url, state)) as dead:
            return await act(dead)

    return asyncio.run(run())


def _url(nats_url: str | None, state: Path | None) -> str:
    if nats_url:
        return nats_url
    folder = StateFolder(state or default_folder())
    record = folder.read()
    if record is None or not record.nats_url:
        raise ConfigurationError(
            f"Which NATS server? Nothing is up on {folder.path}.",
            hint="Start it with `sie up`, or give --nats-url (SIE_NATS_URL) of a deployment.",
        )
    return record.nats_url


@asynccontextmanager
async def _connected(url: str) -> AsyncIterator[DeadLetters]:
    broker = NatsBroker(url, name="dlq")
    with _overheard("sie.broker") as words:  # the connection's own; what matters is raised
        try:
            await broker.connect()
        except QueueUnavailableError:
            told = ",".join(map(_without_password, url.split(",")))
            if any("authorization" in each.lower() for each in words):  # nats-py raises the same for both
                raise ConnectionFailedError(
                    f"NATS at {told} refuses the user or the password.",
                    hint="Give both in --nats-url (SIE_NATS_URL): nats://USER:PASSWORD@HOST:4222.",
                ) from None
            raise ConnectionFailedError(
                f"No NATS server answers at {told}.", hint="Check --nats-url (SIE_NATS_URL), and that the server runs."
            ) from None
        try:
            yield broker.dead
        finally:
            await broker.close()


def _without_password(url: str) -> str:
    scheme, separator, rest = url.strip().rpartition("://")
    return f"{scheme}{separator}{rest.rpartition('@')[2]}"


class _Ear(logging.Handler):
    """Keeps what is said; of that it shows errors alone."""

    def __init__(self) -> None:
        super().__init__()
        self.words: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.words.append(record.getMessage())
        if record.levelno >= logging.ERROR and logging.lastResort is not None:
            logging.lastResort.handle(record)


@contextmanager
def _overheard(name: str) -> Iterator[list[str]]:
    """What a logger and those below it say meanwhile. Warnings are not shown."""
    log, ear = logging.getLogger(name), _Ear()
    propagates, log.propagate = log.propagate, False
    log.addHandler(ear)
    try:
        yield ear.words
    finally:
        log.removeHandler(ear)
        log.propagate = propagates
