"""The simulated TensorRT-RTX says and does what the real one does, where the real one runs without a GPU."""

from __future__ import annotations

import gc
import re
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import onnx
import pytest
import tensorrt_rtx
from onnx import parser as onnx_parser
from simulated_builder import Circumstances, simulated_tensorrt
from tensorrt_bench import Bench, listen

import qcompile

MakeFile = Callable[..., Path]
Graph = Callable[[str, str], Path]

COMPUTES = ("CONVOLUTION", "DECONVOLUTION", "MATRIX_MULTIPLY")
HELPERS = ("ONNXTRT_", "(Unnamed Layer")
UNKNOWN_OPERATOR = """<ir_version: 8, opset_import: ["" : 17, "com.example" : 1]>
    tiny (float[2,3] x) => (float[2,3] y) { h = Relu(x) y = com.example.Unknown(h) }"""


@pytest.fixture
def graph(tiny_file: MakeFile, samples: MakeFile, tmp_path: Path) -> Graph:
    """`graph("mlp", "int8")` returns a tiny model in a precision, as it is quantized for TensorRT."""

    def make(name: str, precision: str) -> Path:
        model = tiny_file(name)
        if precision == "fp32":
            return model
        ranges = qcompile.calibrate(model, str(samples(name)), tmp_path / "r.ranges", method="minmax").path
        output = tmp_path / f"{name}.{precision}.onnx"
        return qcompile.quantize(model, output, ranges=ranges, precision=precision, target="tensorrt").path

    return make


@pytest.fixture
def real() -> Iterator[Any]:
    """TensorRT-RTX itself; what it made is collected before another builder logs."""
    gc.collect()
    yield tensorrt_rtx
    gc.collect()


def outline(network: Any) -> dict[str, Any]:
    """What must be the same in both: I/O, what computes and on what, and the layers made of the graph."""
    layers = [network.get_layer(index) for index in range(network.num_layers)]
    tensors = [network.get_input(index) for index in range(network.num_inputs)]
    tensors += [network.get_output(index) for index in range(network.num_outputs)]

    def name(value: Any) -> str:
        return str(value).rsplit(".", 1)[-1]

    return {
        "io": [(item.name, name(item.dtype), tuple(item.shape), item.is_network_input) for item in tensors],
        "formats": [item.allowed_formats for item in tensors],
        "computes": [
            (
                layer.name,
                name(layer.type),
                layer.metadata,
                [(name(tensor.dtype), tuple(tensor.shape)) for tensor in inputs(layer)],
            )
            for layer in layers
            if name(layer.type) in COMPUTES
        ],
        "layers": Counter(name(layer.type) for layer in layers if not layer.name.startswith(HELPERS)),
    }


def inputs(layer: Any) -> list[Any]:
    """Those of a layer that are there."""
    return [layer.get_input(index) for index in range(layer.num_inputs) if layer.get_input(index) is not None]


@pytest.mark.parametrize("precision", ["fp32", "fp16", "int8"])
@pytest.mark.parametrize("name", ["residual", "mlp"])
def test_a_simulated_network_is_the_real_one(name: str, precision: str, graph: Graph, real: Any) -> None:
    model = graph(name, precision)
    ours, theirs = Bench(simulated_tensorrt("rtx"), model), Bench(real, model)
    assert ours.parsed
    assert theirs.parsed
    assert outline(ours.network) == outline(theirs.network)


def test_a_simulated_network_without_weights_is_the_real_one(tiny_file: MakeFile, real: Any) -> None:
    model = tiny_file("elementwise")
    assert outline(Bench(simulated_tensorrt("rtx"), model).network) == outline(Bench(real, model).network)


@pytest.mark.parametrize("name", ["squeezenet", "inception_v1", "bvlc_alexnet"])
def test_real_architectures_have_the_same_layers(name: str, light_models: dict[str, Path], real: Any) -> None:
    if name not in light_models:
        pytest.skip(f"this onnx has no light_{name}")
    ours, theirs = (
        outline(Bench(module, light_models[name]).network) for module in (simulated_tensorrt("rtx"), real)
    )
    for found in (ours, theirs):
        del found["layers"]["CONSTANT"]  # of folded shapes, which names tell apart
    assert ours["layers"] == theirs["layers"]
    assert ours["io"] == theirs["io"]
    assert [entry[:2] for entry in ours["computes"]] == [entry[:2] for entry in theirs["computes"]]


