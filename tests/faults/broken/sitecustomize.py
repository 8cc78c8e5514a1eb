"""Breaks a part of a process: what BROKEN names, as ``module:Class.method``, fails as by a mistake of ours.

Python imports it at its start.
"""

import importlib
import os
from typing import Any

module, _, where = os.environ["BROKEN"].partition(":")
owner, _, method = where.partition(".")


async def _mistake(*_: Any) -> None:
    raise ZeroDivisionError("a mistake of ours")


setattr(getattr(importlib.import_module(module), owner), method, _mistake)
