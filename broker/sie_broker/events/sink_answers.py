"""What a sink's answer means, and when it is asked again. Pure: who sends, and counts the tries, is ``sinks``."""

from __future__ import annotations

import random
from email.utils import parsedate_to_datetime
from enum import Enum

FIRST_PAUSE_S = 1.0
LONGEST_PAUSE_S = 300.0
LONGEST_ASKED_S = 600.0
"""The longest Retry-After that is obeyed."""


class Answer(Enum):
    """What a sink's answer means."""

    TAKEN = "taken"
    AGAIN = "again"
    NEVER = "never"


def answer_of(status: int) -> Answer:
    """By Knative's delivery contract: 404, 408, 409, 429 and 5xx may get better, other 4xx do not; nor do redirects,
    which are not followed: who may be sent to was decided before."""
    if 200 <= status < 300:
        return Answer.TAKEN
    return Answer.AGAIN if status in (404, 408, 409, 429) or status >= 500 else Answer.NEVER


def pause_s(attempt: int, retry_after: str | None, now: float) -> float:
    """Seconds until the next try: doubled each time, a fifth more or less; as long as a Retry-After asks, if longer."""
    backoff = min(LONGEST_PAUSE_S, FIRST_PAUSE_S * 2.0 ** min(attempt - 1, 16)) * random.uniform(0.8, 1.2)
    return max(backoff, min(LONGEST_ASKED_S, _asked_s(retry_after, now)))


def _asked_s(retry_after: str | None, now: float) -> float:
    """What cannot be read counts as not said."""
    if retry_after is None:
        return 0.0
    try:
        return max(0.0, float(retry_after))
    except ValueError:
        pass
    try:
        return max(0.0, parsedate_to_datetime(retry_after).timestamp() - now)
    except (ValueError, OverflowError):  # the latter of a year, an hour or a zone of many digits
        return 0.0
