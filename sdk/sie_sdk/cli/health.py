"""``sie health``: the lanes and workers as the server sees them."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from sie_sdk.cli.server import as_json, asks_server, get, print_rows, read_so

if TYPE_CHECKING:
    from sie_sdk.client import SIEClient


@click.command()
@as_json
@asks_server
def health(client: SIEClient, as_json: bool) -> None:
    """Show the server's lanes and workers. The exit code is 0 while it answers.

    A lane is what scales: a bundle on a machine profile, for a pool. A server without workers is well: they start when
    there is work. `sie status` shows the processes that `sie up` runs on this machine.

    \b
    Examples:
      sie health
      sie health --url http://embeddings.example.org
      sie health --json | jq '[.workers[].loaded_models[]] | unique'
    """
    from sie_sdk.cli import tables

    seen = get(client, "/health")
    if as_json:
        print_rows([seen])
        return
    with read_so():
        tables.health(seen)
