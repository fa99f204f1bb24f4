"""ONNX Runtime on emulated processors: which kernels run, what files of `quantize` compute, what is refused.

The network is the trained ResNet-20 of `examples/digits`; samples are those that it is evaluated on. The
reference of a graph is computed here without integer kernels, so that no result depends on this processor.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from emulated import PROCESSORS, require_emulated, run_emulated
from numpy.typing import NDArray
from onnx import numpy_helper
from written_models import one_node, text_model

import qcompile
from qcompile.core.processor import is_arm
from qcompile.data.batches import Data
from qcompile.engines.base import BuildRequest, Runner
from qcompile.engines.values import Execution, ValueCheck, check_values
from qcompile.model.graph.graph import model_io
from qcompile.model.graph.onnx_file import read_graph
from qcompile.model.outputs.judgement import output_error
from qcompile.model.sessions.session import make_session, run_session, session_options
from qcompile.spec.artifacts import BuildSpec

Array = NDArray[Any]
Made = Callable[..., Path]
DIGITS = Path(__file__).parents[2] / "examples/digits"
IMAGES = 32
ISAS = {"haswell": "avx2", "cortex-a57": "neon", "neoverse-n1": "neon-dotprod", "arm-max": "i8mm"}
AGREES_DB = 40.0
"""Executed against the graph's own reference: integer kernels may round to the next integer."""
LOSES_DB = 0.2
"""What execution may lose of the signal-to-noise ratio that the graph has against the float model."""


