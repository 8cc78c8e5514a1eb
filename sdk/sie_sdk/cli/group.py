"""The group `sie`: how its commands are found without importing them, and what it prints when one fails.

Commands are imported when they run, and listed by the lines below. Those of other packages come by name through the
entry point groups ``sie.commands`` and, for verbs of a noun, ``sie.commands.<noun>``, so that nothing is imported that
an install lacks. Not here: what any command does.
"""

from __future__ import annotations

import contextlib
import difflib
import os
import sys
from collections.abc import Iterable, Iterator
from importlib import import_module
from typing import TYPE_CHECKING, Any

import click
from click.shell_completion import CompletionItem

from sie_sdk import extras
from sie_sdk.cli import exits
from sie_sdk.errors import ConfigurationError, SIEError

OWN = {
    "encode": "inference",
    "score": "inference",
    "extract": "inference",
    "jobs": "jobs",
    "models": "models",
    "pools": "pools",
    "config": "config",
    "bench": "bench",
    "health": "health",
    "completion": "completion",
}
"""The module of each command that every install has."""

SECTIONS = {
    "Ask a server": {
        "encode": "Turn texts into vectors.",
        "score": "Rank texts by their relevance to a query.",
        "extract": "Find entities in texts, or classify them.",
        "jobs": "Work that is queued and kept: submit it, look at it, fetch its result.",
        "models": "What the server can run, and how to call it.",
        "pools": "Named capacity with a lease.",
        "config": "The catalogue as it is configured: specs, bundles, what a name leads to.",
        "health": "The server's lanes and workers.",
        "bench": "How fast the server answers.",
    },
    "Run one on this machine (needs the [local] extra)": {
        "up": "Run the whole platform: NATS, config service, ingress, bundles 0..N.",
        "down": "Stop what `sie up` started.",
        "status": "What `sie up` runs: processes, memory, bundles.",
        "serve": "Serve the catalogue from one process, without NATS.",
        "tour": "See one request served from zero.",
        "fetch": "Get the weights of models ahead of time.",
        "dlq": "Work that was given up: look at it, try it again, throw it away.",
    },
    "Run it in a cluster (needs the [config] extra)": {
        "manifests": "Kubernetes objects: bundles as Knative Services.",
    },
    "Set up your shell": {"completion": "Let it complete commands, options and model names."},
}
"""What lists each command, so that none is imported to be listed. Commands of other packages stand below these."""

_LINES = {name: line for section in SECTIONS.values() for name, line in section.items()}

if TYPE_CHECKING:
    from importlib.metadata import EntryPoint

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
            command: click.Command = getattr(import_module(f"sie_sdk.cli.{OWN[name]}"), name)
            return command
        return next((_load(entry) for entry in _installed() if entry.name == name), None)

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        try:
            return super().resolve_command(ctx, args)
        except click.UsageError:
            if near := difflib.get_close_matches(args[0], self.list_commands(ctx), cutoff=0.7):
                told = f"No such command {args[0]!r}. Did you mean {' or '.join(near)}?"
                raise click.UsageError(told, ctx) from None
            raise

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        names = self.list_commands(ctx)
        widest = max(map(len, names))
        others = [name for name in names if name not in _LINES]
        for title, section in {**SECTIONS, "More": others}.items():
            rows = [(name.ljust(widest), self._line(ctx, name)) for name in section if name in names]
            if rows:
                with formatter.section(title):
                    formatter.write_dl(rows)

    def shell_complete(self, ctx: click.Context, incomplete: str) -> list[CompletionItem]:
        names = [name for name in self.list_commands(ctx) if name.startswith(incomplete)]
        commands = [CompletionItem(name, help=self._line(ctx, name)) for name in names]
        return commands + click.Command.shell_complete(self, ctx, incomplete)

    def _line(self, ctx: click.Context, name: str) -> str:
        command = None if name in _LINES else self.get_command(ctx, name)
        return command.get_short_help_str(80) if command else _LINES.get(name, "")

    def invoke(self, ctx: click.Context) -> Any:
        try:
            with _pipes():
                return super().invoke(ctx)
        except SIEError as error:
            exits.tell(error)
            ctx.exit(exits.code(error))
        except ModuleNotFoundError as error:
            self._refuse_without(error, ctx)
            raise
        except OSError as error:
            click.echo(f"Error: {error.filename or 'Reading or writing'}: {error.strerror or error}.", err=True)
            ctx.exit(1)
        except KeyboardInterrupt:
            click.echo("Interrupted.", err=True)
            ctx.exit(exits.INTERRUPTED)

    def _refuse_without(self, error: ModuleNotFoundError, ctx: click.Context) -> None:
        """Ends with the extra that a command lacks which imports what it needs only when it runs, as ``up`` does."""
        entry = next((entry for entry in _installed() if entry.name == ctx.invoked_subcommand), None)
        if entry is not None and not (error.name or "").startswith("sie_"):
            stand_in = _missing(entry, error)
            with click.Context(stand_in, parent=ctx, info_name=entry.name) as own:
                stand_in.invoke(own)


class Noun(click.Group):
    """A group of verbs about one kind of thing; without a verb it lists them.

    Other packages add verbs to the noun ``config`` through the entry point group ``sie.commands.config``.
    """

    def list_commands(self, ctx: click.Context) -> list[str]:
        return sorted({*super().list_commands(ctx), *(entry.name for entry in self._added())})

    def get_command(self, ctx: click.Context, name: str) -> click.Command | None:
        own = super().get_command(ctx, name)
        return own or next((_load(entry) for entry in self._added() if entry.name == name), None)

    def _added(self) -> Iterable[EntryPoint]:
        return _installed(f"sie.commands.{self.name}")

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        if not args or (args[0].startswith("-") and args[0] not in ("-h", "--help")):
            args = ["list", *args]
        return super().parse_args(ctx, args)


@contextlib.contextmanager
def _pipes() -> Iterator[None]:
    """Ends silently when whoever reads standard output has gone."""
    if sys.stdout is None:  # closed from the start, which is fine for --out
        sys.stdout = open(os.devnull, "w")  # noqa: SIM115 - for as long as the process lives
    if sys.stdin is None:  # likewise, where inputs come from elsewhere
        sys.stdin = open(os.devnull)  # noqa: SIM115
    try:
        yield
        sys.stdout.flush()
    except OSError as error:
        try:
            sys.stdout.flush()
        except OSError:
            # What is still buffered would fail once more when the interpreter ends, with an exit code of its own.
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        if isinstance(error, BrokenPipeError):
            raise click.exceptions.Exit(exits.BROKEN_PIPE) from None
        raise


def _installed(group: str = "sie.commands") -> Iterable[EntryPoint]:
    from importlib.metadata import entry_points

    return entry_points(group=group)


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
        path, context = entry.name, click.get_current_context()
        if context.parent is not None and context.parent.parent is not None:
            path = f"{context.parent.info_name} {path}"
        told = f"sie {path} needs the [{extra}] extra ({reason})."
        exits.tell(ConfigurationError(told, hint=extras.install(extra)))
        context.exit(1)  # not 2, which is a difference to whoever asks `sie config diff` for one

    return click.Command(
        entry.name,
        callback=refuse,
        short_help=f"Needs the [{extra}] extra.",
        context_settings={"ignore_unknown_options": True, "allow_extra_args": True},
        add_help_option=False,
    )
