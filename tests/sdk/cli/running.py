"""The command line in this process, as click's own runner runs it."""

from __future__ import annotations

from collections.abc import Iterator

import click
from click.testing import CliRunner, Result

from sie_sdk import cli


def sie(*arguments: str, stdin: str | bytes | None = None) -> Result:
    """One command, with what it printed and its exit code."""
    return CliRunner().invoke(cli.main, arguments, input=stdin)


def commands() -> Iterator[tuple[click.Context, click.Command]]:
    """Every command there is, those of other packages too, each with the context of its help."""
    yield from _below(click.Context(cli.main, info_name="sie", max_content_width=100), cli.main)


def _below(context: click.Context, command: click.Command) -> Iterator[tuple[click.Context, click.Command]]:
    yield context, command
    if isinstance(command, click.Group):
        for name in command.list_commands(context):
            child = command.get_command(context, name)
            assert child is not None
            yield from _below(click.Context(child, parent=context, info_name=name), child)
