"""The commands ``sie models``: what the server can run, and one model with how it is called.

Owns their arguments and what is said of one model. Not here: tables (``tables``), the specs of models (``config``).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any
from urllib.parse import quote

import click

from sie_sdk.cli.completion import model_names
from sie_sdk.cli.group import Noun
from sie_sdk.cli.server import as_json, asks_server, get, print_rows
from sie_sdk.errors import NotFoundError

if TYPE_CHECKING:
    from sie_sdk.client import SIEClient
    from sie_sdk.types import ModelInfo


@click.group(cls=Noun)
def models() -> None:
    """What the server can run, and how to call it. Without a verb: list.

    \b
    Examples:
      sie models
      sie models show all-MiniLM-L6-v2
      sie models --json | jq -r 'select(.outputs | index("score")) | .name'
    """


@models.command("list")
@as_json
@asks_server
def every(client: SIEClient, as_json: bool) -> None:
    """List the models the server can run, loaded or not.

    \b
    Examples:
      sie models list
      sie models list --json | jq -r .name
    """
    from sie_sdk.cli import tables

    rows = client.list_models()
    if as_json:
        print_rows(rows)
    else:
        tables.models(rows)


@models.command()
@click.argument("name", shell_complete=model_names)
@as_json
@asks_server
def show(client: SIEClient, name: str, as_json: bool) -> None:
    """Show the model NAME: what it gives, how long its texts may be, its licence, and how to call it.

    \b
    Examples:
      sie models show all-MiniLM-L6-v2
      sie models show BAAI/bge-m3 --json | jq .dims
    """
    from sie_sdk.cli import tables

    model = client.get_model(name)
    if as_json:
        print_rows([model])
        return
    try:
        spec = get(client, f"/v1/configs/models/{quote(model.name)}")
    except NotFoundError:  # a server of the protocol that shows no specs
        spec = {}
    click.echo(model.name)
    tables.facts(_facts(model, spec))
    if model.state != "planned":
        click.echo("\nCall it:")
        for line in _calls(model, spec):
            click.echo(f"  {line}")


def _facts(model: ModelInfo, spec: dict[str, Any]) -> dict[str, str]:
    outputs = (f"{name} ({model.dims[name]} dims)" if name in model.dims else name for name in model.outputs)
    shorter = ((spec.get("tasks") or {}).get("dense") or {}).get("dims") or ()
    return {
        "outputs": ", ".join(outputs),
        "shorter": ", ".join(map(str, shorter)) and f"{', '.join(map(str, shorter))} dims: --option dimensions=N",
        "length": f"{model.max_sequence_length} tokens" if model.max_sequence_length else "",
        "licence": spec.get("licence") or "",
        "inputs": ", ".join(model.inputs),
        "revision": model.revision or "",
        "profiles": ", ".join(model.profiles),
        "aliases": ", ".join(model.aliases),
        "runs in": " on ".join(filter(None, (model.bundle, spec.get("profile")))),
        "state": model.state if model.last_error is None else f"{model.state}: {model.last_error.message}",
    }


def _calls(model: ModelInfo, spec: dict[str, Any]) -> list[str]:
    """How the model is asked: on the command line, then in Python."""
    shell, python = [], []
    any_label = ((spec.get("tasks") or {}).get("extract") or {}).get("kind") in ("entailment", "spans")
    flags, keyword = (" -l person -l city", ', labels=["person", "city"]') if any_label else ("", "")
    for output in model.outputs:
        match output:
            case "score":
                shell.append(f'sie score {model.name} "capital of France?" "Paris is." "Rome is not."')
                python.append(f'client.score("{model.name}", query, texts).scores')
            case "json":
                shell.append(f'sie extract {model.name}{flags} "Ada Lovelace lived in London."')
                python.append(f'client.extract("{model.name}", text{keyword}).entities  # or .classifications')
            case "dense":
                shell.append(f'sie encode {model.name} "hello"')
                python.append(f'client.encode("{model.name}", "hello").dense')
            case _:
                shell.append(f'sie encode {model.name} --type {output} "hello"')
                python.append(f'client.encode("{model.name}", "hello", output_types=["{output}"]).{output}')
    return [*shell, *python]
