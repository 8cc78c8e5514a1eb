"""Lets a process end when it is told to while it still imports.

A kernel withholds SIGTERM from process 1 of a container until that asks for it, and ours do so once they have imported
what they need: a pod that is no longer wanted in its first moments would keep its place for the whole grace period.
Python runs this file before anything else; the process's own answer to the signal replaces this one.
"""

from __future__ import annotations

import os
import signal

signal.signal(signal.SIGTERM, lambda number, _frame: os._exit(128 + number))
