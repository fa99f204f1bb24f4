"""The real TensorRT-RTX builder, for GPUs that are not here, and Ctrl-C while it builds."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from int8_graphs import int8_graph
from recorded_tensorrt import recorded_module

import qcompile
from qcompile.core.artifact import Artifact
from qcompile.engines.base import BuildRequest
from qcompile.engines.build import build_engine
from qcompile.engines.gpu import why_no_gpu
from qcompile.engines.registry import engine
from qcompile.engines.tensorrt.adapter import Adapter, load_adapter
from qcompile.engines.tensorrt.builder import builder
from qcompile.engines.tensorrt.builder.builder import defer_interrupts
from qcompile.engines.tensorrt.builder.network import mark_debug_tensors
from qcompile.errors import BuildError, IntentNotReached, InvalidOption, UnsupportedOperator
from qcompile.spec.artifacts import BuildSpec
from qcompile.spec.words import GraphTarget, Precision

MakeFile = Callable[..., Path]
GPUS = ["sm86", "sm89"]
LAYERS = {"CONVOLUTION": 2, "MATRIX_MULTIPLY": 1}
NO_GPU = pytest.mark.skipif(not why_no_gpu(), reason="a GPU is here, and is then meant")

Graph = Callable[[Precision, GraphTarget], Path]

COLLECT_WHILE_TENSORRT_LOGS = """
import faulthandler, gc, sys
faulthandler.dump_traceback_later(100, exit=True)
from pathlib import Path
from qcompile.engines.base import BuildRequest
from qcompile.engines.build import build_engine
from qcompile.engines.registry import engine
from qcompile.engines.tensorrt.builder import builder
from qcompile.errors import QCompileError
from qcompile.spec.artifacts import BuildSpec

def collecting(module, make_log=builder.make_log):
    log = make_log(module)
    kind = type(log.logger)
    keep = kind.log

    def collect(self, severity, message):
        if gc.isenabled():
            gc.collect()  # as Python does by itself, at any allocation
        keep(self, severity, message)

    kind.log = collect
    return log

def build(gpu):
    spec = BuildSpec(target="tensorrt-rtx", gpus=[gpu])
    return build_engine(engine("tensorrt-rtx"), BuildRequest(sys.argv[1], Path(sys.argv[2]), spec))

try:
    build("sm90")
except QCompileError as error:
    error.itself = error  # a cycle, as errors that are kept with their frames are
