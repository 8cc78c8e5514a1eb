"""What a write would change, as people read it before they say yes: one block a model, and how many there are.

Owns the words and colours. What differs is told by the service.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import click

from sie_config.api.write_terms import LONGEST_NOTE
from sie_config.model import diff
from sie_config.model.diff import FieldChange

COLOURS = {"+": "green", "-": "red", "~": "yellow"}


def note(why: str = "Why, for the history.") -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """The option ``--note``, refused before anything is asked if it is too long."""
    return click.option("--note", default="", metavar="TEXT", help=why, callback=_short)


def _short(context: click.Context, parameter: click.Parameter, value: str) -> str:
    if len(value) > LONGEST_NOTE:
        raise click.BadParameter(f"it has {len(value)} characters, and {LONGEST_NOTE} are kept.", context, parameter)
    return value


def show(changes: Iterable[Mapping[str, Any]], err: bool = False) -> None:
    """A block for each change, on standard output or, with ``err``, on standard error."""
    for change in changes:
        fields = [FieldChange(each["path"], each["before"], each["after"]) for each in change["fields"]]
        if change["action"] == "deleted":
            fields = []  # all of it goes: its name says that
        for line in diff.plan_lines(change["model"], fields, change["action"]):
            click.secho(line, fg=COLOURS.get(line.lstrip()[:1]), err=err)
        click.echo(err=err)


def summary(answer: Mapping[str, Any]) -> str:
    """How many models are added, changed and deleted."""
    counts = [(len(answer["created"]), "to add"), (len(answer["changed"]), "to change")]
    counts += [(len(answer["deleted"]), "to delete"), (len(answer["unchanged"]), "unchanged")]
    return "Plan: " + ", ".join(f"{count} {what}" for count, what in counts) + "."


def done(answer: Mapping[str, Any]) -> str:
    """The same of what was done."""
    counts = [(len(answer["created"]), "added"), (len(answer["changed"]), "changed")]
    counts += [(len(answer["deleted"]), "deleted")]
    return f"Epoch {answer['epoch']}: " + ", ".join(f"{count} {what}" for count, what in counts) + "."


def warn(answer: Mapping[str, Any]) -> None:
    """What the service finds doubtful, on standard error."""
    for warning in answer.get("warnings", ()):
        click.secho(f"Warning: {warning}", fg="yellow", err=True)


def confirmed(question: str, yes: bool) -> None:
    """Go on if a person says yes, or ``--yes`` did. Asked on standard error: the other one may be a file."""
    if yes:
        return
    if not _is_asked():
        raise click.UsageError("Nobody is there to ask: say --yes.")
    click.confirm(question, abort=True, err=True)


def _is_asked() -> bool:
    return sys.stdin.isatty()
