"""Which tensors are observed, and how: a copy of the model that returns them as outputs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from ..model.graph import constant_names, infer_types
from ..model.onnx_file import copy_model

if TYPE_CHECKING:
    import onnx

QUANTIZABLE = frozenset(
    """
    Conv ConvTranspose MatMul Gemm Add Sub Mul Div MaxPool AveragePool GlobalAveragePool Concat
    Split Relu Clip LeakyRelu Sigmoid HardSigmoid HardSwish Tanh Softmax Gelu Erf Resize Pad
    Reshape Transpose Squeeze Unsqueeze Flatten Slice Gather Where InstanceNormalization
    LayerNormalization ReduceMean BatchNormalization Sum Einsum Min Max DepthToSpace
    SpaceToDepth Expand Identity
    """.split()
)
"""Operators at which some target places a scale; tensors between others are not observed."""

_FLOATS = ("float32", "float16", "float64")


@dataclass(frozen=True)
class Taps:
    """The tensors to observe.

    Attributes:
        names: Names of float activations, in the model's order.
        skipped: Name to reason for tensors near a quantizable operator that cannot be observed.
    """

    names: tuple[str, ...]
    skipped: Mapping[str, str]


def choose_taps(model: onnx.ModelProto) -> Taps:
    """Return the float activations that are inputs or outputs of quantizable operators.

    Weights and other constants are left out: their range is read from the file.
    """
    types = infer_types(model)
    constants = constant_names(model)
    names: dict[str, None] = {}
    skipped: dict[str, str] = {}
    for node in model.graph.node:
        if node.op_type not in QUANTIZABLE or node.domain not in ("", "ai.onnx"):
            continue
        for name in (*node.input, *node.output):
            if not name or name in constants:
                continue
            dtype = types.get(name, "undefined")
            if dtype in _FLOATS:
                names[name] = None
            elif dtype == "undefined":
                skipped[name] = f"its type cannot be inferred (at {node.op_type} {node.name!r})"
            else:
                skipped[name] = f"it is {dtype}, not a float"
    return Taps(tuple(names), skipped)


def tapped(model: onnx.ModelProto, taps: Taps) -> onnx.ModelProto:
    """Return a copy of the model with the taps as its only outputs, after the inputs among them.

    An input that is tapped needs no output: the feeds hold it.
    """
    import onnx

    inputs = {value.name for value in model.graph.input}
    types = infer_types(model)
    copy = copy_model(model)
    del copy.graph.output[:]
    for name in taps.names:
        if name not in inputs:
            elem_type = onnx.helper.np_dtype_to_tensor_dtype(np.dtype(types[name]))
            copy.graph.output.append(onnx.helper.make_tensor_value_info(name, elem_type, None))
    return copy
