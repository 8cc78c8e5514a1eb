"""Published sie-sdk: what of ours it tries again until there is an answer, and what it raises when it gives up."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from sie_sdk.errors import (
    DeadlineExceededError,
    InferenceError,
    ModelLoadingError,
    OutOfMemoryError,
    PoolNotReadyError,
    ProvisioningError,
    ProvisioningFailedError,
    QueueFullError,
    QueueUnavailableError,
    RateLimitedError,
    SIEError,
    UnavailableError,
)
from tests.compat.published.conftest import WITHOUT_WEIGHTS
from tests.compat.published.remote import Client, Flavour, Remote
from tests.compat.published.scripted import Scripted, serving

pytestmark = WITHOUT_WEIGHTS

HELLO = {"text": "hello"}
CALLS: dict[str, list[Any]] = {"encode": ["m", HELLO], "score": ["m", HELLO, [HELLO]], "extract": ["m", HELLO]}
PASSES = (
    ProvisioningError("No worker is up yet.", retry_after=0.05),
    ModelLoadingError("Loading.", retry_after=0.05),
    QueueFullError("The queue is full.", retry_after=0.05),
    QueueUnavailableError("The broker does not answer.", retry_after=0.05),
    RateLimitedError("Too much in flight.", retry_after=0.05),
    OutOfMemoryError("Not now.", retry_after=0.05),
    DeadlineExceededError("It took too long.", retry_after=0.05),
    PoolNotReadyError("No queues yet.", retry_after=0.05),
    UnavailableError("Not ready.", retry_after=0.05),
)


@pytest.fixture(scope="module")
def scripted() -> Iterator[tuple[Scripted, str]]:
    script = Scripted()
    with serving(script) as url:
        yield script, url


@pytest.fixture
def script(scripted: tuple[Scripted, str]) -> Scripted:
    scripted[0].script = []
    scripted[0].asked = 0
    return scripted[0]


@pytest.fixture
def client(remote: Remote, flavour: Flavour, scripted: tuple[Scripted, str]) -> Client:
    """Each published client with the scripted server."""
    return Client(remote, flavour, scripted[1])


@pytest.mark.parametrize("method", CALLS)
@pytest.mark.parametrize("error", PASSES, ids=lambda error: error.code)
def test_what_passes_is_asked_again_after_the_fraction_of_a_second_it_was_told(
    client: Client, script: Scripted, method: str, error: SIEError
) -> None:
    # Its second look at a device without room comes after seconds, whatever it was told.
    times = 1 if isinstance(error, OutOfMemoryError) else 2
    script.script = [error] * times
    outcome = client(method, *CALLS[method])
    assert outcome.raised is None
    assert (outcome.retries, script.asked) == (times, times + 1)
    assert len(outcome.waits) == times and max(outcome.waits) < 0.5


@pytest.mark.parametrize(
    ("error", "kind", "status", "code"),
    [
        (ProvisioningError, "ProvisioningError", None, None),
        (PoolNotReadyError, "ProvisioningError", None, None),
        (ModelLoadingError, "ModelLoadingError", None, None),
        (QueueFullError, "ServerError", 503, "QUEUE_FULL"),
        (QueueUnavailableError, "ServerError", 503, "QUEUE_UNAVAILABLE"),
        (RateLimitedError, "RateLimitError", 429, "RATE_LIMIT"),
        (OutOfMemoryError, "ResourceExhaustedError", 503, "RESOURCE_EXHAUSTED"),
        # What it says of a 504 that comes again and again.
        (DeadlineExceededError, "ProvisioningError", None, None),
    ],
    ids=lambda value: value.code if isinstance(value, type) and issubclass(value, SIEError) else "",
)
@pytest.mark.parametrize("method", CALLS)
def test_what_does_not_pass_in_time_is_raised_as_the_class_of_its_kind(
    client: Client,
    script: Scripted,
    method: str,
    error: type[SIEError],
    kind: str,
    status: int | None,
    code: str | None,
) -> None:
    # The second try has the other half of the time; a third would have next to none and end in a time-out. So does
    # the second on a machine that stands still meanwhile, which is asked again with more time.
    for time_s in (1.2, 4.0, 15.0):
        script.asked, script.script = 0, [error("Not now.", retry_after=time_s / 2)] * 50
        outcome = client(method, *CALLS[method], provision_timeout_s=time_s)
        if outcome.error["class"] == kind and script.asked >= 2:
            break
    assert (outcome.error["class"], outcome.error.get("status_code"), outcome.error.get("code")) == (kind, status, code)
    assert script.asked >= 2 and max(outcome.waits) < time_s


@pytest.mark.parametrize("method", CALLS)
@pytest.mark.parametrize("wait", [True, False])
@pytest.mark.parametrize(
    "failure",
    [InferenceError("Not finite.", field="items[0]"), ProvisioningFailedError("No worker comes.", retry_after=60.0)],
    ids=lambda failure: failure.code,
)
def test_what_no_retry_mends_is_raised_at_once(
    client: Client, script: Scripted, method: str, wait: bool, failure: SIEError
) -> None:
    script.script = [failure]
    outcome = client(method, *CALLS[method], wait_for_capacity=wait)
    error = outcome.error
    assert (error["class"], error["code"], error["param"]) == ("ServerError", failure.code, failure.field)
    assert script.asked == 1


@pytest.mark.parametrize("method", CALLS)
def test_a_deadline_that_passed_is_the_servers_error_for_a_caller_that_does_not_wait(
    client: Client, script: Scripted, method: str
) -> None:
    script.script = [DeadlineExceededError("Too long.", retry_after=0.2)]
    error = client(method, *CALLS[method], wait_for_capacity=False).error
    told = (error["class"], error["status_code"], error["code"], error["retry_after"])
    assert told == ("ServerError", 504, "DEADLINE_EXCEEDED", 0.2)


@pytest.mark.parametrize("method", CALLS)
def test_a_caller_that_does_not_wait_is_told_at_once_and_when_to_come_back(
    client: Client, script: Scripted, method: str
) -> None:
    script.script = [ProvisioningError("No worker is up yet.", retry_after=0.25)]
    outcome = client(method, *CALLS[method], wait_for_capacity=False)
    assert (outcome.error["class"], outcome.error["retry_after"]) == ("ProvisioningError", 0.25)
    assert script.asked == 1 and not outcome.waits
