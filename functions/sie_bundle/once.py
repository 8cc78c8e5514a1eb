"""What is found out once for the whole process, whichever thread asks first.

``functools.cache`` lets threads that ask at the same time each find out for themselves, and two may find different
things: two models that loaded at a time computed in different precisions.
"""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable
from typing import ParamSpec, TypeVar

P = ParamSpec("P")
T = TypeVar("T")


def once(function: Callable[P, T]) -> Callable[P, T]:
    """``function``, called once for each of its arguments; others who ask meanwhile wait for the first one's answer."""
    kept, lock = functools.cache(function), threading.Lock()

    @functools.wraps(function)
    def asked(*given: P.args, **named: P.kwargs) -> T:
        with lock:
            return kept(*given, **named)  # type: ignore[arg-type]  # what is cached is hashable

    return asked
