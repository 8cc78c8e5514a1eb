"""What our own routes say to the same questions: the measure of what clients of other services get."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import httpx
import numpy as np
import numpy.typing as npt


def encode(url: str, model: str, texts: Sequence[str], **options: Any) -> npt.NDArray[np.float32]:
    """The dense vectors, ``[texts, dims]``."""
    body = {"items": [{"text": text} for text in texts], "params": {"options": options}}
    items = _asked(f"{url}/v1/encode/{model}", body)["items"]
    return np.array([item["dense"]["values"] for item in items], np.float32)


def score(url: str, model: str, query: str, texts: Sequence[str]) -> list[float]:
    """The scores of the texts in their order, before any activation."""
    body = {"query": {"text": query}, "items": [{"text": text} for text in texts], "options": {"activation": "none"}}
    ranked = _asked(f"{url}/v1/score/{model}", body)["scores"]
    return [entry["score"] for entry in sorted(ranked, key=lambda entry: int(entry["index"]))]


def classes(url: str, model: str, text: str) -> list[dict[str, Any]]:
    """The labels of a text, best first."""
    found: list[dict[str, Any]] = _asked(f"{url}/v1/extract/{model}", {"items": [{"text": text}]})["items"][0][
        "classifications"
    ]
    return found


def sparse(url: str, model: str, text: str) -> dict[int, float]:
    """The non-zero places of a text's sparse vector."""
    body = {"items": [{"text": text}], "params": {"output_types": ["sparse"]}}
    found = _asked(f"{url}/v1/encode/{model}", body)["items"][0]["sparse"]
    return dict(zip(found["indices"], found["values"], strict=True))


def cosines(one: Any, other: Any) -> npt.NDArray[np.float64]:
    """Of each row of ``one`` with the same row of ``other``."""
    first, second = np.asarray(one, np.float64), np.asarray(other, np.float64)
    assert first.shape == second.shape
    product: npt.NDArray[np.float64] = (first * second).sum(axis=-1)
    cosine: npt.NDArray[np.float64] = product / np.linalg.norm(first, axis=-1) / np.linalg.norm(second, axis=-1)
    return cosine


def _asked(address: str, body: Any) -> Any:
    answer = httpx.post(address, json=body, headers={"Prefer": "wait=60"}, timeout=90)
    assert answer.status_code == 200, answer.text
    return answer.json()
