"""Where results go for programs: lines of JSON on standard output or in a file, vectors in a file of numpy.

Owns the form of what is written and how a file that was left off is gone on with. Everything is written as it comes, so
that a million vectors need no memory. Not here: tables for people (``tables``).
"""

from __future__ import annotations

import os
import sys
import zipfile
from pathlib import Path
from typing import Any, BinaryIO, Protocol, cast

import click
import msgspec
import numpy as np

from sie_sdk import arrays
from sie_sdk.errors import ConfigurationError
from sie_sdk.types import EncodeResult

HEADER_BYTES = 128
"""Of a file of numpy, always: the number of rows is written last, in its place."""


class Sink(Protocol):
    """Takes results in order. ``close`` leaves something whole behind, however few there were."""

    def write(self, result: Any) -> None: ...

    def close(self) -> None: ...


def _listed(value: object) -> object:
    """Arrays in JSON, and numbers of numpy."""
    if isinstance(value, np.ndarray):
        return msgspec.Raw(arrays.to_json(value))
    if isinstance(value, np.generic):
        return value.item()
    raise NotImplementedError(type(value).__name__)


_json = msgspec.json.Encoder(enc_hook=_listed)


class JsonLines:
    """A line of JSON per result; what is absent is left out, arrays are lists."""

    def __init__(self, stream: BinaryIO) -> None:
        self._stream = stream

    def write(self, result: Any) -> None:
        """Write a result and flush it: whoever reads may act on it."""
        fields = {name: value for name, value in msgspec.structs.asdict(result).items() if value is not None}
        self._stream.write(_json.encode(fields) + b"\n")
        self._stream.flush()

    def close(self) -> None:
        """Close a file; standard output stays open."""
        if self._stream is not sys.stdout.buffer:
            self._stream.close()


class JsonFile:
    """:class:`JsonLines` in a file: a new one, or with ``append`` after what it holds."""

    def __init__(self, path: Path, *, append: bool = False) -> None:
        self._path = path
        self._append = append
        self._lines: JsonLines | None = None

    def write(self, result: Any) -> None:
        """Append its line."""
        if self._lines is None:
            # Not before there is something to write: a mistake on the command line costs no file.
            self._lines = JsonLines(self._path.open("ab" if self._append else "wb"))
        self._lines.write(result)

    def close(self) -> None:
        """Close the file, if there was anything to write."""
        if self._lines is not None:
            self._lines.close()


class Vectors:
    """The dense vectors, one row per result, in a ``.npy`` file."""

    def __init__(self, path: Path, written: int = 0) -> None:
        self.count = written
        self._path = path
        self._shape: tuple[int, ...] = ()
        self._dtype: np.dtype[Any] | None = None
        self._file: BinaryIO | None = None
        if written:
            self._file = path.open("r+b")
            self._shape, self._dtype = _header(self._file)[1:]
            self._file.seek(HEADER_BYTES + written * _row_bytes(self._shape, self._dtype))

    def write(self, result: EncodeResult) -> None:
        """Append its vector."""
        row = _dense(result)
        if self._file is None:
            # As late as a file of lines.
            self._file = self._path.open("wb")
            self._shape, self._dtype = row.shape, row.dtype
            self._file.write(_npy_header(0, self._shape, self._dtype))
        if (row.shape, row.dtype) != (self._shape, self._dtype):
            raise ConfigurationError(
                f"The file's vectors are {self._dtype} {list(self._shape)}, this one is {row.dtype} {list(row.shape)}.",
                field="--out",
                hint="Go on with the same model, --dtype and options, or choose another file.",
            )
        self._file.write(row.tobytes())
        self.count += 1

    def close(self) -> None:
        """Say in the header how many there are."""
        if self._file is not None and self._dtype is not None:
            with self._file:
                self._file.truncate()
                self._file.seek(0)
                self._file.write(_npy_header(self.count, self._shape, self._dtype))


