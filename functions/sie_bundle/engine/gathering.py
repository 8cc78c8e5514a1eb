"""Gathering: how long a stream that has just answered callers waits for them to ask again, before its next pass.

Callers who ask again as soon as they have their answer come back one after the other, within milliseconds. A stream
that takes the first of them alone pays three times for it while the others wait; and of two streams the one that takes
whatever is there gets more and more, and the other less. So each waits for its share, a moment at most. Callers who
come when they please gain nothing by it, and so must not wait for others: `CROWD` tells them apart. Measured with
Poisson arrivals at up to four fifths of what two cores can do, they are answered as fast as without it. Pure. Not here:
what goes together (``batch``).
"""

from __future__ import annotations

PATIENCE, LONGEST_S = 0.3, 0.02
"""Of the seconds that the pass before took, what is waited at most; and never longer than this."""
CROWD = 4
"""So many times as many as wait already must have been answered: else it would be those who wait that pay."""


def patience_s(took_s: float) -> float:
    """Seconds to wait at most after a pass that took so many."""
    return min(PATIENCE * took_s, LONGEST_S)


def awaited(answered: int, running: int, queued: int, streams: int) -> int:
    """The requests in the queue to wait for: a stream's share, if all who were answered come back; 0: none.

    Args:
        answered: by the pass that has just ended.
        running: in the passes of the other streams.
        queued: that are there already.
        streams: of the device.
    """
    share = -(-(answered + running + queued) // streams)
    return share if share > max(1, queued) and answered > CROWD * queued else 0