def test_what_is_missing_skips_here_and_fails_in_ci(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("platform.machine", lambda: "x86_64")
    monkeypatch.setattr("shutil.which", lambda _program: None)
    monkeypatch.delenv("CI", raising=False)
    for name, (program, _) in PROCESSORS.items():
        with pytest.raises(pytest.skip.Exception, match=f"no {program} here: apt-get install qemu-user"):
            require_emulated(name)
    monkeypatch.setenv("CI", "true")
    with pytest.raises(pytest.fail.Exception, match="CI: no qemu-x86_64 here: apt-get install qemu-user"):
        require_emulated("haswell")


@dataclass(frozen=True)
class Digits:
    """The float model with its ranges, images [32, 3, 32, 32], and its outputs."""

    model: Path
    ranges: Path
    images: Array
    expected: Array

    def quantize(self, folder: Path, **options: Any) -> qcompile.Artifact:
        return qcompile.quantize(self.model, folder / "q.onnx", ranges=self.ranges, **options)


@pytest.fixture(scope="module")
def digits(tmp_path_factory: pytest.TempPathFactory) -> Digits:
    folder = tmp_path_factory.mktemp("digits")
    model, ranges = folder / "model.onnx", folder / "model.ranges"
    shape = "image:[batch,3,32,32]"
    qcompile.export(f"{DIGITS}/model.py:build", folder / "exported.onnx", inputs=[shape])
    qcompile.simplify(folder / "exported.onnx", model)
    qcompile.calibrate(model, f"{DIGITS}/data.py:calibration", ranges)
    batch = next(iter(Data(f"{DIGITS}/data.py:evaluation", model_io(onnx.load(model)).inputs)))
    images = batch.feeds["image"][:IMAGES]
    return Digits(model, ranges, images, as_written(model, {"image": images}))


def as_written(path: Path, feeds: dict[str, Array]) -> Array:
    """The first output, with Q/DQ rounding floats."""
    session = make_session(
        path, session_options(integers=False, layouts=False), without=["WeightBiasQuantization"]
    )
    (output, *_) = run_session(session, [value.name for value in session.get_outputs()], feeds, str(path))
    return np.asarray(output)


def snr_db(expected: Array, output: Array) -> float:
    return output_error(expected, output).snr_db


@pytest.mark.parametrize("processor", ISAS)
def test_a_trained_network_computes_what_its_graph_says(
    processor: str, digits: Digits, tmp_path: Path
) -> None:
    """The emulated processor, not the host, decides the kernels: Haswell alone adds products in 16 bits."""
    require_emulated(processor)
    feeds = {"image": digits.images}
    path = digits.quantize(tmp_path, isa=ISAS[processor]).path
    product = one_node("MatMulInteger", {"a": 2, "b": 3}, {"y": 6})
    largest = {"a": np.full((1, 2), 255, np.uint8), "b": np.full((2, 1), 127, np.int8)}
    results, sums = run_emulated(processor, [(path, feeds), (product, largest)], tmp_path)
    assert sums["y"] == (32767 if processor == "haswell" else 2 * 255 * 127)
    reference, output = as_written(path, feeds), next(iter(results.values()))
    assert snr_db(reference, output) > AGREES_DB
    assert snr_db(digits.expected, output) > snr_db(digits.expected, reference) - LOSES_DB
    assert snr_db(digits.expected, output) > 34  # 38.5 dB; with weights of seven bits 32.4 dB
    np.testing.assert_array_equal(output.argmax(-1), digits.expected.argmax(-1))


def test_samples_take_it_to_the_decibels_of_vnni_and_gptq_beyond_them(digits: Digits, tmp_path: Path) -> None:
    """Both against the reference of the graph, here 41.8 dB for VNNI, whose file is wrong on a Haswell."""
    require_emulated("haswell")
    feeds, graphs, paths = {"image": digits.images}, [], []
    for isa, rounding in (("avx512-vnni", "rtn"), ("avx2", "rtn"), ("avx2", "gptq")):
        made = qcompile.quantize(
            digits.model, tmp_path / f"{isa}-{rounding}.onnx", ranges=digits.ranges, isa=isa,  # type: ignore[arg-type]
            rounding=rounding, search=False, data=f"{DIGITS}/data.py:calibration", allow_loss=True,  # type: ignore[arg-type]
        )  # fmt: skip
        paths.append(made.path)
        graphs.append(snr_db(digits.expected, as_written(made.path, feeds)))
    outputs = run_emulated("haswell", [(path, feeds) for path in paths], tmp_path)
    for_vnni, nearest, by_gptq = (snr_db(digits.expected, next(iter(output.values()))) for output in outputs)
    assert for_vnni < 20
    assert nearest > max(graphs[0] - 2, graphs[1] - LOSES_DB)
    assert by_gptq > max(graphs[0], graphs[2] - LOSES_DB)


@pytest.mark.skipif(is_arm(), reason="oneDNN's AVX2 kernels are of x86")
def test_openvino_with_kernels_for_avx2_computes_what_its_graph_says(digits: Digits, tmp_path: Path) -> None:
    made = digits.quantize(tmp_path, target="openvino", isa="avx2")
    np.save(tmp_path / "images.npy", digits.images)
    code = """import sys, numpy, openvino
compiled = openvino.Core().compile_model(sys.argv[1], "CPU", {"INFERENCE_PRECISION_HINT": "f32"})
numpy.save(sys.argv[3], compiled([numpy.load(sys.argv[2])])[0])"""
    names = [str(tmp_path / name) for name in ("q.onnx", "images.npy", "output.npy")]
    environment = {**os.environ, "ONEDNN_MAX_CPU_ISA": "AVX2"}
    subprocess.run([sys.executable, "-c", code, *names], env=environment, check=True, timeout=120)
    output, reference = np.load(names[2]), as_written(made.path, {"image": digits.images})
    assert snr_db(reference, output) > AGREES_DB
    assert snr_db(digits.expected, output) > snr_db(digits.expected, reference) - LOSES_DB


def dynamic_network(path: Path) -> Path:
    """An LSTM and a product, whose weights have pairs that overflow with eight bits."""
    random = np.random.default_rng(3)
    shapes = {"w": (1, 32, 12), "r": (1, 32, 8), "v": (8, 6)}  # values of one sign: every pair is large
    weights = {
        name: np.float32(np.abs(random.standard_normal(shape)) * 0.2) for name, shape in shapes.items()
    }
    text = """(float[5,2,12] x) => (float[1,2,6] y) {
        [lstm] none, h, c = LSTM <hidden_size = 8> (x, w, r) [product] y = MatMul (h, v) }"""
    onnx.save(text_model(text, **weights), path)
    return path


@pytest.mark.parametrize(("isa", "least_db", "most_db"), [("avx2", 36, 200), ("avx512-vnni", -200, 25)])
def test_dynamic_products_and_lstms_are_right_on_a_haswell_where_they_are_for_it(
    isa: str, least_db: float, most_db: float, tmp_path: Path
) -> None:
    require_emulated("haswell")
    model = dynamic_network(tmp_path / "m.onnx")
    x = np.random.default_rng(4).standard_normal((5, 2, 12)).astype(np.float32)
    made = qcompile.quantize(model, tmp_path / "q.onnx", mode="dynamic", isa=isa)  # type: ignore[arg-type]
    (outputs,) = run_emulated("haswell", [(made.path, {"x": x})], tmp_path)
    output = next(iter(outputs.values()))
    assert least_db < snr_db(as_written(model, {"x": x}), output) < most_db


def test_no_weight_is_minus_128(digits: Digits, tmp_path: Path) -> None:
    """Kernels for ARM without dot products add two products in 16 bits, too: only -128 overflows there."""
    data = f"{DIGITS}/data.py:calibration"
    made = digits.quantize(tmp_path, isa="neon", rounding="gptq", search=False, data=data, allow_loss=True)
    weights = [t for t in onnx.load(made.path).graph.initializer if t.data_type == 3 and len(t.dims) > 1]
    assert min(int(numpy_helper.to_array(tensor).min()) for tensor in weights) >= -127


class OnHaswell(Runner):
    """A file with the default options of ONNX Runtime there, which optimize it there."""

    def __init__(self, path: Path) -> None:
        self.path, self.io = path, model_io(read_graph(path).load())

    def infer(self, feeds: dict[str, Array]) -> dict[str, Array]:
        (outputs,) = run_emulated("haswell", [(self.path, feeds)], self.path.parent / "haswell")
        return outputs

    def prepare(self, feeds: dict[str, Array]) -> Any:
        return lambda: self.infer(feeds)

    def close(self) -> None:
        pass


@pytest.fixture
def checked(on_processor: Callable[..., None]) -> Callable[[Path, Array], ValueCheck]:
    require_emulated("haswell")
    on_processor()  # no VNNI

    def check(path: Path, x: Array) -> ValueCheck:
        request = BuildRequest(
            str(path), path, BuildSpec(target="onnxruntime", precision="int8", isa="avx2"), samples=[{"x": x}]
        )
        execution = Execution("ONNX Runtime", shutil.copyfile, {"as it is": OnHaswell})
        return check_values(request, read_graph(path).load(), path, execution, {"x": x})

    return check


@pytest.mark.parametrize("isa", ["avx512-vnni", "avx2"])
def test_convolutions_that_overflow_are_found_and_named(
    isa: str, tiny_file: Made, samples: Made, tmp_path: Path, checked: Callable[..., ValueCheck]
) -> None:
    model, data = tiny_file("residual"), samples("residual", 16)
    ranges = qcompile.calibrate(model, str(data), tmp_path / "r").path
    path = qcompile.quantize(model, tmp_path / "q.onnx", ranges=ranges, target="onnxruntime", isa=isa).path
    found = checked(path, np.load(data)["x"])
    assert [check.passed for check in found.checks] == [isa == "avx2"]
    if isa != "avx2":
        assert "ONNX Runtime computes something else, from layer 'conv1' on: output 'y': " in found.failure
        assert found.failure.endswith(
            "pairs of its products overflow the 16 bits in which this processor adds them"
        )
        assert found.hint == "quantize it again with `isa` avx2, or give `allow_fallback`"


@pytest.mark.parametrize(
    ("isa", "weight_type"), [("avx512-vnni", "int8"), ("avx512-vnni", "uint8"), ("avx2", "int8")]
)
def test_dynamic_products_that_overflow_are_found_and_named(
    isa: str, weight_type: str, tiny_file: Made, tmp_path: Path, checked: Callable[..., ValueCheck]
) -> None:
    path = qcompile.quantize(
        tiny_file("mlp"), tmp_path / "q.onnx", mode="dynamic", weight_type=weight_type, isa=isa
    ).path  # fmt: skip
    found = checked(path, np.random.default_rng(0).standard_normal((16, 16)).astype(np.float32))
    overflow = (isa, weight_type) == ("avx512-vnni", "int8")
    assert [check.passed for check in found.checks] == [not overflow]
    if overflow:
        assert "from layer 'matmul1_quant' on" in found.failure
        assert found.hint == "quantize it again with `isa` avx2, or give `allow_fallback`"
