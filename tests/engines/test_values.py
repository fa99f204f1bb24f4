"""The values of artifacts: a kernel that computes something else fails the build, and names its layer."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from int8_graphs import int8_graph
from mode_models import written
from onnx import numpy_helper
from wrong_kernels import Edit, check_of, optimize_wrongly

import qcompile
from qcompile.building import build as building
from qcompile.core.artifact import Artifact
from qcompile.engines import values
from qcompile.engines.values import SUBJECT
from qcompile.errors import EngineUnavailable, IntentNotReached, ModelError

MakePath = Callable[..., Path]
TARGETS = ("onnxruntime", "openvino")
WAYS = {
    "onnxruntime": "as it is and with the default options",
    "openvino": "at their extents and with dynamic shapes",
}


@pytest.fixture(params=TARGETS)
def target(request: pytest.FixtureRequest) -> str:
    pytest.importorskip(request.param)
    return str(request.param)


@pytest.fixture
def int8(target: str, tiny_file: MakePath, samples: MakePath) -> Path:
    isa = "avx2" if target == "onnxruntime" else "auto"  # weights for AVX2 are right on every processor
    return int8_graph(tiny_file("residual"), samples("residual"), target, isa=isa)


@pytest.fixture
def wrong(target: str, monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """`wrong(edit)` lets the target's runtime compute edited graphs, in every way in which it loads them."""

    def plant(edit: Edit, *, dynamic_only: bool = False) -> None:
        if target == "onnxruntime":
            optimize_wrongly(monkeypatch, edit)
            return
        import openvino

        class Wrong(openvino.Core):  # type: ignore[misc]
            def read_model(self, path: Any) -> Any:
                model = onnx.load_from_string(path) if isinstance(path, bytes) else onnx.load(path)
                edit(model)
                self.wrong = super().read_model(model.SerializeToString())
                self.right = super().read_model(path)
                return self.right if dynamic_only else self.wrong

            def compile_model(self, model: Any, *args: Any) -> Any:
                model = self.wrong if dynamic_only and model.is_dynamic() else model
                return super().compile_model(model, *args)

        monkeypatch.setattr(openvino, "Core", Wrong)

    return plant


def drop_bias(name: str) -> Edit:
    """Take the bias from a layer, as a fusion that loses a term."""

    def edit(model: onnx.ModelProto) -> None:
        for node in model.graph.node:
            if node.name == name:
                del node.input[2:]

    return edit


def change_tensor(name: str, change: Callable[[Any], Any]) -> Edit:
    """Compute with other values of an initializer."""

    def edit(model: onnx.ModelProto) -> None:
        for tensor in model.graph.initializer:
            if tensor.name == name:
                tensor.CopyFrom(numpy_helper.from_array(change(numpy_helper.to_array(tensor)), name))

    return edit


def test_a_right_build_passes_on_samples(int8: Path, target: str, samples: MakePath, tmp_path: Path) -> None:
    data = str(samples("residual"))
    built = qcompile.build(int8, tmp_path / "b.onnx", target=target, precision="int8", data=data)
    check = check_of(built)
    assert check.passed
    assert check.detail.startswith("output 'y': ")
    assert check.detail.endswith(f" dB); 16 of 32 samples, spread, and 2 of other extents, {WAYS[target]}")
    assert " dB from its graph (quantization: " in check.detail


@pytest.mark.parametrize(
    ("precision", "layer"), [("int8", "conv1"), ("int8", "conv2"), ("int8", "gemm"), ("fp32", "conv2")]
)
def test_a_fusion_that_loses_a_term_fails_the_build_and_names_the_layer(
    precision: str, layer: str, int8: Path, target: str, wrong: Callable[..., None], tmp_path: Path
) -> None:
    path = int8 if precision == "int8" else tmp_path / "residual.onnx"
    options: dict[str, Any] = {"target": target, "precision": precision}
    assert check_of(qcompile.build(path, tmp_path / "a.onnx", **options)).passed
    wrong(drop_bias(layer))
    name = {"onnxruntime": "ONNX Runtime", "openvino": "OpenVINO"}[target]
    said = f"{name} computes something else, from layer '{layer}' on"
    with pytest.raises(IntentNotReached, match=said) as caught:
        qcompile.build(path, tmp_path / "b.onnx", **options)
    assert precision == "fp32" or f"`layers` {layer}=fp32" in caught.value.hint
    assert not (tmp_path / "b.onnx").exists()
    kept = qcompile.build(path, tmp_path / "b.onnx", **options, allow_fallback=True)
    assert not check_of(kept).passed
    assert any(f"from layer '{layer}' on" in warning for warning in kept.manifest.warnings)


