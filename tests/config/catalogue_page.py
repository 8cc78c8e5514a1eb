"""docs/catalogue.md, made from the packaged catalogue: ``python -m tests.config.catalogue_page`` writes it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path

from sie_config import catalog
from sie_config.deployment import placement
from sie_config.model.model_spec import ModelSpec
from sie_config.model.sources import HubSource

PAGE = Path(__file__).parents[2] / "docs" / "catalogue.md"
MARK = "<!-- Below this line is what `python -m tests.config.catalogue_page` writes. -->\n"
COLUMNS = ["model", "family", "bundle", "tasks", "dims", "tokens", "size", "licence"]
SHOWN_DIMS = 3
LAPTOP = placement.deployment("cpu")
BAR = "\\|"
"""How a table writes |."""


def page() -> str:
    """How many models there are, and a row for each; what is served first."""
    specs = sorted(catalog.load().values(), key=lambda spec: (spec.status != "ready", spec.id.lower()))
    ready = [spec for spec in specs if spec.status == "ready"]
    planned = [spec for spec in specs if spec.status != "ready"]
    return "\n".join(
        [
            f"{len(specs)} models: {len(ready)} ready, {len(planned)} planned.",
            "",
            "## Ready",
            "",
            *_table(COLUMNS, map(_row, ready)),
            "",
            "## Planned",
            "",
            *_table([*COLUMNS, "waits for"], ([*_row(spec), spec.blocked_by] for spec in planned)),
            "",
        ]
    )


def _table(columns: Iterable[str], rows: Iterable[list[str]]) -> Iterator[str]:
    yield from (_line(columns), _line("---" for _ in columns))
    yield from map(_line, rows)


def _line(cells: Iterable[str]) -> str:
    return f"| {' | '.join(cell.replace('|', BAR) for cell in cells)} |"


def _row(spec: ModelSpec) -> list[str]:
    tokens = str(spec.max_sequence_length or "")
    bundle = placement.place(spec, LAPTOP).bundle
    return [_name(spec), spec.family, bundle, _tasks(spec), _dims(spec), tokens, _size(spec), spec.licence]


def _size(spec: ModelSpec) -> str:
    """Parameters in millions."""
    return f"{spec.parameters / 1e6:,.0f} M" if spec.parameters else ""


def _name(spec: ModelSpec) -> str:
    hub = next((source for source in spec.sources if isinstance(source, HubSource)), None)
    return f"[{spec.id}](https://huggingface.co/{hub.repo})" if hub else spec.id


def _tasks(spec: ModelSpec) -> str:
    extract = spec.tasks.extract
    words = [f"extract: {extract.kind}" if extract and name == "json" else name for name in spec.outputs]
    beside_text = [name for name in spec.inputs if name != "text"]
    return ", ".join(words) + (f" ({', '.join(beside_text)})" if beside_text else "")


def _dims(spec: ModelSpec) -> str:
    """Of the dense task with the shorter lengths it was trained for, else of the one there is."""
    if dense := spec.tasks.dense:
        shorter = [str(dims) for dims in sorted(dense.dims, reverse=True)]
        more = [*shorter[:SHOWN_DIMS], *(["..."] if len(shorter) > SHOWN_DIMS else [])]
        return ", ".join([str(dense.dim), *more])
    task = spec.tasks.sparse or spec.tasks.multivector
    return str(task.dim) if task else ""


if __name__ == "__main__":
    PAGE.write_text(PAGE.read_text().partition(MARK)[0] + MARK + "\n" + page())
