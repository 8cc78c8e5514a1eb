"""The `sie` command line: the group, its exit codes, and the two commands every install has, `encode` and `models`.

Other commands are found by name through the entry point group ``sie.commands``, so that this module imports nothing its
install lacks. Not here: those commands, and anything a client can do (``client``).
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable
from importlib.metadata import EntryPoint, entry_points
from typing import Any, TextIO, get_args

import click
import msgspec

from sie_sdk.client import SIEClient
from sie_sdk.errors import ConfigurationError, ConnectionFailedError, DeadlineExceededError, SIEError
from sie_sdk.types import EncodeResult, Item, ModelInfo, OutputDtype, Progress
from sie_sdk.version import __version__

# The extra that brings what a package's commands import; every package is in the wheel, its dependencies are not.
_EXTRAS = {
    "sie_local": "local",
    "sie_bundle": "bundle",
    "sie_config": "config",
    "sie_ingress": "ingress",
    "sie_broker": "broker",
}


class Commands(click.Group):
    """A group whose further commands come from entry points, and whose errors are one line, a hint and an exit code."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return sorted({*super().list_commands(ctx), *(entry.name for entry in _installed())})

    def get_command(self, ctx: click.Context, name: str) -> click.Command | None:
        if command := super().get_command(ctx, name):
            return command
        return next((_load(entry) for entry in _installed() if entry.name == name), None)

    def invoke(self, ctx: click.Context) -> Any:
        try:
            return super().invoke(ctx)
        except SIEError as error:
            click.echo(f"Error: {error.message}", err=True)
            if error.hint:
                click.echo(f"Hint: {error.hint}", err=True)
            ctx.exit(exit_code(error))


def exit_code(error: SIEError) -> int:
    """The process's exit code for an error; `sie --help` documents them."""
    match error:
        case ConfigurationError():
            return 2
        case ConnectionFailedError():
            return 3
        case DeadlineExceededError():
            return 4
        case _:
            return 1


def _installed() -> Iterable[EntryPoint]:
    return entry_points(group="sie.commands")


def _load(entry: EntryPoint) -> click.Command:
    try:
        command: click.Command = entry.load()
    except ImportError as error:
        return _missing(entry, error)
    return command


def _missing(entry: EntryPoint, reason: ImportError) -> click.Command:
    """Stands in for a command whose dependencies are not installed: listed in the help, refused when run."""
    extra = _EXTRAS.get(entry.module.partition(".")[0], "local")

    def refuse() -> None:
        raise ConfigurationError(
            f"sie {entry.name} needs the [{extra}] extra ({reason}).", hint=f"pip install 'sie-knative[{extra}]'"
        )

    return click.Command(
        entry.name,
        callback=refuse,
        short_help=f"Needs the [{extra}] extra.",
        context_settings={"ignore_unknown_options": True, "allow_extra_args": True},
        add_help_option=False,
    )


@click.group(cls=Commands, context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100})
@click.version_option(__version__, prog_name="sie")
def main() -> None:
    """One deployment that serves a whole catalogue of models and scales to zero.

    \b
    Examples:
      sie models                                    what the server can run
      sie encode all-MiniLM-L6-v2 "hello world"     one text to one vector
      sie encode all-MiniLM-L6-v2 - --json < in.jsonl > out.jsonl

    \b
    Exit codes:
      0  it worked
      1  the server answered with an error
      2  wrong usage or a wrong setting
      3  the server could not be reached
      4  the deadline passed; the work stays queued
    """


_url = click.option(
    "--url", envvar="SIE_BASE_URL", show_envvar=True, help="The server. [default: http://127.0.0.1:8080]"
)
_json = click.option("--json", "as_json", is_flag=True, help="Print JSON, for programs.")


