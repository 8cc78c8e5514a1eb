"""What a long command says when it ends too early, and that everything written before stays."""

from __future__ import annotations

import json
import signal
from collections.abc import Iterator
from pathlib import Path

import click
import pytest

from sie_sdk import InputTooLongError, QueueUnavailableError, SIEError
from sie_sdk.cli import delivery
from sie_sdk.cli.progress import Meter
from tests.sdk.cli.running import sie
from tests.sdk.scripted_server import ScriptedServer, computed, refused, vectors


def ending(error: BaseException, results: int = 3) -> Iterator[int]:
    yield from range(results)
    raise error


def deliver(error: BaseException, *, skipped: int = 0, out: Path | None = None, results: int = 3) -> list[int]:
    written: list[int] = []
    try:
        delivery.deliver(ending(error, results), written.append, Meter(), skipped, out=out)
    finally:
        assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
    return written


def test_an_interrupt_says_how_many_were_written_and_how_to_go_on(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(click.exceptions.Exit) as ended:
        deliver(KeyboardInterrupt(), skipped=40)
    assert ended.value.exit_code == 130
    assert capsys.readouterr().err == "Interrupted after 3 results. Go on with --skip 43.\n"
    with pytest.raises(click.exceptions.Exit):
        deliver(KeyboardInterrupt(), skipped=40, out=Path("v.jsonl"))
    assert capsys.readouterr().err == "Interrupted after 3 results. Go on with --resume.\n"
    with pytest.raises(click.exceptions.Exit):
        deliver(KeyboardInterrupt(), skipped=40, out=Path("v.npz"))
    told = "Interrupted after 3 results. Go on with --skip 43 and another file for --out.\n"
    assert capsys.readouterr().err == told, "an archive cannot be gone on with"
    with pytest.raises(click.exceptions.Exit):
        deliver(KeyboardInterrupt(), results=0)
    assert capsys.readouterr().err == "Interrupted.\n"


def test_an_error_says_it_too_and_is_raised(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(QueueUnavailableError):
        deliver(QueueUnavailableError("No broker."))
    assert capsys.readouterr().err == "3 results were written. Go on with --skip 3.\n"


def test_an_error_before_the_first_result_has_nothing_to_go_on_with(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SIEError):
        deliver(SIEError("No."), results=0)
    assert capsys.readouterr().err == ""


@pytest.mark.parametrize("good", [3, 256, 300, 1000])
@pytest.mark.parametrize("width", ["1", "4"])
def test_inputs_before_a_wrong_line_are_answered_and_the_line_is_where_to_go_on(
    server: ScriptedServer, tmp_path: Path, good: int, width: str
) -> None:
    server.computes = computed
    (tmp_path / "in.jsonl").write_text("".join(f'{{"text": "{number}"}}\n' for number in range(good)) + "{wrong\n")
    arguments = ("--file", str(tmp_path / "in.jsonl"), "-c", width, "--json", "--url", server.url)
    done = sie("encode", "m", *arguments)
    assert [json.loads(line)["dense"][0] for line in done.stdout.splitlines()] == [*range(good)]
    assert done.exit_code == 2
    assert done.stderr.startswith(
        f"{good:,} results were written. Go on with --skip {good}.\nError: Line {good + 1} is not an item: "
    )


def test_an_input_at_fault_is_named_by_its_number_in_the_file(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(InputTooLongError):
        deliver(InputTooLongError("Too long.", field="items[7].text"), skipped=40, results=0)
    assert capsys.readouterr().err == "The input at fault is number 48.\n"


def test_an_interrupt_while_a_line_is_written_waits_for_its_end() -> None:
    written: list[int] = []

    def write(result: int) -> None:
        signal.raise_signal(signal.SIGINT)
        written.append(result)

    with pytest.raises(click.exceptions.Exit):
        delivery.deliver(iter(range(5)), write, Meter())
    assert written == [0]


def test_a_second_interrupt_does_not_wait() -> None:
    def write(result: int) -> None:
        signal.raise_signal(signal.SIGINT)
        signal.raise_signal(signal.SIGINT)
        raise AssertionError("not reached")

    with pytest.raises(click.exceptions.Exit):
        delivery.deliver(iter(range(5)), write, Meter())


def test_skipped_inputs_are_not_asked_for(server: ScriptedServer) -> None:
    server.script = [vectors(1)]
    done = sie("encode", "m", "a", "b", "c", "--skip", "2", "--json", "--url", server.url)
    assert json.loads(done.stdout)["dense"] == [0.0, 0.5]
    assert b"a" not in server.asked[0].body.split(b"text")[-1][:3]
    assert sie("encode", "m", "a", "--skip", "1", "--json", "--url", server.url).stdout == ""


def test_a_file_is_gone_on_with_where_it_was_left_off(server: ScriptedServer, tmp_path: Path) -> None:
    (tmp_path / "in.txt").write_text("a\nb\nc\n")
    (tmp_path / "out.jsonl").write_text('{"dense":[9.0]}\n{"de')
    server.script = [vectors(2)]
    out, where = str(tmp_path / "out.jsonl"), ("--file", str(tmp_path / "in.txt"), "--url", server.url)
    assert sie("encode", "m", "--out", out, "--resume", *where).exit_code == 0
    assert [json.loads(line)["dense"] for line in (tmp_path / "out.jsonl").read_text().splitlines()] == [
        [9.0],
        [0.0, 0.5],
        [1.0, 0.5],
    ]
    assert sie("encode", "m", "--out", out, "--resume", *where).exit_code == 0, "nothing is left to do"
    assert len(server.asked) == 1


@pytest.mark.parametrize(
    ("options", "told"),
    [
        (["--resume"], "--out"),
        (["--json", "--out", "v.jsonl"], "one of them"),
        (["--out", "v.csv"], ".jsonl, .npy or .npz"),
        (["--option", "dimensions"], "KEY=VALUE"),
    ],
)
def test_options_that_contradict_each_other_are_refused(options: list[str], told: str) -> None:
    done = sie("encode", "m", "a", *options, "--url", "http://127.0.0.1:1")
    assert (done.exit_code, done.stdout) == (2, "")
    assert told in done.stderr


def test_a_folder_is_no_file_to_write(tmp_path: Path) -> None:
    (tmp_path / "v.npy").mkdir()
    assert sie("encode", "m", "a", "--out", str(tmp_path / "v.npy"), "--url", "http://127.0.0.1:1").exit_code == 2


@pytest.mark.parametrize("name", ["v.jsonl", "v.npy", "v.npz"])
def test_a_command_that_fails_before_its_first_result_costs_no_file(
    server: ScriptedServer, tmp_path: Path, name: str
) -> None:
    for kept in (None, b"from yesterday"):
        if kept is not None:
            (tmp_path / name).write_bytes(kept)
        server.script = [refused(QueueUnavailableError("No.", retry_after=0))]
        done = sie("encode", "m", "a", "--no-wait", "--out", str(tmp_path / name), "--url", server.url)
        assert done.exit_code == 1
        assert [path.read_bytes() for path in tmp_path.iterdir()] == ([] if kept is None else [kept])


@pytest.mark.parametrize("options", [[], ["--resume"]])
def test_the_inputs_are_not_written_over(server: ScriptedServer, tmp_path: Path, options: list[str]) -> None:
    texts, link = tmp_path / "texts.jsonl", tmp_path / "link.jsonl"
    texts.write_text('{"text": "a"}\n')
    link.symlink_to(texts)
    done = sie("encode", "m", "--file", str(texts), "--out", str(link), *options, "--url", server.url)
    assert (done.exit_code, "the inputs come from this file" in done.stderr) == (2, True)
    assert (texts.read_text(), server.asked) == ('{"text": "a"}\n', [])
