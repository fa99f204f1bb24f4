"""Models written in ONNX's text form, and run as they are written: no optimizer touches them."""

from __future__ import annotations

import numpy as np
import onnx
import onnxruntime
from numpy.typing import NDArray
from onnx import numpy_helper, parser

Floats = NDArray[np.float32]


def model_of(text: str, *, named: bool = False, imports: str = "", **weights: Floats) -> onnx.ModelProto:
    """Return a checked model of opset 17, with weights; `named` gives each node its operator and number."""
    model = parser.parse_model(f'<ir_version: 8, opset_import: ["" : 17{imports}]> tiny {text}')
    for number, node in enumerate(model.graph.node if named else ()):
        node.name = f"{node.op_type.lower()}{number}"
    model.graph.initializer.extend(numpy_helper.from_array(v, n) for n, v in weights.items())
    onnx.checker.check_model(model)
    return model


def outputs_of(model: onnx.ModelProto, feeds: Floats | dict[str, Floats], *names: str) -> list[Floats]:
    """Return the outputs, or other tensors, of a model that is fed `x` alone, or by name."""
    copy = onnx.ModelProto()
    copy.CopyFrom(model)
    if names:
        del copy.graph.output[:]
        copy.graph.output.extend(onnx.helper.make_tensor_value_info(n, 1, None) for n in names)
    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    options.log_severity_level = 3
    session = onnxruntime.InferenceSession(
        copy.SerializeToString(), options, providers=["CPUExecutionProvider"]
    )
    found: list[Floats] = session.run(None, feeds if isinstance(feeds, dict) else {"x": feeds})
    return found
