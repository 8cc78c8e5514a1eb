"""``sie jobs`` against a scripted server: ids out, states, waiting, and the results of each operation."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from sie_sdk import InferenceError, JobNotFoundError, QueueUnavailableError, wire
from sie_sdk.replies import Extracted
from sie_sdk.types import Entity, JobStatus
from tests.sdk.cli.running import sie
from tests.sdk.scripted_server import Answer, ScriptedServer, accepted, extracted, refused, scores, vectors

QUEUED = [accepted(JobStatus(f"j{number}")) for number in range(4)]


def test_submitted_work_is_an_id_for_each_batch(server: ScriptedServer) -> None:
    server.script = [*QUEUED[:3]]
    done = sie("jobs", "submit", "encode", "m", "-", "--batch", "2", "--url", server.url, stdin="a\nb\nc\nd\ne\n")
    assert (done.stdout, done.stderr, done.exit_code) == ("j0\nj1\nj2\n", "", 0)
    sent = [[item.text for item in wire.parse_encode(asked.body, None).items] for asked in server.asked]
    assert sent == [["a", "b"], ["c", "d"], ["e"]]
    assert {asked.headers["prefer"] for asked in server.asked} == {"wait=0"}


def test_a_batch_that_is_refused_is_the_place_to_go_on_from(server: ScriptedServer) -> None:
    server.script = [QUEUED[0], refused(InferenceError("NaN."))]
    done = sie("jobs", "submit", "encode", "m", "a", "b", "c", "--batch", "2", "--url", server.url)
    assert (done.exit_code, done.stdout) == (1, "j0\n")
    assert done.stderr.startswith("2 inputs were submitted. Go on with --skip 2.\nError: NaN.")


def test_a_wrong_line_after_a_batch_says_where_to_go_on_from(server: ScriptedServer) -> None:
    server.script = [QUEUED[0]]
    arguments = ("jobs", "submit", "encode", "m", "-", "--batch", "2", "--url", server.url)
    done = sie(*arguments, stdin='{"text": "a"}\nb\nc\n{wrong\n')
    assert (done.exit_code, done.stdout) == (2, "j0\n")
    assert done.stderr.startswith("2 inputs were submitted. Go on with --skip 2.\nError: Line 4 is not an item")


def test_each_operation_is_submitted_with_its_own_options(server: ScriptedServer) -> None:
    server.script = [*QUEUED]
    url = ("--url", server.url, "--pool", "team-a", "--priority", "bulk", "--option", "dimensions=64")
    sie("jobs", "submit", "encode", "m", "a", "-t", "sparse", "--query", *url)
    sie("jobs", "submit", "score", "m", "q", "a", "b", "--instruction", "i", *url)
    done = sie("jobs", "submit", "extract", "m", "a", "-l", "person", "--threshold", "0.5", "--json", *url)
    encode, score, extract = server.asked
    asked = wire.parse_encode(encode.body, None).params
    assert (asked.output_types, asked.options) == (["sparse"], {"dimensions": 64, "is_query": True})
    request = wire.parse_score(score.body, None)
    assert (request.query.text, len(request.items), request.instruction) == ("q", 2, "i")
    params = wire.parse_extract(extract.body, None).params
    assert (params.labels, params.options) == (["person"], {"dimensions": 64, "threshold": 0.5})
    assert json.loads(done.stdout) == {"id": "j2", "operation": "extract", "items": 1}
    assert {asked.headers["x-sie-pool"] for asked in server.asked} == {"team-a"}
    assert {asked.headers["x-sie-priority"] for asked in server.asked} == {"bulk"}


def test_a_status_is_queued_done_or_failed_and_none_of_them_an_error(server: ScriptedServer) -> None:
    server.script = [
        accepted(JobStatus("a", "provisioning", message="starting")),
        vectors(),
        refused(InferenceError("NaN.")),
    ]
    done = sie("jobs", "status", "a", "b", "c", "--json", "--url", server.url)
    rows = [json.loads(line) for line in done.stdout.splitlines()]
    assert [(row["id"], row["state"], row["message"]) for row in rows] == [
        ("a", "provisioning", "starting"),
        ("b", "done", None),
        ("c", "failed", "NaN."),
    ]
    assert done.exit_code == 0
    assert [asked.path for asked in server.asked] == ["/v1/jobs/a", "/v1/jobs/b", "/v1/jobs/c"]


def test_a_status_that_is_not_to_be_had_is_an_error(server: ScriptedServer) -> None:
    server.script = [refused(JobNotFoundError("There is no job x.")), refused(QueueUnavailableError("No broker."))]
    for _ in range(2):
        done = sie("jobs", "status", "x", "--url", server.url)
        assert (done.exit_code, done.stdout) == (1, "")


def test_waiting_ends_with_1_if_a_job_failed_and_says_which(server: ScriptedServer) -> None:
    server.script = [accepted(JobStatus("a"), Retry_After="0.001"), vectors(), refused(InferenceError("NaN."))]
    done = sie("jobs", "wait", "a", "b", "--url", server.url)
    assert done.exit_code == 1
    assert [line.split() for line in done.stdout.splitlines()[1:]] == [["a", "done"], ["b", "failed", "NaN."]]
    server.script = [vectors()]
    assert sie("jobs", "wait", "a", "--url", server.url).exit_code == 0


def test_waiting_gives_up_at_its_deadline_and_the_job_goes_on(server: ScriptedServer) -> None:
    server.script = [accepted(JobStatus("a"), Retry_After="9")] * 3
    done = sie("jobs", "wait", "a", "--deadline", "0.05", "--url", server.url)
    assert done.exit_code == 4
    assert "job a" in done.stderr


def test_results_of_several_jobs_are_one_stream(server: ScriptedServer, tmp_path: Path) -> None:
    server.script = [vectors(2), vectors(1)] * 2
    done = sie("jobs", "result", "a", "b", "--json", "--url", server.url)
    assert [json.loads(line)["dense"] for line in done.stdout.splitlines()] == [[0.0, 0.5], [1.0, 0.5], [0.0, 0.5]]
    assert sie("jobs", "result", "a", "b", "--out", str(tmp_path / "v.npy"), "--url", server.url).exit_code == 0
    assert np.load(tmp_path / "v.npy").tolist() == [[0.0, 0.5], [1.0, 0.5], [0.0, 0.5]]


def test_a_result_is_read_as_what_it_is(server: ScriptedServer) -> None:
    server.script = [vectors(), scores(-1.0, 2.0), extracted(Extracted([Entity("Ada", "person", 0.9, 0, 3)]))]
    shown = [sie("jobs", "result", "a", "--url", server.url).stdout for _ in range(3)]
    assert shown[0].split()[:3] == ["item-0", "2", "dims"]
    assert [line.split() for line in shown[1].splitlines()] == [
        ["#", "score", "text", "id"],
        ["1", "+2.0000", "item-1"],
        ["2", "-1.0000", "item-0"],
    ]
    assert shown[2].splitlines()[1].split() == ["item-0", "Ada", "person", "0.900", "0-3"]
    server.script = [scores(-1.0, 2.0)]
    first, _ = sie("jobs", "result", "a", "--json", "--url", server.url).stdout.splitlines()
    assert json.loads(first) == {"item_id": "item-1", "score": 2.0, "rank": 0, "index": 1}


@pytest.mark.parametrize("verb", ["status", "wait", "result"])
@pytest.mark.parametrize(
    ("reply", "told"),
    [
        (Answer(200, b"<html>login"), "begins b'<html>login'"),
        (Answer(200, b"[]", {"Content-Type": wire.JSON}), "begins b'[]'"),
        (Answer(500, b"<html>oh no"), "b'<html>oh no'"),
        (Answer(401, b'{"error": "token expired"}', {"Content-Type": wire.JSON}), "token expired"),
        (Answer(404, b'{"detail": "Not Found"}', {"Content-Type": wire.JSON}), "Not Found"),
    ],
)
def test_what_is_no_answer_about_a_job_is_an_error_and_not_how_it_stands(
    server: ScriptedServer, verb: str, reply: Answer, told: str
) -> None:
    if verb == "wait" and reply.status == 200:
        return  # nothing of it is read
    server.script = [reply]
    done = sie("jobs", verb, "a", "--url", server.url)
    assert (done.exit_code, done.stdout) == (1, "")
    assert done.stderr.startswith("Error: ") and told in done.stderr


@pytest.mark.parametrize("verb", ["status", "wait", "result"])
@pytest.mark.parametrize("id", ["", ","])
def test_an_empty_id_is_none(verb: str, id: str) -> None:
    done = sie("jobs", verb, id, "--url", "http://127.0.0.1:1")
    assert (done.exit_code, done.stdout) == (2, "")
    assert done.stderr.startswith("Error: '' is no job's id.")


def test_a_job_that_failed_is_its_error(server: ScriptedServer) -> None:
    server.script = [refused(InferenceError("The output of items[1] was not finite."))]
    done = sie("jobs", "result", "a", "--json", "--url", server.url)
    assert (done.exit_code, done.stdout) == (1, "")
    assert done.stderr.startswith("Error: The output of items[1] was not finite.")


@pytest.mark.parametrize("verb", ["status", "wait", "result"])
def test_an_unreachable_server_is_exit_code_3_at_once(verb: str) -> None:
    done = sie("jobs", verb, "a", "--url", "http://127.0.0.1:1")
    assert (done.exit_code, done.stdout) == (3, "")


def test_what_is_waited_for_is_told_unless_quiet(server: ScriptedServer) -> None:
    job = accepted(JobStatus("a", "provisioning", message="starting a worker"), Retry_After="0.001")
    server.script = [job, vectors(), job, vectors()]
    assert sie("jobs", "wait", "a", "--url", server.url).stderr == "provisioning: starting a worker\n"
    assert sie("jobs", "wait", "a", "--quiet", "--url", server.url).stderr == ""


def test_an_id_is_one_piece_of_the_path(server: ScriptedServer) -> None:
    server.script = [refused(JobNotFoundError("There is none."))]
    sie("jobs", "status", "a/../b", "--url", server.url)
    assert server.asked[0].path == "/v1/jobs/a%2F..%2Fb"


def test_an_id_of_several_jobs_is_followed_part_by_part(server: ScriptedServer, tmp_path: Path) -> None:
    server.script = [vectors(2), vectors(1)]
    done = sie("jobs", "result", "a,b", "--json", "--url", server.url)
    assert [json.loads(line)["dense"] for line in done.stdout.splitlines()] == [[0.0, 0.5], [1.0, 0.5], [0.0, 0.5]]
    assert [asked.path for asked in server.asked] == ["/v1/jobs/a", "/v1/jobs/b"]
    server.script = [vectors(), accepted(JobStatus("b"))]
    rows = sie("jobs", "status", "a,b", "--json", "--url", server.url).stdout.splitlines()
    assert [(json.loads(row)["id"], json.loads(row)["state"]) for row in rows] == [("a", "done"), ("b", "queued")]
    server.script = [vectors(), vectors()]
    assert sie("jobs", "wait", "a,b", "--url", server.url).exit_code == 0


def test_the_parts_of_a_job_of_scores_are_one_ranking(server: ScriptedServer) -> None:
    server.script = [scores(-1.0, 2.0), scores(3.0)]
    done = sie("jobs", "result", "a,b", "--json", "--url", server.url)
    found = [json.loads(line) for line in done.stdout.splitlines()]
    assert [(each["index"], each["score"], each["rank"]) for each in found] == [(2, 3.0, 0), (1, 2.0, 1), (0, -1.0, 2)]


def test_what_has_no_vectors_does_not_go_into_a_file_of_numpy(server: ScriptedServer, tmp_path: Path) -> None:
    for reply in (scores(1.0), extracted(Extracted([]))):
        server.script = [reply]
        done = sie("jobs", "result", "a", "--out", str(tmp_path / "x.npy"), "--url", server.url)
        assert done.exit_code == 2
        assert "There are no dense vectors" in done.stderr