def refusal(bench: Bench) -> tuple[Any, ...]:
    """What a parser says of the first node that it refuses."""
    assert not bench.parsed
    assert bench.parser.num_errors == 1
    error = bench.parser.get_error(0)
    return (error.code().name, error.node(), error.node_name(), error.node_operator(), error.file())


def test_an_unknown_operator_is_refused_as_the_real_parser_does(tmp_path: Path, real: Any) -> None:
    model = tmp_path / "m.onnx"
    onnx.save(onnx_parser.parse_model(UNKNOWN_OPERATOR), model)
    ours, theirs = Bench(simulated_tensorrt("rtx"), model), Bench(real, model)
    assert refusal(ours) == refusal(theirs)
    assert ours.parser.get_error(0).desc() == theirs.parser.get_error(0).desc()


def test_what_is_stored_as_int32_is_refused_as_the_real_parser_does(
    tiny_file: MakeFile, samples: MakeFile, tmp_path: Path, real: Any
) -> None:
    model = tiny_file("residual")
    ranges = qcompile.calibrate(model, str(samples("residual")), tmp_path / "r.ranges", method="minmax").path
    wrong = qcompile.quantize(model, tmp_path / "q.onnx", ranges=ranges, target="onnxruntime").path
    ours, theirs = Bench(simulated_tensorrt("rtx"), wrong), Bench(real, wrong)
    assert refusal(ours) == refusal(theirs)
    reason = "b1_DequantizeLinear: input has type Int32 but must have type FP8, FP4, Int4, Int8, or UInt8."
    assert reason in ours.parser.get_error(0).desc()
    assert reason in theirs.parser.get_error(0).desc()


def test_the_oldest_parser_names_no_node_and_wants_explicit_batches(tmp_path: Path) -> None:
    model = tmp_path / "m.onnx"
    onnx.save(onnx_parser.parse_model(UNKNOWN_OPERATOR), model)
    module = simulated_tensorrt("8.5.3")
    error = Bench(module, model).parser.get_error(0)
    assert (error.code().name, error.node()) == ("UNSUPPORTED_NODE", 1)
    assert error.desc().startswith("Assertion failed: creator")
    assert not hasattr(error, "node_operator")
    log, said = listen(module)
    implicit = module.OnnxParser(module.Builder(log).create_network(0), log)
    assert not implicit.parse_from_file(str(model))
    assert "EXPLICIT_BATCH" in said.errors()[0]


def test_a_loaded_library_adds_its_operators(tmp_path: Path) -> None:
    model = onnx_parser.parse_model(UNKNOWN_OPERATOR)
    onnx.save(model, tmp_path / "m.onnx")
    module = simulated_tensorrt("10.16", Circumstances(plugins={"ours.so": {"Unknown"}}))
    assert not Bench(module, tmp_path / "m.onnx").parsed
    bench = Bench(module, tmp_path / "m.onnx", libraries=["ours.so"])
    network, said = bench.network, bench.said
    assert str(network.get_layer(1).type) == "LayerType.PLUGIN_V3"
    assert said.errors() == []


@pytest.mark.parametrize("simulated", [True, False], ids=["simulated", "real"])
def test_refused_settings_are_logged_and_return_normally(
    simulated: bool, tiny_file: MakeFile, real: Any
) -> None:
    reason = {"SAFETY_SCOPE": "kSAFETY_SCOPE cannot be set if kGPU_FALLBACK is set."}
    module = simulated_tensorrt("rtx", Circumstances(refused=reason)) if simulated else real
    bench = Bench(module, tiny_file("mlp"))
    bench.permit("GPU_FALLBACK", "SAFETY_SCOPE")
    assert not bench.config.get_flag(module.BuilderFlag.SAFETY_SCOPE)
    assert re.match(r"IBuilderConfig::setFlag: Error Code 3: API Usage Error \(", bench.said.errors()[0])
    with pytest.raises(TypeError, match="incompatible function arguments"):
        bench.config.set_flag(3)
    bench.config.builder_optimization_level = 9
    assert bench.config.builder_optimization_level == 5
    bench.said.clear()
    bench.config.max_aux_streams = -2
    assert bench.said == [
        (
            "WARNING",
            "nbStreams -2 should not be negative, IBuilderConfig::setMaxAuxStreams(-2) has no effect.",
        )
    ]
    bench.config.hardware_compatibility_level = module.HardwareCompatibilityLevel.AMPERE_PLUS
    assert bench.config.hardware_compatibility_level == module.HardwareCompatibilityLevel.NONE
    bench.permit("REFIT", "REFIT_IDENTICAL")
    assert not bench.config.get_flag(module.BuilderFlag.REFIT)
    assert bench.config.get_flag(module.BuilderFlag.TF32)


