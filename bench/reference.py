"""``python -m bench.reference MODEL CALLS``: sentence-transformers in process, measured from within. Run by ``peers``
in that library's own environment; answers the orders of ``worker``. Its vectors, one text at a time, are the truth.
"""

from __future__ import annotations

import itertools
import sys
from pathlib import Path
from typing import Any

from bench import worker


def main() -> None:
    """Load, then obey."""
    from sentence_transformers import SentenceTransformer  # type: ignore[import-not-found]

    model = SentenceTransformer(sys.argv[1], device="cpu")
    calls = worker.requests(Path(sys.argv[2]))
    work = {name: itertools.cycle([(call, float(len(call))) for call in mine]) for name, mine in calls.items()}

    def vectors(texts: list[str], at_once: bool) -> list[list[float]]:
        """As float lists."""
        groups = [texts] if at_once else [[text] for text in texts]
        return [vector.tolist() for group in groups for vector in model.encode(group)]

    def measure(workload: str, seconds: float) -> list[Any]:
        """A slice."""
        return worker.slice_of(model.encode, work[workload], seconds)

    worker.obey({"vectors": vectors, "slice": measure})


if __name__ == "__main__":
    main()