def drop_integer_biases(*names: str) -> Edit:
    """Take the bias from layers where they are of integers."""

    def edit(model: onnx.ModelProto) -> None:
        integers = {node.output[0] for node in model.graph.node if node.op_type == "DequantizeLinear"}
        for node in model.graph.node:
            if node.name in names and node.input[1] in integers:
                del node.input[2:]

    return edit


@pytest.mark.parametrize("layers", [("conv1", "gemm"), ("conv1", "conv2", "gemm")])
def test_layers_that_are_wrong_in_int8_are_left_in_float_with_a_warning(
    layers: tuple[str, ...],
    target: str,
    tiny_file: MakePath,
    samples: MakePath,
    wrong: Callable[..., None],
    tmp_path: Path,
) -> None:
    model, data = tiny_file("residual"), str(samples("residual"))
    ranges = qcompile.calibrate(model, data, tmp_path / "m.ranges").path
    wrong(drop_integer_biases(*layers))
    options: dict[str, Any] = {"target": target, "precision": "int8", "ranges": ranges, "data": data}
    if len(layers) == 3:  # nothing would be left
        with pytest.raises(IntentNotReached, match="from layer 'conv1' on"):
            qcompile.build(model, tmp_path / "b.onnx", **options)
        return
    built = qcompile.build(model, tmp_path / "b.onnx", **options)
    assert check_of(built).passed
    said = [f"layer {name!r} stays in float: {target} computes it wrongly in INT8" for name in layers]
    assert sorted(set(said) & set(built.manifest.warnings)) == sorted(said)
    assert built.manifest.proof["reached_in_precision"] == 3 - len(layers)


