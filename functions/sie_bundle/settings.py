"""The settings of a bundle; each field is the environment variable ``SIE_<FIELD>``."""

from __future__ import annotations

from typing import Annotated, Literal

import msgspec

from sie_bundle.cache import default_cache
from sie_sdk.settings import Bytes, Positive, Seconds

MAX_BODY_BYTES = 64 * 1024 * 1024
MAX_REPLY_BYTES = 256 * 1024 * 1024

Threads = Annotated[int, msgspec.Meta(ge=0, le=1024)]


class Settings(msgspec.Struct, frozen=True):
    """Read once at the start."""

    nats_url: str = "nats://127.0.0.1:4222"
    """The NATS server, or several of a cluster, separated by commas."""
    host: str = "127.0.0.1"
    """The address to listen on; the port is ``PORT``, as Knative sets it."""
    pool: str = "default"
    bundle: str = "default"
    profile: str = "cpu"
    """Together the lane this process pulls from."""
    weights_dir: str = ""
    """Where relative ``local`` weight sources are looked up."""
    cache_dir: str = msgspec.field(default_factory=default_cache)
    """Where fetched weights and compiled code are kept."""
    max_in_hand: Annotated[int, msgspec.Meta(ge=1)] = 64
    """Requests taken from the queue at once: enough to fill batches, few enough to leave work to others."""
    batch_tokens: Annotated[int, msgspec.Meta(ge=0)] = 0
    """The most tokens in one forward pass; 0: what suits the device, 512 on a CPU, whose cache they fill, four times
    as many on a single core that computes them within 50 ms, 32768 on a GPU. A single text may have more."""
    batch_s: Positive = 0.2
    """The most seconds one forward pass may be expected to take, for those who wait behind it."""
    device: Annotated[str, msgspec.Meta(pattern=r"^(cpu|cuda(:[0-9]+)?)$")] = "cpu"
    """Where models run, as torch names it: ``cpu``, ``cuda``, ``cuda:1``."""
    precision: Literal["auto", "float32", "bfloat16", "float16"] = "auto"
    """``auto``: bfloat16 where the device is faster with it, which a CPU tries once; on other CPUs float16 for the
    weights, float32 for what is computed with them. Or one of the three."""
    kernels: Literal["auto", "off"] = "auto"
    """``auto``: a pass on a CPU and the reading of plain texts are compiled code, which images have for every CPU, and
    which is elsewhere made once where there is a C++ compiler, and kept in ``cache_dir``. ``off``: torch computes
    each step, and Python reads texts."""
    model_bytes: Bytes = 8 * 1024**3
    """The most bytes of models on the device; the least recently used goes first."""
    host_bytes: Annotated[int, msgspec.Meta(ge=0)] = 8 * 1024**3
    """The most bytes of checkpoints kept open in the host's memory, from where a model comes back fast."""
    memory_pressure_percent: Annotated[int, msgspec.Meta(ge=1, le=100)] = 90
    """With more of the device's memory in use than this, models go although ``model_bytes`` allows them."""
    pinned_models: str = ""
    """Ids of models, separated by commas, that are loaded as soon as the catalogue has them, and never go."""
    streams: Threads = 0
    """Forward passes at a time; 0: on a CPU one per core, at most four, and two on a GPU."""
    threads: Threads = 0
    """Threads of one forward pass; 0: the cores divided by the streams."""
    max_reply_bytes: Bytes = MAX_REPLY_BYTES
    """The largest answer to one request, or to one part of a large one."""
    max_body_bytes: Bytes = MAX_BODY_BYTES
    """The largest event at the bundle's own door."""
    drain_s: Seconds = 20.0
    """How long work in hand may take after SIGTERM before it is given back."""
    spawned_at: Annotated[float, msgspec.Meta(ge=0)] = 0.0
    """When the platform decided to start this process (seconds since the epoch), for its start-up report."""
