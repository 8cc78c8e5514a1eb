"""What runs right now, waited for and watched by either client."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import pytest

from sie_sdk import (
    CancelledByCallerError,
    Capacity,
    DeadlineExceededError,
    InvalidInputError,
    ModelNotFoundError,
    PoolNotFoundError,
    Progress,
    QueueUnavailableError,
    UnexpectedReplyError,
    capacity,
)
from sie_sdk.effects import Patience, Reply, Send, Wait
from tests.sdk.scripted_server import Answer, ScriptedServer, extracted, json_answer, refused, scores, vectors

Caller = Callable[..., Any]
HEALTH = {
    "type": "gateway",
    "status": "healthy",
    "timestamp": 7.0,
    "configured_gpu_types": ["cpu"],
    "lanes": [{"pool": "default", "bundle": "default", "gpu": "cpu", "waiting": 3, "wanted": 2, "live": 1}],
    "workers": [
        {"name": "a", "gpu": "cpu", "healthy": True, "loaded_models": ["m"], "newer": 1},
        {"name": "b", "gpu": "cpu", "pool": "p", "healthy": True},
        {"name": "c", "gpu": "cpu", "pool": "p", "healthy": False, "loaded_models": ["m"]},
    ],
}
COLD = {"type": "gateway", "workers": []}


def model(*outputs: str) -> Answer:
    return json_answer({"name": "m", "outputs": outputs})


def test_the_cluster_is_read(server: ScriptedServer, call: Caller) -> None:
    server.script = [json_answer(HEALTH)]
    seen = call("get_capacity")
    assert isinstance(seen, Capacity)
    assert (server.asked[0].method, server.asked[0].path) == ("GET", "/health")
    assert (seen.status, seen.timestamp, seen.configured_gpu_types) == ("healthy", 7.0, ["cpu"])
    assert [(lane.bundle, lane.waiting, lane.wanted, lane.live) for lane in seen.lanes] == [("default", 3, 2, 1)]
    assert [worker.name for worker in seen.workers] == ["a", "b", "c"]


def test_workers_are_ready_in_a_pool_or_with_a_model(server: ScriptedServer, call: Caller) -> None:
    server.script = [json_answer(HEALTH)]
    seen = call("get_capacity")
    assert [worker.name for worker in seen.ready()] == ["a", "b"]
    assert [worker.name for worker in seen.ready(pool="p")] == ["b"]
    assert [worker.name for worker in seen.ready(model="M")] == ["a"]
    assert [worker.name for worker in seen.ready(pool="default", model="org/m")] == []


def test_a_worker_may_take_a_moment_to_tell_what_it_has_loaded(
    server: ScriptedServer, call: Caller, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(capacity, "LOOK_EVERY_S", 0.001)
    server.script = [json_answer({"name": "org/m", "outputs": ["dense"]}), vectors(), json_answer(HEALTH)]
    loaded = {"name": "d", "healthy": True, "loaded_models": ["org/m"]}
    server.script.append(json_answer({"type": "gateway", "workers": [loaded]}))
    assert [worker.name for worker in call("wait_for_capacity", "m").ready(model="m")] == ["d"]


def test_a_worker_that_does_not_tell_is_looked_for_until_the_deadline_and_no_longer() -> None:
    clock, waits = 0.0, []
    call = capacity.wait("m", None, Patience(deadline_s=2.5, now=lambda: clock))
    replies = {"/v1/models/m": model("dense"), "/v1/encode/m": vectors(), "/health": json_answer(COLD)}
    effect = next(call)
    with pytest.raises(StopIteration) as ended:
        while True:
            came = None
            if isinstance(effect, Send):
                answer = replies[effect.path]
                came = Reply(answer.status, {"content-type": answer.headers["Content-Type"]}, answer.body)
            elif isinstance(effect, Wait):
                waits.append(effect.seconds)
                clock += effect.seconds
            effect = call.send(came)
    assert waits == [1.0, 1.0, 0.5]
    assert ended.value.value.workers == [], "the word was computed, which is no error"


def test_a_server_that_is_no_gateway_says_so(server: ScriptedServer, call: Caller) -> None:
    server.script = [json_answer({"type": "worker"})]
    with pytest.raises(UnexpectedReplyError, match="as a worker") as caught:
        call("get_capacity")
    assert caught.value.request_id


@pytest.mark.parametrize(
    ("outputs", "answer", "path"),
    [
        (["sparse", "score"], vectors(), "/v1/encode/m"),
        (["score"], scores(1.0), "/v1/score/m"),
        (["json"], extracted(), "/v1/extract/m"),
    ],
)
def test_a_model_is_made_to_come_up_by_the_operation_it_is_for(
    server: ScriptedServer, call: Caller, outputs: list[str], answer: Answer, path: str
) -> None:
    server.computes = lambda asked: _of_one(asked.path) if asked.method == "POST" else _told(asked.path, outputs)
    told: list[Progress] = []
    seen = call("wait_for_capacity", "m", pool="default", progress=told.append)
    assert seen.ready(model="m")
    assert [request.path for request in server.asked] == ["/v1/models/m", path, "/health"]
    assert server.asked[1].headers["x-sie-pool"] == "default"
    assert [progress.state for progress in told] == ["done"]


def _of_one(path: str) -> Answer:
    from sie_sdk.replies import Extracted

    return {"encode": vectors(), "score": scores(1.0), "extract": extracted(Extracted())}[path.split("/")[2]]


def _told(path: str, outputs: list[str]) -> Answer:
    return json_answer(HEALTH) if path == "/health" else model(*outputs)


def test_a_model_without_labels_of_its_own_is_given_one(server: ScriptedServer, call: Caller) -> None:
    refusal = refused(InvalidInputError("There are no labels.", field="params.labels"))
    server.script = [model("json"), refusal, _of_one("/v1/extract/m"), json_answer(HEALTH)]
    call("wait_for_capacity", "m")
    assert b"labels" not in server.asked[1].body
    assert b"labels" in server.asked[2].body


def test_an_unknown_model_is_not_waited_for(server: ScriptedServer, call: Caller) -> None:
    server.script = [refused(ModelNotFoundError("No model m.", nearest=["n"]))]
    with pytest.raises(ModelNotFoundError):
        call("wait_for_capacity", "m")


def test_a_pools_first_worker_is_waited_for(
    server: ScriptedServer, call: Caller, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(capacity, "LOOK_EVERY_S", 0.01)
    pool = json_answer({"spec": {"name": "p"}, "status": {"state": "active"}})
    server.script = [pool, json_answer(COLD), json_answer(COLD), json_answer(HEALTH)]
    told: list[Progress] = []
    seen = call("wait_for_capacity", pool="p", progress=told.append)
    assert [worker.name for worker in seen.ready(pool="p")] == ["b"]
    assert [progress.state for progress in told] == ["provisioning"] * 2 + ["done"]
    assert [request.path for request in server.asked] == ["/v1/pools/p"] + ["/health"] * 3


def test_a_pool_that_does_not_exist_is_not_waited_for(server: ScriptedServer, call: Caller) -> None:
    server.script = [refused(PoolNotFoundError("No."))]
    with pytest.raises(PoolNotFoundError, match="no pool p"):
        call("wait_for_capacity", pool="p")


def test_a_pool_that_stays_empty_is_given_up(
    server: ScriptedServer, call: Caller, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(capacity, "LOOK_EVERY_S", 0.02)
    server.computes = lambda _: json_answer(COLD)
    with pytest.raises(DeadlineExceededError, match=r"within the deadline of 0\.1 s.*name a model"):
        call("wait_for_capacity", pool="default", deadline_s=0.1)


def test_a_wait_for_a_pool_can_be_cancelled(server: ScriptedServer, call: Caller) -> None:
    server.computes = lambda _: json_answer(COLD)
    cancel = threading.Event()
    with pytest.raises(CancelledByCallerError):
        call("wait_for_capacity", pool="default", cancel=cancel, progress=lambda _: cancel.set())


def test_waiting_for_nothing_is_refused(call: Caller) -> None:
    with pytest.raises(InvalidInputError, match="nothing to wait for"):
        call("wait_for_capacity")


def test_the_cluster_is_watched_until_the_watcher_leaves(server: ScriptedServer, client: Any, finished: Caller) -> None:
    away = refused(QueueUnavailableError("Away.", retry_after=0.001))
    server.script = [json_answer(HEALTH), away, json_answer(COLD), json_answer(HEALTH)]
    watch = client.watch(interval_s=0.001)
    counts = []
    for _ in range(3):
        seen = finished(anext(watch)) if hasattr(watch, "__anext__") else next(watch)
        counts.append(len(seen.workers))
    finished(watch.aclose() if hasattr(watch, "aclose") else watch.close())
    assert counts == [3, 0, 3]
    assert len(server.asked) == 4
