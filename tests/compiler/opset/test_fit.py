"""A file comes out in the opset a reader knows and computes the same, or nothing comes out."""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module
from pathlib import Path

import numpy as np
import onnx
import pytest
import torch
from onnx import numpy_helper, parser
from torch import Tensor, nn
from two_opsets import model, operators, run

from qcompile.compiler.export import export
from qcompile.compiler.opset.fit import in_older_opset, upgrade_opset
from qcompile.compiler.opset.lower import require_operators, without_missing
from qcompile.engines.registry import engine
from qcompile.engines.tensorrt.parser_operators import parser_of
from qcompile.errors import ExportError, ModelError, UnsupportedOperator
from qcompile.model.graph.graph import count_operators, opset
from qcompile.model.graph.onnx_file import copy_model, read_graph

STAGE = import_module("qcompile.compiler.opset.fit")

MEAN = """
<ir_version: 10, opset_import: ["" : 18]>
mean (float[batch,3,4] x) => (float[batch,3,1] y) <int64[1] axes={-1}> { y = ReduceMean(x, axes) }
"""


@pytest.fixture
def mean(tmp_path: Path) -> Path:
    """A mean over the last axis, in opset 18: an older parser would take it over all three."""
    path = tmp_path / "mean.onnx"
    onnx.save(parser.parse_model(MEAN), path)
    return path


def test_a_newer_graph_comes_in_the_opset_asked_for_and_an_older_one_as_it_is(
    mean: Path, tiny_file: Callable[..., Path]
) -> None:
    graph = read_graph(mean)
    lowered, warnings = in_older_opset(graph, 17)
    assert (lowered.opset, graph.opset, lowered.io, warnings) == (17, 18, graph.io, [])
    older = read_graph(tiny_file("residual", opset=15))
    assert in_older_opset(older, 17) == (older, [])


def test_a_raised_graph_keeps_the_names_of_its_tensors_which_ranges_are_known_by() -> None:
    text = "u = Upsample (x, s) y = Relu (u)"
    older = model(9, "(float[1,1,2,2] x) => (float[1,1,4,4] y)", text, "<float[4] s = {1, 1, 2, 2}>")
    raised = upgrade_opset(older, 13)
    assert operators(raised) == ["Constant", "Resize", "Relu"]
    assert [list(node.output) for node in raised.graph.node[1:]] == [["u"], ["y"]]
    assert [value.name for value in raised.graph.output] == ["y"]
    x = {"x": np.arange(4, dtype=np.float32).reshape(1, 1, 2, 2)}
    np.testing.assert_array_equal(run(raised, x)[0], run(older, x)[0])


def test_a_file_that_claims_an_older_opset_than_its_operators_have_is_refused(mean: Path) -> None:
    model = read_graph(mean).load()
    model.opset_import[0].version = 17
    onnx.save(model, mean)
    with pytest.raises(ModelError, match=r"ReduceMean.* has input size 2 not in range"):
        in_older_opset(read_graph(mean), 16)