@main.command()
@click.argument("model")
@click.argument("texts", nargs=-1, metavar="[TEXT]...")
@click.option("--file", "-f", type=click.File(), help="Read one input per line; - is standard input.")
@click.option("--instruction", help="Put before each text, for models that were trained with one.")
@click.option("--query/--document", "is_query", default=None, help="What the texts are, if the model tells them apart.")
@click.option("--dtype", type=click.Choice(get_args(OutputDtype)), help="The vectors' dtype.  [default: float32]")
@click.option("--wait/--no-wait", default=True, help="Wait for a worker to start.  [default: wait]")
@click.option("--deadline", type=float, default=300.0, show_default=True, help="Give up after this many seconds.")
@_url
@_json
def encode(
    model: str,
    texts: tuple[str, ...],
    file: TextIO | None,
    instruction: str | None,
    is_query: bool | None,
    dtype: OutputDtype | None,
    wait: bool,
    deadline: float,
    url: str | None,
    as_json: bool,
) -> None:
    """Turn texts into vectors with MODEL.

    A TEXT of - reads standard input. In a file or standard input each line is one input: a JSON object such as
    {"text": "hello", "id": "7"}, or else the text itself. With --json each result is one line of JSON.

    \b
    Examples:
      sie encode all-MiniLM-L6-v2 "hello" "world"
      echo hello | sie encode all-MiniLM-L6-v2 -
      sie encode all-MiniLM-L6-v2 --file texts.jsonl --json > vectors.jsonl
    """
    if texts == ("-",):
        items = _read_items(sys.stdin)
    else:
        items = [Item(text=text) for text in texts] + ([] if file is None else _read_items(file))
    if not items:
        raise click.UsageError("There is no text. Give TEXT, --file FILE, or - to read standard input.")
    with SIEClient(url) as client:
        results = client.encode(
            model,
            items,
            instruction=instruction,
            is_query=is_query,
            output_dtype=dtype,
            wait_for_capacity=wait,
            deadline_s=deadline,
            progress=Narrator(),
        )
    if as_json:
        for result in results:
            click.echo(json.dumps(_plain(result)))
    else:
        _print_vectors(items, results)


@main.command()
@_url
@_json
def models(url: str | None, as_json: bool) -> None:
    """List the models the server can run."""
    with SIEClient(url) as client:
        rows = client.list_models()
    if as_json:
        click.echo(msgspec.json.encode({"models": rows}))
    else:
        _print_models(rows)


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


def _read_items(lines: Iterable[str]) -> list[Item]:
    items = []
    for number, line in enumerate(lines, 1):
        line = line.rstrip("\r\n")
        if line.startswith("{"):
            try:
                items.append(msgspec.json.decode(line, type=Item))
            except msgspec.DecodeError as error:
                raise click.UsageError(f"Line {number} is not an item: {error}.") from None
        elif line:
            items.append(Item(text=line))
    return items


def _plain(result: EncodeResult) -> dict[str, Any]:
    fields = {
        "id": result.id,
        "dense": None if result.dense is None else result.dense.tolist(),
        "timing": None if result.timing is None else msgspec.structs.asdict(result.timing),
    }
    return {name: value for name, value in fields.items() if value is not None}


def _print_vectors(items: list[Item], results: list[EncodeResult]) -> None:
    for item, result in zip(items, results, strict=True):
        label = item.id or _shortened(item.text or "")
        if result.dense is not None:
            start = " ".join(f"{value:+.4f}" for value in result.dense[:4].tolist())
            click.echo(f"{label:<32}  {result.dense.size} dims  {result.dense.dtype}  [{start} ...]")
    if results and (timing := results[0].timing):
        stages = msgspec.structs.asdict(timing)
        total = stages.pop("total_ms")
        parts = ", ".join(f"{name.removesuffix('_ms').replace('_', ' ')} {ms:.1f}" for name, ms in stages.items())
        click.echo(f"{total:.1f} ms ({parts})")


def _print_models(rows: list[ModelInfo]) -> None:
    if not rows:
        click.echo("No models yet.")
        return
    width = max(len(row.name) for row in rows)
    for row in sorted(rows, key=lambda row: row.name):
        outputs = ", ".join(f"{name} {row.dims[name]}" if name in row.dims else name for name in row.outputs)
        length = f"{row.max_sequence_length} tokens" if row.max_sequence_length else ""
        click.echo(f"{row.name:<{width}}  {row.state:<9}  {outputs:<12}  {length}".rstrip())


def _shortened(text: str, width: int = 32) -> str:
    text = " ".join(text.split())
    return text if len(text) <= width else text[: width - 3] + "..."


if __name__ == "__main__":
    main()
