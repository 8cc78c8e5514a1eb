"""``sie config export``, ``delete`` and ``status``: the specs as files, one model gone, and who has applied one.

Owns their arguments and what they say.
"""

from __future__ import annotations

from pathlib import Path

import click
import msgspec

from sie_config.cli import plan
from sie_config.cli.folder import SUFFIXES
from sie_config.cli.service import ConfigService, asks_config, model_path
from sie_sdk.cli.completion import model_names
from sie_sdk.cli.server import as_json, print_rows
from sie_sdk.errors import ConfigurationError

EXPORT = "/v1/configs/export"


@click.command()
@click.argument("folder", required=False, metavar="DIR", type=click.Path(file_okay=False, path_type=Path))
@click.option("--owner", metavar="NAME", help="Only what this owner applied.")
@click.option(
    "--origin",
    type=click.Choice(["written", "baseline", "all"]),
    default="written",
    show_default=True,
    help="What was written by the API, what the config service came with, or both.",
)
@asks_config
def export(service: ConfigService, folder: Path | None, owner: str | None, origin: str) -> None:
    """Write the specs to DIR, one file each, for git; without DIR to standard output as one YAML stream.

    A file is replaced whole or not at all. Specs in DIR that are of no such model are named, and stay.

    \b
    Examples:
      sie config export models/
      sie config export --origin all > catalogue.yaml
      sie config export models/ --owner team-search
    """
    models = [
        each
        for each in service.read(EXPORT)["models"]
        if origin in ("all", each["origin"]) and owner in (None, each["owner"])
    ]
    if folder is None:
        click.echo("---\n".join(each["raw_yaml"] for each in models), nl=False)
        return
    folder.mkdir(parents=True, exist_ok=True)
    files = {folder / f"{each['model_id'].replace('/', '__')}.yaml": each["raw_yaml"] for each in models}
    for path, text in files.items():
        _replace(path, text.encode())
    click.echo(f"{len(models)} spec{'' if len(models) == 1 else 's'} in {folder}.", err=True)
    for path in sorted(each for each in folder.iterdir() if each.suffix.lower() in SUFFIXES and each not in files):
        if path.name[0] != ".":
            click.echo(f"{path} is of none of these models.", err=True)


def _replace(path: Path, content: bytes) -> None:
    """Write the file, of which there is never a half.

    Raises:
        ConfigurationError: it cannot be written.
    """
    draft = path.with_name(f".{path.name}.draft")
    try:
        draft.write_bytes(content)
        draft.replace(path)
    except OSError as error:
        draft.unlink(missing_ok=True)
        raise ConfigurationError(f"{path} cannot be written: {error.strerror}.", field="DIR") from None


@click.command()
@click.argument("name", shell_complete=model_names)
@click.option("--yes", "-y", is_flag=True, help="Do not ask.")
@plan.note()
@as_json
@asks_config
def delete(service: ConfigService, name: str, yes: bool, note: str, as_json: bool) -> None:
    """Delete the model NAME. One that the config service came with is as it was then, if it was written over.

    \b
    Examples:
      sie config delete acme/old-model
      sie config delete acme/old-model --yes --note "nobody asked for it in May"
    """
    planned = service.write("DELETE", model_path(name), dry_run=True)
    if not (as_json and yes):
        plan.show(planned["changes"], err=as_json)
    answer = planned
    if planned["changes"]:
        seen = {} if yes else {"If-Match": f'"{planned["changes"][0]["etag_before"]}"'}
        plan.confirmed(f"Delete {planned['model_id']}?", yes)
        answer = service.write("DELETE", model_path(planned["model_id"]), note=note, headers=seen)
    if as_json:
        click.echo(msgspec.json.encode(answer))
    elif answer["fallback"]:
        click.echo(f"Epoch {answer['epoch']}: {answer['model_id']} is as the config service came with it.")
    else:
        click.echo(f"Epoch {answer['epoch']}: {answer['model_id']} is gone.")


@click.command()
@click.argument("name", shell_complete=model_names)
@as_json
@asks_config
def status(service: ConfigService, name: str, as_json: bool) -> None:
    """Show who has applied the spec of the model NAME: every ingress and the workers of each bundle.

    \b
    Examples:
      sie config status bge-m3
      sie config status bge-m3 --json | jq .all_bundles_acked
    """
    found = service.served(f"{model_path(name)}/status")
    if as_json:
        print_rows([found])
        return
    click.echo(f"{found['model_id']}, epoch {found['config_epoch']}")
    for each in found.get("ingresses", ()):
        state = "has it" if each["acked"] else f"is at epoch {each['epoch']}"
        click.echo(f"  ingress {each['ingress']}: {state}")
    for each in found["bundles"]:
        counts = f"{len(each['acked_workers'])} of {each['total_eligible_workers']} workers"
        late = f", not yet {', '.join(each['pending_workers'])}" if each["pending_workers"] else ""
        click.echo(f"  bundle {each['bundle_id']} in pool {each['pool']}: {counts}{late}")
