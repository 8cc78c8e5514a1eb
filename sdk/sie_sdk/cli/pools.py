"""The commands ``sie pools``: list, create, renew and delete.

Owns their arguments and what they say. Not here: the group they belong to (``group``), what they do (``client``).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from sie_sdk.cli.completion import model_names
from sie_sdk.cli.group import Noun
from sie_sdk.cli.seconds import Seconds
from sie_sdk.cli.server import as_json, asks_server, print_rows
from sie_sdk.errors import PoolNotFoundError
from sie_sdk.pools import DEFAULT_TTL_S

if TYPE_CHECKING:
    from sie_sdk.client import SIEClient


@click.group(cls=Noun)
def pools() -> None:
    """Named capacity with a lease: workers that compute only what is asked of the pool. Without a verb: list.

    \b
    Examples:
      sie pools create team-a --workers cpu=2 --minimum 1 --ttl 600
      sie encode all-MiniLM-L6-v2 "hello" --pool team-a
      sie pools
      sie pools delete team-a
    """


@pools.command("list")
@as_json
@asks_server
def every(client: SIEClient, as_json: bool) -> None:
    """List the pools and who works for them.

    \b
    Examples:
      sie pools list
      sie pools list --json | jq -r 'select(.status.state == "active") | .spec.name'
    """
    from sie_sdk.cli import tables

    rows = client.list_pools()
    if as_json:
        print_rows(rows)
    else:
        tables.pools(rows)


@pools.command()
@click.argument("name")
@click.option(
    "--workers",
    "-w",
    multiple=True,
    required=True,
    metavar="PROFILE=N",
    help="At most N workers of a machine profile; repeatable.",
)
@click.option("--minimum", type=int, default=0, show_default=True, help="Workers of each profile that are kept up.")
@click.option(
    "--ttl",
    metavar="SECONDS",
    type=Seconds(min=0),
    default=DEFAULT_TTL_S,
    show_default=True,
    help="Seconds it lives without a renewal.",
)
@click.option("--bundle", default="default", show_default=True, help="The bundle its workers run.")
@click.option(
    "--pin",
    "pinned",
    multiple=True,
    metavar="MODEL",
    shell_complete=model_names,
    help="A model its workers keep loaded; repeatable.",
)
@as_json
@asks_server
def create(
    client: SIEClient,
    name: str,
    workers: tuple[str, ...],
    minimum: int,
    ttl: float,
    bundle: str,
    pinned: tuple[str, ...],
    as_json: bool,
) -> None:
    """Make the pool NAME, or change and renew it.

    \b
    Examples:
      sie pools create team-a --workers cpu=2
      sie pools create nightly -w l4=4 --minimum 1 --ttl 3600 --pin BAAI/bge-m3
    """
    made = client.create_pool(
        name,
        dict(map(_count, workers)),
        minimum_worker_count=minimum,
        ttl_s=ttl,
        bundle=bundle,
        pinned_models=pinned,
    )
    if as_json:
        print_rows([made])
    else:
        ends = f"it ends in {made.spec.ttl_seconds:g} s unless renewed"
        click.echo(f"Pool {made.spec.name} is {made.status.state}; {ends}.")


@pools.command()
@click.argument("name")
@asks_server
def renew(client: SIEClient, name: str) -> None:
    """Begin the lease of the pool NAME anew.

    \b
    Examples:
      sie pools renew team-a
    """
    if not client.renew_pool(name):
        raise _absent(name)
    click.echo(f"Pool {name} is renewed.")


@pools.command()
@click.argument("name")
@asks_server
def delete(client: SIEClient, name: str) -> None:
    """End the pool NAME; what is queued in it is still done.

    \b
    Examples:
      sie pools delete team-a
    """
    if not client.delete_pool(name):
        raise _absent(name)
    click.echo(f"Pool {name} is deleted.")


def _count(text: str) -> tuple[str, int]:
    profile, _, count = text.partition("=")
    if not profile or not count.isdigit():
        raise click.UsageError(f"--workers {text} is not PROFILE=N, such as cpu=2.")
    return profile, int(count)


def _absent(name: str) -> PoolNotFoundError:
    return PoolNotFoundError(f"There is no pool {name}.", hint="`sie pools list` shows those there are.")
