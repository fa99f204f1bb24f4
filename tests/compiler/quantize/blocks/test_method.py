"""`quantize` and `build` in NVFP4 and MXFP8: what is planned, told, refused and proven."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import numpy_helper, parser

import qcompile
from qcompile.artifact import Artifact
from qcompile.calibration import Ranges, load_ranges
from qcompile.errors import CalibrationError, InvalidOption, QuantizationError
from qcompile.model.graph import graph_precision
from qcompile.model.onnx_file import opset
from qcompile.spec.words import BLOCK_FORMATS, BlockFormat

NETWORK = """
<ir_version: 8, opset_import: ["" : 17]>
tiny (float[batch,3,16,16] x) => (float[batch,16,10] y) {
    [patches] p = Conv <strides = [4,4]> (x, w0)
    [flat] f = Reshape(p, shape)
    [rows] r = Transpose <perm = [0,2,1]> (f)
    [wide] a = MatMul(r, w1)
    [bias] b = Add(a, b1)
    [relu] c = Relu(b)
    [narrow] d = MatMul(c, w2)
    [odd] e = MatMul(d, w3)
    [turned] t = Transpose <perm = [0,2,1]> (r)
    [product] s = MatMul(r, t)
    [scores] z = Softmax(s)
    [mixed] m = MatMul(z, e)
    [four] u = Unsqueeze(m, axes)
    [deep] v = MatMul(u, w4)
    [last] g = Squeeze(v, axes)
    [out] y = Identity(g)
}
"""
WEIGHTS = {"w0": (32, 3, 4, 4), "w1": (32, 64), "b1": (64,), "w2": (64, 40), "w3": (40, 32), "w4": (32, 10)}
LEFT = {
    "patches": "and no Conv",
    "odd": "it sums over 40 values",
    "product": "its weight is computed at run time",
    "mixed": "its weight is computed at run time",
    "deep": "its activation has 4 axes",
}
SHAPES = {f"{kind}_shapes": {"x": (n, 3, 16, 16)} for kind, n in (("min", 1), ("opt", 2), ("max", 4))}


@pytest.fixture
def network(tmp_path: Path) -> Path:
    """A network with layers of every kind that fits or does not, its samples and its ranges beside it."""
    model = parser.parse_model(NETWORK)
    random = np.random.default_rng(0)
    for name, shape in WEIGHTS.items():
        value = (random.standard_normal(shape) * 0.2).astype(np.float32)
        model.graph.initializer.append(numpy_helper.from_array(value, name))
    model.graph.initializer.append(numpy_helper.from_array(np.array([0, 32, 16]), "shape"))
    model.graph.initializer.append(numpy_helper.from_array(np.array([1]), "axes"))
    path = tmp_path / "net.onnx"
    onnx.save(model, path)
    np.savez(tmp_path / "x.npz", x=random.standard_normal((16, 3, 16, 16)).astype(np.float32))
    qcompile.calibrate(path, str(tmp_path / "x.npz"), tmp_path / "net.ranges", targets=["tensorrt"])
    return path


def quantized(path: Path, kind: BlockFormat, **options: Any) -> Artifact:
    """The network in a block format."""
    if kind == "nvfp4":
        options.setdefault("ranges", path.with_suffix(".ranges"))
    return qcompile.quantize(
        path, path.with_name(f"{kind}.onnx"), target="tensorrt", precision=kind, **options
    )


@pytest.mark.parametrize("kind", BLOCK_FORMATS)
def test_the_manifest_says_what_is_in_blocks_and_why_the_rest_is_not(
    network: Path, kind: BlockFormat
) -> None:
    artifact = quantized(network, kind)
    proof = artifact.manifest.proof
    assert artifact.manifest.precision == graph_precision(onnx.load(artifact.path)) == kind
    assert proof["nodes_by_precision"][kind] == {"MatMul": 2}  # type: ignore[index]
    assert proof["block_size"] == {"nvfp4": 16, "mxfp8": 32}[kind]
    left = proof["left_in_float"]
    assert isinstance(left, dict)
    assert left.keys() == LEFT.keys()
    assert all(reason in left[name] for name, reason in LEFT.items())


@pytest.mark.parametrize(("kind", "least_db"), [("nvfp4", 12), ("mxfp8", 22)])
def test_the_accuracy_is_that_of_the_same_roundings_and_says_so(
    network: Path, kind: BlockFormat, least_db: float
) -> None:
    data = str(network.with_name("x.npz"))
    (check,) = quantized(network, kind, data=data, allow_loss=True).manifest.checks
    assert float(check.detail.split()[0]) > least_db
    assert "its roundings computed by float operators of ONNX Runtime" in check.detail


@pytest.mark.parametrize("float_precision", ["fp32", "fp16", "bf16"])
@pytest.mark.parametrize("kind", BLOCK_FORMATS)
def test_tensorrt_rtx_builds_the_float_model_for_blackwell(
    network: Path, kind: BlockFormat, float_precision: str
) -> None:
    pytest.importorskip("tensorrt_rtx", reason="tensorrt-rtx is not installed")
    artifact = qcompile.build(
        network, network.with_name("e.engine"), target="tensorrt-rtx", precision=kind,
        gpus=["sm120", "sm121"], float_precision=float_precision,
        ranges=network.with_suffix(".ranges"), **SHAPES,  # type: ignore[arg-type]
    )  # fmt: skip
    layers = artifact.manifest.proof["layers_by_precision"]
    assert layers == {kind: {"MATRIX_MULTIPLY": 2}, float_precision: {"CONVOLUTION": 1, "MATRIX_MULTIPLY": 4}}
    assert any("multiplies floats" in text for text in artifact.manifest.warnings) is (kind == "mxfp8")


@pytest.mark.parametrize(
    ("options", "problem", "hint"),
    [
        (
            {"target": "tensorrt-rtx", "gpus": ["sm120", "sm89"]},
            "sm89 has no {}; it begins with sm100",
            "sm120",
        ),
        ({"target": "tensorrt-rtx", "gpus": ["sm100"]}, "`gpus` sm100: tensorrt_rtx .* builds for sm75", ""),
        (
            {"target": "onnxruntime"},
            "target onnxruntime has fp32",
            "only TensorRT multiplies it, from sm100 on",
        ),
        ({"target": "openvino"}, "target openvino has fp32", "only TensorRT multiplies it, from sm100 on"),
    ],
)
@pytest.mark.parametrize("kind", BLOCK_FORMATS)
def test_other_gpus_and_runtimes_are_refused_by_name_with_the_way_out(
    network: Path, kind: BlockFormat, options: dict[str, Any], problem: str, hint: str
) -> None:
    pytest.importorskip(str(options["target"]).replace("-", "_"))
    with pytest.raises(InvalidOption, match=problem.format(kind.upper())) as caught:
        qcompile.build(
            network, network.with_name("e"), precision=kind, ranges=network.with_suffix(".ranges"), **options
        )
    assert hint in caught.value.hint


def test_names_and_patterns_keep_products_in_float(network: Path) -> None:
    proof = quantized(network, "mxfp8", exclude=["narrow"]).manifest.proof
    assert proof["left_in_float"]["narrow"] == "excluded by 'narrow'"  # type: ignore[index]
    proof = quantized(network, "mxfp8", only=["wide"]).manifest.proof
    assert proof["nodes_by_precision"]["mxfp8"] == {"MatMul": 1}  # type: ignore[index]
    proof = quantized(network, "mxfp8", layers={"wide": "fp16"}).manifest.proof
    assert proof["nodes_by_precision"]["fp16"] == {"MatMul": 1}  # type: ignore[index]


def test_nothing_to_quantize_names_the_reason(network: Path) -> None:
    with pytest.raises(
        QuantizationError, match="nothing to quantize: node 'patches': TensorRT computes matrix"
    ):
        quantized(network, "mxfp8", exclude=["wide", "narrow"])


def test_an_activation_without_a_range_is_named(network: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    known = load_ranges(network.with_suffix(".ranges")).names()
    monkeypatch.setattr(Ranges, "names", lambda _: [name for name in known if name != "c"])
    with pytest.raises(CalibrationError, match="tensor 'c' needs a scale and has no range"):
        quantized(network, "nvfp4")


@pytest.mark.parametrize(("kind", "lowest"), [("nvfp4", 23), ("mxfp8", 19)])
def test_the_graph_is_of_the_first_opset_that_has_its_types(
    network: Path, kind: BlockFormat, lowest: int
) -> None:
    model = onnx.load(quantized(network, kind).path)
    assert opset(model) == lowest
    assert {entry.domain: entry.version for entry in model.opset_import}["trt"] == 1
    onnx.checker.check_model(model, full_check=True)
