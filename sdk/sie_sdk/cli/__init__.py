"""The `sie` command line: the group, its exit codes, and how commands are found.

The commands every install has stand in the modules beside it. Others are found by name through the entry point group
``sie.commands``, so that this module imports nothing its install lacks.
"""

from __future__ import annotations

from collections.abc import Iterable
from importlib.metadata import EntryPoint, entry_points
from typing import Any

import click

from sie_sdk.cli import inference, pools
from sie_sdk.errors import ConfigurationError, ConnectionFailedError, DeadlineExceededError, SIEError
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
      sie score ms-marco-MiniLM-L-6-v2 "capital of France?" "Paris" "Rome"
      sie extract bert-base-NER "Ada Lovelace lived in London."

    \b
    Exit codes:
      0  it worked
      1  the server answered with an error
      2  wrong usage or a wrong setting
      3  the server could not be reached
      4  the deadline passed; the work stays queued
    """


for _command in (inference.encode, inference.score, inference.extract, inference.models, pools.pools):
    main.add_command(_command)
