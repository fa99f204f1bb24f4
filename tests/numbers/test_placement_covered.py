"""Every operator that Q/DQ are placed around, or that quantization writes, has a reference."""

from __future__ import annotations

import onnx
from onnx.reference.op_run import OpRun
from onnx.reference.ops._op_list import load_op
from onnx_reference import OWN

from qcompile.compiler.quantize.int8 import dynamic, placement, tensorrt
from qcompile.compiler.quantize.weights import rewrite
from qcompile.model.graph import WEIGHTED

WITHOUT_REFERENCE = {"Attention"}
"""Of ONNX Runtime's domain, which exporters of PyTorch do not write."""


def placed() -> set[str]:
    """The operators of the code's own lists."""
    return {
        *WEIGHTED,
        *placement._BETWEEN,
        *placement.SAME_SCALE,
        *(operator for operators in placement._WEIGHTED.values() for operator in operators),
        *tensorrt._FUSED,
        *tensorrt._CONVOLUTIONS,
        *dynamic.DYNAMIC_OPERATORS,
        *rewrite._TAKEN,
    }


def test_every_operator_that_is_quantized_has_a_reference() -> None:
    own = {operator.__name__ for operator in OWN}
    for name in placed() - own - WITHOUT_REFERENCE:
        spelled_out = onnx.defs.get_schema(name).has_function
        assert spelled_out or issubclass(load_op("", name), OpRun), f"{name}: add it to onnx_reference.py"
