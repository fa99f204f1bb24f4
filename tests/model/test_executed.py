"""Which planned nodes ONNX Runtime's optimizer left in another precision, by the names it gives."""

from __future__ import annotations

import onnx
import pytest
from onnx import helper, parser

from qcompile.model.onnxruntime_optimizer import missed_nodes

PLANNED = [helper.make_node("Gemm", ["x", "w"], [f"out{i}"], name) for i, name in enumerate(["mm", "mm2"])]


def optimized(*nodes: str) -> onnx.ModelProto:
    """A graph of FusedGemm (float32) and QGemm (int8) by their names: "float fused mm"."""
    model = parser.parse_model(
        '<ir_version: 8, opset_import: ["" : 17, "com.microsoft" : 1]> g (float[n,4] x) => (float[n,4] y) '
        "{ y = Identity(x) }"
    )
    for index, text in enumerate(nodes):
        kind, _, name = text.partition(" ")
        operator = {"float": "FusedGemm", "int8": "QGemm", "plain": "Gemm"}[kind]
        model.graph.node.append(helper.make_node(operator, ["x"], [f"made{index}"], name))
    return model


@pytest.mark.parametrize(
    ("nodes", "missed", "unknown"),
    [
        (["int8 mm", "int8 mm2"], [], []),
        (["int8 mm", "plain mm2"], ["mm2"], []),
        (["int8 mm/MatMulAddFusion", "float fused mm2/MatMulAddFusion"], ["mm2"], []),
        (["plain mm2_token_7", "int8 mm_token_12"], ["mm2"], []),
        (["int8 mm"], [], []),  # mm2 became part of another node
        (["int8 mm", "plain head"], [], []),  # a node that was not planned
        (["int8 mm", "float "], [], ["mm2"]),  # made by the optimizer, of what is not told
        (["int8 mm", "float fused other/Fusion"], [], ["mm2"]),
    ],
)
def test_names_tell_what_became_of_a_node(nodes: list[str], missed: list[str], unknown: list[str]) -> None:
    found, left = missed_nodes(PLANNED, optimized(*nodes), "int8")
    assert found == dict.fromkeys(missed, "fp32")
    assert left == unknown
