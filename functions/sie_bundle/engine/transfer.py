"""What crosses between the host and a device, so that no pass waits for another one.

Owns how arrays come to a GPU and what is computed there comes back. Streams of the executor ask one CUDA stream for
their passes: whoever waits for that stream waits for the pass that the other one asked for meanwhile, too, and then
both have their answers to give out while the GPU has nothing to do.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from typing import Any

import numpy.typing as npt
import torch
from torch import Tensor


def moved(array: npt.NDArray[Any], device: torch.device) -> Tensor:
    """A host's array on the device.

    To a GPU from pinned memory, which is copied when the GPU comes to it: from any other the host waits until all is
    computed that was asked for before, and no pass is prepared beside another.
    """
    there = torch.from_numpy(array)
    return there.pin_memory().to(device, non_blocking=True) if device.type == "cuda" else there.to(device)


def fetched(tensor: Tensor) -> npt.NDArray[Any]:
    """A device's tensor on the host, once it is computed."""
    with computed(tensor.device):
        return tensor.cpu().numpy()


@contextmanager
def computed(device: torch.device) -> Iterator[None]:
    """Wait until all is computed that this thread has asked for; what is asked for inside waits for no more than that.

    On a GPU what is made inside is to be on the host when this ends: nobody waits for it afterwards.
    """
    if device.type != "cuda":
        yield
        return
    # Its thread sleeps meanwhile, and the core is another's.
    asked = torch.cuda.Event(blocking=True)  # type: ignore[no-untyped-call]
    asked.record(torch.cuda.current_stream(device))
    asked.synchronize()
    with torch.cuda.stream(_beside(device)):
        yield


@cache
def _beside(device: torch.device) -> torch.cuda.Stream:
    return torch.cuda.Stream(device)  # type: ignore[no-untyped-call]
