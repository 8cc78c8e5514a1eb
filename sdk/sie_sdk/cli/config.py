"""The commands ``sie config``: the catalogue as it is configured: specs, bundles, and what a name leads to. Reads only.

Owns their arguments and what they say. Not here: what requests may ask for (``models``).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from sie_sdk.cli.completion import model_names
from sie_sdk.cli.group import Noun
from sie_sdk.cli.server import as_json, asks_server, get, get_text, print_rows, read_so

if TYPE_CHECKING:
    from sie_sdk.client import SIEClient

MODELS = "/v1/configs/models"
BUNDLES = "/v1/configs/bundles"


@click.group(cls=Noun)
def config() -> None:
    """The catalogue as it is configured: specs, bundles, and what a name leads to. Without a verb: list.

    \b
    Examples:
      sie config
      sie config show bge-m3 > bge-m3.yaml
      sie config bundles
      sie config resolve bge-m3:sparse
    """


@config.command("list")
@as_json
@asks_server
def every(client: SIEClient, as_json: bool) -> None:
    """List the models with where they run and their profiles.

    \b
    Examples:
      sie config list
      sie config list --json | jq -r 'select(.bundle == "default") | .model_id'
    """
    from sie_sdk.cli import tables

    with read_so():
        rows = get(client, MODELS)["models"]
        if as_json:
            print_rows(rows)
        else:
            tables.specs(rows)


@config.command()
@click.argument("name", shell_complete=model_names)
@as_json
@asks_server
def show(client: SIEClient, name: str, as_json: bool) -> None:
    """Show the spec of the model NAME as YAML that a folder of specs takes; with --json as JSON that says everything.

    \b
    Examples:
      sie config show bge-m3
      sie config show bge-m3 --json | jq .tasks.dense
    """
    from sie_sdk import calls

    path = f"{MODELS}/" + calls.escaped("model", name, safe="/:")
    if as_json:
        print_rows([get(client, path)])
    else:
        click.echo(get_text(client, path), nl=False)


@config.command()
@click.argument("name", required=False)
@as_json
@asks_server
def bundles(client: SIEClient, name: str | None, as_json: bool) -> None:
    """List the bundles, each with its models and workers; or show the bundle NAME.

    \b
    Examples:
      sie config bundles
      sie config bundles default
    """
    from sie_sdk import calls
    from sie_sdk.cli import tables

    path = BUNDLES if name is None else f"{BUNDLES}/" + calls.escaped("bundle", name, safe="")
    if name is not None and not as_json:
        click.echo(get_text(client, path), nl=False)
        return
    found = get(client, path)
    with read_so():
        rows = found["bundles"] if name is None else [found]
        if as_json:
            print_rows(rows)
        else:
            tables.bundles(rows)


@config.command()
@click.argument("name", shell_complete=model_names)
@click.option("--bundle", metavar="NAME", help="The bundle that is to serve it.")
@as_json
@asks_server
def resolve(client: SIEClient, name: str, bundle: str | None, as_json: bool) -> None:
    """Show what a request for NAME would be served by: the model, its bundle and its profile.

    NAME is as requests have it: with or without its organisation, an alias, with :profile behind or bundle:/ before it.

    \b
    Examples:
      sie config resolve bge-m3
      sie config resolve BAAI/bge-m3 --bundle default
      sie config resolve all-minilm-l6-v2 --json | jq -r .model
    """
    from sie_sdk.cli import tables

    found = get(client, "/v1/configs/resolve", {"model": name} | ({"bundle": bundle} if bundle else {}))
    if as_json:
        print_rows([found])
        return
    with read_so():
        model, told = (
            found["model"],
            {
                "bundle": found["resolved_bundle"],
                "profile": found.get("profile", ""),
                "of": ", ".join(found.get("profiles", ())),
            },
        )
        click.echo(model)
        tables.facts(told)
