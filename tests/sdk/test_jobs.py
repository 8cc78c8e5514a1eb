"""Jobs of the clients: queued without waiting, looked at, waited for, and attached to from elsewhere."""

from __future__ import annotations

import asyncio
import pickle
import threading
from collections.abc import Callable
from typing import Any

import pytest

from sie_sdk import (
    ConnectionFailedError,
    DeadlineExceededError,
    EncodeResult,
    InferenceError,
    InvalidInputError,
    JobNotFoundError,
    JobStatus,
    OutOfMemoryError,
    Progress,
    ProvisioningFailedError,
    QueueFullError,
    QueueUnavailableError,
    SIEAsyncClient,
    SIEClient,
    UnexpectedReplyError,
    jobs,
    wire,
)
from sie_sdk.errors import SIEError
from sie_sdk.replies import Extracted
from sie_sdk.types import Operation
from tests.sdk.scripted_server import (
    Answer,
    Asked,
    ScriptedServer,
    accepted,
    computed,
    extracted,
    refused,
    scores,
    vectors,
)

Caller = Callable[..., Any]
QUEUED = accepted(JobStatus("j1", message="queued"), Retry_After="0.01")


@pytest.fixture
def on(finished: Caller) -> Caller:
    """``on(job, "result", ...)`` of a job of either client."""
    return lambda job, method, **keywords: finished(getattr(job, method)(**keywords))


def test_work_is_queued_and_not_waited_for(server: ScriptedServer, call: Caller) -> None:
    server.script = [QUEUED]
    job = call("submit", "encode", "m", ["a", "b"], idempotency_key="k", priority="bulk", pool="p")
    assert (job.id, job.operation) == ("j1", "encode")
    (sent,) = server.asked
    assert (sent.path, sent.headers["prefer"], sent.headers["idempotency-key"]) == ("/v1/encode/m", "wait=0", "k")
    assert (sent.headers["x-sie-priority"], sent.headers["x-sie-pool"]) == ("bulk", "p")


def test_a_jobs_result_is_what_its_operation_returns(server: ScriptedServer, call: Caller, on: Caller) -> None:
    server.script = [QUEUED, QUEUED, QUEUED, QUEUED, vectors(2), vectors(1), scores(0.5, 0.75), extracted()]
    many = call("submit", "encode", "m", ["a", "b"])
    one = call("submit", "encode", "m", "a")
    ranked = call("submit", "score", "m", ["a", "b"], query="q")
    none = call("submit", "extract", "m", [], labels=["person"])
    assert [result.dense[0] for result in on(many, "result")] == [0.0, 1.0]
    assert isinstance(on(one, "result"), EncodeResult)
    assert [entry.index for entry in on(ranked, "result").scores] == [1, 0]
    assert on(none, "result") == []
    assert [request.path for request in server.asked[4:]] == ["/v1/jobs/j1"] * 4


@pytest.mark.parametrize("method", ["status", "done", "result"])
@pytest.mark.parametrize(
    ("attached", "held", "reply"),
    [
        ("encode", "score", scores(0.5)),
        ("encode", "extract", extracted(Extracted([], []))),
        ("extract", "encode", vectors(1)),
    ],
)
def test_a_job_of_another_operation_than_it_was_attached_as_says_which(
    server: ScriptedServer, call: Caller, on: Caller, attached: Operation, held: Operation, reply: Answer, method: str
) -> None:
    server.script = [reply]
    job = call("job", "j1", attached)
    with pytest.raises(UnexpectedReplyError, match=f"Job j1 has the result of {held}, not of {attached}") as caught:
        on(job, method)
    assert caught.value.hint == f"Attach to it with client.job('j1', '{held}')."
    server.script = [reply]
    assert on(call("job", "j1", held), "status") == JobStatus("j1", "done")


def test_a_job_is_waited_for_with_held_looks(server: ScriptedServer, call: Caller, on: Caller) -> None:
    held = accepted(JobStatus("j1", message="computing"), Retry_After="0.01", Preference_Applied="wait=20")
    server.script = [QUEUED, held, vectors()]
    told: list[Progress] = []
    job = call("submit", "encode", "m", ["a"])
    assert len(on(job, "result", progress=told.append)) == 1
    assert [(request.method, request.headers.get("prefer")) for request in server.asked[1:]] == [("GET", "wait=20")] * 2
    assert [(progress.state, progress.job) for progress in told] == [("queued", "j1"), ("done", "j1")]


