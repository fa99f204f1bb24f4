"""Tensors that calibration observes: those that quantization for a target scales."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from ....errors import CalibrationError
from ....model.graph_edits import name_nodes, store_constants
from ....model.weightless import WeightlessModel
from ....spec.words import GRAPH_TARGETS, GraphTarget
from ...opset.lstm_products import lstm_inputs
from ..prepare import sum_to_add
from .placement import plan, scaled_tensors

if TYPE_CHECKING:
    import onnx


def tensors_to_calibrate(model: WeightlessModel, targets: Iterable[GraphTarget] = GRAPH_TARGETS) -> set[str]:
    """Return the tensors that get a scale when a float model is quantized for the targets.

    The plan depends on the shapes of weights, not on their values.

    Raises:
        CalibrationError: If no operator would be quantized.
        InvalidOption: If a target is unknown.
    """
    ready = _prepare(model.model)
    tensors: set[str] = set()
    every = ["*"] if ready.graph.node else []
    for target in targets:
        tensors |= scaled_tensors(ready, plan(ready, target, chosen=every))  # a user may choose any
        if target == "tensorrt":
            tensors |= lstm_inputs(ready)
    if not tensors:
        raise CalibrationError(
            f"{model.path}: no operator would be quantized; nothing to calibrate",
            hint="simplify first; qcompile inspect shows the operators",
            file=model.path,
        )
    return tensors


def _prepare(model: onnx.ModelProto) -> onnx.ModelProto:
    """A copy as `prepare` makes it, as far as the plan looks."""
    import onnx

    named = onnx.ModelProto()
    named.CopyFrom(model)
    name_nodes(named.graph)
    sum_to_add(named.graph)
    store_constants(named.graph)
    for node in named.graph.node:
        if node.op_type == "Gemm":
            del node.input[2:]  # `prepare` brings its bias into the form that the plan asks for
    return named
