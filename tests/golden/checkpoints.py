"""A real checkpoint as a Hugging Face folder, fetched and converted once into the user's cache.

    python -m tests.golden.checkpoints gte-small bert-ner      # prints the folders; without names: all of them

Owns the cache and the layout of the folder. What there is: ``checkpoint_table``; downloads: ``archives``; tensors:
``onnx_weights``. transformers takes no part, so that it can be the judge of what comes out.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import shutil
import sys
import tempfile
import time
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
from safetensors.numpy import save_file

from tests.golden import archives, onnx_weights
from tests.golden.checkpoint_schema import Checkpoint, Inner
from tests.golden.checkpoint_table import CHECKPOINTS
from tests.golden.onnx_weights import Array

PROJECTION = 96
"""The dimensions of answerai-colbert's token vectors."""


def checkpoint(key: str) -> Path:
    """The folder of a checkpoint of ``CHECKPOINTS``; fetched and converted if it is not in the cache yet.

    Any number of processes may call it at once: one makes the folder, and a folder that is there is whole.

    Raises:
        SourceError: a registry does not give an archive.
        ValueError: the conversion gave other tensors than the table says.
    """
    record = CHECKPOINTS[key]
    folder = _cache() / f"{key}-{digest(record)}"
    if folder.is_dir():
        return folder
    folder.parent.mkdir(parents=True, exist_ok=True)
    with _locked(folder.with_name(f"{folder.name}.lock")):
        if not folder.is_dir():  # else another process made it while this one waited
            with tempfile.TemporaryDirectory(dir=folder.parent, prefix=f"{key}.") as work:
                made = Path(work) / "made"
                made.mkdir()
                for archive in record.archives:
                    archives.fetch(archive, made)
                _build(record, made)
                made.rename(folder)
    return folder


def digest(record: Checkpoint) -> str:
    """Twelve hex digits that change with anything that changes the folder."""
    facts = (record.archives, record.inner, record.fingerprint, record.architecture, record.config, record.documents)
    return hashlib.sha256(json.dumps(facts).encode()).hexdigest()[:12]


def fingerprint(files: dict[str, dict[str, Array]]) -> str:
    """Sixteen hex digits of the names, shapes and values of all tensors, whatever wrote the files."""
    seen = hashlib.sha256()
    for path, tensors in sorted(files.items()):
        for name, value in sorted(tensors.items()):
            seen.update(f"{path} {name} {value.shape} ".encode())
            seen.update(np.ascontiguousarray(value, np.dtype("<f4")).data)
    return seen.hexdigest()[:16]


def laid_out(record: Checkpoint, tensors: dict[str, Array]) -> dict[str, dict[str, Array]]:
    """The export's tensors under the names and in the files of a Hugging Face folder: file -> name -> tensor."""
    if record.layout == "dense layers":
        heads = {"classifier.0.": "2_Dense", "classifier.3.": "3_Dense"}
        files = {
            f"{folder}/model.safetensors": {
                f"linear.{name.removeprefix(prefix)}": value
                for name, value in tensors.items()
                if name.startswith(prefix)
            }
            for prefix, folder in heads.items()
        }
        body = {name.removeprefix("encoder."): value for name, value in tensors.items() if name.startswith("encoder.")}
        return {"model.safetensors": body, **files}
    if record.layout == "colbert":
        # RandomState, because its numbers stay the same between versions of numpy.
        random = np.random.RandomState(0).standard_normal((PROJECTION, 384)) * 384**-0.5
        named = {f"bert.{name}": value for name, value in tensors.items()}
        return {"model.safetensors": {**named, "linear.weight": random.astype(np.float32)}}
    # A pooler without its bias is half of one; the embedding does not use it.
    whole = {
        name: value
        for name, value in tensors.items()
        if name != "pooler.dense.weight" or "pooler.dense.bias" in tensors
    }
    return {"model.safetensors": whole}


def _build(record: Checkpoint, folder: Path) -> None:
    """Turn ``folder``, which holds what the archives had, into the folder of the checkpoint."""
    if record.inner:
        _open(record.inner, folder)
    if record.weights:
        files = laid_out(record, onnx_weights.read(folder / record.weights))
        if (found := fingerprint(files)) != record.fingerprint:
            raise ValueError(f"{record.model}: the tensors' fingerprint is {found}, not {record.fingerprint}")
        for leftover in folder.glob(f"{record.weights}*"):
            leftover.unlink()
        if (emptied := (folder / record.weights).parent) != folder:
            emptied.rmdir()
        for path, tensors in files.items():
            (folder / path).parent.mkdir(exist_ok=True)
            save_file(tensors, folder / path, metadata={"format": "pt"})
    documents = dict(record.documents)
    if record.config is not None:
        documents["config.json"] = {"architectures": [record.architecture], **record.config}
    for path, content in documents.items():
        (folder / path).parent.mkdir(exist_ok=True)
        (folder / path).write_text(json.dumps(content, indent=1))


def _open(inner: Inner, folder: Path) -> None:
    """Put the files of an archive in the archive into ``folder`` and remove it."""
    for name in inner.files:
        (folder / name).parent.mkdir(exist_ok=True)
    path = folder / inner.name
    if path.suffix == ".zip":
        parts = sorted(folder.glob(f"{inner.name}.*"))
        with path.open("wb") as whole:
            for part in parts:
                with part.open("rb") as stream:
                    shutil.copyfileobj(stream, whole, 1024 * 1024)
                part.unlink()
        with zipfile.ZipFile(path) as packed:
            for name in inner.files:
                with packed.open(f"{inner.folder}/{name}") as stream, (folder / name).open("wb") as file:
                    shutil.copyfileobj(stream, file, 1024 * 1024)
    else:
        archives.unpack(path, {name: name for name in inner.files}, folder)
    path.unlink()


def _cache() -> Path:
    root = os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache")
    return Path(root) / "sie-knative" / "golden"


@contextmanager
def _locked(path: Path) -> Iterator[None]:
    """Between processes; the system frees the lock when its holder dies."""
    with path.open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def main(keys: list[str]) -> None:
    """Print key, folder and the seconds it took of each checkpoint."""
    for key in keys or CHECKPOINTS:
        start = time.monotonic()
        folder = checkpoint(key)
        sys.stdout.write(f"{key}\t{folder}\t{time.monotonic() - start:.1f} s\n")


if __name__ == "__main__":
    main(sys.argv[1:])