def test_a_look_says_how_a_job_stands_and_its_result_is_fetched_once(
    server: ScriptedServer, call: Caller, on: Caller
) -> None:
    server.script = [QUEUED, QUEUED, QUEUED, vectors()]
    job = call("submit", "encode", "m", ["a"])
    assert on(job, "status") == JobStatus("j1", "queued", message="queued")
    assert on(job, "done") is False
    assert on(job, "done") is True
    assert on(job, "status") == JobStatus("j1", "done")
    assert len(on(job, "result")) == 1
    assert len(server.asked) == 4
    assert all("prefer" not in request.headers for request in server.asked[1:])


@pytest.mark.parametrize("failure", [InferenceError("Not finite."), OutOfMemoryError("No room.", retry_after=1.0)])
def test_a_job_that_failed_says_why_and_raises_it(
    server: ScriptedServer, call: Caller, on: Caller, failure: SIEError
) -> None:
    server.script = [QUEUED, refused(failure), QUEUED, refused(failure)]
    job = call("submit", "encode", "m", ["a"])
    assert on(job, "status") == JobStatus("j1", "failed", message=failure.message)
    for _ in range(2):
        with pytest.raises(type(failure)) as caught:
            on(job, "result")
        assert caught.value.request_id == "r-error"
    waited_for = call("submit", "encode", "m", ["a"])
    with pytest.raises(type(failure)):
        on(waited_for, "result")


def test_a_server_that_is_away_for_a_moment_does_not_fail_the_job(
    server: ScriptedServer, call: Caller, on: Caller
) -> None:
    away = refused(QueueUnavailableError("Away.", retry_after=0.001))
    server.script = [QUEUED, away, away, vectors()]
    job = call("submit", "encode", "m", ["a"])
    with pytest.raises(QueueUnavailableError):
        on(job, "status")
    assert len(on(job, "result")) == 1


@pytest.mark.parametrize(
    ("status", "body"),
    [
        (429, b'{"error": {"code": "RATE_LIMITED", "message": "slow down"}}'),
        (429, b'{"error": "too many"}'),
        (401, b'{"error": "token expired"}'),
        (403, b'{"detail": "forbidden"}'),
        (404, b'{"detail": "no route"}'),
    ],
)
def test_a_look_that_is_refused_is_not_what_became_of_the_job(
    server: ScriptedServer, call: Caller, on: Caller, status: int, body: bytes
) -> None:
    server.script = [Answer(status, body, {"Content-Type": wire.JSON, "Retry-After": "0.001"}), vectors(), vectors()]
    job = call("job", "j1")
    with pytest.raises(SIEError) as caught:
        on(job, "status")
    assert caught.value.status == status
    assert on(job, "status") == JobStatus("j1", "done")
    assert len(on(job, "result")) == 1


@pytest.mark.parametrize("id", ["", " ", "a,,b", "..", None, 7])
def test_what_is_no_id_is_refused_before_anything_is_sent(call: Caller, id: Any) -> None:
    with pytest.raises(InvalidInputError, match="is no job's id") as caught:
        call("job", id)
    assert caught.value.field == "id"


def test_a_job_whose_workers_do_not_come_is_queued_and_may_be_asked_again(
    server: ScriptedServer, call: Caller, on: Caller
) -> None:
    failed = refused(ProvisioningFailedError("No worker has started within 900 s.", retry_after=120.0, job="j1"))
    server.script = [QUEUED, failed, failed, failed, vectors()]
    job = call("submit", "encode", "m", ["a"])
    assert on(job, "status") == JobStatus("j1", "queued", 120.0, "No worker has started within 900 s.")
    assert on(job, "done") is False
    with pytest.raises(ProvisioningFailedError):
        on(job, "result")
    assert len(on(job, "result")) == 1


def test_a_full_queue_is_tried_again_until_the_work_is_accepted(server: ScriptedServer, call: Caller) -> None:
    server.script = [refused(QueueFullError("Full.", retry_after=0.001)), QUEUED]
    assert call("submit", "encode", "m", ["a"]).id == "j1"
    assert len({request.headers["idempotency-key"] for request in server.asked}) == 1


