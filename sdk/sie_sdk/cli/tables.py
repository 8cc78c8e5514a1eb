"""What things look like for people: tables and lines on standard output. What programs read is ``sinks``'.

Owns the layout. In a pipe nothing is cut to a width, and there are no colours. rich is imported on first use, because
it takes longer to import than the rest of the command line.
"""

from __future__ import annotations

import io
import sys
import time
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import click
import msgspec
import numpy as np

from sie_sdk.arrays import Array
from sie_sdk.pools import PoolInfo
from sie_sdk.types import (
    EncodeResult,
    ExtractResult,
    Item,
    JobStatus,
    ModelInfo,
    Operation,
    Quantization,
    ScoreEntry,
    SparseVector,
    Timing,
)

if TYPE_CHECKING:
    from rich.table import Table

WIDE = 10_000
"""The width where standard output is no terminal: a line is as long as what it says."""


def vector(item: Item, result: EncodeResult) -> None:
    """A line for each representation of a text."""
    label = f"{_label(item):<32}"
    if result.dense is not None:
        click.echo(f"{label}  {result.dense.size} dims  {_values(result.dense, result.dense_quantization)}")
    if result.sparse is not None:
        click.echo(f"{label}  {_sparse(result.sparse)}")
    if result.multivector is not None:
        tokens, dims = result.multivector.shape
        shown = _values(result.multivector[:1].ravel(), None)
        click.echo(f"{label}  {tokens} x {dims} dims  {shown}")


def ranking(items: Sequence[Item], scores: Sequence[ScoreEntry]) -> None:
    """The texts by rank with their scores."""
    table = _table("#", "score", "text", "id")
    named = any(item.id is not None for item in items)
    for entry in scores:
        item = items[entry.index] if entry.index >= 0 else Item()
        row = (str(entry.rank + 1), f"{entry.score:+.4f}", _label(Item(text=item.text), 100))
        table.add_row(*_plain_texts(*row, entry.item_id if named or entry.index < 0 else ""))
    _print(table)


def extractions(found: Iterable[tuple[Item, ExtractResult]]) -> None:
    """What was found, in the order of the texts: entities with their place, then classes."""
    table = _table("text", "found", "label", "score", "place")
    for item, result in found:
        label = _label(item)
        for entity in result.entities:
            place = f"{entity.start}-{entity.end}" if entity.start is not None else ""
            table.add_row(*_plain_texts(label, entity.text, entity.label, f"{entity.score:.3f}", place))
        for group in result.classifications:
            table.add_row(*_plain_texts(label, "", group.label, f"{group.score:.3f}", ""))
        if result.error is not None:
            table.add_row(*_plain_texts(label, result.error.message, result.error.code, "", ""))
        elif not result.entities and not result.classifications:
            table.add_row(*_plain_texts(label, "-", "", "", ""))
    _print(table)


def time_of(timings: Sequence[Timing | None]) -> None:
    """Where the time of one request went; of several, nothing."""
    if len(timings) == 1 and (timing := timings[0]) is not None:
        stages = msgspec.structs.asdict(timing)
        total = stages.pop("total_ms")
        parts = ", ".join(f"{name.removesuffix('_ms').replace('_', ' ')} {ms:.1f}" for name, ms in stages.items())
        click.echo(f"{total:.1f} ms ({parts})")


def models(rows: Sequence[ModelInfo]) -> None:
    """The catalogue by name."""
    if not rows:
        click.echo("No models yet.")
        return
    table = _table("model", "state", "outputs", "length")
    for row in sorted(rows, key=lambda row: row.name):
        outputs = ", ".join(f"{name} {row.dims[name]}" if name in row.dims else name for name in row.outputs)
        length = f"{row.max_sequence_length} tokens" if row.max_sequence_length else ""
        table.add_row(*_plain_texts(row.name, row.state, outputs, length))
    _print(table)


def specs(rows: Sequence[Mapping[str, Any]]) -> None:
    """The specs of the catalogue by name."""
    table = _table("model", "bundle", "machine", "pool", "profiles", "revision")
    for row in rows:
        machines = ", ".join(row.get("machine_profiles", (row["machine_profile"],))) or "-"
        names = (row["model_id"], row["bundle"] or "-", machines, row["pool"])
        table.add_row(*_plain_texts(*names, ", ".join(row["profiles"]), row["revision"][:12]))
    _print(table)


def bundles(rows: Sequence[Mapping[str, Any]]) -> None:
    """The bundles, as they are preferred, with the machine profiles of each that are deployed."""
    table = _table("bundle", "priority", "engine", "state", "models", "families", "workers", "machines")
    for row in rows:
        told = (row.get("engine", ""), row.get("status", ""))
        counts = (str(row[name]) for name in ("model_count", "adapter_count", "connected_workers"))
        machines = ", ".join(row.get("machine_profiles", ())) or "-"
        table.add_row(*_plain_texts(row["bundle_id"], str(row["priority"]), *told, *counts, machines))
    _print(table)


