"""Whose baseline the catalogue has: that of the process which was started last, whoever writes.

Of two images nobody knows which is the newer one, so the one that was started last is meant. A copy that is about to be
replaced and is asked for one more write takes nothing away; an image that is put back, and so starts anew, counts. Not
here: what a baseline changes in the catalogue (``state``), and its writes (``writer``).
"""

from __future__ import annotations

import logging

from sie_broker.contract import Bucket
from sie_broker.ending import cancelled
from sie_config.epochs import store
from sie_config.epochs.store import Baseline

log = logging.getLogger("sie.config.baseline")


async def counts(bucket: Bucket, own: Baseline) -> bool:
    """Whether our baseline is to be the catalogue's; if so, ``bucket`` holds that from now on.

    Raises:
        QueueUnavailableError: the broker does not answer.
    """
    while not cancelled():
        entry = await bucket.read(store.BASELINE)
        there = None if entry.value is None else store.read_baseline(entry.value)
        if there is not None and there.began >= own.began:
            if there.digest != own.digest:
                log.info("the catalogue keeps the baseline of a process that was started later")
            return there.digest == own.digest
        if await bucket.replace(store.BASELINE, store.encode(own), entry.revision) is not None:
            return True
    return False