def test_a_result_that_is_not_there_in_time_names_the_job(server: ScriptedServer, call: Caller, on: Caller) -> None:
    server.script = [QUEUED, QUEUED]
    job = call("submit", "encode", "m", ["a"])
    with pytest.raises(DeadlineExceededError) as caught:
        on(job, "result", deadline_s=0)
    assert caught.value.details["job"] == "j1"
    assert caught.value.request_id


def test_without_patience_a_result_that_is_there_is_returned(server: ScriptedServer, call: Caller, on: Caller) -> None:
    server.script = [QUEUED, vectors()]
    assert len(on(call("submit", "encode", "m", ["a"]), "result", deadline_s=0)) == 1


def test_a_job_that_is_gone_says_so(server: ScriptedServer, call: Caller, on: Caller) -> None:
    gone = refused(JobNotFoundError("There is no job 'j1'."))
    server.script = [QUEUED, gone, gone]
    job = call("submit", "encode", "m", ["a"])
    for method in ("status", "result"):
        with pytest.raises(JobNotFoundError):
            on(job, method)


def test_a_look_that_finds_nobody_has_a_request_id() -> None:
    with SIEClient("http://127.0.0.1:1") as client, pytest.raises(ConnectionFailedError) as caught:
        client.job("j1").status()
    assert caught.value.request_id


def test_an_unknown_operation_is_refused_before_anything_is_sent(call: Caller) -> None:
    with pytest.raises(InvalidInputError, match="encode, score, extract") as caught:
        call("submit", "decode", "m", ["a"])
    assert caught.value.field == "operation"


def test_a_server_that_does_not_queue_is_not_one_of_this_protocol(server: ScriptedServer, call: Caller) -> None:
    server.script = [vectors()]
    with pytest.raises(UnexpectedReplyError, match="instead of queueing") as caught:
        call("submit", "encode", "m", ["a"])
    assert caught.value.request_id == "r-ok"


# -- long lists --------------------------------------------------------------------------------------------------------

LONG = 2 * jobs.JOB_ITEMS + 500


class Queue:
    """A server that keeps jobs, and answers those of ``ready``."""

    def __init__(self) -> None:
        self.kept: dict[str, Asked] = {}
        self.ready: set[str] = set()
        self._lock = threading.Lock()

    def __call__(self, asked: Asked) -> Answer:
        if asked.method == "POST":
            with self._lock:
                id = f"j{len(self.kept)}"
                self.kept[id] = asked
            return accepted(JobStatus(id), Retry_After="0.01")
        id = asked.path.removeprefix("/v1/jobs/")
        return computed(self.kept[id]) if id in self.ready else accepted(JobStatus(id), Retry_After="0.01")


def test_a_long_list_becomes_several_jobs_that_are_one_to_its_caller(
    server: ScriptedServer, call: Caller, on: Caller
) -> None:
    server.computes = queue = Queue()
    job = call("submit", "encode", "m", [str(i) for i in range(LONG)], idempotency_key="k")
    assert len(queue.kept) == 3
    assert {asked.headers["idempotency-key"] for asked in queue.kept.values()} == {
        "k:0-834",
        "k:834-1668",
        "k:1668-2500",
    }
    assert on(job, "status").message == "0 of 3 jobs are done."
    queue.ready |= {"j0", "j1"}
    assert (on(job, "status").state, on(job, "status").message) == ("queued", "2 of 3 jobs are done.")
    queue.ready.add("j2")
    assert on(job, "status") == JobStatus(job.id, "done")
    told: list[Progress] = []
    assert [result.dense[0] for result in on(job, "result", progress=told.append)] == [*range(LONG)]
    assert told == [], "nothing was waited for"


def test_several_jobs_are_attached_to_pickled_and_ranked_as_one(
    server: ScriptedServer, call: Caller, on: Caller
) -> None:
    server.computes = queue = Queue()
    queue.ready = {"j0", "j1", "j2"}
    job = call("submit", "score", "m", [str(i % 7) for i in range(LONG)], query="0")
    wanted = on(job, "result")
    assert [entry.rank for entry in wanted.scores] == [*range(LONG)]
    assert [entry.index for entry in wanted.scores[:3]] == [6, 13, 20]
    assert on(pickle.loads(pickle.dumps(job)), "result") == wanted
    with SIEClient(server.url) as client:
        assert client.job(job.id, "score").result() == wanted


