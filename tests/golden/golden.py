"""Reads the golden files and their inputs. ``make_golden`` makes them; the models are in ``checkpoints``."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[Any]

HERE = Path(__file__).parent


def arrays(key: str) -> dict[str, Array]:
    """The results of a checkpoint by name; names, shapes and dtypes as ``make_golden`` wrote them.

    ``tokens`` and ``lengths``, with or without a prefix: see `rows`. ``made_of`` is the name of the checkpoint's
    folder, ``made_by`` the versions of the libraries.
    """
    with np.load(HERE / f"{key}.npz") as file:
        return dict(file)


def rows(flat: Array, lengths: Array) -> list[Array]:
    """What is stored end to end, one array per text: token ids, states, logits, offsets."""
    return np.split(flat, np.cumsum(lengths)[:-1])


def entities(key: str) -> dict[str, dict[str, list[dict[str, Any]]]]:
    """The entities of a NER checkpoint: aggregation strategy -> name of the text -> what the pipeline returns."""
    return dict(json.loads((HERE / f"{key}.json").read_text()))


def texts() -> dict[str, str]:
    """For dense vectors and token vectors: name -> text."""
    return _inputs("texts.json")


def tagged_texts() -> dict[str, str]:
    """For token labels: name -> text; ``long`` is longer than any model."""
    return _inputs("entities.json")


def messages() -> dict[str, str]:
    """For text labels: name -> text; ``long`` is longer than any model."""
    return _inputs("messages.json")


def pairs() -> list[tuple[str, str]]:
    """For rerankers: query and document; the last ones are longer than the model together."""
    return [(query, document) for query, document in json.loads((HERE / "pairs.json").read_text())]


def _inputs(name: str) -> dict[str, str]:
    return dict(json.loads((HERE / name).read_text()))
