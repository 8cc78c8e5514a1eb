"""The `sie` command line, run as a user runs it: what it prints, where, and the code it exits with."""

from __future__ import annotations

import json
from importlib.metadata import EntryPoint
from pathlib import Path

import click
import msgspec
import pytest
from click.testing import CliRunner, Result

from sie_sdk import ModelNotFoundError, Progress, cli
from sie_sdk.errors import BY_CODE
from sie_sdk.types import EncodeRequest, Item, JobStatus
from tests.sdk.scripted_server import ScriptedServer, accepted, json_answer, refused, vectors


def sie(*arguments: str, stdin: str | None = None) -> Result:
    return CliRunner().invoke(cli.main, arguments, input=stdin)


def sent_items(server: ScriptedServer) -> list[Item]:
    return msgspec.msgpack.decode(server.asked[0].body, type=EncodeRequest).items


def test_texts_become_a_short_table_with_the_time_it_took(server: ScriptedServer) -> None:
    server.script = [vectors(2)]
    result = sie("encode", "m", "hello", "world", "--url", server.url)
    assert result.exit_code == 0, result.output
    hello, world, timing = result.stdout.splitlines()
    assert hello.split() == ["hello", "2", "dims", "float32", "[+0.0000", "+0.5000", "...]"]
    assert world.startswith("world")
    assert timing.startswith("3.0 ms (queue 0.0")


def test_json_is_one_line_per_result(server: ScriptedServer) -> None:
    server.script = [vectors(2)]
    result = sie("encode", "m", "hello", "world", "--json", "--url", server.url)
    assert [json.loads(line)["dense"] for line in result.stdout.splitlines()] == [[0.0, 0.5], [1.0, 0.5]]


def test_standard_input_holds_texts_and_items_line_by_line(server: ScriptedServer) -> None:
    server.script = [vectors(2)]
    result = sie("encode", "m", "-", "--url", server.url, stdin='plain text\n\n{"text": "a", "id": "7"}\n')
    assert result.exit_code == 0, result.output
    assert sent_items(server) == [Item(text="plain text"), Item(text="a", id="7")]


def test_a_file_is_read_like_standard_input(server: ScriptedServer, tmp_path: Path) -> None:
    server.script = [vectors()]
    (tmp_path / "in.jsonl").write_text('{"text": "a"}\n')
    assert sie("encode", "m", "--file", str(tmp_path / "in.jsonl"), "--url", server.url).exit_code == 0
    assert sent_items(server) == [Item(text="a")]


def test_waiting_is_told_on_standard_error_and_only_once(server: ScriptedServer) -> None:
    job = JobStatus("j1", "provisioning", message="starting a worker")
    server.script = [accepted(job, Retry_After="0.001"), accepted(job, Retry_After="0.001"), vectors()]
    result = sie("encode", "m", "hello", "--json", "--url", server.url)
    assert result.stderr == "provisioning: starting a worker\n"
    assert json.loads(result.stdout)["dense"] == [0.0, 0.5]


def test_models_are_listed_for_people_and_programs(server: ScriptedServer) -> None:
    row = {"name": "org/m", "outputs": ["dense"], "dims": {"dense": 384}, "max_sequence_length": 256}
    server.script = [json_answer({"models": [row]}), json_answer({"models": [row]}), json_answer({"models": []})]
    assert sie("models", "--url", server.url).stdout.split() == ["org/m", "available", "dense", "384", "256", "tokens"]
    assert json.loads(sie("models", "--json", "--url", server.url).stdout)["models"][0]["name"] == "org/m"
    assert sie("models", "--url", server.url).stdout == "No models yet.\n"


def test_the_servers_error_is_a_line_and_a_hint_and_exit_code_1(server: ScriptedServer) -> None:
    server.script = [refused(ModelNotFoundError("No model m.", hint="Did you mean n?"))]
    result = sie("encode", "m", "hello", "--url", server.url)
    assert (result.exit_code, result.stdout) == (1, "")
    assert result.stderr == "Error: No model m.\nHint: Did you mean n?\n"


@pytest.mark.parametrize("command", [["encode", "m", "hello"], ["models"]])
def test_an_unreachable_server_is_exit_code_3_at_once(command: list[str]) -> None:
    result = sie(*command, "--url", "http://127.0.0.1:1")
    assert result.exit_code == 3
    assert "sie up" in result.stderr
    assert "Traceback" not in result.output


def test_a_passed_deadline_is_exit_code_4(server: ScriptedServer) -> None:
    server.script = [accepted(JobStatus("j1"), Retry_After="9")]
    result = sie("encode", "m", "hello", "--deadline", "0.05", "--url", server.url)
    assert result.exit_code == 4
    assert "job j1" in result.stderr


@pytest.mark.parametrize(
    "arguments",
    [
        ["encode", "m"],
        ["encode", "m", "a", "--url", "localhost"],
        ["encode", "m", "a", "--dtype", "int3"],
        ["encode"],
        ["nothing"],
    ],
)
def test_wrong_usage_is_exit_code_2(arguments: list[str]) -> None:
    assert sie(*arguments).exit_code == 2


def test_a_line_that_is_not_an_item_is_named_by_its_number() -> None:
    result = sie("encode", "m", "-", stdin='{"text": "a"}\n{"text": 3}\n')
    assert result.exit_code == 2
    assert "Line 2" in result.stderr


def test_every_error_of_the_tree_has_a_documented_exit_code() -> None:
    documented = {line.split()[0] for line in sie("--help").stdout.split("Exit codes:")[1].splitlines()[1:6]}
    assert {str(cli.exit_code(cls("x"))) for cls in BY_CODE.values()} | {"0"} == documented


def test_help_lists_every_command_with_examples_and_loads_nothing_else() -> None:
    result = sie("--help")
    assert result.exit_code == 0
    for name in ("encode", "models", "up", "serve"):
        assert f"\n  {name}" in result.stdout
    assert "sie encode all-MiniLM-L6-v2" in result.stdout


def test_a_command_whose_extra_is_missing_says_which(monkeypatch: pytest.MonkeyPatch) -> None:
    absent = EntryPoint("up", "sie_local.not_installed:up", "sie.commands")
    monkeypatch.setattr(cli, "_installed", lambda: [absent])
    result = sie("up", "--any", "option")
    assert result.exit_code == 2
    assert result.stderr.startswith("Error: sie up needs the [local] extra")
    assert "pip install 'sie-knative[local]'" in result.stderr


def test_a_command_of_another_package_is_found_by_name(monkeypatch: pytest.MonkeyPatch) -> None:
    present = EntryPoint("hello", f"{__name__}:hello", "sie.commands")
    monkeypatch.setattr(cli, "_installed", lambda: [present])
    assert sie("hello").stdout == "hello from elsewhere\n"


@click.command()
def hello() -> None:
    """Stands for a command of another package."""
    click.echo("hello from elsewhere")


def test_a_lost_connection_while_a_job_is_queued_does_not_end_the_command() -> None:
    cli.Narrator()(Progress("unreachable", job="j1"))


def test_the_version_is_printed() -> None:
    assert sie("--version").stdout.startswith("sie, version ")
