"""What a write would change, as people read it before they say yes: one block a model, and how many there are.

Owns the words and colours. What differs is told by the service.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Mapping
from typing import Any

import click

from sie_config.model import diff
from sie_config.model.diff import FieldChange

COLOURS = {"+": "green", "-": "red", "~": "yellow"}


def show(changes: Iterable[Mapping[str, Any]]) -> None:
    """A block for each change, on standard output."""
    for change in changes:
        fields = [FieldChange(each["path"], each["before"], each["after"]) for each in change["fields"]]
        if change["action"] == "deleted":
            fields = []  # all of it goes: its name says that
        for line in diff.plan_lines(change["model"], fields, change["action"]):
            click.secho(line, fg=COLOURS.get(line.lstrip()[:1]))
        click.echo()


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
    """Go on if a person says yes, or ``--yes`` did."""
    if yes:
        return
    if not sys.stdin.isatty():
        raise click.UsageError("Nobody is there to ask: say --yes.")
    click.confirm(question, abort=True)
