"""The `sie` command line, run as a user runs it: what it prints, where, and the code it exits with."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest

from sie_sdk import (
    AssignedWorker,
    InvalidInputError,
    ModelNotFoundError,
    PoolInfo,
    PoolNotFoundError,
    PoolSpec,
    PoolStatus,
    Progress,
    replies,
    wire,
)
from sie_sdk.cli.progress import Narrator
from sie_sdk.outputs import DenseOutput, MultivectorOutput, Outputs, SparseOutput
from sie_sdk.replies import Extracted
from sie_sdk.types import Classification, Entity, Item, JobStatus, Timing, Usage
from tests.sdk.cli.running import sie
from tests.sdk.scripted_server import (
    ScriptedServer,
    accepted,
    answered,
    extracted,
    json_answer,
    refused,
    scores,
    vectors,
)


def sent_items(server: ScriptedServer) -> list[Item]:
    return wire.parse_encode(server.asked[0].body, None).items


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


def test_every_output_is_shown_and_quantised_values_as_the_numbers_they_stand_for(server: ScriptedServer) -> None:
    outputs: Outputs = {
        "dense": DenseOutput(np.array([[10, -20]], "i1"), 2, "int8", np.array([0.5], np.float32)),
        "sparse": SparseOutput([(np.array([3, 7], "i4"), np.array([0.25, 0.5], "<f4"))], 100, "float32"),
        "multivector": MultivectorOutput([np.ones((3, 2), "<f4")], 2, "float32"),
    }
    body = replies.encode("m", [None], outputs, Timing(), Usage(1))
    server.script = [answered(body), answered(body)]
    arguments = ("encode", "m", "hello", "-t", "dense", "-t", "sparse", "--dtype", "int8", "--url", server.url)
    dense, sparse, many, _ = sie(*arguments).stdout.splitlines()
    assert dense.endswith("2 dims  int8  [+5.0000 -10.0000 ...]")
    assert sparse.endswith("2 of 100 dims  float32  [7:0.5000 3:0.2500 ...]")
    assert many.endswith("3 x 2 dims  float32  [+1.0000 +1.0000 ...]")
    params = wire.parse_encode(server.asked[0].body, None).params
    assert (params.output_types, params.output_dtype) == (["dense", "sparse"], "int8")
    line = json.loads(sie(*arguments, "--json").stdout)
    assert (line["dense"], line["dense_quantization"]) == ([10, -20], {"scale": 0.5, "offset": 0.0})
    assert line["sparse"] == {"indices": [3, 7], "values": [0.25, 0.5], "dims": 100}


def test_a_score_is_a_table_best_first(server: ScriptedServer) -> None:
    server.script = [scores(-7.5, 9.25), scores(-7.5, 9.25)]
    arguments = ("score", "m", "capital?", "Rome [bold] is not", "Paris is", "--instruction", "i", "--url", server.url)
    titles, paris, rome, timing = sie(*arguments).stdout.splitlines()
    assert titles.split() == ["#", "score", "text", "id"]
    assert paris.split() == ["1", "+9.2500", "Paris", "is"]
    assert rome.split() == ["2", "-7.5000", "Rome", "[bold]", "is", "not"]
    assert timing.startswith("3.0 ms")
    request = wire.parse_score(server.asked[0].body, None)
    assert (request.query, request.instruction) == (Item(text="capital?"), "i")
    best, _ = (json.loads(line) for line in sie(*arguments, "--json").stdout.splitlines())
    assert best == {"item_id": "item-1", "score": 9.25, "rank": 0, "index": 1}


def test_more_texts_than_one_request_holds_are_one_ranking(server: ScriptedServer) -> None:
    server.script = [scores(*range(150)), scores(*range(1000, 1150))]
    texts = "".join(f"text {number}\n" for number in range(300))
    done = sie("score", "m", "q", "-", "--top", "2", "--concurrency", "1", "--json", "--url", server.url, stdin=texts)
    found = [json.loads(line) for line in done.stdout.splitlines()]
    assert [(entry["index"], entry["score"], entry["rank"]) for entry in found] == [(299, 1149.0, 0), (298, 1148.0, 1)]


def test_texts_to_score_are_read_from_standard_input_with_their_ids(server: ScriptedServer) -> None:
    server.script = [answered(replies.score("m", np.ones(1, np.float32), ["p7"], None, Timing(), Usage()))]
    printed = sie("score", "m", "q", "-", "--url", server.url, stdin='{"text": "Paris is", "id": "p7"}\n')
    assert printed.stdout.splitlines()[1].split() == ["1", "+1.0000", "Paris", "is", "p7"]


def test_vectors_to_score_are_read_from_a_file(server: ScriptedServer, tmp_path: Path) -> None:
    server.script = [scores(1.0)]
    (tmp_path / "in.jsonl").write_text('{"multivector": [[1.0, 0.5]]}\n')
    assert sie("score", "m", "q", "--file", str(tmp_path / "in.jsonl"), "--url", server.url).exit_code == 0
    (item,) = wire.parse_score(server.asked[0].body, None).items
    assert item.multivector is not None and item.multivector.tolist() == [[1.0, 0.5]]


def test_what_was_extracted_is_a_table_in_the_order_of_the_texts(server: ScriptedServer) -> None:
    ada = Extracted([Entity("Ada", "person", 0.987, 0, 3)], [Classification("short", 0.5)])
    server.script = [extracted(ada, Extracted()), extracted(ada, Extracted())]
    arguments = ("extract", "m", "Ada.", "nobody", "-l", "person", "--threshold", "0.5", "--url", server.url)
    titles, entity, group, none, _ = sie(*arguments).stdout.splitlines()
    assert titles.split() == ["text", "found", "label", "score", "place"]
    assert entity.split() == ["Ada.", "Ada", "person", "0.987", "0-3"]
    assert group.split() == ["Ada.", "short", "0.500"]
    assert none.split() == ["nobody", "-"]
    params = wire.parse_extract(server.asked[0].body, None).params
    assert (params.labels, params.options) == (["person"], {"threshold": 0.5})
    first, _ = (json.loads(line) for line in sie(*arguments, "--json").stdout.splitlines())
    assert first["entities"] == [{"text": "Ada", "label": "person", "score": 0.987, "start": 0, "end": 3}]


def test_standard_input_holds_texts_and_items_line_by_line(server: ScriptedServer) -> None:
    server.script = [vectors(2)]
    result = sie("encode", "m", "-", "--url", server.url, stdin='plain text\n\n{"text": "a", "id": "7"}\n')
    assert result.exit_code == 0, result.output
    assert sent_items(server) == [Item(text="plain text"), Item(text="a", id="7")]


@pytest.mark.parametrize("source", [["-"], ["--file", "in.json"]])
def test_a_json_array_is_one_input_for_each_element(
    server: ScriptedServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, source: list[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    server.script = [vectors(2)]
    array = json.dumps(["plain text", {"text": "a", "id": "7"}], indent=2)
    Path("in.json").write_text(array)
    result = sie("encode", "m", *source, "--url", server.url, stdin=array)
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
    titles, listed = sie("models", "--url", server.url).stdout.splitlines()
    assert titles.split() == ["model", "state", "outputs", "length"]
    assert listed.split() == ["org/m", "available", "dense", "384", "256", "tokens"]
    assert json.loads(sie("models", "--json", "--url", server.url).stdout)["name"] == "org/m"
    assert sie("models", "--url", server.url).stdout == "No models yet.\n"


def test_pools_are_made_listed_renewed_and_deleted(server: ScriptedServer) -> None:
    spec = PoolSpec("team-a", {"cpu": 2, "l4": 1}, {"cpu": 3}, minimum_worker_count=1, ttl_seconds=600)
    team = PoolInfo(spec, PoolStatus("active", [AssignedWorker("w-1")], time.time(), time.time()))
    default = PoolInfo(PoolSpec("default", ttl_seconds=0), PoolStatus("active"))
    listed = json_answer({"pools": [default, team]})
    done = json_answer({"message": "done"})
    server.script = [json_answer(team), listed, listed, done, done]
    url = ("--url", server.url)
    made = sie("pools", "create", "team-a", "-w", "cpu=2", "-w", "l4=1", "--minimum", "1", "--ttl", "600", *url)
    assert made.stdout == "Pool team-a is active; it ends in 600 s unless renewed.\n"
    sent = json.loads(server.asked[0].body)
    assert (sent["gpus"], sent["minimum_worker_count"], sent["ttl_seconds"]) == ({"cpu": 2, "l4": 1}, 1, 600)
    titles, first, second = sie("pools", "list", *url).stdout.splitlines()
    assert titles.split() == ["pool", "state", "bundle", "workers", "at", "most", "minimum", "ends", "in"]
    assert first.split() == ["default", "active", "default", "0"]
    assert second.split()[:8] == ["team-a", "active", "default", "1", "cpu", "3,", "l4", "1"]
    rows = [json.loads(line) for line in sie("pools", "--json", *url).stdout.splitlines()]
    assert [row["spec"]["name"] for row in rows] == ["default", "team-a"]
    assert sie("pools", "renew", "team-a", *url).stdout == "Pool team-a is renewed.\n"
    assert sie("pools", "delete", "team-a", *url).stdout == "Pool team-a is deleted.\n"


@pytest.mark.parametrize("verb", ["renew", "delete"])
def test_a_pool_that_is_not_there_is_an_error(server: ScriptedServer, verb: str) -> None:
    server.script = [refused(PoolNotFoundError("No pool."))]
    result = sie("pools", verb, "x", "--url", server.url)
    assert (result.exit_code, result.stdout) == (1, "")
    assert "There is no pool x." in result.stderr


def test_a_command_may_name_the_pool_that_computes_it(server: ScriptedServer) -> None:
    server.script = [vectors()]
    assert sie("encode", "m", "hello", "--pool", "team-a", "--url", server.url).exit_code == 0
    assert server.asked[0].headers["x-sie-pool"] == "team-a"


def test_the_servers_error_is_a_line_and_a_hint_and_exit_code_1(server: ScriptedServer) -> None:
    server.script = [refused(ModelNotFoundError("No model m.", hint="Did you mean n?"))]
    result = sie("encode", "m", "hello", "--url", server.url)
    assert (result.exit_code, result.stdout) == (1, "")
    assert result.stderr == "Error: No model m.\nHint: Did you mean n?\nRequest: r-error\n"


@pytest.mark.parametrize(
    "command", [["encode", "m", "hello"], ["score", "m", "q", "a"], ["extract", "m", "a"], ["models"]]
)
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
        ["encode", "m", "a", "-t", "sparkling"],
        ["score", "m", "query"],
        ["extract", "m"],
        ["encode"],
        ["pools", "create", "team-a"],
        ["pools", "create", "team-a", "-w", "cpu"],
        ["nothing"],
        ["encode", "m", "a", "--deadline", "nan"],
        ["jobs", "wait", "a", "--deadline", "inf"],
        ["jobs", "result", "a", "--deadline", "-1"],
        ["bench", "m", "--seconds", "nan"],
        ["pools", "create", "team-a", "-w", "cpu=1", "--ttl", "inf"],
        ["config", "apply", "specs", "--wait", "nan"],
    ],
)
def test_wrong_usage_is_exit_code_2(arguments: list[str]) -> None:
    assert sie(*arguments).exit_code == 2


BYTES = os.fsdecode(b"a\xff")
"""An argument that is not UTF-8, as Python hands it over."""


@pytest.mark.parametrize(
    "arguments",
    [
        ["encode", "m", BYTES],
        ["encode", "m", "a", "--option", f"a={BYTES}"],
        ["encode", "m", "a", "--pool", BYTES],
        ["jobs", "wait", BYTES],
        ["config", "show", BYTES],
        ["config", "bundles", BYTES],
        ["config", "resolve", BYTES],
        ["config", "delete", BYTES],
        ["pools", "create", BYTES, "-w", "cpu=1"],
        ["pools", "delete", BYTES],
        ["pools", "delete", ""],
    ],
)
def test_an_argument_that_cannot_be_sent_is_one_line_and_exit_code_2(
    server: ScriptedServer, arguments: list[str]
) -> None:
    done = sie(*arguments, "--url", server.url)
    assert (done.exit_code, done.stdout) == (2, ""), done.exception
    assert "Error: " in done.stderr and "Traceback" not in done.stderr
    assert not server.asked


@pytest.mark.parametrize("named", [{"X-Request-ID": "r-error"}, {}])
def test_what_a_server_refuses_is_exit_code_1_whether_it_names_the_request_or_not(
    server: ScriptedServer, named: dict[str, str]
) -> None:
    refusal = refused(InvalidInputError("No."))
    refusal.headers = {"Content-Type": wire.JSON} | named
    server.computes = lambda _: refusal
    for command in (["encode", "m", "a"], ["jobs", "result", "a"], ["pools"], ["config", "resolve", "m"]):
        done = sie(*command, "--url", server.url)
        known_as = named.get("X-Request-ID", server.asked[-1].headers["x-request-id"])
        assert (done.exit_code, done.stderr.splitlines()[-1]) == (1, f"Request: {known_as}")


@pytest.mark.parametrize("reply", [{}, [], 5, {"models": 5, "bundles": [{}], "model": {}}, {"lanes": [{}]}])
@pytest.mark.parametrize("command", [["health"], ["config", "list"], ["config", "bundles"], ["config", "resolve", "m"]])
def test_json_of_another_server_is_one_line(server: ScriptedServer, command: list[str], reply: object) -> None:
    server.script = [json_answer(reply)]
    done = sie(*command, "--url", server.url)
    if done.exit_code == 0:
        assert command == ["health"], "which shows what there is of lanes and workers"
    else:
        assert (done.exit_code, done.stdout) == (1, "")
        assert done.stderr.startswith("Error: The reply is JSON of another shape")


@pytest.mark.parametrize("source", [["-"], ["--file", "-"]])
def test_a_closed_standard_input_holds_no_text(source: list[str]) -> None:
    command = [sys.executable, "-m", "sie_sdk.cli", "encode", "m", *source, "--url", "http://127.0.0.1:1"]
    closed = ["sh", "-c", 'exec "$@" <&-', "sh", *command]
    done = subprocess.run(closed, capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith("Error: There is no text in ")


def test_a_line_that_is_not_an_item_is_named_by_its_number(server: ScriptedServer) -> None:
    server.script = [vectors()]
    result = sie("encode", "m", "-", "--json", "--url", server.url, stdin='{"text": "a"}\n{"text": 3}\n')
    assert (result.exit_code, json.loads(result.stdout)["dense"]) == (2, [0.0, 0.5])
    assert result.stderr.splitlines()[-1].startswith("Error: Line 2 is not an item: ")


def test_a_misspelt_command_is_told_the_nearest_names() -> None:
    result = sie("encod", "m", "hello")
    assert result.exit_code == 2
    assert "No such command 'encod'. Did you mean encode?" in result.stderr


def test_a_connection_lost_after_the_server_was_heard_of_does_not_end_the_command() -> None:
    said: list[str] = []
    narrator = Narrator(said.append)
    narrator(Progress("queued", job="j1"))
    narrator(Progress("unreachable", job="j1", message="No route."))
    assert said == ["queued", "unreachable: No route."]
