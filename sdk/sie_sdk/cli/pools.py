"""The commands ``sie pools``: list, create, renew and delete.

Owns their arguments and what they say. Not here: the group they belong to (``cli``), what they do (``client``).
"""

from __future__ import annotations

import click
import msgspec

from sie_sdk.cli import tables
from sie_sdk.client import SIEClient
from sie_sdk.errors import PoolNotFoundError
from sie_sdk.pools import DEFAULT_TTL_S

_url = click.option(
    "--url", envvar="SIE_BASE_URL", show_envvar=True, help="The server. [default: http://127.0.0.1:8080]"
)


@click.group()
def pools() -> None:
    """Named capacity with a lease: workers that compute only what is asked of the pool.

    \b
    Examples:
      sie pools create team-a --workers cpu=2 --minimum 1 --ttl 600
      sie encode all-MiniLM-L6-v2 "hello" --pool team-a
      sie pools list
    """


@pools.command(name="list")
@_url
@click.option("--json", "as_json", is_flag=True, help="Print JSON, for programs.")
def every(url: str | None, as_json: bool) -> None:
    """List the pools and who works for them."""
    with SIEClient(url) as client:
        rows = client.list_pools()
    if as_json:
        click.echo(msgspec.json.encode({"pools": rows}))
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
@click.option("--ttl", type=float, default=DEFAULT_TTL_S, show_default=True, help="Seconds it lives without a renewal.")
@click.option("--bundle", default="default", show_default=True, help="The bundle its workers run.")
@click.option("--pin", "pinned", multiple=True, metavar="MODEL", help="A model its workers keep loaded; repeatable.")
@_url
def create(
    name: str, workers: tuple[str, ...], minimum: int, ttl: float, bundle: str, pinned: tuple[str, ...], url: str | None
) -> None:
    """Make the pool NAME, or change and renew it."""
    with SIEClient(url) as client:
        made = client.create_pool(
            name,
            dict(map(_count, workers)),
            minimum_worker_count=minimum,
            ttl_s=ttl,
            bundle=bundle,
            pinned_models=pinned,
        )
    click.echo(f"Pool {made.spec.name} is {made.status.state}; it ends in {made.spec.ttl_seconds:g} s unless renewed.")


@pools.command()
@click.argument("name")
@_url
def renew(name: str, url: str | None) -> None:
    """Begin the lease of the pool NAME anew."""
    with SIEClient(url) as client:
        if not client.renew_pool(name):
            raise _absent(name)
    click.echo(f"Pool {name} is renewed.")


@pools.command()
@click.argument("name")
@_url
def delete(name: str, url: str | None) -> None:
    """End the pool NAME; what is queued in it is still done."""
    with SIEClient(url) as client:
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