def jobs(rows: Sequence[JobStatus]) -> None:
    """How each job stands."""
    table = _table("job", "state", "message")
    for row in rows:
        table.add_row(*_plain_texts(row.id, row.state, row.message or ""))
    _print(table)


def of_job(operation: Operation, found: Sequence[Any]) -> None:
    """A job's results. Its texts are not known any more: an input is named by its id, or its number."""
    if operation == "score":
        known = {entry.index: Item(id=entry.item_id) for entry in found}
        ranking([known.get(index, Item()) for index in range(len(found))], found)
        return
    items = [Item(id=result.id or f"item-{index}") for index, result in enumerate(found)]
    if operation == "extract":
        extractions(zip(items, found, strict=True))
    else:
        for item, result in zip(items, found, strict=True):
            vector(item, result)


def pools(rows: Sequence[PoolInfo]) -> None:
    """The pools: what each may have, what it has, and how long it lives."""
    table = _table("pool", "state", "bundle", "workers", "at most", "minimum", "ends in")
    for row in rows:
        spec, status = row.spec, row.status
        most = ", ".join(
            f"{profile} {spec.gpu_caps.get(profile, spec.gpus.get(profile))}"
            for profile in sorted(spec.gpus | spec.gpu_caps)
        )
        left = f"{max(0.0, status.last_renewed + spec.ttl_seconds - time.time()):.0f} s" if status.created_at else ""
        minimum = str(spec.minimum_worker_count or "")
        table.add_row(
            *_plain_texts(spec.name, status.state, spec.bundle, str(len(status.assigned_workers)), most, minimum, left)
        )
    _print(table)


def facts(rows: Mapping[str, str]) -> None:
    """What is known of one thing, a line each; what is empty is left out."""
    widest = max(map(len, rows))
    for name, value in rows.items():
        if value:
            click.echo(f"  {name:<{widest}}  {value}")


def health(seen: Mapping[str, Any]) -> None:
    """The lanes and the workers, each by name."""
    table = _table("lane", "waiting", "wanted", "live", "works/s")
    for lane in seen.get("lanes", ()):
        name = f"{lane['pool']}/{lane['bundle']}/{lane['gpu']}"
        rate = f"{lane['rate']:.1f}{'' if lane.get('measured') else ' (assumed)'}"
        table.add_row(*_plain_texts(name, str(lane["waiting"]), str(lane["wanted"]), str(lane["live"]), rate))
    if table.row_count:
        _print(table)
        for lane in seen["lanes"]:
            if lane.get("failure"):
                click.echo(f"{lane['pool']}/{lane['bundle']}/{lane['gpu']}: {lane['failure']}")
        click.echo()
    table = _table("worker", "state", "pool", "bundle", "gpu", "in hand", "memory", "models")
    for worker in seen.get("workers", ()):
        memory = f"{worker['memory_used_bytes'] / 1e6:.0f} MB"
        names = (worker[name] for name in ("name", "state", "pool", "bundle", "gpu"))
        table.add_row(*_plain_texts(*names, str(worker["queue_depth"]), memory, ", ".join(worker["loaded_models"])))
    if table.row_count:
        _print(table)
    else:
        click.echo("No workers; they start when there is work.")


# -- pieces ------------------------------------------------------------------------------------------------------------


def _values(array: Array, quantization: Quantization | None) -> str:
    start = array[:4]
    if quantization is not None:
        start = quantization.dequantise(start)
    shown = " ".join(f"{value:+.4f}" if isinstance(value, float) else str(value) for value in start.tolist())
    return f"{array.dtype}  [{shown} ...]"


def _sparse(vector: SparseVector) -> str:
    best = np.argsort(-vector.values)[:4].tolist()
    shown = " ".join(f"{vector.indices[place]}:{vector.values[place]:.4f}" for place in best)
    return f"{len(vector.indices)} of {vector.dims or 'unknown'} dims  {vector.values.dtype}  [{shown} ...]"


def _label(item: Item, width: int = 32) -> str:
    text = " ".join((item.id or item.text or "").split())
    return text if len(text) <= width else text[: width - 3] + "..."


def _table(*columns: str) -> Table:
    from rich.table import Table

    table = Table(box=None, header_style="bold", pad_edge=False, padding=(0, 2, 0, 0))
    for column in columns:
        table.add_column(column, justify="right" if column in ("#", "score") else "left")
    return table


def _plain_texts(*cells: str) -> list[Any]:
    """Cells whose content is shown as it is: a text may hold what rich takes for markup."""
    from rich.text import Text

    return [Text(cell) for cell in cells]


def _print(table: Table) -> None:
    from rich.console import Console

    if sys.stdout.isatty():
        Console(highlight=False).print(table)
        return
    buffer = io.StringIO()
    Console(file=buffer, width=WIDE, highlight=False, no_color=True, force_terminal=False).print(table)
    click.echo("\n".join(line.rstrip() for line in buffer.getvalue().splitlines()))
