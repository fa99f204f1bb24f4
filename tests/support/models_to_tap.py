"""Models whose tensors are tapped."""

from __future__ import annotations

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import numpy_helper, parser

Array = NDArray[np.generic]

MATRIX = "(float[n, 4] x) => (float[n, m] y)"


def model(body: str, signature: str = MATRIX, *, opset: int = 17, **weights: Array) -> onnx.ModelProto:
    """A model from ONNX's text form: `signature` is "(inputs) => (outputs)"."""
    opsets = f'["" : {opset}, "custom" : 1]'
    made = parser.parse_model(f"<ir_version: 8, opset_import: {opsets}> g {signature} {{ {body} }}")
    made.graph.initializer.extend(numpy_helper.from_array(array, name) for name, array in weights.items())
    return made
