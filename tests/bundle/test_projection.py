"""Layers behind the pooled vector, from files of their own: one, or several one after the other."""

from __future__ import annotations

from pathlib import Path

import msgspec
import numpy as np
from safetensors.numpy import save_file

from sie_bundle.engine.row import row
from sie_config.model.tasks import Dense, Tasks
from tests import tiny_model

INNER, OUTER = 48, 16


def test_a_vector_goes_through_all_layers_of_its_projection(tmp_path: Path) -> None:
    folder, random = tiny_model.make(tmp_path), np.random.default_rng(1)
    first = random.standard_normal((INNER, tiny_model.HIDDEN)).astype("float32")
    second = random.standard_normal((OUTER, INNER)).astype("float32")
    bias = random.standard_normal(OUTER).astype("float32")
    for name, tensors in (("2_Dense", {"linear.weight": first}), ("3_Dense", {"linear.weight": second})):
        (folder / name).mkdir()
        save_file(tensors | ({"linear.bias": bias} if name == "3_Dense" else {}), folder / name / "model.safetensors")
    plain = tiny_model.spec(folder)
    projected = msgspec.structs.replace(
        plain,
        tasks=Tasks(dense=Dense(dim=OUTER, projection="2_Dense.linear 3_Dense.linear")),
        files=("2_Dense/model.safetensors", "3_Dense/model.safetensors"),
    )
    rows = [row([2, 4, 5, 3]), row([2, 6, 3])]
    pooled = tiny_model.load(plain, folder).forward(rows, {"pooled": range(2)})["pooled"]
    assert isinstance(pooled, np.ndarray)
    wanted = pooled @ first.T @ second.T + bias
    wanted /= np.linalg.norm(wanted, axis=1, keepdims=True)
    assert np.abs(tiny_model.vectors(tiny_model.load(projected, folder), rows) - wanted).max() < 1e-5
