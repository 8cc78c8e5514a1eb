"""Compiled functions: the steps of a pass as one call, through which a thread does not ask for Python's lock.

Called one by one from Python, the hundred small steps of a pass give the lock back and wait for it a hundred times,
and passes on two cores and the event loop take turns at it. Compiled by torch they are one call: a single short text is
answered in seven tenths of the time, and short texts of many callers are a third more (``bench/history.md``).

Owns the compiling, from the sources of plain functions, which stay what they are: called as they stand they compute the
same, step by step, as on a GPU. They keep to what torch compiles: annotated tensors, numbers, lists and named tuples
of these, and no constants of their module. A module of theirs does not import ``annotations`` from ``__future__``, for
torch reads the fields of named tuples as objects.
"""

from __future__ import annotations

import builtins
import functools
import inspect
from collections.abc import Callable
from typing import Any, ParamSpec, TypeVar

import torch

P = ParamSpec("P")
T = TypeVar("T")


def compiled(function: Callable[P, T], *others: Callable[..., Any]) -> Callable[P, T]:
    """``function``, compiled together with the ``others`` that it, or one of them, calls, in a fiftieth of a second."""
    names: dict[str, Any] = {**vars(builtins)}
    for each in (function, *others):
        names |= each.__globals__
    unit = torch.jit.CompilationUnit()
    unit.define("\n".join(map(inspect.getsource, (function, *others))), names.get)
    run = getattr(unit, function.__name__)

    @functools.wraps(function)
    def one_call(*given: P.args, **named: P.kwargs) -> T:
        # Left to itself torch looks at the first calls and rewrites the steps: a tenth of a second, and nothing gained.
        with torch.jit.optimized_execution(False):  # type: ignore[attr-defined]
            result: T = run(*given, **named)
        return result

    return one_call