builder.make_log = collecting
print(build("sm86").manifest.kind)
"""


def build(model: Path, precision: Precision = "fp32", **options: Any) -> Artifact:
    """Build for Ampere and Ada, unless other GPUs are named."""
    output = model.parent / "built" / "m.engine"
    more = {"progress": options.pop("progress")} if "progress" in options else {}
    spec = BuildSpec(target="tensorrt-rtx", precision=precision, **({"gpus": GPUS} | options))
    return build_engine(engine("tensorrt-rtx"), BuildRequest(str(model), output, spec, **more))


def nothing_built(model: Path) -> bool:
    """Whether a failed build left no file."""
    folder = model.parent / "built"
    return not folder.exists() or list(folder.iterdir()) == []


@pytest.fixture
def graph(tiny_file: MakeFile, samples: MakeFile) -> Graph:
    """`graph("int8", "tensorrt")` returns the tiny residual model in a precision."""

    def make(precision: Precision, target: GraphTarget) -> Path:
        model = tiny_file("residual")
        return model if precision == "fp32" else int8_graph(model, samples("residual"), target)

    return make


def test_inputs_outputs_and_shapes_are_recorded(tiny_file: MakeFile) -> None:
    manifest = build(tiny_file("residual")).manifest
    assert manifest.io is not None
    assert [str(tensor) for tensor in manifest.io.inputs] == ["x:[batch,4,8,8]:float32"]
    assert manifest.proof["profiles"] == [
        {"x": {"min": [1, 4, 8, 8], "opt": [8, 4, 8, 8], "max": [16, 4, 8, 8]}}
    ]
    assert build(tiny_file("mlp"), max_shapes={"x": (64, 16)}).manifest.options["max_shapes"] == ["x:64x16"]


def test_the_steps_of_a_build_are_told(tiny_file: MakeFile) -> None:
    told: list[tuple[Any, ...]] = []
    build(tiny_file("mlp"), progress=lambda *step: told.append(step))
    assert told[:2] == [("parse",), ("build",)]
    assert [step[1] for step in told[2:]] == list(range(1, len(told) - 1)) != []
    assert all(total is None or done <= total for _, done, total in told[2:])


def test_a_graph_quantized_for_onnxruntime_is_refused_by_the_operator_that_is_wrong(graph: Graph) -> None:
    model = graph("int8", "onnxruntime")
    with pytest.raises(UnsupportedOperator, match=r"refuses DequantizeLinear .* type Int32") as caught:
        build(model, "int8")
    assert caught.value.data["operator"] == "DequantizeLinear"
    assert caught.value.data["node"] == "b1_DequantizeLinear"
    assert "quantized for tensorrt" in caught.value.hint
    assert nothing_built(model)


FP32_GEMM = r"cannot build it: .*SM75.*FP32 GEMM is not supported"
CROSSED = {"min_shapes": {"x": (4, 4, 8, 8)}, "opt_shapes": {"x": (2, 4, 8, 8)}}


@pytest.mark.parametrize(
    ("options", "error", "said", "hint"),
    [
        ({"gpus": ["sm86", "sm90"]}, InvalidOption, r"`gpus` sm90: tensorrt_rtx .* builds for .*sm80", ""),
        pytest.param(
            {"gpus": []}, InvalidOption, "`gpus` is required here", "`gpus` sm86,sm89", marks=NO_GPU
        ),
        *[
            ({"gpus": gpus}, BuildError, FP32_GEMM, "`precision` fp16")
            for gpus in (["sm75"], ["sm86", "sm75"])
        ],
        (CROSSED, InvalidOption, "input 'x': min shape 4x4x8x8 is above opt 2x4x8x8", "`opt_shapes`"),
    ],
)
def test_what_cannot_be_built_is_refused_with_its_reason_and_leaves_nothing(
    options: dict[str, Any], error: type[Exception], said: str, hint: str, tiny_file: MakeFile
) -> None:
    model, told = tiny_file("residual"), list[Any]()
    with pytest.raises(error, match=said) as caught:
        build(model, progress=lambda *step: told.append(step), **options)
    assert hint in caught.value.hint  # type: ignore[attr-defined]
    assert error is BuildError or told == []
    assert nothing_built(model)


@pytest.mark.parametrize(("precision", "kind"), [("fp16", "fp32"), ("int8", "fp32"), ("fp32", "int8")])
def test_a_graph_is_called_what_it_is(precision: Precision, kind: Precision, graph: Graph) -> None:
    model = graph(kind, "tensorrt")
    with pytest.raises(IntentNotReached, match=rf"{precision} was requested; .* \(3 in {kind}\)") as caught:
        build(model, precision)
    assert caught.value.data["proof"]["layers_by_precision"] == {kind: LAYERS}  # type: ignore[index]
    assert nothing_built(model)


def test_a_build_after_a_failed_one_survives_garbage_collection(tiny_file: MakeFile, tmp_path: Path) -> None:
    said = printed(COLLECT_WHILE_TENSORRT_LOGS, tiny_file("mlp"), tmp_path / "m.engine")
    assert said.strip() == "engine"


def test_a_version_without_debug_tensors_says_so() -> None:
    module = recorded_module("8.5.3")
    adapter, network = Adapter(module, "tensorrt"), module.INetworkDefinition()
    for names in (["a"], None):
        with pytest.raises(InvalidOption, match="debug tensors: tensorrt 8"):
            mark_debug_tensors(adapter, network, names)
    mark_debug_tensors(adapter, network, ())


@pytest.mark.parametrize("names", [(), ("c1", "r2", "absent"), None])
def test_rtx_builds_with_the_tensors_that_were_named(
    names: tuple[str, ...] | None, tiny_file: MakeFile, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    marked: list[str] = []

    def observe(adapter: Adapter, network: Any, asked: Any) -> None:
        mark_debug_tensors(adapter, network, asked)
        layers = [network.get_layer(index) for index in range(network.num_layers)]
        tensors = [layer.get_output(0) for layer in layers]
        marked.extend(tensor.name for tensor in tensors if network.is_debug_tensor(tensor))

    monkeypatch.setattr(builder, "mark_debug_tensors", observe)
    spec = BuildSpec(target="tensorrt-rtx", gpus=("sm86",))
    model = tiny_file("residual", batch=2)
    request = BuildRequest(str(model), tmp_path / "m.engine", spec, debug_tensors=names)
    builder.build_plan(load_adapter("tensorrt-rtx"), request)
    assert (tmp_path / "m.engine").stat().st_size > 1000
    # NvInfer.h of 10.16: unfused tensors cannot be detected by isDebugTensor().
    assert marked == [name for name in ("c1", "r2") if names and name in names]


SUPPORT = Path(__file__).parents[3] / "support"
PARENT = Path(qcompile.__file__).parents[1]


@pytest.fixture(autouse=True)
def handles_ctrl_c() -> Iterator[None]:
    """As in a terminal: a shell starts its background jobs with SIGINT ignored, and that is inherited."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


