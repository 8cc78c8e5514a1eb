"""One NATS connection: how it is opened, and the single place where the client's errors become ours."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections.abc import Callable, Iterator

import msgspec
import nats.errors
import nats.js.errors
from nats.aio.client import Client
from nats.aio.subscription import Subscription

from sie_broker.jetstream.client import NatsClient
from sie_broker.records import Submission
from sie_sdk.errors import PayloadTooLargeError, QueueFullError, QueueUnavailableError

log = logging.getLogger("sie.broker")

STREAM_FULL = 10077
"""JetStream's error code for "maximum messages/bytes exceeded": discard-new said no."""
TOO_LARGE = {10054: "data", 10097: "headers"}
"""Those for a message over the stream's limit and for headers over JetStream's own of 64 KiB, and what is too large."""


async def connect(
    url: str,
    name: str,
    lost: Callable[[], None] = lambda: None,
    reconnected: Callable[[], None] = lambda: None,
    closed: Callable[[], None] = lambda: None,
) -> Client:
    """Open a connection that reconnects for ever; ``lost()`` and ``reconnected()`` are called each time.

    Args:
        url: one server, or several of a cluster, separated by commas.
        name: of this process.
        lost: see above.
        reconnected: see above.
        closed: called when the connection is closed for good, by us or by nats-py: it does so at most of the errors
            that a server tells it.

    Raises:
        QueueUnavailableError: no server answers.
    """

    nc = NatsClient()

    async def on_error(error: Exception) -> None:
        _said.say(str(error) or type(error).__name__)

    async def on_lost() -> None:
        if not nc.is_closed:
            log.warning("nats: connection lost, reconnecting")
            lost()

    async def on_back() -> None:
        log.info("nats: connected again")
        reconnected()

    async def on_closed() -> None:
        closed()

    with translated():
        await nc.connect(
            [server.strip() for server in url.split(",")],
            name=name,
            error_cb=on_error,
            disconnected_cb=on_lost,
            reconnected_cb=on_back,
            closed_cb=on_closed,
            # Until it is open once; with -1 nats-py would try for ever here too, and nobody would be told.
            max_reconnect_attempts=1,
            reconnect_time_wait=0.2,  # type: ignore[arg-type]  # annotated int, slept as given
            connect_timeout=2,
            ping_interval=10,
            allow_reconnect=True,
            inbox_prefix=inbox(name),
        )
    nc.options["max_reconnect_attempts"] = -1
    return nc


async def unsubscribe(nc: Client, subscription: Subscription) -> None:
    """End a subscription, also while NATS reconnects: else every connection that follows has it again."""
    if not nc.is_closed:
        with contextlib.suppress(nats.errors.ConnectionDrainingError):  # which ends it as well
            await subscription.unsubscribe()


async def fail_when(closed: asyncio.Event) -> None:
    """A duty that fails when the connection is closed for good: without one a process looks well and does nothing.

    Raises:
        QueueUnavailableError: it is.
    """
    await closed.wait()
    raise QueueUnavailableError("The connection to NATS was closed and does not come back.")


class Said:
    """What went wrong, once: a server that is not there yet is looked for ten times a second."""

    def __init__(self, silence_s: float = 10.0) -> None:
        self._silence_s = silence_s
        self._last: tuple[str, float] = ("", 0.0)

    def say(self, what: str) -> None:
        """Log it, unless it was the last thing to be said and that is not long ago."""
        (last, at), now = self._last, time.monotonic()
        if what != last or now - at >= self._silence_s:
            self._last = (what, now)
            log.warning("nats: %s", what)


_said = Said()


def inbox(name: str) -> str:
    """What the inboxes of a process begin with: its kind, so that a server can keep others' from it (``permissions``).

    ``name``: of its connection, whose first word is its kind.
    """
    return f"_INBOX.{name.partition('-')[0]}"


def refusal(err_code: int | None) -> QueueFullError | QueueUnavailableError | PayloadTooLargeError:
    """JetStream's refusal as an error of ours."""
    if err_code == STREAM_FULL:
        return QueueFullError("The work queue is full.", retry_after=1.0, hint="Try again later.")
    if (field := TOO_LARGE.get(err_code or 0)) is not None:
        return PayloadTooLargeError(f"Its {field} are more than one message may have.", field=field)
    return QueueUnavailableError("The broker refused the request.", retry_after=1.0)


class _Refusal(msgspec.Struct):
    err_code: int = 0


class _Receipt(msgspec.Struct):
    """JetStream's answer to a publish (``PubAck``)."""

    seq: int = 0
    duplicate: bool = False
    error: _Refusal | None = None


_receipts = msgspec.json.Decoder(_Receipt)


def receipt(answer: bytes) -> Submission:
    """What JetStream says of work that was published to it.

    Raises:
        QueueFullError, QueueUnavailableError, PayloadTooLargeError: it does not take it.
    """
    said = _receipts.decode(answer)
    if said.error is not None:
        raise refusal(said.error.err_code)
    return Submission(sequence=said.seq, duplicate=said.duplicate)


@contextlib.contextmanager
def translated() -> Iterator[None]:
    """Errors of nats-py inside this block leave it as errors of `sie_sdk.errors`."""
    try:
        yield
    except nats.js.errors.APIError as error:
        raise refusal(error.err_code) from error
    except (nats.errors.Error, TimeoutError, OSError) as error:
        # OSError: connection refused. The builtin TimeoutError comes from nats-py too.
        raise QueueUnavailableError("The broker does not answer.", retry_after=1.0) from error
