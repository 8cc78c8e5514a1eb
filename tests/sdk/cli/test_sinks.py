"""Files of results: what numpy and JSON read back, and how a file that was left off is gone on with."""

from __future__ import annotations

import io
import json
import zipfile
from collections.abc import Callable
from pathlib import Path

import click
import numpy as np
import numpy.typing as npt
import pytest

from sie_sdk.cli import sinks
from sie_sdk.cli.sinks import HEADER_BYTES, Vectors
from sie_sdk.errors import ConfigurationError
from sie_sdk.types import EncodeResult, ExtractResult, Quantization

ROWS = np.arange(12, dtype=np.float32).reshape(4, 3)


def results(rows: npt.NDArray[np.generic]) -> list[EncodeResult]:
    return [EncodeResult(dense=row) for row in rows]


def write(path: Path, rows: npt.NDArray[np.generic], *, resume: bool = False) -> int:
    sink, held = sinks.opened(path, resume=resume, vectors=True)
    try:
        for result in results(rows):
            sink.write(result)
    finally:
        sink.close()
    return held


@pytest.mark.parametrize(("dtype", "digits_of"), [("float16", np.float32), ("float32", np.float32), ("float64", str)])
def test_a_number_is_written_in_as_few_digits_as_bring_it_back(dtype: str, digits_of: Callable[..., object]) -> None:
    exact = np.random.default_rng(7).normal(size=(3, 50)).astype(dtype)
    stream = io.BytesIO()
    sinks.JsonLines(stream).write(EncodeResult(dense=exact[0], multivector=exact, sparse=None))
    line = json.loads(stream.getvalue())
    assert stream.getvalue().startswith(b'{"dense":[' + str(digits_of(exact[0, 0])).encode() + b",")
    assert np.array_equal(np.array(line["dense"], dtype), exact[0])
    assert np.array_equal(np.array(line["multivector"], dtype), exact)


def test_numbers_that_lie_apart_or_the_other_way_round_are_written_too() -> None:
    stream = io.BytesIO()
    sinks.JsonLines(stream).write(EncodeResult(dense=ROWS[:, 1].astype(">f4"), multivector=ROWS[:2].T))
    line = json.loads(stream.getvalue())
    assert line["dense"] == [1.0, 4.0, 7.0, 10.0] and line["multivector"] == [[0.0, 3.0], [1.0, 4.0], [2.0, 5.0]]


@pytest.mark.parametrize("dtype", ["float32", "float16", "int8", "uint8"])
def test_numpy_reads_back_what_was_written(tmp_path: Path, dtype: str) -> None:
    rows = ROWS.astype(dtype)
    write(tmp_path / "v.npy", rows)
    read = np.load(tmp_path / "v.npy")
    assert read.dtype == rows.dtype and np.array_equal(read, rows)
    assert np.array_equal(np.load(tmp_path / "v.npy", mmap_mode="r"), rows)


def test_a_file_of_vectors_is_gone_on_with(tmp_path: Path) -> None:
    path = tmp_path / "v.npy"
    assert write(path, ROWS[:0], resume=True) == 0
    assert write(path, ROWS[:1], resume=True) == 0
    assert write(path, ROWS[1:3], resume=True) == 1
    assert write(path, ROWS[3:], resume=True) == 3
    assert np.array_equal(np.load(path), ROWS)


def test_vectors_whose_number_was_never_written_are_counted_by_their_bytes(tmp_path: Path) -> None:
    """As a kill -9 leaves them: the header says none, the last row is half there."""
    path = tmp_path / "v.npy"
    sink = Vectors(path)
    for result in results(ROWS[:2]):
        sink.write(result)
    assert sink._file is not None
    sink._file.write(b"\1" * 5)
    sink._file.close()
    assert write(path, ROWS[2:], resume=True) == 2
    assert np.array_equal(np.load(path), ROWS)


def test_vectors_of_another_kind_do_not_go_into_the_same_file(tmp_path: Path) -> None:
    write(tmp_path / "v.npy", ROWS)
    with pytest.raises(ConfigurationError, match=r"float32 \[3\].*float16 \[3\]"):
        write(tmp_path / "v.npy", ROWS.astype("f2"), resume=True)
    assert np.array_equal(np.load(tmp_path / "v.npy"), ROWS)


