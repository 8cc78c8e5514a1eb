"""What is said of a call that nobody listens to: that its server cannot be reached, which else shows at its deadline.

Owns that one line of the log. Not here: what is reported and when (``settle``), the callers' own ``progress``.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import TypeAlias

from sie_sdk.types import Progress

log = logging.getLogger("sie.sdk.unheard")

Listener: TypeAlias = Callable[[Progress], object]


def listener(progress: Listener | None) -> Listener:
    """The caller's own listener, or the log in place of one."""
    return _Log() if progress is None else progress


class _Log:
    """Warns of the first failed connection of a call, however many requests it makes."""

    def __init__(self) -> None:
        self._said = False

    def __call__(self, progress: Progress) -> None:
        if progress.state == "unreachable" and not self._said:
            self._said = True
            log.warning("%s It is tried again until the call's deadline_s has passed.", progress.message)
