"""``sie models add``: propose a model's spec from its files, on the hub or in a folder, and put it where it is served.

Owns the command. Without a file to write it to, the spec goes to the config service. What is
proposed is ``sie_config.propose``'s, the hub is read by ``weights.repository``.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import NamedTuple

import click

from sie_config.cli import plan
from sie_config.cli.service import ConfigService, asks_config
from sie_config.model.sources import HubSource, LocalSource, Source
from sie_config.propose import Folder, Proposal, local, spec, written
from sie_sdk.errors import ConfigurationError

PATHS = ("/", ".", "~")
"""What a folder's name begins with, when it is not there."""
SUFFIXES = (".yaml", ".yml")
MODELS = "/v1/configs/models"


class Found(NamedTuple):
    """A model's files, and what is known of them before they are read."""

    folder: Folder
    id: str
    revision: str
    sources: tuple[Source, ...]
    asked: str


@click.command()
@click.argument("model", metavar="ORG/MODEL|FOLDER")
@click.option("--revision", metavar="COMMIT", help="A commit, branch or tag of the hub. [default: main, as it is now]")
@click.option("--id", "name", metavar="ID", help="What it is served as. [default: ORG/MODEL, or the folder's name]")
@click.option("--out", type=click.Path(path_type=Path), metavar="FILE|DIR", help="Write the spec there.")
@click.option("--dry-run", is_flag=True, help="Print the spec and do nothing.")
@click.option("--yes", "-y", is_flag=True, help="Do not ask: add it in spite of doubts, replace a file that is there.")
@plan.note()
@asks_config
def add(
    service: ConfigService,
    model: str,
    revision: str | None,
    name: str | None,
    out: Path | None,
    dry_run: bool,
    yes: bool,
    note: str,
) -> None:
    """Propose the spec of a model from its own files, and add it to what is served, or to a folder of specs (--out).

    ORG/MODEL is read from the Hugging Face Hub (HF_TOKEN, HF_ENDPOINT): small files and the header of the weights, at
    one commit, which the spec pins. Each fact comes with the file it stands in; what no file says is listed as a doubt.
    A model that nothing here computes yet becomes `status: planned`, with what it waits for.

    \b
    Examples:
      sie models add BAAI/bge-small-en-v1.5
      sie models add BAAI/bge-small-en-v1.5 --dry-run > bge.yaml
      sie models add BAAI/bge-small-en-v1.5 --out specs/ && sie serve --models specs/
      sie models add ./my-model --id acme/my-model --out specs/
    """
    found = _found(model, revision, name)
    proposal = spec(found.folder, id=found.id, revision=found.revision, sources=found.sources)
    text = written.document(proposal, found.asked)
    if dry_run or out is None:
        click.echo(text, nl=False)
    if out is None and not dry_run:
        _send(service, proposal, yes, note)
    elif out is not None and not dry_run:
        path = out if out.suffix in SUFFIXES else out / f"{proposal.spec.id.replace('/', '__')}.yaml"
        _write(path, text, yes)
        _tell(proposal)
        click.echo(path)


def _found(model: str, revision: str | None, name: str | None) -> Found:
    try:
        path = Path(model).expanduser()
    except RuntimeError:  # nobody here is called so
        path = Path(model)
    if path.is_dir() or model.startswith(PATHS):
        return _here(path, revision, name)
    from sie_bundle.weights import repository

    read = repository.read(model, revision)
    sources = (LocalSource(path=model), HubSource(repo=model, revision=read.commit))
    return Found(read.folder, name or model, read.commit, sources, f"{model} at {read.commit}")


def _here(path: Path, revision: str | None, name: str | None) -> Found:
    """A folder of this machine; one of Hugging Face's own cache is a repository at a commit."""
    folder, place = local.read(path), path.absolute()
    sources: tuple[Source, ...] = (LocalSource(path=str(place)),)
    if (kept := local.named(place)) is not None and revision is None:
        repo, commit = kept
        return Found(folder, name or repo, commit, (*sources, HubSource(repo=repo, revision=commit)), f"{place}")
    return Found(folder, name or place.resolve().name, revision or local.revision(path, folder), sources, f"{place}")


def _send(service: ConfigService, proposal: Proposal, yes: bool, note: str) -> None:
    """Add it to the catalogue; what is there and the same stays as it is."""
    planned = service.write("POST", MODELS, proposal.document, dry_run=True)
    plan.warn(planned)
    if not planned["changes"]:
        click.echo(f"{planned['model_id']} is there already, the same.", err=True)
        return
    doubts = len(proposal.doubts)
    about = f", with {doubts} doubt{'' if doubts == 1 else 's'}" if doubts else ""
    plan.confirmed(f"Add {planned['model_id']}{about}?", yes)
    answer = service.write("POST", MODELS, proposal.document, note=note)
    click.echo(f"Epoch {answer['epoch']}: {answer['model_id']} is added.", err=True)


def _write(path: Path, text: str, yes: bool) -> None:
    """Write the file; another content that is there is replaced only when a person says so."""
    told = text.encode()
    if path.is_file() and path.read_bytes() != told and not yes:
        if not sys.stdin.isatty():
            raise ConfigurationError(
                f"{path} is there and says something else.", field="--out", hint="--yes replaces it."
            )
        click.confirm(f"{path} is there and says something else. Replace it?", abort=True, err=True)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(told)


def _tell(proposal: Proposal) -> None:
    made = proposal.spec
    what = f"planned: it waits for {made.blocked_by}" if made.status == "planned" else ", ".join(made.outputs)
    click.echo(f"{made.id}: {what}", err=True)
    for doubt in proposal.doubts:
        click.echo(f"  in doubt: {doubt.field}: {doubt.text}", err=True)
