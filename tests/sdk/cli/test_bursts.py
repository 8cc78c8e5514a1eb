"""Lines that come slowly are answered as they come, and those that come at once go together."""

from __future__ import annotations

import io
import json
import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import IO

import pytest

from sie_sdk import wire
from sie_sdk.cli import bursts
from sie_sdk.cli.bursts import Lines
from tests.sdk.scripted_server import ScriptedServer, computed


@pytest.fixture
def pipe() -> Iterator[tuple[Lines, IO[bytes]]]:
    read, write = os.pipe()
    with open(read, "rb") as stream, open(write, "wb", buffering=0) as into:
        lines = bursts.lines(stream)
        assert lines is not None
        yield lines, into


def test_a_line_is_there_when_its_end_is(pipe: tuple[Lines, IO[bytes]]) -> None:
    lines, into = pipe
    assert not lines.ready(0)
    into.write(b"one\n\ntw")
    assert lines.ready(0)
    assert [next(iter(lines)), next(iter(lines))] == [b"one\n", b"\n"]
    assert not lines.ready(0)
    into.write(b"o\n\n")
    assert lines.ready(0) and next(iter(lines)) == b"two\n"
    assert not lines.ready(0), "an empty line is nothing to go on with"
    into.write(b"end")
    into.close()
    assert lines.ready(0)
    assert list(lines) == [b"\n", b"end"]


def test_lines_longer_than_one_read_are_whole(pipe: tuple[Lines, IO[bytes]]) -> None:
    lines, into = pipe
    sent = [bytes([97 + number % 26]) * (number * 7919 % 300_000) + b"\n" for number in range(40)]

    def write() -> None:
        for each in sent:
            into.write(each)
        into.close()

    thread = threading.Thread(target=write)
    thread.start()
    assert list(lines) == sent
    thread.join()


def test_a_file_and_what_is_none_make_nobody_wait(tmp_path: Path) -> None:
    (tmp_path / "f").write_text("a\n")
    with (tmp_path / "f").open("rb") as file:
        assert bursts.lines(file) is None
    assert bursts.lines(io.BytesIO(b"a\n")) is None


def test_a_burst_ends_where_the_next_one_is_not_there() -> None:
    items = iter(range(10))
    there = iter([True, True, False])
    assert list(bursts.burst(next(items), items, lambda within_s: next(there))) == [0, 1, 2]
    assert list(bursts.burst(next(items), items, bursts.always)) == [3, 4, 5, 6, 7, 8, 9]


def sie(*arguments: str) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "sie_sdk.cli", *arguments]
    return subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, bufsize=1
    )


@pytest.mark.parametrize("options", [["--json"], []])
def test_a_line_is_answered_before_the_next_one_comes(server: ScriptedServer, options: list[str]) -> None:
    server.computes = computed
    with sie("encode", "m", "-", *options, "--url", server.url) as process:
        assert process.stdin and process.stdout
        watchdog = threading.Timer(30, process.kill)
        watchdog.start()
        for number in range(3):
            process.stdin.write(f"{number}\n")
            answer = process.stdout.readline()
            assert (json.loads(answer)["dense"][0] == number) if options else answer.startswith(str(number))
        process.stdin.close()
        assert process.wait() == 0
        watchdog.cancel()


def test_lines_that_come_at_once_go_together_and_the_one_at_fault_is_named_by_its_number(
    server: ScriptedServer,
) -> None:
    server.computes = computed
    lines = [str(number) for number in range(700)]
    with sie("encode", "m", "-", "--json", "--url", server.url) as process:
        assert process.stdin and process.stdout and process.stderr
        process.stdin.write("7\n")
        process.stdout.readline()
        out, _ = process.communicate("\n".join(lines))
        assert [json.loads(line)["dense"][0] for line in out.splitlines()] == list(range(700))
    sizes = sorted(len(wire.parse_encode(asked.body, None).items) for asked in server.asked)
    assert sizes == [1, 188, 256, 256]
    with sie("encode", "m", "-", "--json", "--url", server.url) as process:
        assert process.stdin and process.stdout and process.stderr
        process.stdin.write("7\n")
        process.stdout.readline()
        process.stdin.write('8\n{"text": "9", "metadata": {"n": 18446744073709551616}}\n')
        process.stdin.close()
        assert process.wait() == 2
        assert "The input at fault is number 3." in process.stderr.read()
