"""The command line as a shell runs it, against a real server: pipes, long files, signals, exit codes."""

from __future__ import annotations

import contextlib
import json
import os
import pty
import signal
import subprocess
import sys
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import numpy as np
import pytest

from sie_sdk.cli import exits
from tests.platform import wait_until
from tests.sdk.scripted_server import ScriptedServer, vectors

pytestmark = pytest.mark.e2e

SIE = str(Path(sys.executable).with_name("sie"))
MODEL = "test/tiny"
LINES = 20_000


@pytest.fixture(scope="module")
def long_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Objects with an id each, so that it can be seen which came back."""
    path = tmp_path_factory.mktemp("inputs") / "in.jsonl"
    words = ("hello", "world", "ship", "lighthouse")
    path.write_text("".join(f'{{"id": "n{i}", "text": "{words[i % 4]} {words[i % 3]}"}}\n' for i in range(LINES)))
    return path


def sie(url: str, *arguments: str, stdin: str | None = None) -> subprocess.CompletedProcess[str]:
    env = os.environ | {"SIE_BASE_URL": url}
    return subprocess.run(
        [SIE, *arguments], env=env, input=stdin, capture_output=True, text=True, timeout=120, check=False
    )


@contextlib.contextmanager
def running(url: str, *arguments: str, out: Path | None = None) -> Iterator[subprocess.Popen[bytes]]:
    """A command that is under way; ended by force if the test has not ended it."""
    env = os.environ | {"SIE_BASE_URL": url}
    with (out or Path(os.devnull)).open("ab") as stdout:
        process = subprocess.Popen(
            [SIE, *arguments], env=env, stdin=subprocess.PIPE, stdout=stdout, stderr=subprocess.PIPE
        )
    try:
        yield process
    finally:
        process.kill()
        process.wait()
        for stream in (process.stdin, process.stderr):
            with contextlib.suppress(BrokenPipeError):
                assert stream is not None
                stream.close()


def ids(path: Path) -> list[str]:
    return [json.loads(line)["id"] for line in path.read_text().splitlines()]


def lines_in(path: Path) -> int:
    return path.read_bytes().count(b"\n") if path.exists() else 0


def test_a_pipe_gets_the_results_and_nothing_else(tiny: str) -> None:
    done = sie(tiny, "encode", MODEL, "-", "--json", stdin='hello\n{"text": "world", "id": "7"}\n')
    first, second = (json.loads(line) for line in done.stdout.splitlines())
    assert (done.returncode, done.stderr) == (0, "")
    assert list(first) == ["dense", "timing"] and list(second) == ["dense", "id", "timing"]
    assert len(first["dense"]) == 32 and second["id"] == "7"


def test_tables_in_a_pipe_are_plain_and_uncut(tiny: str) -> None:
    done = sie(tiny, "models")
    absent, there = (line.split()[1] for line in done.stdout.splitlines()[1:])
    assert absent in ("available", "failed") and there in ("available", "loaded")  # as other tests have asked of them
    wide = max(map(len, (absent, there)))
    assert done.stdout == (
        f"model        {'state':{wide}}  outputs   length\n"
        f"test/absent  {absent:{wide}}  dense 32  32 tokens\n"
        f"test/tiny    {there:{wide}}  dense 32  32 tokens\n"
    )
    long_id = "x" * 300
    shown = sie(tiny, "encode", MODEL, "-", stdin=f'{{"text": "hello", "id": "{long_id}"}}\n').stdout
    assert "\x1b" not in shown and shown.splitlines()[0].startswith("x" * 29 + "...")


def test_what_a_model_is_and_what_a_name_leads_to(tiny: str) -> None:
    assert sie(tiny, "models", "show", "tiny").stdout.startswith("test/tiny\n  outputs   dense (32 dims)\n")
    assert sie(tiny, "config", "resolve", "TINY").stdout == (
        "test/tiny\n  bundle   default\n  profile  default\n  of       default\n"
    )
    assert sie(tiny, "config", "show", "tiny").stdout.startswith("id: test/tiny\nfamily: bert\n")
    assert json.loads(sie(tiny, "config", "show", "tiny", "--json").stdout)["tasks"]["dense"]["dim"] == 32
    assert [json.loads(line)["model_id"] for line in sie(tiny, "config", "--json").stdout.splitlines()] == [
        "test/absent",
        "test/tiny",
    ]
    bundle = sie(tiny, "config", "bundles").stdout.splitlines()[1]
    assert bundle.split()[:5] == ["default", "10", "packed", "ready", "2"]
    assert sie(tiny, "config", "bundles", "default").stdout.startswith("name: default\n")
    assert sie(tiny, "health").stdout.splitlines()[0].split()[0] in ("worker", "lane")


def test_every_exit_code_is_seen_with_a_line_and_a_hint(tiny: str) -> None:
    outcomes = {
        0: sie(tiny, "encode", MODEL, "hello", "--json"),
        1: sie(tiny, "encode", "test/tinny", "hello"),
        2: sie(tiny, "encode", MODEL, "hello", "--dtype", "int3"),
        3: sie("http://127.0.0.1:1", "encode", MODEL, "hello"),
        4: sie(tiny, "encode", MODEL, "hello", "--deadline", "0"),
        # Code 130 and 141: below, with signals and pipes.
    }
    assert {code: done.returncode for code, done in outcomes.items()} == {code: code for code in outcomes}
    assert {*outcomes, exits.INTERRUPTED, exits.BROKEN_PIPE} == exits.CODES.keys()
    error, hint, request = outcomes[1].stderr.splitlines()
    assert error.startswith("Error: ") and "test/tinny" in error
    assert hint.startswith("Hint: ") and request.startswith("Request: ")
    assert all("Traceback" not in done.stderr and (code == 0 or not done.stdout) for code, done in outcomes.items())


def test_a_long_file_comes_back_in_order_in_memory_that_does_not_grow_with_it(
    tiny: str, long_file: Path, tmp_path: Path
) -> None:
    peaks = []
    for count in (1000, LINES):
        part = tmp_path / f"{count}.jsonl"
        part.write_text("".join(long_file.read_text().splitlines(keepends=True)[:count]))
        out = tmp_path / f"out-{count}.jsonl"
        with running(tiny, "encode", MODEL, "--file", str(part), "--json", out=out) as process:
            _, status, used = os.wait4(process.pid, 0)
            process.returncode = os.waitstatus_to_exitcode(status)
        assert process.returncode == 0
        assert ids(out) == [f"n{i}" for i in range(count)]
        peaks.append(used.ru_maxrss / 1024)
    # As numbers of Python the 20,000 vectors alone are 20 MB, their lines 16 MB.
    assert peaks[1] - peaks[0] < 15, peaks


def test_vectors_go_into_a_file_of_numpy(tiny: str, long_file: Path, tmp_path: Path) -> None:
    out = tmp_path / "v.npz"
    done = sie(tiny, "encode", MODEL, "--file", str(long_file), "--dtype", "float16", "--out", str(out))
    assert (done.returncode, done.stdout) == (0, "")
    with np.load(out) as read:
        assert read["dense"].shape == (LINES, 32) and read["dense"].dtype == np.float16
        assert read["ids"].tolist() == [f"n{i}" for i in range(LINES)]
        assert np.allclose(np.linalg.norm(read["dense"].astype(float), axis=1), 1.0, atol=1e-2)


def test_results_come_before_standard_input_has_ended(tiny: str, tmp_path: Path) -> None:
    out = tmp_path / "out.jsonl"
    with running(tiny, "encode", MODEL, "-", "--json", "--concurrency", "1", out=out) as process:
        assert process.stdin is not None
        process.stdin.write(b"hello world\n" * 2000)
        process.stdin.flush()
        wait_until(lambda: lines_in(out) >= 256)
        assert process.poll() is None
        process.stdin.close()
        assert process.wait(60) == 0
    assert lines_in(out) == 2000


def test_ctrl_c_leaves_whole_lines_says_how_many_and_skip_goes_on(tiny: str, long_file: Path, tmp_path: Path) -> None:
    out = tmp_path / "out.jsonl"
    whole = ("encode", MODEL, "--file", str(long_file), "--json")
    with running(tiny, *whole, "--concurrency", "1", out=out) as process:
        wait_until(lambda: lines_in(out) > 300)
        process.send_signal(signal.SIGINT)
        _, said = process.communicate(timeout=20)
    assert process.returncode == exits.INTERRUPTED
    written = lines_in(out)
    assert said.decode() == f"Interrupted after {written:,} results. Go on with --skip {written}.\n"
    assert 300 < written < LINES and out.read_bytes().endswith(b"}\n")
    with running(tiny, *whole, "--skip", str(written), out=out) as process:
        assert process.wait(60) == 0
    assert ids(out) == [f"n{i}" for i in range(LINES)]


def has_grown_or_ended(out: Path, size: int, process: subprocess.Popen[bytes]) -> bool:
    """Ended: the test stood still, and so the process is killed once, or never."""
    return process.poll() is not None or (out.exists() and out.stat().st_size > size)


@pytest.mark.parametrize("ending", ["jsonl", "npy"])
def test_a_file_is_gone_on_with_after_a_kill(tiny: str, long_file: Path, tmp_path: Path, ending: str) -> None:
    out = tmp_path / f"out.{ending}"
    whole = ("encode", MODEL, "--file", str(long_file), "--out", str(out), "--resume")
    for _ in range(2):
        before = out.stat().st_size if out.exists() else 0
        with running(tiny, *whole, "--concurrency", "1") as process:
            wait_until(partial(has_grown_or_ended, out, before + 100_000, process))
            process.kill()
            process.wait()
    assert sie(tiny, *whole).returncode == 0
    if ending == "jsonl":
        assert ids(out) == [f"n{i}" for i in range(LINES)]
    else:
        assert np.load(out).shape == (LINES, 32)


def test_a_reader_that_has_enough_ends_it_silently(tiny: str, long_file: Path) -> None:
    piped = f"{SIE} encode {MODEL} --file {long_file} --json | head -n 2; echo ${{PIPESTATUS[0]}}"
    done = subprocess.run(
        ["bash", "-c", piped], env=os.environ | {"SIE_BASE_URL": tiny}, capture_output=True, text=True, timeout=60
    )
    first, second, code = done.stdout.splitlines()
    assert (json.loads(first)["id"], json.loads(second)["id"], code) == ("n0", "n1", str(exits.BROKEN_PIPE))
    assert done.stderr == ""


@pytest.mark.parametrize(
    ("redirected", "code", "said"),
    [(">/dev/full", 1, "Error: Reading or writing: No space left on device.\n"), (">&-", 0, "")],
)
def test_output_that_cannot_be_written_is_one_line_and_output_nobody_wants_is_none(
    tiny: str, redirected: str, code: int, said: str
) -> None:
    env = os.environ | {"SIE_BASE_URL": tiny}
    for command in ("models", f"encode {MODEL} hello --json"):
        shell = ["bash", "-c", f"{SIE} {command} {redirected}"]
        done = subprocess.run(shell, env=env, capture_output=True, text=True, timeout=60, check=False)
        assert (done.returncode, done.stderr) == (code, said)


def test_an_input_that_cannot_be_computed_is_named_by_its_number_and_what_came_before_is_kept(tiny: str) -> None:
    texts = "".join(f"{'poison' if number == 900 else 'hello'}\n" for number in range(1, 1201))
    done = sie(tiny, "encode", MODEL, "-", "--json", "--concurrency", "2", stdin=texts)
    assert done.returncode == 1
    assert "The input at fault is number 900.\n" in done.stderr
    written = len(done.stdout.splitlines())
    assert 0 < written < 900 and f"{written} results were written. Go on with --skip {written}." in done.stderr


def test_work_is_queued_waited_for_and_fetched_by_its_ids(tiny: str, tmp_path: Path) -> None:
    texts = "hello world\n" * 25
    submitted = sie(tiny, "jobs", "submit", "encode", MODEL, "-", "--batch", "10", stdin=texts).stdout.split()
    assert len(submitted) == 3
    assert sie(tiny, "jobs", "wait", *submitted).returncode == 0
    rows = [json.loads(line) for line in sie(tiny, "jobs", "status", *submitted, "--json").stdout.splitlines()]
    assert [(row["id"], row["state"]) for row in rows] == [(id, "done") for id in submitted]
    out = tmp_path / "v.npy"
    assert sie(tiny, "jobs", "result", *submitted, "--out", str(out)).returncode == 0
    assert np.load(out).shape == (25, 32)
    assert sie(tiny, "jobs", "result", "nothing").returncode == 1


def test_a_running_server_is_measured(tiny: str) -> None:
    row = json.loads(sie(tiny, "bench", MODEL, "--clients", "4", "--requests", "40", "--texts", "3", "--json").stdout)
    assert (row["requests"], row["texts"], row["errors"]) == (40, 120, {})
    assert 0 < row["latency_ms"]["p50"] <= row["latency_ms"]["p99"] <= row["latency_ms"]["max"]
    assert row["texts_per_s"] > 0


def test_an_interrupted_measurement_still_reports(tmp_path: Path) -> None:
    out = tmp_path / "out.json"
    with ScriptedServer() as server:
        server.script = [vectors()] * 100_000
        with running(server.url, "bench", MODEL, "--op", "encode", "--seconds", "600", "--json", out=out) as process:
            wait_until(lambda: len(server.asked) > 50)
            process.send_signal(signal.SIGINT)
            assert process.wait(60) == exits.INTERRUPTED
    assert json.loads(out.read_text())["requests"] > 10


@pytest.mark.parametrize("colours", ["", "1"])
def test_a_terminal_sees_a_bar_on_standard_error_and_the_output_stays_clean(
    tiny: str, long_file: Path, tmp_path: Path, colours: str
) -> None:
    leader, follower = pty.openpty()
    env = os.environ | {"SIE_BASE_URL": tiny, "TERM": "xterm"} | ({"NO_COLOR": colours} if colours else {})
    with (tmp_path / "out.jsonl").open("wb") as out:
        process = subprocess.Popen(
            [SIE, "encode", MODEL, "--file", str(long_file), "--json"], env=env, stdout=out, stderr=follower
        )
    os.close(follower)
    seen = b""
    with contextlib.suppress(OSError):  # how the end of a terminal is told
        while data := os.read(leader, 65536):
            seen += data
    os.close(leader)
    assert process.wait(60) == 0
    assert b"of 20,000" in seen and b" left" in seen
    assert seen.rstrip().endswith(b"/s") and b"20,000 in " in seen
    assert (b"\x1b[3" in seen or b"\x1b[9" in seen) == (not colours)
    assert ids(tmp_path / "out.jsonl") == [f"n{i}" for i in range(LINES)]
