"""Run a graph as it is on ONNX Runtime and OpenVINO, without qcompile."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import onnxruntime
from numpy.typing import NDArray

Arrays = dict[str, NDArray[Any]]


def on_onnxruntime(model: onnx.ModelProto, feeds: Arrays, *, optimize: bool = False, **config: str) -> Arrays:
    """Return output name to array.

    Args:
        model: The graph.
        feeds: Its inputs.
        optimize: Whether nodes are fused; without, each is computed by its own kernel.
        config: Entries of the session's configuration, "__" for a dot.
    """
    options = onnxruntime.SessionOptions()
    options.log_severity_level, options.intra_op_num_threads = 4, 1
    if not optimize:
        options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    for key, value in config.items():
        options.add_session_config_entry(key.replace("__", "."), value)
    session = onnxruntime.InferenceSession(model.SerializeToString(), options)
    names = [value.name for value in session.get_outputs()]
    return dict(zip(names, session.run(names, feeds), strict=True))


def on_openvino(model: onnx.ModelProto, feeds: Arrays) -> Arrays:
    """Return output name to array; what is not quantized is computed in float32."""
    import openvino

    core = openvino.Core()
    how = {"INFERENCE_PRECISION_HINT": "f32", "INFERENCE_NUM_THREADS": 1}
    compiled = core.compile_model(core.read_model(model.SerializeToString()), "CPU", how)
    found = compiled(feeds)
    names = [value.name for value in model.graph.output]
    return {name: np.array(found[compiled.output(index)]) for index, name in enumerate(names)}
