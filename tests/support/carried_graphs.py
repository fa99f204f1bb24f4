"""Graphs and ranges for a GPU host without ONNX Runtime: calibrated by ONNX's reference implementation.

The Q/DQ follow NVIDIA's rules: int8, symmetric, per tensor before each Conv and Gemm, per channel on their
weights, biases in float. Of a residual add, the residual branch alone is quantized, and only where it feeds a
convolution too.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import helper, numpy_helper
from onnx.reference import ReferenceEvaluator

from qcompile.calibration import Ranges, save_ranges
from qcompile.calibration.histogram import Histogram
from qcompile.calibration.ranges import Portion
from qcompile.model.graph.onnx_file import read_graph

WEIGHTED = ("Conv", "Gemm")


def activations(model: onnx.ModelProto, feeds: Mapping[str, Any]) -> dict[str, Any]:
    """Return every tensor of a float graph that its inputs decide."""
    watched = onnx.ModelProto()
    watched.CopyFrom(model)
    names = [output for node in model.graph.node for output in node.output]
    del watched.graph.output[:]
    watched.graph.output.extend(helper.make_tensor_value_info(name, 1, None) for name in names)
    found = dict(zip(names, ReferenceEvaluator(watched).run(None, dict(feeds)), strict=True))
    return {**feeds, **found}


def quantized(model: onnx.ModelProto, feeds: Mapping[str, Any]) -> onnx.ModelProto:
    """Return the graph with Q/DQ around every Conv and Gemm."""
    values = activations(model, feeds)
    weights = {item.name: numpy_helper.to_array(item) for item in model.graph.initializer}
    made = onnx.ModelProto()
    made.CopyFrom(model)
    del made.graph.node[:]
    done: dict[str, str] = {}
    for node in model.graph.node:
        for index, name in enumerate(node.input[:2] if node.op_type in WEIGHTED else ()):
            if name not in done:
                array, axis = weights.get(name, values.get(name)), 0 if name in weights else None
                done[name] = _pair(made, name, array, axis)
            node.input[index] = done[name]
        made.graph.node.append(node)
    onnx.checker.check_model(made)
    return made


def write_ranges(model: Path, feeds: Mapping[str, Any], output: Path) -> Path:
    """Write a ranges file for a float graph."""
    ranges = Ranges(
        model=read_graph(model).digest(),
        portions={"sha256:carried": Portion(len(next(iter(feeds.values()))))},
    )
    for name, array in activations(onnx.load(model), feeds).items():
        ranges.histograms[name] = Histogram()
        ranges.histograms[name].add(array.astype(np.float32))
    save_ranges(ranges, output)
    return output


def _pair(model: onnx.ModelProto, name: str, array: Any, axis: int | None) -> str:
    """Add Q/DQ of a tensor and return what comes out."""
    others = tuple(index for index in range(array.ndim) if index != axis)
    amax = np.abs(array).max(axis=others if axis is not None else None)
    scale = np.asarray(np.maximum(amax, 1e-6) / 127, np.float32)
    model.graph.initializer.append(numpy_helper.from_array(scale, f"{name}_scale"))
    model.graph.initializer.append(numpy_helper.from_array(np.zeros(scale.shape, np.int8), f"{name}_zero"))
    more = {} if axis is None else {"axis": axis}
    ends = [f"{name}_scale", f"{name}_zero"]
    for kind, source, made in (
        ("QuantizeLinear", name, f"{name}_q"),
        ("DequantizeLinear", f"{name}_q", f"{name}_dq"),
    ):
        model.graph.node.append(helper.make_node(kind, [source, *ends], [made], made, **more))
    return f"{name}_dq"
