"""The reference part of docs/cli.md, made from the commands: ``python -m tests.sdk.cli.reference`` writes it."""

from __future__ import annotations

import inspect
from pathlib import Path

import click

from tests.sdk.cli.running import commands

PAGE = Path(__file__).parents[3] / "docs" / "cli.md"
MARK = "<!-- Below this line is what `python -m tests.sdk.cli.reference` writes. -->\n"


def reference() -> str:
    """A section for every command: how it is called, what it does, its options, its examples."""
    return "\n".join(_section(context, command) for context, command in commands() if context.parent is not None)


def _section(context: click.Context, command: click.Command) -> str:
    prose, _, examples = inspect.cleandoc(command.help or "").partition("\b\nExamples:\n")
    usage = " ".join([context.command_path, *command.collect_usage_pieces(context)])
    parts = [f"### {context.command_path}\n", f"```\n{usage}\n```\n", prose.replace("\b\n", "").strip() + "\n"]
    options = [option for option in command.params if isinstance(option, click.Option)]
    if options:
        parts += ["| option | what it does |\n| --- | --- |", *map(_row, options), ""]
    parts.append(f"```\n{inspect.cleandoc(examples)}\n```\n")
    return "\n".join(parts)


def _row(option: click.Option) -> str:
    names = ", ".join(option.opts) + "".join(f" / {name}" for name in option.secondary_opts)
    if isinstance(option.type, click.Choice):
        value = "|".join(option.type.choices)
    else:
        value = "" if option.is_flag else option.metavar or (option.name or "").upper()
    told = [" ".join((option.help or "").split())]
    if option.show_default:
        told.append(f"[default: {option.default}]")
    if option.envvar:
        told.append(f"[`{option.envvar}`]")
    return f"| `{_cell(f'{names} {value}'.strip())}` | {_cell(' '.join(told))} |"


def _cell(text: str) -> str:
    return text.replace("|", "\\|")


if __name__ == "__main__":
    PAGE.write_text(PAGE.read_text().partition(MARK)[0] + MARK + "\n" + reference())