@pytest.mark.parametrize("simulated", [True, False], ids=["simulated", "real"])
def test_tensors_and_pools_refuse_what_the_real_ones_do(
    simulated: bool, tiny_file: MakeFile, real: Any
) -> None:
    bench = Bench(simulated_tensorrt("rtx") if simulated else real, tiny_file("mlp"))
    tensor, inner = bench.network.get_input(0), bench.network.get_layer(0).get_output(0)
    tensor.allowed_formats = 1 << int(bench.module.TensorFormat.CHW32)
    assert tensor.allowed_formats == 1 << 5
    with pytest.raises(AttributeError, match="property of 'ITensor' object has no setter"):
        tensor.dtype = bench.module.float16
    bench.said.clear()
    inner.allowed_formats = 1
    assert inner.allowed_formats == 8191
    ((severity, text),) = (item for item in bench.said if item[0] != "VERBOSE")
    assert (severity, text[:40]) == ("WARNING", "Tensor Formats are determined at build t")
    pool = bench.module.MemoryPoolType.DLA_MANAGED_SRAM
    bench.config.set_memory_pool_limit(pool, 1000)
    assert bench.config.get_memory_pool_limit(pool) == 0
    assert "Setting DLA memory pool size on TensorRT build with DLA disabled." in bench.said.errors()[0]
    assert bench.builder.get_plugin_registry().load_library("/nonexistent.so") is None
    assert any("Unable to load library: /nonexistent.so" in text for text in bench.said.errors())


@pytest.mark.parametrize("simulated", [True, False], ids=["simulated", "real"])
def test_profiles_are_refused_in_the_real_words(simulated: bool, tiny_file: MakeFile, real: Any) -> None:
    bench = Bench(simulated_tensorrt("rtx") if simulated else real, tiny_file("mlp"))
    bench.config.num_compute_capabilities = 1
    bench.config.set_compute_capability(bench.module.ComputeCapability.SM86, 0)
    assert bench.build() is None
    assert "but no optimization profile has been defined." in bench.said.errors()[0]
    bench.said.clear()
    profile = bench.builder.create_optimization_profile()
    profile.set_shape("x", (4, 16), (2, 16), (1, 16))
    assert bench.config.add_optimization_profile(profile) == -1
    assert "Invalid optimization profiles for input tensors x" in bench.said.errors()[0]
    profile = bench.builder.create_optimization_profile()
    profile.set_shape("x", (1, 16), (2, 16), (4, 17))
    assert bench.config.add_optimization_profile(profile) == 0
    bench.said.clear()
    assert bench.build() is None
    assert (
        "At dimension axis 1, profile has min=16, opt=16, max=17 but tensor has 16." in bench.said.errors()[0]
    )


@pytest.mark.parametrize("simulated", [True, False], ids=["simulated", "real"])
def test_a_monitor_that_ends_a_build_ends_its_phases(simulated: bool, tiny_file: MakeFile, real: Any) -> None:
    module = simulated_tensorrt("rtx") if simulated else real
    told: list[tuple[str, str]] = []

    class Monitor(module.IProgressMonitor):  # type: ignore[misc]
        def __init__(self) -> None:
            module.IProgressMonitor.__init__(self)

        def phase_start(self, phase: str, parent: str | None, steps: int) -> None:
            told.append(("start", phase))

        def step_complete(self, phase: str, step: int) -> bool:
            return False

        def phase_finish(self, phase: str) -> None:
            told.append(("finish", phase))

    bench = Bench(module, tiny_file("mlp"))
    bench.config.num_compute_capabilities = 1
    bench.config.set_compute_capability(module.ComputeCapability.SM86, 0)
    bench.add_profile()
    monitor = bench.config.progress_monitor = Monitor()
    assert monitor is not None
    assert bench.build() is None
    outer, inner = "Building engine", "Cloning network graph"
    assert told == [("start", outer), ("start", inner), ("finish", inner), ("finish", outer)]
    assert "BuildCanceled" in bench.said.errors()[0]