@pytest.mark.parametrize(
    ("axes", "shape", "message"),
    [
        ("kept", "batch,3,1", "ReduceMean"),
        ("dropped", "i,j,k", r"its outputs differ in another opset.*1x1x1; 1x3x1 is required"),
    ],
)
def test_a_wrong_conversion_never_comes_out(
    axes: str, shape: str, message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The trap: parsers of opset 17 read the axes of ReduceMean from an attribute, and there is none."""
    path = tmp_path / "mean.onnx"
    onnx.save(parser.parse_model(MEAN.replace("batch,3,1", shape)), path)

    def stamp(model: onnx.ModelProto, highest: int) -> onnx.ModelProto:
        copy = copy_model(model)
        copy.opset_import[0].version = highest
        del copy.graph.node[0].input[1 if axes == "dropped" else 2 :]
        return copy

    monkeypatch.setattr(STAGE, "lower_opset", stamp)
    with pytest.raises(ModelError, match=message):
        in_older_opset(read_graph(path), 17)


def test_weights_in_a_file_of_their_own_are_carried_along(
    mean: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As for models over 2 GB, with the limit lowered: weights go to a side file again."""
    model = read_graph(mean).load()
    weight = np.random.default_rng(0).standard_normal((4, 400)).astype(np.float32)
    model.graph.initializer.append(numpy_helper.from_array(weight, "w"))
    model.graph.node.append(onnx.helper.make_node("MatMul", ["x", "w"], ["z"], "product"))
    model.graph.output.append(onnx.helper.make_tensor_value_info("z", 1, ["batch", 3, 400]))
    onnx.save(model, mean, save_as_external_data=True, location="mean.data", size_threshold=0)
    monkeypatch.setattr("qcompile.model.graph.onnx_file.EXTERNAL_DATA_BYTES", 1000)
    in_older_opset(read_graph(mean), 17)[0].save(tmp_path / "old.onnx")
    assert (tmp_path / "old.onnx.data").stat().st_size >= weight.nbytes
    assert count_operators(read_graph(tmp_path / "old.onnx").load()) == {"MatMul": 1, "ReduceMean": 1}


@pytest.mark.parametrize("version", [13, 17, 23])
def test_export_writes_the_opset_asked_for(version: int, tmp_path: Path) -> None:
    network = nn.Sequential(nn.Conv2d(3, 8, 3), nn.GroupNorm(4, 8), nn.GELU(), nn.Upsample(scale_factor=2))
    artifact = export(network.eval(), tmp_path / "m.onnx", inputs=["x:[N,3,8,8]"], opset_version=version)
    assert opset(read_graph(artifact.path).load()) == version == artifact.manifest.options["opset"]
    assert all(check.passed for check in artifact.manifest.checks)


def test_export_names_the_node_that_an_older_opset_lacks(tmp_path: Path) -> None:
    class Bits(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return torch.bitwise_and(x, 3)

    with pytest.raises(ExportError, match=r"opset 17 requested; .* reached 18: BitwiseAnd") as caught:
        export(Bits(), tmp_path / "m.onnx", inputs=["x:4:int32"], opset_version=17)
    assert "`opset` 18" in caught.value.hint


def reads(version: str) -> frozenset[str]:
    parser = parser_of(version)
    assert parser is not None
    return parser.operators


@pytest.mark.parametrize(
    ("version", "proto"),
    [
        ("8.6.1", (17, "(float[2, 6] x, float[6] s) => (float[2, 6] y)", "y = LayerNormalization (x, s)")),
        ("8.5.3", (16, "(float[2] x) => (float[2] y)", "y = EfficientNMS_TRT(x)")),  # ONNX does not define it
    ],
)
def test_what_a_version_has_or_nobody_but_the_reader_knows_stays(
    version: str, proto: tuple[int, str, str]
) -> None:
    before, after = model(*proto), model(*proto)
    assert without_missing(after, reads(version)) == []
    assert after == before
    require_operators(after, reads(version), "tensorrt", "m.onnx")


def test_an_operator_inside_a_branch_is_written_in_others_too() -> None:
    body = (
        "y = If (c) <then_branch = a () => (bool[6] t) { t = IsInf(x) }, "
        "else_branch = b () => (bool[6] e) { e = IsNaN(x) }>"
    )
    proto = model(16, "(bool c, float[6] x) => (bool[6] y)", body)
    assert without_missing(proto, reads("8.5.3"))
    onnx.checker.check_model(proto, full_check=True)
    feeds = {"c": np.array(True), "x": np.array([1, np.inf, -np.inf, np.nan, 0, -3], np.float32)}
    np.testing.assert_array_equal(run(proto, feeds)[0], np.isinf(feeds["x"]))


LACKED = {
    "QLinearMatMul": "quantize the float model", "MatMulInteger": "quantize the float model",
    "SequenceAt": "torch.stack", "ConcatFromSequence": "torch.stack", "StringConcat": "before the model",
    "Bernoulli": "model.eval()", "NonZero": "torch.where", "BitwiseAnd": "arithmetic",
    "SoftmaxCrossEntropyLoss": "without it", "MaxUnpool": "`plugins`", "STFT": "version 10.5 on",
}  # fmt: skip


@pytest.mark.parametrize("operator", LACKED)
def test_each_operator_that_a_reader_lacks_has_the_way_out_of_its_cause(operator: str) -> None:
    proto = model(20, "(float[6] x) => (float[6] y)", f"[n] y = {operator}(x)")
    lacks_all: frozenset[str] = frozenset()
    with pytest.raises(UnsupportedOperator, match=rf"^m\.onnx: trt has no {operator}: node 'n' of opset 20"):
        require_operators(proto, lacks_all, "trt", "m.onnx")
    with pytest.raises(UnsupportedOperator) as refused:
        require_operators(proto, lacks_all, "trt", "m.onnx", engine("tensorrt-rtx").versions_that_read)
    assert LACKED[operator] in refused.value.hint