def test_a_file_of_vectors_that_is_not_ours_is_left_alone(tmp_path: Path) -> None:
    path = tmp_path / "v.npy"
    path.write_bytes(b"something else entirely")
    with pytest.raises(click.UsageError, match="cannot be gone on with"):
        sinks.opened(path, resume=True, vectors=True)
    assert path.read_bytes() == b"something else entirely"


def test_the_header_has_one_length_however_many_rows() -> None:
    assert {len(sinks._npy_header(10**n, (4096,), np.dtype("<f4"))) for n in range(13)} == {HEADER_BYTES}


def test_an_archive_has_vectors_ids_and_what_scales_them(tmp_path: Path) -> None:
    sink, _ = sinks.opened(tmp_path / "v.npz", resume=False, vectors=True)
    for number, row in enumerate(ROWS.astype("i1")):
        sink.write(EncodeResult(dense=row, id=f"n{number}", dense_quantization=Quantization(0.5, float(number))))
    sink.close()
    with np.load(tmp_path / "v.npz") as read:
        assert sorted(read) == ["dense", "ids", "offset", "scale"]
        assert np.array_equal(read["dense"], ROWS.astype("i1"))
        assert read["ids"].tolist() == ["n0", "n1", "n2", "n3"]
        assert read["scale"].tolist() == [0.5] * 4 and read["offset"].tolist() == [0, 1, 2, 3]
    assert [path.name for path in tmp_path.iterdir()] == ["v.npz"]


def test_an_archive_of_plain_vectors_has_nothing_else(tmp_path: Path) -> None:
    write(tmp_path / "v.npz", ROWS)
    with np.load(tmp_path / "v.npz") as read:
        assert list(read) == ["dense"]


def test_an_archive_that_is_not_put_together_leaves_the_old_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted(*_: object) -> None:
        raise KeyboardInterrupt

    write(tmp_path / "v.npz", ROWS)
    monkeypatch.setattr(zipfile.ZipFile, "write", interrupted)
    with pytest.raises(KeyboardInterrupt):
        write(tmp_path / "v.npz", ROWS[:1])
    with np.load(tmp_path / "v.npz") as read:
        assert np.array_equal(read["dense"], ROWS)


def test_lines_are_gone_on_with_after_the_last_whole_one(tmp_path: Path) -> None:
    path = tmp_path / "v.jsonl"
    path.write_bytes(b'{"dense":[1]}\n{"dense":[2]}\n{"den')
    assert write(path, ROWS[:1], resume=True) == 2
    assert [json.loads(line)["dense"] for line in path.read_text().splitlines()] == [[1], [2], [0, 1, 2]]


def test_without_resume_a_file_begins_anew(tmp_path: Path) -> None:
    for name in ("v.jsonl", "v.npy", "v.npz"):
        write(tmp_path / name, ROWS)
        write(tmp_path / name, ROWS[:1])
    assert len((tmp_path / "v.jsonl").read_text().splitlines()) == 1
    assert np.load(tmp_path / "v.npy").shape == (1, 3)


def test_nothing_to_write_leaves_an_old_file_as_it_is(tmp_path: Path) -> None:
    for name in ("v.jsonl", "v.npy", "v.npz"):
        write(tmp_path / name, ROWS)
        before = (tmp_path / name).read_bytes()
        write(tmp_path / name, ROWS[:0])
        assert (tmp_path / name).read_bytes() == before


@pytest.mark.parametrize(
    ("name", "resume", "vectors", "told"),
    [
        ("v.txt", False, True, r"\.jsonl, \.npy or \.npz"),
        ("v.npy", False, False, "only vectors"),
        ("v.npz", False, False, "only vectors"),
        ("v.npz", True, True, "in one go"),
        ("no/such/folder/v.npy", False, True, "folder"),
    ],
)
def test_what_cannot_be_written_is_refused_before_anything_is_asked(
    tmp_path: Path, name: str, resume: bool, vectors: bool, told: str
) -> None:
    with pytest.raises(click.UsageError, match=told):
        sinks.opened(tmp_path / name, resume=resume, vectors=vectors)


def test_results_without_dense_vectors_are_refused(tmp_path: Path) -> None:
    sink, _ = sinks.opened(tmp_path / "v.npy", resume=False, vectors=True)
    for result in (EncodeResult(), ExtractResult()):
        with pytest.raises((click.UsageError, AttributeError), match="dense"):
            sink.write(result)
