"""Compiled functions: the steps of a pass as one call, through which a thread does not ask for Python's lock.

Called one by one from Python, the hundred small steps of a pass give the lock back and wait for it a hundred times,
and passes on two cores and the event loop take turns at it. Compiled by torch they are one call: a single short text is
answered in seven tenths of the time, and short texts of many callers are a third more (``bench/README.md``).

Owns the compiling, from the sources of plain functions, which stay what they are: called as they stand they compute the
same, step by step, as on a GPU. They keep to what torch compiles: annotated tensors, numbers, lists and named tuples
of these, and no constants of their module. A module of theirs does not import ``annotations`` from ``__future__``, for
torch reads the fields of named tuples as objects.
"""

from __future__ import annotations

import builtins
import inspect
from collections.abc import Callable
from typing import Any

import torch


def compiled(*functions: Callable[..., Any]) -> Any:
    """The functions, compiled together, as attributes of one object; they may call each other, in any order."""
    names: dict[str, Any] = {**vars(builtins)}
    for function in functions:
        names |= function.__globals__
    unit = torch.jit.CompilationUnit()
    unit.define("\n".join(map(inspect.getsource, functions)), names.get)
    return unit
