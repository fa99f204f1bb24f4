"""Every operator that Q/DQ are placed around, or that quantization writes, has a reference."""

from __future__ import annotations

from onnx import helper
from qdq_reference.interpreter import operates

from qcompile.compiler.quantize.int8 import dynamic, placement, residuals
from qcompile.compiler.quantize.weights import rewrite
from qcompile.model.graph import WEIGHTED

WITHOUT_REFERENCE = {
    "Attention": "an operator of ONNX Runtime alone, which exporters of PyTorch do not write",
}
"""What is quantized and has none, with the reason."""


def placed() -> set[str]:
    """The operators of the code's own lists."""
    return {
        *WEIGHTED,
        *placement._BETWEEN,
        *placement.SAME_SCALE,
        *(operator for operators in placement._WEIGHTED.values() for operator in operators),
        *residuals._FUSED,
        *residuals._CONVOLUTIONS,
        *dynamic.DYNAMIC_OPERATORS,
        *rewrite._TAKEN,
    }


def test_every_operator_that_is_quantized_has_a_reference() -> None:
    without = {name for name in placed() if not operates(helper.make_node(name, [], []))}
    assert without == set(WITHOUT_REFERENCE), "add it to tests/support/qdq_reference/operators.py"