def test_what_a_callback_raises_cancels_the_build_and_leaves_nothing(tiny_file: MakeFile) -> None:
    model, steps = tiny_file("residual"), list[int]()

    def interrupted(text: str, done: int = 0, *_: object) -> None:
        if text == "build" and done:
            steps.append(done)
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        build(model, progress=interrupted)
    assert len(steps) == 1
    assert nothing_built(model)


PRESSED_IN_A_STEP = """
import signal, sys
from pathlib import Path
import qcompile

signal.signal(signal.SIGINT, signal.default_int_handler)  # whatever this process was started with
steps = []

def pressed(text, done=0, *_):
    if text == "build" and done:
        steps.append(done)
        if len(steps) == 1:  # a second one ends the process, and TensorRT may take another step first
            signal.raise_signal(signal.SIGINT)

model, output = map(Path, sys.argv[1:])
try:
    qcompile.build(model, output, target="tensorrt-rtx", gpus=["sm86"], progress=pressed)
except KeyboardInterrupt:
    assert steps
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
    print("cancelled")
"""

PRESSED_WITHOUT_STEPS = """
import signal, sys
from pathlib import Path
import pytest
from simulated_machine import install

signal.signal(signal.SIGINT, signal.default_int_handler)
model, folder = map(Path, sys.argv[1:])
here = install(pytest.MonkeyPatch(), folder, "8.5.3")
build = here.module.Builder.build_serialized_network

def interrupted(self, network, config):
    signal.raise_signal(signal.SIGINT)
    return build(self, network, config)

here.module.Builder.build_serialized_network = interrupted
try:
    here.build(model)
except KeyboardInterrupt:
    assert here.nothing_built
    print("cancelled")
"""


def printed(program: str, *arguments: Path) -> str:
    """What a program prints in a process of its own: a signal that goes wrong ends that, not the tests."""
    here = os.environ | {"PYTHONPATH": os.pathsep.join(map(str, (SUPPORT, PARENT)))}
    done = subprocess.run(
        [sys.executable, "-c", program, *arguments], env=here, capture_output=True, text=True, timeout=300
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_ctrl_c_of_a_terminal_is_not_lost_in_tensorrts_logger(tiny_file: MakeFile, tmp_path: Path) -> None:
    """The signal is handled by whatever Python runs next: mostly `log`, whose exceptions TensorRT drops."""
    model = tiny_file("residual")
    assert "cancelled" in printed(PRESSED_IN_A_STEP, model, tmp_path / "m.engine")
    assert [path.name for path in tmp_path.iterdir()] == ["residual.onnx"]


def test_ctrl_c_ends_a_build_without_progress_monitor_after_it(tiny_file: MakeFile, tmp_path: Path) -> None:
    assert "cancelled" in printed(PRESSED_WITHOUT_STEPS, tiny_file("residual"), tmp_path)


def test_a_ctrl_c_that_was_ignored_stays_ignored() -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    with defer_interrupts():
        assert signal.getsignal(signal.SIGINT) is signal.SIG_IGN


def test_a_thread_that_gets_no_signals_defers_none() -> None:
    before = signal.getsignal(signal.SIGINT)

    def work() -> bool:
        with defer_interrupts() as raise_if_pressed:
            raise_if_pressed()
            return signal.getsignal(signal.SIGINT) is before

    with ThreadPoolExecutor(1) as pool:
        assert pool.submit(work).result()
