"""What a sink's answers mean, and how long it is left alone after one."""

from __future__ import annotations

from datetime import UTC, datetime
from email.utils import format_datetime

from sie_broker.events import sink_answers
from sie_broker.events.sink_answers import Answer, answer_of, pause_s


def test_the_meaning_of_every_status_is_knatives() -> None:
    again = {404, 408, 409, 429, *range(500, 600)}
    for status in range(200, 600):
        wanted = Answer.TAKEN if status < 300 else Answer.AGAIN if status in again else Answer.NEVER
        assert answer_of(status) is wanted


def test_pauses_double_up_to_a_limit_and_are_as_long_as_a_sink_asks() -> None:
    now = 1_700_000_000.0
    for attempt in range(1, 40):
        wanted = min(300.0, 2.0 ** (attempt - 1))
        assert 0.8 * wanted <= pause_s(attempt, None, now) <= 1.2 * wanted
    later = format_datetime(datetime.fromtimestamp(now + 90, UTC), usegmt=True)
    earlier = format_datetime(datetime.fromtimestamp(now - 90, UTC), usegmt=True)
    assert pause_s(1, "45", now) == 45
    assert pause_s(1, later, now) == 90
    assert pause_s(1, "1000000", now) == sink_answers.LONGEST_ASKED_S
    for nothing in ("soon", "-5", earlier, "nan"):
        assert pause_s(1, nothing, now) <= 1.2


def test_a_retry_after_that_cannot_be_read_is_none() -> None:
    many = "9" * 30
    for date in (f"01 Jan {many} 00:00:00 GMT", f"01 Jan 2030 {many}:00:00 GMT", f"01 Jan 2030 00:00:00 +{many}"):
        assert pause_s(1, f"Tue, {date}", 1_700_000_000.0) <= 1.2
