"""A weight is found again, and under its name, whatever the export made of it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from tests.golden import onnx_weights

WEIGHT = np.arange(12, dtype=np.float32).reshape(3, 4) - 5
"""[outputs, inputs], as a linear layer has it."""
BIAS = np.array([1, 2, 3], np.float32)
SCALE, ZERO = np.float32(0.5), np.uint8(17)
QUANTISED = (WEIGHT.T / SCALE + ZERO).astype(np.uint8)
"""[inputs, outputs], exact."""


def export(path: Path, nodes: list[onnx.NodeProto], constants: dict[str, npt.NDArray[Any]]) -> Path:
    """A graph from "states" to "out" with these nodes and initializers."""
    states = helper.make_tensor_value_info("states", TensorProto.FLOAT, [2, 4])
    out = helper.make_tensor_value_info("out", TensorProto.FLOAT, [2, 3])
    initializers = [numpy_helper.from_array(np.asarray(value), name) for name, value in constants.items()]
    onnx.save(helper.make_model(helper.make_graph(nodes, "test", [states], [out], initializers)), str(path))
    return path


def node(kind: str, inputs: str, output: str, **attributes: Any) -> onnx.NodeProto:
    return helper.make_node(kind, inputs.split(), [output], **attributes)


GRAPHS: dict[str, tuple[list[onnx.NodeProto], dict[str, npt.NDArray[Any]]]] = {
    "a product and a sum": (
        [node("MatMul", "states onnx::MatMul_1", "product"), node("Add", "product layer.0.dense.bias", "out")],
        {"onnx::MatMul_1": WEIGHT.T, "layer.0.dense.bias": BIAS},
    ),
    "the sum the other way round": (
        [node("MatMul", "states onnx::MatMul_1", "product"), node("Add", "layer.0.dense.bias product", "out")],
        {"onnx::MatMul_1": WEIGHT.T, "layer.0.dense.bias": BIAS},
    ),
    "one operation, weight upright": (
        [node("Gemm", "states layer.0.dense.weight layer.0.dense.bias", "out", transB=1)],
        {"layer.0.dense.weight": WEIGHT, "layer.0.dense.bias": BIAS},
    ),
    "one operation, weight transposed": (
        [node("Gemm", "states layer.0.dense.weight layer.0.dense.bias", "out")],
        {"layer.0.dense.weight": WEIGHT.T, "layer.0.dense.bias": BIAS},
    ),
    "half precision": (
        [node("MatMul", "states onnx::MatMul_1", "product"), node("Add", "product layer.0.dense.bias", "out")],
        {"onnx::MatMul_1": WEIGHT.T.astype(np.float16), "layer.0.dense.bias": BIAS.astype(np.float16)},
    ),
    "eight bits, scaled after the product": (
        [
            node("MatMulInteger", "states MatMul_1_quantized zero MatMul_1_zero_point", "integers"),
            node("Cast", "integers", "floats", to=TensorProto.FLOAT),
            node("Mul", "floats scales", "product"),
            node("Add", "layer.0.dense.bias product", "out"),
        ],
        {
            "MatMul_1_quantized": QUANTISED,
            "MatMul_1_scale": np.asarray(SCALE),
            "MatMul_1_zero_point": np.asarray(ZERO),
            "layer.0.dense.bias": BIAS,
        },
    ),
    "eight bits under the weight's own name": (
        [
            node("MatMulInteger", "states layer.0.dense.weight_quantized", "integers"),
            node("Cast", "integers", "product", to=TensorProto.FLOAT),
            node("Add", "product layer.0.dense.bias", "out"),
        ],
        {
            "layer.0.dense.weight_quantized": QUANTISED,
            "layer.0.dense.weight_scale": np.asarray(SCALE),
            "layer.0.dense.weight_zero_point": np.asarray(ZERO),
            "layer.0.dense.bias": BIAS,
        },
    ),
    "eight bits, dequantised before the product": (
        [
            node("DequantizeLinear", "MatMul_1_quantized MatMul_1_scale MatMul_1_zero_point", "weight"),
            node("MatMul", "states weight", "product"),
            node("QuantizeLinear", "product a_scale", "quantised"),
            node("DequantizeLinear", "quantised a_scale", "again"),
            node("Add", "again layer.0.dense.bias", "out"),
        ],
        {
            "MatMul_1_quantized": QUANTISED,
            "MatMul_1_scale": np.asarray(SCALE),
            "MatMul_1_zero_point": np.asarray(ZERO),
            "a_scale": np.asarray(SCALE),
            "layer.0.dense.bias": BIAS,
        },
    ),
    "a matrix that two modules share": (
        [
            node("Identity", "onnx::MatMul_1", "onnx::MatMul_2"),
            node("MatMul", "states onnx::MatMul_2", "product"),
            node("Add", "product layer.0.dense.bias", "out"),
        ],
        {"onnx::MatMul_1": WEIGHT.T, "layer.0.dense.bias": BIAS},
    ),
}


@pytest.mark.parametrize("name", GRAPHS)
def test_a_linear_layer_is_read_back(name: str, tmp_path: Path) -> None:
    nodes, constants = GRAPHS[name]
    found = onnx_weights.read(export(tmp_path / "model.onnx", nodes, constants))
    assert list(found) == ["layer.0.dense.bias", "layer.0.dense.weight"]
    assert np.array_equal(found["layer.0.dense.weight"], WEIGHT)
    assert np.array_equal(found["layer.0.dense.bias"], BIAS)
    assert {value.dtype for value in found.values()} == {np.dtype(np.float32)}


def test_a_scale_per_column_is_applied_by_column(tmp_path: Path) -> None:
    scales = np.array([0.5, 2, 4], np.float32)
    nodes, constants = GRAPHS["eight bits, scaled after the product"]
    constants = constants | {"MatMul_1_scale": scales, "MatMul_1_zero_point": np.full(3, ZERO)}
    found = onnx_weights.read(export(tmp_path / "model.onnx", nodes, constants))
    assert np.array_equal(found["layer.0.dense.weight"], WEIGHT / SCALE * scales[:, None])


def test_a_table_that_is_looked_up_in_stays_upright(tmp_path: Path) -> None:
    nodes = [node("Gather", "embeddings.words.weight_quantized ids", "out")]
    constants: dict[str, npt.NDArray[Any]] = {
        "embeddings.words.weight_quantized": QUANTISED,
        "embeddings.words.weight_scale": np.asarray(SCALE),
        "embeddings.words.weight_zero_point": np.asarray(ZERO),
        "ids": np.array([0, 1]),
    }
    found = onnx_weights.read(export(tmp_path / "model.onnx", nodes, constants))
    assert list(found) == ["embeddings.words.weight"]
    assert np.array_equal(found["embeddings.words.weight"], WEIGHT.T)


def test_a_product_without_a_named_bias_is_refused(tmp_path: Path) -> None:
    path = export(
        tmp_path / "model.onnx", [node("MatMul", "states onnx::MatMul_1", "out")], {"onnx::MatMul_1": WEIGHT.T}
    )
    with pytest.raises(ValueError, match="no bias"):
        onnx_weights.read(path)
