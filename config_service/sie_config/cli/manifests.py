"""``sie manifests``: the Kubernetes objects of an overlay from its values, and the secrets that they refer to.

Owns the arguments and the files. What they say is computed by ``sie_config.deployment``.
"""

from __future__ import annotations

import secrets as randomness
from pathlib import Path

import click
import yaml

from sie_broker.jetstream import permissions
from sie_config.deployment import component, values
from sie_sdk.errors import ConfigurationError


@click.group(short_help="Kubernetes objects: bundles as Knative Services.")
def manifests() -> None:
    """Kubernetes objects: bundles as Knative Services, and everything else that a cluster's values.yaml says.

    \b
    Examples:
      sie manifests render knative/overlays/gke
      sie manifests secrets | kubectl create -f -
    """


@manifests.command()
@click.argument("overlays", nargs=-1, required=True, metavar="DIR...", type=click.Path(exists=True, path_type=Path))
@click.option("--check", is_flag=True, help="Write nothing; fail if a file is not as it would be written.")
def render(overlays: tuple[Path, ...], check: bool) -> None:
    """Write the folder `rendered` of each overlay DIR from its values.yaml.

    \b
    Examples:
      sie manifests render knative/overlays/gke && kubectl apply -k knative/overlays/gke
      sie manifests render --check knative/overlays/*
    """
    stale = []
    for overlay in overlays:
        folder = overlay / component.FOLDER
        told = {name: text.encode() for name, text in component.files(values.load(overlay)).items()}
        there = {path.name: path for path in folder.glob("*") if path.is_file()}
        differs = {name: text for name, text in told.items() if name not in there or there[name].read_bytes() != text}
        gone = [path for name, path in there.items() if name not in told]
        if check:
            stale += [str(folder / name) for name in differs] + [str(path) for path in gone]
            continue
        folder.mkdir(exist_ok=True)
        for name, text in differs.items():
            (folder / name).write_bytes(text)
        for path in gone:
            path.unlink()
        click.echo(f"{folder}: {len(differs)} written, {len(gone)} removed.", err=True)
    if stale:
        raise ConfigurationError(
            f"Not as values.yaml says: {', '.join(stale)}.", field="values.yaml", hint="Run `sie manifests render`."
        )


@manifests.command()
@click.option("--namespace", "-n", default="sie", show_default=True, help="Where they belong.")
@click.option("--inference", is_flag=True, help="Also a token without which the ingress answers nobody.")
def secrets(namespace: str, inference: bool) -> None:
    """Print new Secrets: a password for each NATS user, and the tokens of who may write and read the catalogue.

    Run it once. Who runs it again changes all passwords, and NATS and every pod have to start anew.

    \b
    Examples:
      sie manifests secrets | kubectl create -f -
      sie manifests secrets --inference | kubectl create -f -
    """
    # With a letter first: a server that reads a password from its environment takes digits for a number.
    users = {name: f"p{randomness.token_hex(24)}" for name in (*permissions.users(), component.ROUTE)}
    tokens = {name: randomness.token_hex(24) for name in ("admin", "read", *(("inference",) if inference else ()))}
    click.echo(
        yaml.safe_dump_all(
            {
                "apiVersion": "v1",
                "kind": "Secret",
                "metadata": {"name": name, "namespace": namespace, "labels": {"app.kubernetes.io/part-of": "sie"}},
                "stringData": data,
            }
            for name, data in (("sie-nats-users", users), ("sie-tokens", tokens))
        ),
        nl=False,
    )
