"""Options that ``sie up`` and ``sie serve`` share: a port, and which models to serve."""

from __future__ import annotations

from pathlib import Path

import click

PORT = click.IntRange(0, 65_535)


def models(ctx: click.Context, param: click.Parameter, value: str) -> str:
    """Ids separated by commas, or a folder: what can only be a folder has to be there."""
    if value.startswith(("/", ".", "~")) and not Path(value).is_dir():
        raise click.BadParameter(f"there is no folder {value}; ids of models are like org/model.", ctx, param)
    return value
