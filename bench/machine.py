"""``python -m bench.machine FOLDER CALLS``: how fast this machine multiplies matrices of the model's shapes, and how
near our engine comes in one process. Run by ``compare`` as a child that answers the orders of ``worker``.

The machine's rate is that of our linear layers with nothing between them, over as many tokens as one documents request
holds (about 3,000), in the numbers our engine computes with. Measured: per token that is as fast as any count from 256
on; at 12,000 it is a quarter slower, since the states no longer fit the caches.
"""

from __future__ import annotations

import itertools
import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from bench import worker
from sie_broker import process

CLIENTS = 4
"""A call of the documents workload holds a request of each."""


def main() -> None:
    """Load, then obey."""
    folder, calls = Path(sys.argv[1]), worker.requests(Path(sys.argv[2]))["documents"]
    tokenize, forward, precision = _engine()
    batches = [tokenize(call) for call in calls]
    texts = len(calls[0])
    tokens = sum(len(row) for batch in batches for row in batch) // len(batches)
    multiply = linear_layers(folder, tokens // CLIENTS, precision)
    products = itertools.repeat((None, texts / CLIENTS))
    size = texts // CLIENTS
    requests = itertools.cycle(
        [(batch[at : at + size], float(size)) for batch in batches for at in range(0, texts, size)]
    )

    def gemm(seconds: float) -> list[Any]:
        """Nothing but the products."""
        return worker.slice_of(lambda call: multiply(), products, seconds)

    def engine(seconds: float) -> list[Any]:
        """Forwards of a request each, tokenized beforehand."""
        return worker.slice_of(forward, requests, seconds)

    process.collect_less()  # as a bundle does once its engine is there
    worker.obey({"gemm": gemm, "engine": engine, "precision": lambda: precision})


def shapes(folder: Path) -> list[tuple[int, int]]:
    """(in, out) of one layer's linear layers, query, key and value as one."""
    config = json.loads((folder / "config.json").read_text())
    hidden, inner = config["hidden_size"], config["intermediate_size"]
    return [(hidden, 3 * hidden), (hidden, hidden), (hidden, inner), (inner, hidden)]


def flops_per_token(folder: Path) -> float:
    """Of the encoder's linear layers: two for each weight."""
    layers = int(json.loads((folder / "config.json").read_text())["num_hidden_layers"])
    return 2.0 * layers * sum(width * out for width, out in shapes(folder))


def linear_layers(folder: Path, tokens: int, precision: str) -> Callable[[], None]:
    """All the model's linear layers over ``tokens`` random rows, each layer with weights of its own."""
    import torch

    from sie_bundle.engine.linear import linear
    from sie_bundle.engine.precision import arithmetic

    layers = json.loads((folder / "config.json").read_text())["num_hidden_layers"]
    dtype = getattr(torch, precision)
    computed = arithmetic(torch.device("cpu"), dtype)
    inputs = {width: torch.randn(tokens, width).to(computed) for width, _ in shapes(folder)}
    products = [
        (linear(torch.randn(out, width).to(dtype), torch.zeros(out, dtype=dtype)), inputs[width])
        for _ in range(layers)
        for width, out in shapes(folder)
    ]

    def all_layers() -> None:
        with torch.inference_mode():
            for product, rows in products:
                product(rows)

    return all_layers


def _engine() -> tuple[Callable[[list[str]], list[Any]], Callable[[list[Any]], object], str]:
    """Our engine without a server: texts to rows, rows to vectors, and the numbers it computes with."""
    import torch

    from bench.servers import MODEL
    from sie_bundle.engine.precision import precision
    from sie_bundle.models.checkpoint import Checkpoint
    from sie_bundle.models.model import load
    from sie_config import catalog

    spec = catalog.load()[MODEL]
    model = load(Checkpoint(spec, Path(sys.argv[1])))
    wanted = str(precision(torch.device("cpu"))).removeprefix("torch.")
    return (
        lambda texts: model.tokenizer.rows(texts, spec.max_sequence_length),
        lambda rows: model.forward(rows, {"dense": range(len(rows))}),
        wanted,
    )


if __name__ == "__main__":
    main()