@pytest.mark.parametrize("target", ["openvino"], indirect=True)
def test_a_recipe_leaves_a_wrong_layer_in_float_and_builds_no_attempt_twice(
    tiny_file: MakePath, samples: MakePath, wrong: Callable[..., None], tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    wrong(drop_integer_biases("conv1"))
    attempts = []
    build_once = building.build_engine

    def counted(engine: Any, request: Any) -> Any:
        attempts.append(request.spec.layers)
        return build_once(engine, request)

    monkeypatch.setattr(building, "build_engine", counted)
    (tmp_path / "recipe.toml").write_text(
        f'version = 1\nname = "net"\n[model]\nsource = "{tiny_file("residual")}"\n'
        f'[data]\ncalibration = "{samples("residual")}"\n'
        '[[artifact]]\nname = "int8"\ntarget = "openvino"\nprecision = "int8"\n'
    )
    report = qcompile.run(tmp_path / "recipe.toml")
    assert not report.failures
    assert attempts == [(), ("conv1=fp32",)]
    manifests = [path.read_text() for path in (tmp_path / "out").glob("*.json")]
    assert any("layer 'conv1' stays in float" in text for text in manifests)


def add_axis(model: onnx.ModelProto) -> None:
    """Give output y another axis, of extent 1: it broadcasts to the right one, and holds the same values."""
    for node in model.graph.node:
        node.output[:] = ["with one less" if name == "y" else name for name in node.output]
    axes = numpy_helper.from_array(np.int64([0]), "new axes")
    model.graph.initializer.append(axes)
    model.graph.node.append(onnx.helper.make_node("Unsqueeze", ["with one less", axes.name], ["y"]))
    for value in model.graph.output:
        value.type.tensor_type.ClearField("shape")


def test_an_output_with_an_axis_too_many_fails_the_build(
    int8: Path, target: str, wrong: Callable[..., None], samples: MakePath, tmp_path: Path
) -> None:
    wrong(add_axis)
    options: dict[str, Any] = {"target": target, "precision": "int8", "data": str(samples("residual"))}
    with pytest.raises(IntentNotReached, match=r"output 'y' is 1x\d+x\d+ where its graph gives \d+x\d+"):
        qcompile.build(int8, tmp_path / "b.onnx", **options)
    assert not (tmp_path / "b.onnx").exists()


@pytest.mark.parametrize("target", ["openvino"], indirect=True)
def test_an_error_of_dynamic_shapes_is_said(int8: Path, wrong: Callable[..., None], tmp_path: Path) -> None:
    wrong(drop_bias("conv2"), dynamic_only=True)
    said = "from layer 'conv2' on: .* it is right at their extents, and wrong with dynamic shapes"
    with pytest.raises(IntentNotReached, match=said) as caught:
        qcompile.build(int8, tmp_path / "b.onnx", target="openvino", precision="int8")
    assert "with fixed extents" in caught.value.hint


def test_other_extents_that_the_graph_refuses_are_left_out(target: str, tmp_path: Path) -> None:
    body = """(float[n,m] x) => (float[n,2] y) <float[3,2] w = {1,2,3,4,5,6}> { y = MatMul (x, w) }"""
    np.savez(tmp_path / "x.npz", x=np.random.default_rng(0).standard_normal((16, 3), np.float32))
    model = written(tmp_path / "m.onnx", body)
    built = qcompile.build(model, tmp_path / "b.onnx", target=target, data=str(tmp_path / "x.npz"))
    assert "; 16 samples and 2 of other extents, " in check_of(built).detail  # of the batch, not of m


def test_extents_that_nobody_gave_and_openvino_refuses_are_a_warning(tmp_path: Path) -> None:
    """As the height of PP-OCR's angle classifier is halved, for which a later MaxPool is too large."""
    body = """(float[n,1,h,4] x) => (float[n,1,k,2] y)
        { y = MaxPool <kernel_shape = [2,2], strides = [2,2], ceil_mode = 1> (x) }"""
    np.savez(tmp_path / "x.npz", x=np.random.default_rng(0).standard_normal((4, 1, 2, 4), np.float32))
    model = written(tmp_path / "m.onnx", body)
    built = qcompile.build(model, tmp_path / "b.onnx", target="openvino", data=str(tmp_path / "x.npz"))
    (warning,) = built.manifest.warnings
    assert "OpenVINO fails on x:4x1x1x4" in warning
    assert "the artifact refuses such input" in warning
    assert "of other extents, " in check_of(built).detail


def test_a_model_whose_quantization_costs_nothing_passes(target: str, tmp_path: Path) -> None:
    body = """(float[n,2] x) => (float[n,2] y)
        <float s = {1.0}, uint8 z = {128}, int8[2,2] w = {1, 2, -3, 4}, int8 v = {0}>
        { [a] q = QuantizeLinear (x, s, z) [b] d = DequantizeLinear (q, s, z)
          [c] u = DequantizeLinear (w, s, v) [product] m = MatMul (d, u)
          [d] p = QuantizeLinear (m, s, z) [e] y = DequantizeLinear (p, s, z) }"""
    np.savez(tmp_path / "x.npz", x=np.arange(32, dtype=np.float32).reshape(16, 2))
    model, data = written(tmp_path / "m.onnx", body), str(tmp_path / "x.npz")
    built = qcompile.build(
        model, tmp_path / "b.onnx", target=target, precision="int8", allow_fallback=True, data=data
    )
    assert check_of(built).passed
    told = "equal to its graph; 16 samples and 2 of other extents"
    assert check_of(built).detail == f"output 'y': {told}, {WAYS[target]}"


def test_dynamic_int8_is_compared(
    tiny_file: MakePath, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Weights of uint8 are right on every processor.
    path = qcompile.quantize(tiny_file("mlp"), tmp_path / "q.onnx", mode="dynamic", weight_type="uint8").path
    built = qcompile.build(path, tmp_path / "b.onnx", target="onnxruntime", precision="int8")
    assert check_of(built).passed
    (product,) = (node for node in onnx.load(path).graph.node if node.name == "matmul2_quant")
    optimize_wrongly(monkeypatch, change_tensor(product.input[1], lambda weights: np.minimum(weights, 160)))
    with pytest.raises(IntentNotReached, match="from layer 'matmul2_quant' on"):
        qcompile.build(path, tmp_path / "c.onnx", target="onnxruntime", precision="int8")


def assert_uncompared(built: Artifact, reason: str) -> None:
    assert not [check for check in built.manifest.checks if check.name == SUBJECT]
    said = [text for text in built.manifest.warnings if text.startswith("its values are not compared")]
    assert said == [f"its values are not compared with its graph's: {reason}"]


def test_a_random_graph_is_not_compared_and_a_warning_says_so(target: str, tmp_path: Path) -> None:
    body = "(float[2,4] x) => (float[2,4] y) { r = RandomNormal <shape = [2,4]> () y = Add (x, r) }"
    built = qcompile.build(written(tmp_path / "m.onnx", body), tmp_path / "b.onnx", target=target)
    assert_uncompared(built, "operators of the graph draw random numbers")


def test_without_onnx_runtime_openvino_is_not_compared(
    tiny_file: MakePath, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("openvino")

    def missing(*_: Any, **__: Any) -> None:
        raise EngineUnavailable("ONNX Runtime cannot be imported", engine="onnxruntime")

    monkeypatch.setattr(values, "session_options", missing)
    built = qcompile.build(tiny_file("mlp"), tmp_path / "b.onnx", target="openvino")
    assert_uncompared(built, "ONNX Runtime cannot be imported")


def test_values_for_another_processor_are_not_checked_where_it_overflows(
    tiny_file: MakePath, samples: MakePath, tmp_path: Path, on_processor: Callable[..., None]
) -> None:
    model = int8_graph(tiny_file("residual"), samples("residual"), "onnxruntime", isa="avx2")
    on_processor()
    built = qcompile.build(
        model, tmp_path / "b.onnx", target="onnxruntime", precision="int8", isa="avx512-vnni"
    )
    assert [one.name for one in built.manifest.checks] == ["runs after loading again"]
    (warning,) = [one for one in built.manifest.warnings if "values are not checked here" in one]
    assert "has no VNNI" in warning
    assert "qcompile diff" in warning


def test_few_samples_get_more(tiny_file: MakePath, samples: MakePath, target: str, tmp_path: Path) -> None:
    data = str(samples("mlp", 5))
    built = qcompile.build(tiny_file("mlp"), tmp_path / "b.onnx", target=target, data=data)
    assert "; 5 samples and 15 random inputs and 1 of other extents, " in check_of(built).detail


def test_made_up_input_that_the_graph_refuses_leaves_the_samples(target: str, tmp_path: Path) -> None:
    body = """(int64[n] x) => (float[n] y)
        <float[3] table = {1.0, 2.0, 3.0}, int64 ten = {10}, int64 one = {1}, int64 three = {3}>
        { a = Sub (x, one) b = Sub (three, x) c = Mul (a, b) i = Mul (c, ten) y = Gather (table, i) }"""
    model, data = written(tmp_path / "m.onnx", body), str(tmp_path / "x.npz")
    np.savez(data, x=np.array([1, 3]))  # 2, between them, is beyond the table
    check = check_of(qcompile.build(model, tmp_path / "b.onnx", target=target, data=data))
    assert check.detail == f"output 'y': equal to its graph; 2 samples, {WAYS[target]}"


def test_a_file_that_a_plain_loader_cannot_run_fails_the_build(
    tiny_file: MakePath, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("openvino")
    from qcompile.engines.openvino.engine import OpenVinoRunner

    infer = OpenVinoRunner.infer

    def refuse(self: OpenVinoRunner, feeds: Any) -> Any:
        if self._dynamic:
            raise ModelError("it fails")
        return infer(self, feeds)

    monkeypatch.setattr(OpenVinoRunner, "infer", refuse)
    with pytest.raises(IntentNotReached, match=r"OpenVINO does not run it: it fails \(with dynamic shapes\)"):
        qcompile.build(tiny_file("mlp"), tmp_path / "b.onnx", target="openvino")


@pytest.mark.parametrize("operator", ["TopK", "Split"])
def test_what_topk_chooses_is_no_fault_where_all_layers_are_right(
    operator: str, target: str, wrong: Callable[..., None], tmp_path: Path
) -> None:
    chosen = {"TopK": "[TopK] v, i = TopK (m, k)", "Split": "[Split] v, r = Split <axis = 1> (m, k2)"}
    body = f"""(float[n,2] x) => (float[n,2] y)
        <float[2,4] w = {{1, 2, 3, 4, 5, 6, 7, 8}}, int64[1] k = {{2}}, int64[2] k2 = {{2, 2}},
        float two = {{2}}>
        {{ [MatMul] m = MatMul (x, w) {chosen[operator]} [Mul] y = Mul (v, two) }}"""
    path = written(tmp_path / "m.onnx", body)

    wrong(change_tensor("two", np.negative))
    if operator == "Split":
        with pytest.raises(IntentNotReached, match="in the whole graph, and in no prefix of it"):
            qcompile.build(path, tmp_path / "b.onnx", target=target)
        return
    built = qcompile.build(path, tmp_path / "b.onnx", target=target)
    said = "its values are not compared with its graph's: TopK may choose other elements: output 'y': -6.0 dB"
    assert any(text.startswith(said) for text in built.manifest.warnings)
