"""Every error of a request names the request, whatever went wrong and however many requests there were."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import pytest

from sie_sdk import InvalidInputError, JobStatus, QueueFullError, SIEClient, SIEError
from tests.sdk.scripted_server import Answer, ScriptedServer, accepted, refused, vectors

Caller = Callable[..., Any]
STOPPED = threading.Event()
STOPPED.set()

CASES: dict[str, tuple[Answer, dict[str, Any]]] = {
    "a server's error": (refused(InvalidInputError("No.")), {}),
    "a refusal for now": (refused(QueueFullError("Full.")), {"wait_for_capacity": False}),
    "a job, for who does not wait": (accepted(JobStatus("j1")), {"wait_for_capacity": False}),
    "a proxy's page": (Answer(500, b"<html>"), {}),
    "a reply that is cut": (Answer(200, vectors().body[:30]), {}),
    "a reply to something else": (Answer(200, vectors(2).body), {}),
    "a connection that is cut": (Answer(hang_up=True), {"wait_for_capacity": False}),
    "a deadline": (refused(QueueFullError("Full.", retry_after=9.0)), {"deadline_s": 0.01}),
    "a cancel": (vectors(), {"cancel": STOPPED}),
    "a body that says it is packed": (Answer(200, b"no", {"Content-Encoding": "gzip"}), {}),
}


@pytest.mark.parametrize("case", CASES)
def test_an_error_names_its_request(server: ScriptedServer, call: Caller, case: str) -> None:
    answer, keywords = CASES[case]
    server.computes = lambda _: answer
    with pytest.raises(SIEError) as caught:
        call("encode", "m", "a", **keywords)
    own = [request.headers["x-request-id"] for request in server.asked]
    assert caught.value.request_id
    assert caught.value.request_id in ("r-error", "r-202", "r-ok", *own) or not own


@pytest.mark.parametrize("case", CASES)
def test_an_error_of_a_long_list_names_its_request_and_its_items(
    server: ScriptedServer, call: Caller, case: str
) -> None:
    answer, keywords = CASES[case]
    server.computes = lambda _: answer
    with pytest.raises(SIEError) as caught:
        call("encode", "m", ["a"] * 600, **keywords)
    assert caught.value.request_id
    start, stop = caught.value.details["items"]
    assert 0 <= start < stop <= 600


def test_what_cannot_be_sent_is_no_request_and_has_no_id(server: ScriptedServer, call: Caller) -> None:
    for items in ("a", ["a"] * 600):
        with pytest.raises(InvalidInputError, match="Idempotency-Key") as caught:
            call("encode", "m", items, idempotency_key="one\ntwo")
        assert caught.value.request_id is None
    assert not server.asked


def test_an_error_of_nobody_listening_names_its_request() -> None:
    with SIEClient("http://127.0.0.1:1") as client:
        for ask in (client.list_models, client.list_pools, client.get_capacity, client.job("j").status):
            with pytest.raises(SIEError) as caught:
                ask()
            assert caught.value.request_id
