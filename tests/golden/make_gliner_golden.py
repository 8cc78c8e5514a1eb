"""Makes ``gliner.json``: what GLiNER's own library extracts with the models of ``gliner_folder``. Run by hand, rarely.

    python -m uv venv /tmp/gliner-venv && python -m uv pip install --python /tmp/gliner-venv/bin/python gliner==0.2.29
    PYTHONPATH=. /tmp/gliner-venv/bin/python -m tests.golden.make_gliner_golden

In an environment of its own: the library needs an older transformers. It must take the folders' tensors all and no
others, and save the same.
"""

from __future__ import annotations

import json
import tempfile
import warnings
from importlib import import_module
from importlib.metadata import version
from pathlib import Path
from typing import Any

from tests.golden import gliner_folder

# Not imported by name: types of theirs would be checked, for minutes.
gliner: Any = import_module("gliner")
torch: Any = import_module("torch")

HERE = Path(__file__).parent
LABELS = ["person", "ship", "place name", "yes", "date of birth", "coffee"]
MANY = [f"{word} {letter}" for word in ("hello", "ship", "query") for letter in "abcdefghijkl"]
TEXTS = {
    "plain": "the lighthouse of hello world was a ship",
    "sentences": "hello world. a ship, a lighthouse! is the ship-owner in world_two? yes; no.",
    "emoji": "hello 👋🏽 world 🚢 of the lighthouse ☕ coffee naïve",
    "characters": "a ﬁne ship — “coffee” at 東京 costs 3.50 € (yes)",
    "short": "ship",
    "newlines": "  hello\n\n\tworld \u00a0 ship  ",
    "forty": " ".join(["hello", "world", "a", "ship", "coffee", "yes", "lighthouse", "of"] * 5),
}
CASES: dict[str, dict[str, Any]] = {
    "flat": {},
    "high": {"threshold": 0.9},
    "nested": {"flat_ner": False},
    "several": {"multi_label": True, "threshold": 0.7},
    "nested and several": {"flat_ner": False, "multi_label": True, "threshold": 0.6},
    "one label": {"labels": LABELS[:1]},
    "many labels": {"labels": MANY, "threshold": 0.8},
}


def main() -> None:
    """Write the file."""
    warnings.simplefilter("ignore")
    made: dict[str, Any] = {
        "made_by": ", ".join(f"{name} {version(name)}" for name in ("gliner", "transformers", "torch")),
        "texts": TEXTS,
        "cases": {name: {"labels": LABELS, **case} for name, case in CASES.items()},
        "models": {},
    }
    with tempfile.TemporaryDirectory() as temporary:
        for kind in gliner_folder.KINDS:
            folder, saved = Path(temporary) / kind, Path(temporary) / f"{kind}-saved"
            model = gliner.GLiNER.from_pretrained(str(gliner_folder.make(kind, folder)), strict=True)
            model.save_pretrained(saved)
            config = json.loads((saved / "gliner_config.json").read_text())
            again = gliner.GLiNER.from_pretrained(str(gliner_folder.make(kind, folder, config)), strict=True)
            made["models"][kind] = {
                "config": config,
                "saved": sorted(path.name for path in saved.iterdir()),
                "found": {name: _found(again, case) for name, case in made["cases"].items()},
            }
            for name, found in made["models"][kind]["found"].items():
                print(kind, name, {text: len(own) for text, own in found.items()})
    (HERE / "gliner.json").write_text(json.dumps(made, ensure_ascii=False) + "\n")


def _found(model: Any, case: dict[str, Any]) -> dict[str, list[list[Any]]]:
    """Of each text by itself: start, end, label and score of its entities."""
    found = {}
    for name, text in TEXTS.items():
        own = model.predict_entities(text, **case)
        assert all(text[each["start"] : each["end"]] == each["text"] for each in own)
        found[name] = [[each["start"], each["end"], each["label"], round(each["score"], 6)] for each in own]
    return found


if __name__ == "__main__":
    main()