def test_an_error_of_one_of_several_jobs_is_placed_in_the_whole(
    server: ScriptedServer, call: Caller, on: Caller
) -> None:
    queue = Queue()
    queue.ready = {"j0", "j1", "j2"}
    failure = refused(InferenceError("items[3] is not finite.", field="items[3]"))

    def compute(asked: Asked) -> Answer:
        mine = asked.method == "GET" and b"1000" in queue.kept[asked.path.removeprefix("/v1/jobs/")].body
        return failure if mine else queue(asked)

    server.computes = compute
    job = call("submit", "encode", "m", [str(i) for i in range(LONG)])
    with pytest.raises(InferenceError, match=r"items\[837\] is not finite") as caught:
        on(job, "result")
    assert (caught.value.field, caught.value.details["items"]) == ("items[837]", [834, 1668])
    assert on(job, "status").state == "failed"


def test_an_error_between_several_jobs_says_which_are_queued_and_a_repeat_of_the_key_queues_the_rest(
    server: ScriptedServer, call: Caller, on: Caller, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(jobs, "WIDTH", 1)
    keys: list[str] = []
    full = True

    def compute(asked: Asked) -> Answer:
        if asked.method == "GET":
            return computed(kept[asked.path.removeprefix("/v1/jobs/")])
        key = asked.headers["idempotency-key"]
        if full and key == "k:1668-2500":
            return refused(InvalidInputError("Too much for a day."))
        keys.append(key)
        id = key.removeprefix("k:").replace("-", "to")
        kept[id] = asked
        return accepted(JobStatus(id))

    server.computes, kept = compute, dict[str, Asked]()
    items = [str(i) for i in range(LONG)]
    with pytest.raises(InvalidInputError, match="Too much") as caught:
        call("submit", "encode", "m", items, idempotency_key="k")
    queued = caught.value.details["jobs"]
    assert queued == {"0to834": [0, 834], "834to1668": [834, 1668]}
    with SIEClient(server.url) as client:
        assert len(client.job(",".join(queued)).result()) == 1668
    full = False
    job = call("submit", "encode", "m", items, idempotency_key="k")
    assert job.id == "0to834,834to1668,1668to2500"
    assert keys == ["k:0-834", "k:834-1668"] * 2 + ["k:1668-2500"]
    assert len(on(job, "result")) == LONG


# -- elsewhere ---------------------------------------------------------------------------------------------------------


def test_a_job_is_attached_to_by_its_id(server: ScriptedServer) -> None:
    server.script = [vectors(2), scores(1.0)]
    with SIEClient(server.url) as client:
        assert len(client.job("j1").result()) == 2
        assert client.job("j/2", "score").result().scores[0].score == 1.0
    assert [request.path for request in server.asked] == ["/v1/jobs/j1", "/v1/jobs/j%2F2"]


def test_a_job_pickles_without_its_clients_key(server: ScriptedServer, monkeypatch: pytest.MonkeyPatch) -> None:
    server.script = [QUEUED, vectors()]
    with SIEClient(server.url, api_key="secret", tenant="t") as client:
        pickled = pickle.dumps(client.submit("encode", "m", "a"))
    assert b"secret" not in pickled
    monkeypatch.setenv("SIE_API_KEY", "own")
    job = pickle.loads(pickled)
    assert repr(job) == "Job('j1', 'encode')"
    assert isinstance(job.result(), EncodeResult)
    assert (server.asked[1].headers["authorization"], server.asked[1].headers["x-sie-tenant"]) == ("Bearer own", "t")


def test_an_awaited_job_pickles_too(server: ScriptedServer) -> None:
    server.script = [QUEUED, vectors()]

    async def submit() -> bytes:
        async with SIEAsyncClient(server.url) as client:
            return pickle.dumps(await client.submit("encode", "m", "a"))

    async def fetch(pickled: bytes) -> Any:
        return await pickle.loads(pickled).result()

    assert isinstance(asyncio.run(fetch(asyncio.run(submit()))), EncodeResult)
