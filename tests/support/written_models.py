"""Models written in ONNX's text form, and run as they are written: no optimizer touches them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
from numpy.typing import NDArray
from onnx import numpy_helper, parser

Floats = NDArray[np.float32]


def normal(*shape: int, seed: int = 0, scale: float = 1.0) -> Floats:
    """Return normal values that depend on the seed and on the shape."""
    return (np.random.default_rng([seed, *shape]).standard_normal(shape) * scale).astype(np.float32)


def model_of(text: str, *, opset: int = 17, named: bool = False, **weights: NDArray[Any]) -> onnx.ModelProto:
    """Return a checked model with weights; those that the text declares without values are normal ones.

    `named` gives each node its operator and number.
    """
    version = 8 if opset < 19 else 10
    model = parser.parse_model(f'<ir_version: {version}, opset_import: ["" : {opset}]> tiny {text}')
    for number, node in enumerate(model.graph.node if named else ()):
        node.name = f"{node.op_type.lower()}{number}"
    generator = np.random.default_rng(0)
    for value in model.graph.value_info:
        shape = [dim.dim_value for dim in value.type.tensor_type.shape.dim]
        weights[value.name] = (generator.standard_normal(shape) * 0.3).astype(np.float32)
    del model.graph.value_info[:]
    model.graph.initializer.extend(numpy_helper.from_array(v, n) for n, v in weights.items())
    onnx.checker.check_model(model)
    return model


def outputs_of(
    model: onnx.ModelProto | Path,
    feeds: NDArray[Any] | dict[str, Any],
    *names: str,
    optimize: bool = False,
    optimized: Path | None = None,
) -> list[NDArray[Any]]:
    """Return the outputs, or other tensors, of a model that is fed `x` alone, or by name.

    Args:
        optimize: Whether ONNX Runtime fuses nodes.
        optimized: File for the graph that its optimizer makes.
    """
    copy = onnx.ModelProto()
    copy.CopyFrom(onnx.load(model) if isinstance(model, Path) else model)
    if names:
        del copy.graph.output[:]
        copy.graph.output.extend(onnx.helper.make_tensor_value_info(n, 1, None) for n in names)
    options = onnxruntime.SessionOptions()
    if optimized is not None:
        options.optimized_model_filepath = str(optimized)
    elif not optimize:
        options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    options.log_severity_level = 3
    session = onnxruntime.InferenceSession(
        copy.SerializeToString(), options, providers=["CPUExecutionProvider"]
    )
    return list(session.run(None, feeds if isinstance(feeds, dict) else {"x": feeds}))


def run_file(path: Path, **feeds: NDArray[Any]) -> dict[str, NDArray[Any]]:
    """Return the outputs of a file by name."""
    names = [value.name for value in onnx.load(path, load_external_data=False).graph.output]
    return dict(zip(names, outputs_of(path, feeds), strict=True))


def stored(model: onnx.ModelProto) -> dict[str, NDArray[Any]]:
    """Return the initializers."""
    return {tensor.name: numpy_helper.to_array(tensor) for tensor in model.graph.initializer}
