"""Which tensors calibration should observe: those that quantization for a target will scale."""

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
    prepared = _prepared(model.model)
    wanted: set[str] = set()
    for target in targets:
        wanted |= scaled_tensors(prepared, plan(prepared, target))
        if target == "tensorrt":
            wanted |= lstm_inputs(prepared)
    if not wanted:
        raise CalibrationError(
            f"{model.path}: no operator would be quantized; nothing to calibrate",
            hint="simplify first; qcompile inspect shows the operators",
            file=model.path,
        )
    return wanted


def _prepared(model: onnx.ModelProto) -> onnx.ModelProto:
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
