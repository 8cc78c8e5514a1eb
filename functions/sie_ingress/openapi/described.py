"""Every description there is, of all routes together."""

from __future__ import annotations

from typing import Final

from sie_ingress.openapi import catalogue, configs, dialects, events, health, inference, pools
from sie_ingress.openapi.operation import Described

DESCRIBED: Final[Described] = {
    path: operation
    for module in (inference, dialects, events, catalogue, configs, pools, health)
    for path, operation in module.DESCRIBED.items()
}
"""In the order in which a reader wants them."""
