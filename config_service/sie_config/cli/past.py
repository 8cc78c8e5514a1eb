"""``sie config history``, ``rollback`` and ``watch``: what was written, going back, and what is being written.

Owns their arguments and what they say.
"""

from __future__ import annotations

import time
from typing import Any

import click
import msgspec

from sie_config.cli import plan
from sie_config.cli.service import ConfigService, asks_config
from sie_sdk.cli.server import as_json, print_rows

HISTORY = "/v1/configs/history"


@click.command()
@click.argument("epoch", type=int, required=False)
@click.option("--limit", type=click.IntRange(1, 500), default=20, show_default=True, help="How many, the newest first.")
@click.option("--before", type=int, metavar="EPOCH", help="Those before it.")
@as_json
@asks_config
def history(service: ConfigService, epoch: int | None, limit: int, before: int | None, as_json: bool) -> None:
    """List the writes, the newest first; or show what the write of EPOCH changed.

    \b
    Examples:
      sie config history
      sie config history 42
      sie config history --json | jq -r '[.epoch, .actor, .note] | @tsv'
    """
    if epoch is not None:
        write = service.read(f"{HISTORY}/{epoch}")
        if as_json:
            print_rows([write])
        else:
            click.echo(_line(write) + "\n")
            plan.show(write["changes"])
        return
    query = {"limit": str(limit)} | ({"before": str(before)} if before is not None else {})
    writes = service.read(HISTORY, **query)["events"]
    if as_json:
        print_rows(writes)
        return
    for write in writes:
        click.echo(_line(write))


@click.command()
@click.argument("epoch", type=int)
@click.option("--yes", "-y", is_flag=True, help="Do not ask.")
@plan.note()
@as_json
@asks_config
def rollback(service: ConfigService, epoch: int, yes: bool, note: str, as_json: bool) -> None:
    """Make the catalogue what it was after EPOCH, as a new epoch. Shows what that changes and asks.

    \b
    Examples:
      sie config rollback 41
      sie config rollback 41 --yes --note "the new reranker is too slow"
    """
    path = f"/v1/configs/rollback/{epoch}"
    planned = service.write("POST", path, dry_run=True)
    if not (as_json and yes):
        plan.show(planned["changes"], err=as_json)
        click.echo(plan.summary(planned), err=as_json)
    answer = planned
    if planned["changes"]:
        seen = {} if yes else service.as_planned(planned)
        plan.confirmed(f"Go back to epoch {epoch}?", yes)
        answer = service.write("POST", path, note=note, headers=seen)
    click.echo(msgspec.json.encode(answer) if as_json else plan.done(answer))


@click.command()
@click.option("--since", type=int, metavar="EPOCH", help="With what came after it, as far as that is remembered.")
@as_json
@asks_config
def watch(service: ConfigService, since: int | None, as_json: bool) -> None:
    """Print each change of the catalogue as it is made, until Ctrl-C.

    \b
    Examples:
      sie config watch
      sie config watch --since 41 --json | jq .data.changes
    """
    for kind, data in service.events("/v1/configs/watch", since):
        if as_json:
            click.echo(msgspec.json.encode(data))
        elif kind == "config.reset":
            click.secho(f"Writes were missed; epoch {data['epoch']} is the latest.", fg="yellow", err=True)
        else:
            write = data["data"] | {"at": _seconds(data["time"])}
            click.echo(_line(write) + "\n")
            plan.show(write["changes"])


def _line(write: dict[str, Any]) -> str:
    at = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(write["at"]))
    models = [each["model"] for each in write["changes"]]
    told = ", ".join(models[:3]) + (f" and {len(models) - 3} more" if len(models) > 3 else "")
    note = f'  "{write["note"]}"' if write["note"] else ""
    return f"{write['epoch']:>6}  {at}  {write['kind']:<8}  {write['actor'] or '-'}  {told}{note}"


def _seconds(moment: str) -> float:
    from datetime import datetime

    return datetime.fromisoformat(moment).timestamp()
