"""Precision: the numbers a device computes with, as its hardware shows; never ones it would have to emulate.

That a CPU has instructions for bfloat16 does not make it fast: documents take Zen 5 cores 0.6 of the time they take in
float32, and Intel's without AMX (which a hypervisor may hide) 1.6 times as long. So both are tried once.
"""

from __future__ import annotations

import logging
import statistics
import time
from collections.abc import Callable

import torch
from torch import Tensor

from sie_bundle.once import once
from sie_sdk.errors import ConfigurationError

log = logging.getLogger("sie.bundle.precision")

PRECISIONS = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}
FLOATS = tuple(PRECISIONS.values())
"""What tables of an embedding may be stored as, in the order that compiled code counts them in."""

WORTH = 1.25
"""So many times as fast products of bfloat16 must be, for they are less exact."""
ROWS, SIZE, TURNS = 512, 512, 6
"""Of the products that are compared: 0.8 to 2.8 ms each, beside which a wait for Python's lock is little."""


def precision(device: torch.device, wanted: str = "auto") -> torch.dtype:
    """The type of a model's parameters on ``device``; ``arithmetic`` says what is computed in with them.

    Args:
        wanted: "auto", or a type by name. It is taken as it is, but for bfloat16 on a CPU that does not multiply it:
            what such a CPU takes by itself is nearer to the model.

    Raises:
        ConfigurationError: there is no such type.
    """
    if wanted != "auto":
        if wanted not in PRECISIONS:
            raise ConfigurationError(
                f"SIE_PRECISION={wanted!r} is unknown.", field="SIE_PRECISION", limit=f"auto, {', '.join(PRECISIONS)}"
            )
        if wanted != "bfloat16" or device.type != "cpu" or native_bfloat16():
            return PRECISIONS[wanted]
        log.warning("this CPU does not multiply bfloat16; it computes in float32 instead")
    if device.type == "cuda":
        return torch.bfloat16 if torch.cuda.get_device_capability(device)[0] >= 8 else torch.float16
    if native_bfloat16() and gain_of_bfloat16() >= WORTH:
        return torch.bfloat16
    return torch.float16 if arithmetic(device, torch.float16) is torch.float32 else torch.float32


def arithmetic(device: torch.device, dtype: torch.dtype) -> torch.dtype:
    """What is computed in where the weights of linear layers are kept in ``dtype``.

    On a CPU float16 is a way to keep weights: half as many bytes come from memory for each product, in float32, which
    FBGEMM's kernels make of them on the way.
    """
    kept = device.type == "cpu" and dtype is torch.float16 and "fbgemm" in torch.backends.quantized.supported_engines
    return torch.float32 if kept else dtype


def native_bfloat16() -> bool:
    """Whether this CPU multiplies bfloat16 itself (AVX512-BF16 or AMX) and torch uses it."""
    return torch._C._has_mkldnn and (torch.cpu._is_avx512_bf16_supported() or torch.cpu._is_amx_tile_supported())


@once
def gain_of_bfloat16() -> float:
    """How many times as fast this CPU makes a product of bfloat16 as one of float32; tried once, for some 20 ms."""
    with torch.inference_mode():
        ways = [_product(torch.float32), _product(torch.bfloat16)]
        seconds = [[_timed(way) for way in ways] for _ in range(TURNS)][1:]  # the first makes the code
    # One by one beside each other: what else the core does, or its other thread, changes from one moment to the next.
    gain = statistics.median(exact / short for exact, short in seconds)
    log.info("products of bfloat16 are %.2f times as fast as of float32 here", gain)
    return gain


def _product(dtype: torch.dtype) -> Callable[[], Tensor]:
    weight = torch.ops.mkldnn._reorder_linear_weight(torch.ones(SIZE, SIZE, dtype=dtype), None)
    rows = torch.ones(ROWS, SIZE, dtype=dtype)
    return lambda: torch.ops.mkldnn._linear_pointwise(rows, weight, None, "none", [], "")


def _timed(way: Callable[[], Tensor]) -> float:
    """Seconds of this thread: whoever else wants the CPU, another load that tries as well, makes no difference."""
    began = time.thread_time()
    way()
    return time.thread_time() - began
