"""A load is a closed loop with bounds: so many callers, so many requests, so many seconds, and no rush after errors."""

from __future__ import annotations

import json
import threading

import pytest

from sie_sdk.cli import bench
from sie_sdk.cli.load import Load, Tally
from sie_sdk.errors import QueueFullError, UnavailableError
from tests.sdk.cli.running import sie
from tests.sdk.scripted_server import ScriptedServer, json_answer, refused, vectors


def test_no_more_requests_are_begun_than_asked_for_and_each_has_its_number() -> None:
    numbers: list[int] = []
    tally = Load(numbers.append, 4, 60.0, requests=100).run()
    assert sorted(numbers) == list(range(100))
    assert (len(tally.latencies_s), tally.errors) == (100, {})


def test_so_many_callers_ask_at_a_time() -> None:
    together = threading.Barrier(3, timeout=10)
    assert len(Load(lambda number: together.wait(), 3, 60.0, requests=9).run().latencies_s) == 9


def test_time_ends_it() -> None:
    asked = threading.Event()

    def ask(number: int) -> None:
        asked.wait(0.001)

    tally = Load(ask, 2, 0.05).run()
    assert tally.elapsed_s >= 0.05 and tally.latencies_s


def test_errors_are_counted_by_their_code_and_paused_after() -> None:
    asked: list[int] = []

    def ask(number: int) -> None:
        asked.append(number)
        raise QueueFullError("Full.", retry_after=60.0) if number else UnavailableError("No.", retry_after=0.001)

    tally = Load(ask, 1, 0.05).run()
    assert tally.errors == {"UNAVAILABLE": 1, "QUEUE_FULL": 1}
    assert isinstance(tally.last_error, QueueFullError) and asked == [0, 1]


def test_an_interrupt_lets_requests_end_and_keeps_what_was_measured() -> None:
    def ask(number: int) -> None:
        if number == 5:
            raise_interrupt.set()

    raise_interrupt = threading.Event()

    def tell(done: int) -> None:
        if raise_interrupt.is_set():
            raise_interrupt.clear()
            raise KeyboardInterrupt

    load = Load(ask, 2, 60.0)
    with pytest.raises(KeyboardInterrupt):
        load.run(tell, every_s=0.001)
    assert len(load.tally.latencies_s) >= 5


def test_a_percentile_is_a_latency_that_was_measured() -> None:
    tally = Tally(1.0, [ms / 1000 for ms in range(1, 101)][::-1], {})
    assert [round(tally.latency_ms(share)) for share in (0.5, 0.9, 0.99, 1.0)] == [50, 90, 99, 100]
    assert round(Tally(1.0, [0.007], {}).latency_ms(0.5)) == 7


def test_a_report_counts_texts_and_has_no_latency_without_an_answer() -> None:
    row = bench.report(Tally(2.0, [0.5, 0.25, 0.25], {}), 10)
    assert (row["requests"], row["texts"], row["texts_per_s"]) == (3, 30, 15.0)
    assert row["latency_ms"] == {"p50": 250.0, "p90": 500.0, "p99": 500.0, "max": 500.0}
    assert bench.report(Tally(2.0, [], {"QUEUE_FULL": 1}), 10)["latency_ms"] == {}


def test_the_first_request_is_not_counted_and_the_model_says_what_is_asked(server: ScriptedServer) -> None:
    server.script = [json_answer({"name": "org/m", "outputs": ["dense", "score"]}), *[vectors(2)] * 4]
    done = sie("bench", "m", "-c", "1", "-n", "2", "--requests", "3", "--words", "5", "--json", "--url", server.url)
    row = json.loads(done.stdout)
    assert (row["operation"], row["requests"], row["texts"], row["errors"]) == ("encode", 3, 6, {})
    assert [asked.path for asked in server.asked] == ["/v1/models/m", *["/v1/encode/m"] * 4]


def test_people_get_four_lines(server: ScriptedServer) -> None:
    server.script = [*[vectors()] * 3]
    done = sie("bench", "m", "--op", "encode", "-c", "1", "--requests", "2", "--url", server.url)
    what, *facts = done.stdout.splitlines()
    assert what == "encode with m, 1 client, 1 text a request"
    assert [line.split()[0] for line in facts] == ["texts", "requests", "latency", "errors"]
    assert (done.exit_code, done.stderr) == (0, "")


def test_errors_beside_answers_are_a_number_and_without_any_answer_the_error(server: ScriptedServer) -> None:
    full = refused(QueueFullError("Full.", retry_after=0))
    server.script = [vectors(), full, vectors()]
    some = sie("bench", "m", "--op", "encode", "-c", "1", "--requests", "2", "--url", server.url)
    assert some.exit_code == 0 and some.stdout.splitlines()[-1].split() == ["errors", "1", "QUEUE_FULL"]
    server.script = [vectors(), full]
    none = sie("bench", "m", "--op", "encode", "-c", "1", "--requests", "1", "--url", server.url)
    assert (none.exit_code, none.stdout) == (1, "")


def test_texts_may_come_from_a_file_and_made_up_ones_are_the_same_every_time(server: ScriptedServer) -> None:
    assert bench._made_up(7) == bench._made_up(7)
    assert {len(text.split()) for text in bench._made_up(7)} == {7}
    assert sie("bench", "m", "--op", "encode", "--file", "-", "--url", server.url, stdin="").exit_code == 2