class Archive:
    """A ``.npz`` file: ``dense`` as in :class:`Vectors`, ``ids`` if there are any, ``scale`` and ``offset``."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._rows_path = path.with_name(f".{path.name}.rows.npy")
        self._rows = Vectors(self._rows_path)
        self._ids: list[str] = []
        self._scales: list[tuple[float, float]] = []

    def write(self, result: EncodeResult) -> None:
        """Append its vector, beside the file until that is closed."""
        self._rows.write(result)
        self._ids.append(result.id or "")
        if (quantization := result.dense_quantization) is not None:
            self._scales.append((float(quantization.scale), float(quantization.offset)))

    def close(self) -> None:
        """Put the archive together; with no rows there is none."""
        self._rows.close()
        if self._rows.count:
            whole = self._path.with_name(f".{self._path.name}.whole")
            with zipfile.ZipFile(whole, "w", zipfile.ZIP_STORED, allowZip64=True) as archive:
                archive.write(self._rows_path, "dense.npy")
                self._add(archive, "ids", np.array(self._ids) if any(self._ids) else None)
                scales = np.array(self._scales, np.float32) if self._scales else None
                self._add(archive, "scale", None if scales is None else scales[:, 0])
                self._add(archive, "offset", None if scales is None else scales[:, 1])
            whole.replace(self._path)  # so that a second Ctrl-C leaves no half of an archive
            self._rows_path.unlink()

    def _add(self, archive: zipfile.ZipFile, name: str, array: np.ndarray[Any, Any] | None) -> None:
        if array is not None:
            with archive.open(f"{name}.npy", "w", force_zip64=True) as entry:
                np.lib.format.write_array(entry, np.ascontiguousarray(array), allow_pickle=False)


def opened(path: Path, *, resume: bool, vectors: bool) -> tuple[Sink, int]:
    """The sink that ``path`` stands for by its ending, and how many results it holds already.

    ``vectors``: the results have vectors, so that a file of numpy may take them.

    Raises:
        UsageError: its ending is none that is known, or it cannot be gone on with.
    """
    if not os.access(path.parent, os.W_OK):
        raise click.UsageError(f"--out {path}: the folder is not there, or cannot be written to.")
    ending = path.suffix.lower()
    if ending in (".npy", ".npz") and not vectors:
        raise click.UsageError(f"--out {path}: only vectors go into a {ending} file; write .jsonl.")
    match ending:
        case ".jsonl" | ".ndjson":
            count = _whole_lines(path) if resume else 0
            return JsonFile(path, append=resume), count
        case ".npy":
            count = _rows_in(path) if resume else 0
            return Vectors(path, count), count
        case ".npz" if resume:
            raise click.UsageError("A .npz file is written in one go; --resume goes with .npy and .jsonl.")
        case ".npz":
            return Archive(path), 0
        case _:
            raise click.UsageError(f"--out {path}: the name ends in .jsonl, .npy or .npz.")


def _dense(result: EncodeResult) -> np.ndarray[Any, Any]:
    if (dense := getattr(result, "dense", None)) is None:  # a job's results may be of another operation
        raise click.UsageError("There are no dense vectors for a file of numpy; write .jsonl, or ask for --type dense.")
    return cast("np.ndarray[Any, Any]", dense)


def _whole_lines(path: Path) -> int:
    """Count the lines, after cutting off one that was not finished."""
    if not path.exists():
        return 0
    count, whole = 0, 0
    with path.open("r+b") as file:
        for line in file:
            if line.endswith(b"\n"):
                count, whole = count + 1, whole + len(line)
        file.truncate(whole)
    return count


def _rows_in(path: Path) -> int:
    """Rows that are wholly there: a run that was killed has written its rows, but not their number."""
    if not path.exists() or not (size := os.path.getsize(path)):
        return 0
    with path.open("rb") as file:
        try:
            start, shape, dtype = _header(file)
        except ValueError as error:
            raise click.UsageError(f"--out {path} cannot be gone on with: {error}") from None
    if start != HEADER_BYTES:
        raise click.UsageError(f"--out {path} cannot be gone on with: this command has not written it.")
    return (size - start) // _row_bytes(shape, dtype)


def _row_bytes(shape: tuple[int, ...], dtype: np.dtype[Any]) -> int:
    return int(np.prod(shape)) * dtype.itemsize


def _header(file: BinaryIO) -> tuple[int, tuple[int, ...], np.dtype[Any]]:
    """Where the rows begin, the shape of one and its dtype."""
    file.seek(0)
    np.lib.format.read_magic(file)
    shape, _, dtype = np.lib.format.read_array_header_1_0(file)
    return file.tell(), shape[1:], dtype


def _npy_header(rows: int, shape: tuple[int, ...], dtype: np.dtype[Any]) -> bytes:
    """The header of format 1.0 (numpy.lib.format), at its fixed length."""
    about = {"descr": np.lib.format.dtype_to_descr(dtype), "fortran_order": False, "shape": (rows, *shape)}
    magic = np.lib.format.magic(1, 0)
    body = repr(about).encode().ljust(HEADER_BYTES - len(magic) - 3) + b"\n"
    return magic + len(body).to_bytes(2, "little") + body
