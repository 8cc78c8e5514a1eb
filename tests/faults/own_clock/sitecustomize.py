"""Gives a process a clock of its own: `time.time` is off by what stands in the file ``OWN_CLOCK``, read every time.

Python imports a module of this name at its start, from ``PYTHONPATH``.
"""

from __future__ import annotations

import os
import time
from contextlib import suppress

_true_time, _file = time.time, os.environ["OWN_CLOCK"]


def _time() -> float:
    with suppress(OSError, ValueError), open(_file) as off:
        return _true_time() + float(off.read())
    return _true_time()


time.time = _time
