"""Sums over the edges of a graph, as a product with a matrix of ones: the same numbers, and RTX builds it."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import parser
from written_models import outputs_of

import qcompile
from qcompile.compiler.opset.plain_forms import scatter_adds_to_products

GRAPH = """<ir_version: 8, opset_import: ["" : 18]>
graph (float[nodes,3] x, int64[2,edges] edges) => (float[nodes,3] y)
<int64 source = {0}, int64 target = {1}, int64[1] last = {-1}> {
    from = Gather <axis = 0> (edges, source)
    to = Gather <axis = 0> (edges, target)
    messages = Gather <axis = 0> (x, from)
    index = Unsqueeze(to, last)
    [sum] y = ScatterND <reduction = "add"> (x, index, messages)
}"""


def test_rows_are_added_as_numpy_adds_them() -> None:
    generator = np.random.default_rng(0)
    x = generator.standard_normal((5, 3)).astype(np.float32)
    edges = generator.integers(0, 5, (2, 40))  # several edges lead to each node
    expected = x.copy()
    np.add.at(expected, edges[1], x[edges[0]])
    model = parser.parse_model(GRAPH)
    assert scatter_adds_to_products(model) == ["sum"]
    onnx.checker.check_model(model, full_check=True)
    assert "ScatterND" not in {node.op_type for node in model.graph.node}
    (found,) = outputs_of(model, {"x": x, "edges": edges})
    np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("changed", ['reduction = "mul"', 'reduction = "none"'])
def test_what_does_not_add_stays(changed: str) -> None:
    model = parser.parse_model(GRAPH.replace('reduction = "add"', changed))
    assert scatter_adds_to_products(model) == []


def test_rtx_builds_a_sum_over_edges(tmp_path: Path) -> None:
    pytest.importorskip("tensorrt_rtx")
    text = GRAPH.replace("from = Gather", "h = MatMul(x, w) from = Gather").replace("(x, from)", "(h, from)")
    model = parser.parse_model(text)
    weight = np.random.default_rng(1).standard_normal((3, 3)).astype(np.float32)
    model.graph.initializer.append(onnx.numpy_helper.from_array(weight, "w"))
    onnx.save(model, tmp_path / "graph.onnx")
    shapes = {"x": (5, 3), "edges": (2, 8)}
    built = qcompile.build(
        tmp_path / "graph.onnx", tmp_path / "graph.engine", target="tensorrt-rtx", precision="fp16",
        gpus=["sm86"], min_shapes=shapes, opt_shapes=shapes, max_shapes={"x": (50, 3), "edges": (2, 80)},
    )  # fmt: skip
    proof = built.manifest.proof
    assert proof["reached_in_precision"] == proof["planned_in_precision"] == 2  # the sum is a product, too
