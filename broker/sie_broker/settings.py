"""Settings of the demand holder, read once from ``SIE_*`` variables."""

from __future__ import annotations

from typing import Annotated

import msgspec

from sie_sdk.settings import Positive, Seconds


class Settings(msgspec.Struct, frozen=True):
    """What ``python -m sie_broker`` needs to know."""

    nats_url: str = "nats://127.0.0.1:4222"
    demand_url: str = "http://127.0.0.1:9000/{bundle}/{profile}/{pool}"
    """Where a lane's bundle is reached: a Knative Service's URL, or the local scaler's."""
    max_scale: Annotated[int, msgspec.Meta(ge=1)] = 4
    """Pods a lane may have at most."""
    quiet_s: Seconds = 60.0
    """How long a lane keeps pods that it no longer needs."""
    objective_s: Positive = 5.0
    """In how long a backlog should be cleared; what cannot be asks for another pod."""
    pod_rate: Annotated[float, msgspec.Meta(gt=0)] = 20.0
    """Works that one pod clears in a second, until that was measured."""
    session_s: Positive = 60.0
    """Length of a demand session, +-20 %; well below the activator's timeout."""
    provision_s: Positive = 900.0
    """How long a lane's first worker may take to come: a node, its image, its start. Then its callers are told why."""
    look_s: Positive = 0.5
    """How often the queue is looked at, wakes aside."""
    reply_sinks: str = ""
    """Beginnings of URLs, separated by commas: where results may be sent (``replyto`` of an event)."""
    reply_subjects: str = "_INBOX."
    """Beginnings of NATS subjects, likewise."""
    replica: str = ""
    """This copy's name; one that starts again under its name leads again at once. Empty: a new name at each start."""
    frozen_s: Seconds = 300.0
    """How long demand stays as it is while NATS cannot be reached."""
