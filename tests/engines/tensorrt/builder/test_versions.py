"""One intent on TensorRT 8.5, 10 and 11: reached by what each version has, and proven afterwards."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
import tensorrt_rtx
from mode_models import written
from simulated_machine import Machine

from qcompile.calibration import calibrate, load_ranges
from qcompile.engines.tensorrt.adapter import load_adapter
from qcompile.engines.tensorrt.builder.network import _layers_by_node, parse
from qcompile.engines.tensorrt.log import make_log
from qcompile.errors import BuildError, IntentNotReached, InvalidOption, QCompileError, UnsupportedOperator

MakeFile = Callable[..., Path]
OnMachine = Callable[..., Machine]
NETWORK = {"CONVOLUTION": 2, "MATRIX_MULTIPLY": 1}


@pytest.fixture
def ranges(model: Path, samples: MakeFile, tmp_path: Path) -> Path:
    """Its ranges."""
    return calibrate(model, str(samples("residual")), tmp_path / "m.ranges", method="minmax").path


@pytest.mark.parametrize("version", ["8.5.3", "10.16", "11.4"])
@pytest.mark.parametrize("precision", ["fp32", "tf32", "fp16", "int8"])
def test_every_version_reaches_every_precision_it_has_and_float32_means_float32(
    version: str, precision: str, machine: OnMachine, model: Path, ranges: Path
) -> None:
    here = machine(version)
    manifest = here.build(model, precision, ranges=ranges if precision == "int8" else None).manifest
    assert manifest.proof["layers_by_precision"] == {precision: NETWORK}
    assert manifest.proof["planned_in_precision"] == manifest.proof["reached_in_precision"] == 3
    assert manifest.proof["typing"] == ("weak" if version == "8.5.3" else "strong")
    assert manifest.proof["fell_back"] == {}
    if (version, precision) == ("11.4", "fp16"):
        # rf-detr issue 1453: a tool went on asking for FP16 by a flag, TensorRT 11 had none, and built FP32.
        assert manifest.proof["engine_layers_by_precision"].keys() == {"fp16"}
    assert ("TF32" in here.flags()) == (precision == "tf32")
    weak = {"fp16": {"FP16"}, "int8": {"INT8", "FP16"}} if version == "8.5.3" else {}
    assert here.flags() - {"TF32"} == weak.get(precision, set())
    assert manifest.tools["tensorrt"].startswith(version)
    assert (manifest.device["gpu"], manifest.device["gpus"]) == ("Simulated A10", ["sm86"])


@pytest.mark.parametrize(
    ("version", "fallback", "said"),
    [
        *[(one, {"conv2"}, r"2 of 3 layers .*: conv2 \(\d.*%: fp32: ") for one in ("8.5.3", "10.16")],
        ("11.4", {"conv1", "conv2", "gemm"}, "0 of 3 layers that compute reached it"),
    ],
)
def test_layers_that_fell_back_are_named_with_reason(
    version: str, fallback: set[str], said: str, machine: OnMachine, model: Path
) -> None:
    here = machine(version, fallback=fallback)
    with pytest.raises(IntentNotReached, match=said) as caught:
        here.build(model, "fp16")
    assert "`allow_fallback`" in caught.value.hint
    assert here.nothing_built
    kept = here.build(model, "fp16", allow_fallback=True).manifest
    assert any("conv2" in text for text in kept.warnings)
    both = {"fp16": {"CONVOLUTION": 1, "MATRIX_MULTIPLY": 1}, "fp32": {"CONVOLUTION": 1}}
    assert kept.proof["layers_by_precision"] == (both if len(fallback) == 1 else {"fp32": NETWORK})


def test_what_the_engine_is_made_of_is_recorded(machine: OnMachine, model: Path) -> None:
    proof = machine("10.16").build(model, "fp16").manifest.proof
    assert proof["device_memory_bytes"] == 1 << 20
    assert int(str(proof["weights_bytes"])) > 0
    assert int(str(proof["tactics"])) >= 1
    assert int(str(proof["fused_layers"])) >= 1
    assert machine("8.5.3").build(model, name="old").manifest.proof["weights_bytes"] is None


@pytest.mark.parametrize(
    ("version", "precision", "options", "said"),
    [
        ("8.5.3", "bf16", {}, r"tensorrt 8\.5\.3"),
        ("8.5.3", "fp8", {}, r"tensorrt 8\.5\.3"),
        ("11.4", "int8", {"calibrator": "ranges"}, "has no INT8 calibrators.*leave `calibrator` out"),
    ],
)
def test_what_a_version_has_in_neither_way_is_refused(
    version: str, precision: str, options: dict[str, Any], said: str, machine: OnMachine, model: Path,
    ranges: Path,
) -> None:  # fmt: skip
    here = machine(version)
    with pytest.raises((InvalidOption, UnsupportedOperator), match=f"(?s){said}"):
        here.build(model, precision, ranges=None if precision == "bf16" else ranges, **options)
    assert here.nothing_built


@pytest.mark.parametrize("version", ["8.5.3", "10.16"])
def test_our_ranges_are_set_on_tensors(version: str, machine: OnMachine, model: Path, ranges: Path) -> None:
    here = machine(version)
    manifest = here.build(model, "int8", ranges=ranges, calibrator="ranges").manifest
    assert manifest.proof["layers_by_precision"] == {"int8": NETWORK}
    assert (manifest.proof["calibrator"], manifest.proof["calibration_batches"]) == ("ranges", 0)
    assert manifest.proof["typing"] == "weak"
    assert "INT8" in here.flags()
    assert here.told("int8_calibrator") == []
    found = load_ranges(ranges)
    expected = {(-found.amax(name), found.amax(name)) for name in found.names()}
    assert set(here.told("set_dynamic_range")) == expected


@pytest.mark.parametrize("said", ["", "ITensor::setDynamicRange: Error Code 3: API Usage Error (no)"])
def test_a_range_that_tensorrt_does_not_take_is_an_error(
    said: str, machine: OnMachine, model: Path, ranges: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    here = machine("10.16")

    def refuse(tensor: Any, low: float, high: float) -> bool:
        if said:
            tensor._log.log(here.module.ILogger.Severity.ERROR, said)
        return not low < high

    monkeypatch.setattr(here.module.ITensor, "set_dynamic_range", refuse)
    message = "`calibrator` ranges: tensor 'x'" if said else "takes no range for .* tensors: x"
    with pytest.raises(QCompileError, match=message):
        here.build(model, "int8", ranges=ranges, calibrator="ranges")
    assert here.nothing_built


@pytest.mark.parametrize("version", ["8.5.3", "10.16", "11.4"])
def test_layers_are_kept_above_the_precision(version: str, machine: OnMachine, model: Path) -> None:
    here = machine(version)
    proof = here.build(model, "fp16", layers={"Gemm": "fp32", "conv1": "fp32", "*1": "fp16"}).manifest.proof
    # The last pattern that names a node decides: conv1 is fp16 again.
    assert proof["layers_by_precision"] == {"fp16": {"CONVOLUTION": 2}, "fp32": {"MATRIX_MULTIPLY": 1}}
    assert ("OBEY_PRECISION_CONSTRAINTS" in here.flags()) == (version == "8.5.3")


def test_best_is_int8_with_fp16_with_ranges_else_fp16(machine: OnMachine, model: Path, ranges: Path) -> None:
    here = machine("8.5.3")
    assert here.build(model, "best").manifest.precision == "fp16"
    manifest = here.build(model, "best", ranges=ranges).manifest
    assert (manifest.precision, manifest.options["float_precision"]) == ("int8", "fp16")
    assert here.flags() == {"INT8", "FP16", "TF32"}


@pytest.mark.parametrize(("version", "opset"), [("8.5.3", 16), ("10.16", 18)])
def test_an_opset_unknown_to_the_parser_is_written_down_to_it(
    version: str, opset: int, machine: OnMachine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # ReduceMean takes its axes as an input from 18 on: a parser of 17 may ignore it and reduce everything.
    body = """(float[1,3,8,8] x) => (float[1,4] y) {
        [conv] c = Conv (x, w) [mean] y = ReduceMean <keepdims = 0> (c, axes) }"""
    weights = {"w": np.ones((4, 3, 1, 1), np.float32), "axes": np.array([2, 3])}
    written(tmp_path / "m.onnx", body, opset=18, **weights)
    parsed: list[onnx.ModelProto] = []
    here = machine(version)
    parse_file = here.module.OnnxParser.parse_from_file

    def keep(parser: Any, path: str) -> bool:
        parsed.append(onnx.load(path))
        return bool(parse_file(parser, path))

    monkeypatch.setattr(here.module.OnnxParser, "parse_from_file", keep)
    here.build(tmp_path / "m.onnx")
    (given,) = parsed
    assert given.opset_import[0].version == opset  # LayerNormalization came with 17, and 8.5 lacks it
    mean = next(node for node in given.graph.node if node.op_type == "ReduceMean")
    assert [list(a.ints) for a in mean.attribute if a.name == "axes"] == [[2, 3]] * (opset == 16)
    assert len(mean.input) == (1 if opset == 16 else 2)


@pytest.mark.parametrize(("version", "opset"), [("8.5.3", 16), ("10.16", 17)])
def test_a_refused_node_is_named_with_opset_and_pytorch_module(
    version: str, opset: int, machine: OnMachine, tmp_path: Path
) -> None:
    text = """<ir_version: 8, opset_import: ["" : 17, "com.example" : 1]>
        tiny (float[2,3] x) => (float[2,3] y) { h = Relu(x) [odd] y = com.example.Unknown(h) }"""
    made = onnx.parser.parse_model(text)
    scopes = ": net.Net/layer4: torch.nn.modules.container.Sequential/layer4.1: net.Odd/odd: my.odd"
    made.graph.node[1].metadata_props.add(key="namespace", value=scopes)
    onnx.save(made, tmp_path / "m.onnx")
    said = rf"refuses Unknown 'odd' of opset {opset} \(PyTorch module layer4\.1\)"
    with pytest.raises(UnsupportedOperator, match=said):
        machine(version).build(tmp_path / "m.onnx")


@pytest.mark.parametrize(
    ("about", "said", "hint"),
    [
        ({"out_of_memory": True}, "the GPU's memory does not suffice", "`max_shapes` or `workspace`"),
        ({"needed_workspace": 1 << 40}, "no kernel fits the workspace", "raise `workspace`"),
        ({"no_kernel_for": "conv2"}, "no kernel for a layer: .*conv2", "`layers`"),
    ],
)
@pytest.mark.parametrize("version", ["8.5.3", "10.16", "11.4"])
def test_a_failed_build_says_what_the_log_means_and_the_way_out(
    version: str, about: dict[str, Any], said: str, hint: str, machine: OnMachine, model: Path
) -> None:
    here = machine(version, **about)
    with pytest.raises(BuildError, match=said) as caught:
        here.build(model)
    assert hint in caught.value.hint
    assert here.nothing_built


@pytest.fixture
def named_layers(tmp_path: Path) -> Path:
    """h + float(int(h) + 1) of a product h, times w; with a Constant that the parser folds away."""
    body = """(float[2,8] x) => (float[2,8] y) {
        ["head/constant"] shape = Constant <value = int64[2] {-1, 8}> ()
        ["head/product"] h = MatMul (x, w) ["head/to_int"] i = Cast <to = 6> (h)
        ["head/integers"] j = Add (i, one) ["head/to_float"] f = Cast <to = 1> (j)
        ["head/sum"] s = Add (h, f) ["head/reshape"] r = Reshape (s, shape) [tail] y = MatMul (r, w) }"""
    weights = {"w": np.eye(8, dtype=np.float32), "one": np.ones(1, np.int32)}
    return written(tmp_path / "m.onnx", body, opset=16, **weights)


def forced(here: Machine) -> int:
    """How many layers were given a precision."""
    return sum(call.member == "precision" and call.written for call in here.module.recorded_calls)


@pytest.mark.parametrize(("version", "options"), [("8.5.3", None), ("10.16", {"typing": "weak"})])
def test_a_glob_forces_what_computes_floats_and_says_what_is_not_there(
    version: str, options: dict[str, Any] | None, machine: OnMachine, named_layers: Path
) -> None:
    here = machine(version)
    manifest = here.build(named_layers, "fp16", layers={"head/*": "fp32"}, options=options).manifest
    assert forced(here) == 4  # the product, the cast to float, the sum and the reshape
    assert {dtype.name for _, dtype in here.told("set_output_type")} == {"FLOAT"}
    assert "1 of 7 named layers are not in the network: head/constant" in manifest.warnings


@pytest.mark.parametrize("names", [["head/constant"], ["*constant"], ["head/product", "head/constant"]])
def test_a_name_of_which_no_layer_is_left_is_refused_and_integers_are_not_forced(
    names: list[str], machine: OnMachine, named_layers: Path
) -> None:
    here = machine("8.5.3")
    with pytest.raises(InvalidOption, match=r"`layers`: the network has no layer head/constant$"):
        here.build(named_layers, "fp16", layers=dict.fromkeys(names, "fp32"))
    here.build(named_layers, "fp16", layers={"head/integers": "fp32", "head/product": "fp32"})
    assert forced(here) == 1


def test_the_layers_of_a_node_are_found_by_name_number_and_metadata(tmp_path: Path) -> None:
    """As TensorRT-RTX's real parser names them: the first after the node, others with a number behind."""
    body = """(int32[4] x, int32[4] d) => (int32[4] y, int64[1] s) {
        [rest] y = Mod (x, d) [extent] s = Shape <start = 0> (x) }"""
    path = written(tmp_path / "m.onnx", body)
    adapter, log = load_adapter("tensorrt-rtx"), make_log(tensorrt_rtx)
    network = tensorrt_rtx.Builder(log.logger).create_network(adapter.network_flags())
    kept = parse(adapter, network, log, path)
    found = _layers_by_node(network, {"rest", "extent", "none"})
    names = {node: [layer.name for layer in layers] for node, layers in found.items()}
    assert names["rest"] == ["rest"]
    assert names["extent"][0] == "extent"
    assert re.fullmatch(r"extent_\d+", names["extent"][1])
    assert set(names) == {"rest", "extent"}
    assert kept
