"""Weights out of an ONNX export: the Hugging Face names again, in float32, whatever the export made of them.

Exporters keep the names of biases, norms and tables, and lose those of matrices, which they also transpose and may
quantise to int8. Here a matrix gets the name of the bias that is added to its product. Owns no file but the one it
reads: fetching is ``archives``, the folder is ``checkpoints``. Needs ``onnx`` and numpy.
"""

from __future__ import annotations

import re
from collections import defaultdict
from pathlib import Path

import numpy as np
import numpy.typing as npt
import onnx
from onnx import numpy_helper

Array = npt.NDArray[np.float32]

_PARAMETER = re.compile(r"(\w+\.)+(weight|bias)")
_BETWEEN = {"Cast", "Mul", "QuantizeLinear", "DequantizeLinear"}
"""What may stand between a product and the addition of its bias: the scaling of a quantised product."""


def read(path: Path) -> dict[str, Array]:
    """The parameters of a transformer's export, float32, linear weights as [outputs, inputs].

    Weights in int8 are dequantised: (value - zero point) * scale, one scale per tensor or per column. They are the
    export's weights exactly, and the published model's to within the quantisation.

    Raises:
        ValueError: a matrix is multiplied whose product meets no named bias.
    """
    graph = onnx.load(str(path)).graph
    constants = _constants(graph)
    parameters = {name: value for name, value in constants.items() if _PARAMETER.fullmatch(name)}
    readers: defaultdict[str, list[onnx.NodeProto]] = defaultdict(list)
    for node in graph.node:
        for name in node.input:
            readers[name].append(node)
    matrices: dict[str, Array] = {}
    for node in graph.node:
        if node.op_type not in ("MatMul", "MatMulInteger", "Gemm") or node.input[1] not in constants:
            continue
        name = node.input[1].removesuffix("_quantized")
        if name not in parameters:
            name = f"{_bias(node, readers, parameters).removesuffix('.bias')}.weight"
        matrix = constants[node.input[1]]
        upright = any(attribute.name == "transB" and attribute.i for attribute in node.attribute)
        # The first: a module that is called twice has its matrix twice.
        matrices.setdefault(name, np.ascontiguousarray(matrix if upright else matrix.T))
    return dict(sorted((parameters | matrices).items()))


def _constants(graph: onnx.GraphProto) -> dict[str, Array]:
    """Everything in the graph that does not depend on the input and may be a weight, by its name, dequantised."""
    raw = {tensor.name: numpy_helper.to_array(tensor) for tensor in graph.initializer}
    constants: dict[str, Array] = {}
    for name, value in raw.items():
        if not name.endswith(("_scale", "_zero_point")):
            constants[name] = value.astype(np.float32)
        # Dynamic quantisation feeds the int8 weight straight into MatMulInteger; the scale is known by its name.
        if name.endswith("_quantized"):
            plain = name.removesuffix("_quantized")
            value = _dequantised(value, raw[f"{plain}_scale"], raw.get(f"{plain}_zero_point"))
            constants[name] = constants[plain] = value
    for node in graph.node:
        if not node.input or node.input[0] not in raw:
            continue
        if node.op_type == "DequantizeLinear":
            constants[node.output[0]] = _dequantised(*(raw[name] for name in node.input))
        elif node.op_type == "Identity":
            constants[node.output[0]] = constants[node.input[0]]
    return constants


def _dequantised(
    value: npt.NDArray[np.generic], scale: npt.NDArray[np.generic], zero: npt.NDArray[np.generic] | None = None
) -> Array:
    shifted = value.astype(np.float32) - (0 if zero is None else zero.astype(np.float32))
    return (shifted * scale.astype(np.float32)).astype(np.float32)


def _bias(node: onnx.NodeProto, readers: defaultdict[str, list[onnx.NodeProto]], parameters: dict[str, Array]) -> str:
    """The parameter that is added to the node's product."""
    reached = [node]
    while reached:
        for reader in readers[reached.pop().output[0]]:
            if reader.op_type == "Add":
                for name in reader.input:
                    if name in parameters:
                        return str(name)
            elif reader.op_type in _BETWEEN:
                reached.append(reader)
    raise ValueError(f"no bias is added to the product of {node.name}")
