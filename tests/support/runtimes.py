"""Run a graph as it is on ONNX Runtime and OpenVINO, without qcompile."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
from numpy.typing import NDArray
from written_models import computed

Arrays = dict[str, NDArray[Any]]

OPENVINO_SLACK = 4 * 2.0**-24 * 256
"""Steps by which an integer of OpenVINO may be off beside float32's error of the value. It rounds
`(x - low) / (high - low) * 255` (its specification of FakeQuantize), counted from the lowest of the 256
integers: four roundings of a number up to 255, where ONNX rounds x / scale, counted from zero."""


on_onnxruntime = computed


def optimized_operators(model: onnx.ModelProto, folder: Path) -> set[str]:
    """Return the operators of the graph that ONNX Runtime's optimizer makes."""
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4
    options.optimized_model_filepath = str(folder / "optimized.onnx")
    onnxruntime.InferenceSession(model.SerializeToString(), options)
    return {node.op_type for node in onnx.load(folder / "optimized.onnx").graph.node}


def on_openvino(model: onnx.ModelProto, feeds: Arrays) -> Arrays:
    """Return output name to array; what is not quantized is computed in float32.

    By default OpenVINO (2026.4) rounds activations to 8 bits in groups where weights alone are quantized, on
    processors that gain by it: up to 0.6% of the largest output of a small network.
    """
    import openvino

    core = openvino.Core()
    how = {
        "INFERENCE_PRECISION_HINT": "f32",
        "INFERENCE_NUM_THREADS": 1,
        "DYNAMIC_QUANTIZATION_GROUP_SIZE": 0,
    }
    compiled = core.compile_model(core.read_model(model.SerializeToString()), "CPU", how)
    found = compiled(feeds)
    names = [value.name for value in model.graph.output]
    return {name: np.array(found[compiled.output(index)]) for index, name in enumerate(names)}
