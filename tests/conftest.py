"""Tiny named models, in one place, and files made of them."""

from __future__ import annotations

import gc
import math
import os
import re
import tempfile
from collections.abc import Callable, Generator
from pathlib import Path

# Before any library reads them: tests share two cores with each other.
os.environ.setdefault("OMP_NUM_THREADS", "1")

# Before any test imports a runtime: importing it switches their telemetry off.
import qcompile  # noqa: F401  # isort: skip

import numpy as np
import onnx
import pytest
from commands import printed, qc
from hypothesis import HealthCheck, settings
from written_models import text_model

from qcompile.model.sessions import session

__all__ = ["printed", "qc"]

session._LEAST_S = math.inf  # no artifact is said to be slow here: on another machine it is not

# No test depends on the speed of the machine, a property least of all.
settings.register_profile("any machine", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("any machine")

CHANNELS = 4


def tiny_model(text: str, opset: int, **weights: tuple[int, ...] | float) -> onnx.ModelProto:
    """A checked model of ONNX's text form with float32 weights: a number, or normal values of a shape."""
    arrays = {}
    for name, shape in weights.items():
        random = np.random.default_rng([0, *np.atleast_1d(shape).astype(int), *name.encode()])
        value = random.standard_normal(shape) * 0.3 if isinstance(shape, tuple) else [shape]
        arrays[name] = np.asarray(value, np.float32)
    model = text_model(" ".join(text.split()), opset=opset, **arrays)
    for node in model.graph.node:
        node.ClearField("domain")  # as other exporters write it
    onnx.checker.check_model(model)
    return model


def residual(*, opset: int = 17, batch: int | str = "batch") -> onnx.ModelProto:
    """Two convolutions with a residual add, pooling and a Gemm: x [batch,4,8,8] to y [batch,3]."""
    c, how = CHANNELS, "<kernel_shape = [3,3], pads = [1,1,1,1]>"
    text = f"""(float[{batch},{c},8,8] x) => (float[{batch},3] y) {{
        [conv1] c1 = Conv {how} (x, w1, b1) [relu1] r1 = Relu (c1) [conv2] c2 = Conv {how} (r1, w2, b2)
        [add] a = Add (c2, r1) [relu2] r2 = Relu (a) [pool] p = GlobalAveragePool (r2)
        [flatten] f = Flatten (p) [gemm] y = Gemm <transB = 1> (f, w3, b3) }}"""
    return tiny_model(text, opset, w1=(c, c, 3, 3), b1=(c,), w2=(c, c, 3, 3), b2=(c,), w3=(3, c), b3=(3,))


def mlp(*, opset: int = 17) -> onnx.ModelProto:
    """Two MatMuls with bias and Relu: x [batch,16] to y [batch,8]."""
    text = """(float[batch,16] x) => (float[batch,8] y) { [matmul1] m1 = MatMul (x, w1)
        [bias1] h1 = Add (m1, b1) [relu1] r1 = Relu (h1) [matmul2] y = MatMul (r1, w2) }"""
    return tiny_model(text, opset, w1=(16, 32), b1=(32,), w2=(32, 8))


def elementwise(*, opset: int = 17) -> onnx.ModelProto:
    """Nothing that computes with weights: x [batch,4] to sigmoid(x) + 1."""
    text = """(float[batch,4] x) => (float[batch,4] y) {
        [sigmoid] s = Sigmoid (x) [add_one] y = Add (s, one) }"""
    return tiny_model(text, opset, one=1.0)


MODELS: dict[str, Callable[..., onnx.ModelProto]] = {
    "residual": residual,
    "mlp": mlp,
    "elementwise": elementwise,
}


@pytest.fixture
def tiny() -> Callable[..., onnx.ModelProto]:
    """`tiny("residual", opset=17)` returns a tiny model."""
    return lambda name, **options: MODELS[name](**options)


@pytest.fixture
def tiny_file(tmp_path: Path) -> Callable[..., Path]:
    """`tiny_file("residual")` returns the path of a tiny model."""

    def make(name: str, *, file: str = "", **options: object) -> Path:
        path = tmp_path / (file or f"{name}.onnx")
        onnx.save(MODELS[name](**options), path)
        return path

    return make


@pytest.fixture
def samples(tmp_path: Path) -> Callable[..., Path]:
    """`samples("residual", 32)` returns an .npz of normal samples for a tiny model, with labels."""
    shapes = {"residual": (CHANNELS, 8, 8), "mlp": (16,), "elementwise": (4,)}

    def make(name: str, count: int = 32, *, seed: int = 0) -> Path:
        generator = np.random.default_rng(seed)
        path = tmp_path / f"{name}-{count}-{seed}.npz"
        x = generator.standard_normal((count, *shapes[name])).astype(np.float32)
        np.savez(path, x=x, labels=generator.integers(0, 3, count))
        return path

    return make


FOREIGN = re.compile(r"ONNXRuntimeError|\w+\.[ch](?:c|pp)?:\d+|/_src/|Check '|Error Code \d")
"""Status codes, conditions and places in the source of runtimes."""


@pytest.fixture
def plain_words(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """`plain_words(text)` fails where a text names a temporary file, or quotes the source of a runtime.

    Temporary files are made in a folder whose name occurs nowhere else, in child processes, too.
    """
    folder = tmp_path / "nobody-knows-this-folder"
    folder.mkdir()
    monkeypatch.setenv("TMPDIR", str(folder))
    monkeypatch.setattr(tempfile, "tempdir", None)

    def check(*texts: str) -> None:
        for text in texts:
            assert folder.name not in text
            assert ".qcompile-tmp-" not in text
            assert not FOREIGN.search(text)

    return check


@pytest.fixture
def torch_model(tmp_path: Path) -> str:
    """The spelling of a tiny PyTorch model: x [N,3,8,8] to [N,5]."""
    path = tmp_path / "net.py"
    path.write_text(TORCH_MODEL)
    return f"{path}:build"


TORCH_MODEL = """
import torch
from torch import nn


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(3, 8, 3, padding=1)
        self.norm = nn.BatchNorm2d(8)
        self.head = nn.Linear(8, 5)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(torch.relu(self.norm(self.conv(x))).mean((2, 3)))


def build() -> nn.Module:
    torch.manual_seed(0)
    return Net()
"""


@pytest.fixture
def short_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    """A bench in this process times a tenth of the usual: for tests that do not look at exact figures."""
    from qcompile.bench.measure import rounds, side_figures

    monkeypatch.setattr(rounds, "BLOCK_S", 0.015)
    monkeypatch.setattr(rounds, "_WARM_UP_BLOCK_S", 0.0025)
    monkeypatch.setattr(rounds, "LEAST_S", 0.03)
    monkeypatch.setattr(rounds, "LIMIT_S", 0.2)
    monkeypatch.setattr(side_figures, "POINT_S", 0.2)


HALVES = {"avx512_bf16", "amx_bf16", "bf16", "avx512_fp16", "amx_fp16", "asimdhp"}
"""Instruction sets for 16 bits, on x86 and ARM."""


@pytest.fixture
def on_processor(monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """`on_processor("avx512_bf16")` lets this process run on an x86 processor that has these for 16 bits."""
    from qcompile.core import processor

    def change(*features: str) -> None:
        monkeypatch.setattr("platform.machine", lambda: "x86_64")
        monkeypatch.setattr(processor, "_read_cpuinfo", lambda: ({"avx2", "avx512f", *features}, "Some CPU"))

    return change


@pytest.fixture(scope="session")
def light_models() -> dict[str, Path]:
    """The ONNX package's light_*.onnx: real architectures of old opsets, made by other exporters."""
    folder = Path(onnx.__file__).parent / "backend/test/data/light"
    return {path.stem.removeprefix("light_"): path for path in sorted(folder.glob("light_*.onnx"))}


def pytest_addoption(parser: pytest.Parser) -> None:
    """`--slow` runs the tests that take more than a few seconds each."""
    parser.addoption("--slow", action="store_true", help="run slow tests too")
    parser.addoption(
        "--without-halves", action="store_true", help="as on a processor with no arithmetic in 16 bits"
    )


def pytest_configure(config: pytest.Config) -> None:
    """Take instruction sets away where that was asked for."""
    if config.getoption("--without-halves"):
        from qcompile.core import processor

        read = processor._read_cpuinfo

        def without() -> tuple[set[str], str]:
            features, name = read()
            return features - HALVES, name

        processor._read_cpuinfo = without


LONG = (
    "test_readme", "test_tutorial", "test_run_on_cluster", "test_faults", "test_kinds", "test_lowering",
    "test_gpu_day", "test_train", "test_run", "test_tune", "test_benchmark", "test_interrupt", "test_sweep",
    "test_emulation", "test_small_examples", "test_foreign_models", "test_tune_elsewhere",
)  # fmt: skip
"""Files that take many seconds: they begin first, so that no process waits for another at the end."""


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Sort the long files to the front; skip what was not asked for or cannot run here, with the reason."""
    items.sort(key=lambda item: item.path.stem not in LONG)
    from qcompile.engines.gpu import why_no_gpu

    no_gpu = why_no_gpu()
    for item in items:
        if "slow" in item.keywords and not config.getoption("--slow"):
            item.add_marker(pytest.mark.skip(reason="slow: give --slow"))
        if "gpu" in item.keywords and no_gpu:
            item.add_marker(pytest.mark.skip(reason=no_gpu))


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """Collect without garbage collection, and keep what was collected out of it: a third of the time."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.freeze()
        gc.enable()
