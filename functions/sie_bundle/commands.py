"""``sie fetch``: get the weights of models onto this machine before the first request needs them."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import click
from rich.console import Console
from rich.progress import BarColumn, DownloadColumn, TextColumn, TimeElapsedColumn, TransferSpeedColumn
from rich.progress import Progress as Bars

from sie_bundle.settings import Settings
from sie_bundle.weights import weights
from sie_config import catalog
from sie_config.model.variant import loras, name_of, variant
from sie_sdk import settings

DEFAULT_MODEL = "sentence-transformers/all-MiniLM-L6-v2"


@click.command()
@click.argument("models", nargs=-1, metavar="[MODEL]...")
def fetch(models: tuple[str, ...]) -> None:
    """Download the weights of each MODEL, and of its LoRAs, into the cache (SIE_CACHE_DIR).

    \b
    Examples:
      sie fetch                                          the default model
      sie fetch sentence-transformers/all-MiniLM-L6-v2
    """
    setting = settings.read(Settings)
    weights_dir = Path(setting.weights_dir) if setting.weights_dir else None
    for spec in catalog.select(",".join(models) or DEFAULT_MODEL):
        for lora in ("", *loras(spec)):
            wanted = variant(spec, lora)
            with _bar() as progress:
                found = weights.resolve(wanted, weights_dir, Path(setting.cache_dir), progress)
            shown = found.lora or found
            click.echo(f"{name_of(wanted)}\n  from {shown.source}\n  in   {shown.folder}")


@contextmanager
def _bar() -> Iterator[weights.Progress]:
    """A bar on standard error, once there is something to show; no total, since not every source tells it."""
    columns = (
        TextColumn("{task.description}"),
        BarColumn(pulse_style="cyan"),
        DownloadColumn(),
        TransferSpeedColumn(),
        TimeElapsedColumn(),
    )
    with Bars(*columns, console=Console(stderr=True), transient=True) as bars:
        rows = {}

        def progress(source: str, size: int) -> None:
            if source not in rows:
                rows[source] = bars.add_task(source, total=None)
            bars.update(rows[source], completed=size)

        yield progress
