"""The group `sie`: how its commands are found without importing them, and what it prints when one fails.

Own commands are imported when they run, and listed by the lines below. Others come by name through the entry point
group ``sie.commands``, so that nothing is imported that an install lacks. Not here: what any command does.
"""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Iterable, Iterator
from importlib import import_module
from importlib.metadata import EntryPoint, entry_points
from typing import Any

import click

from sie_sdk.cli import exits
from sie_sdk.errors import ConfigurationError, SIEError

OWN = {
    "encode": ("inference", "Turn texts into vectors."),
    "score": ("inference", "Rank texts by their relevance to a query."),
    "extract": ("inference", "Find entities in texts, or classify them."),
    "models": ("models", "What the server can run, and how to call it."),
    "pools": ("pools", "Named capacity with a lease."),
    "health": ("health", "The server's lanes and workers."),
    "completion": ("completion", "Let your shell complete commands, options and model names."),
}
"""The module of each command that every install has, and the line that lists it."""

SECTIONS = {
    "Ask a server": ("encode", "score", "extract", "jobs", "models", "pools", "config", "health", "bench"),
    "Run one on this machine": ("up", "down", "status", "serve", "tour", "fetch", "dlq"),
    "Set up your shell": ("completion",),
}

# The extra that brings what a package's commands import; every package is in the wheel, its dependencies are not.
_EXTRAS = {
    "sie_local": "local",
    "sie_bundle": "bundle",
    "sie_config": "config",
    "sie_ingress": "ingress",
    "sie_broker": "broker",
}


class Commands(click.Group):
    """A group whose commands are imported when they run, and whose errors are one line, a hint and an exit code."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return sorted({*OWN, *(entry.name for entry in _installed())})

    def get_command(self, ctx: click.Context, name: str) -> click.Command | None:
        if name in OWN:
            command: click.Command = getattr(import_module(f"sie_sdk.cli.{OWN[name][0]}"), name)
            return command
        return next((_load(entry) for entry in _installed() if entry.name == name), None)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        names = self.list_commands(ctx)
        known = {name for section in SECTIONS.values() for name in section}
        widest = max(map(len, names))
        for title, section in {**SECTIONS, "More": [name for name in names if name not in known]}.items():
            rows = [(name.ljust(widest), self._line(ctx, name)) for name in section if name in names]
            if rows:
                with formatter.section(title):
                    formatter.write_dl(rows)

    def _line(self, ctx: click.Context, name: str) -> str:
        if name in OWN:
            return OWN[name][1]
        command = self.get_command(ctx, name)
        return command.get_short_help_str(80) if command else ""

    def invoke(self, ctx: click.Context) -> Any:
        try:
            with _pipes():
                return super().invoke(ctx)
        except SIEError as error:
            exits.tell(error)
            ctx.exit(exits.code(error))
        except KeyboardInterrupt:
            click.echo("Interrupted.", err=True)
            ctx.exit(exits.INTERRUPTED)


class Noun(click.Group):
    """A group of verbs about one kind of thing; without a verb it lists them."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        if not args or (args[0].startswith("-") and args[0] not in ("-h", "--help")):
            args = ["list", *args]
        return super().parse_args(ctx, args)


@contextlib.contextmanager
def _pipes() -> Iterator[None]:
    """Ends silently when whoever reads standard output has gone."""
    try:
        yield
        sys.stdout.flush()
    except BrokenPipeError:
        # What is still buffered would fail once more when the interpreter ends.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        raise click.exceptions.Exit(exits.BROKEN_PIPE) from None


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
