"""Makes ``minilm-lora.npz``: the vectors of MiniLM with a LoRA, as PEFT computes them. Run by hand, rarely.

    /tmp/golden-venv/bin/pip install -c constraints.txt -e '.[bundle]' onnx sentence-transformers peft
    /tmp/golden-venv/bin/python -m tests.golden.make_lora_golden

The environment is that of ``make_golden`` with PEFT beside it. The LoRA is ``lora_folder``'s, with random weights;
PEFT loads it from its folder and keeps it apart from the model's own weights, which here are one.
"""

from __future__ import annotations

import tempfile
from importlib import import_module
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np

from tests.golden import golden, lora_folder
from tests.golden.checkpoints import checkpoint

# Not imported by name: types of theirs would be checked, for minutes.
peft: Any = import_module("peft")
sentence_transformers: Any = import_module("sentence_transformers")

KEY = "minilm-lora"


def main() -> None:
    """Write the file, after PEFT has been asked what it would have written itself."""
    libraries = ", ".join(f"{name} {version(name)}" for name in ("peft", "sentence-transformers", "transformers"))
    model, texts = sentence_transformers.SentenceTransformer(str(checkpoint("minilm")), device="cpu"), golden.texts()
    with tempfile.TemporaryDirectory() as temporary:
        folder = lora_folder.make(Path(temporary) / "made", **lora_folder.MINILM)
        body = peft.PeftModel.from_pretrained(model[0].model, folder).eval()
        assert not any("lora" in name and not value.abs().sum() for name, value in body.named_parameters())
        body.save_pretrained(Path(temporary) / "saved")
        ours, theirs = (lora_folder.names(Path(temporary) / name) for name in ("made", "saved"))
        assert ours == theirs, ours ^ theirs
    model[0].model = body
    vectors = np.stack([model.encode(text) for text in texts.values()]).astype("float32")
    np.savez_compressed(golden.HERE / f"{KEY}.npz", names=list(texts), vectors=vectors, made_by=libraries)
    print(KEY, vectors.shape, libraries)


if __name__ == "__main__":
    main()
