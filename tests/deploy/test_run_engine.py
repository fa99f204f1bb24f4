"""The Python program of docs/deploy_program.md runs: on stand-ins for each TensorRT and CUDA's runtime.

The programs of docs/deploy_cpu.md run what `build` writes, with nothing of qcompile.
"""

from __future__ import annotations

import ctypes
import re
import runpy
import subprocess
import sys
import types
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from onnx import parser
from recorded_tensorrt import VERSIONS
from simulated_cuda import SimulatedGpu, install
from tensorrt_simulation import HEADER, Simulation, make_adapter

import qcompile

TYPED = """typed (float[n,4] x, float16[n,2] half, int32[n] ids, bool[n] kept)
    => (float[n,4] y, float16[n,2] h, int32[n] i, bool[n] k) {
    y = Neg (x)
    h = Neg (half)
    i = Neg (ids)
    k = Not (kept)
}"""


@pytest.fixture
def source() -> str:
    """The program."""
    guide = (Path(__file__).parents[2] / "docs/deploy_program.md").read_text(encoding="utf-8")
    found = re.search(r"<!-- run_engine.py -->\n```python\n(.*?)```", guide, re.S)
    assert found
    return found[1]


def runtime(gpu: SimulatedGpu) -> Any:
    """`cuda.bindings.runtime`, as far as the program uses it: each call returns its status first.

    Source: NVIDIA/cuda-python, cuda_bindings/cuda/bindings/runtime.pyx.in.
    """
    module: Any = types.ModuleType("cuda.bindings.runtime")
    module.cudaError_t = types.SimpleNamespace(cudaSuccess=0)
    module.cudaMemcpyKind = types.SimpleNamespace(cudaMemcpyHostToDevice=1, cudaMemcpyDeviceToHost=2)

    def copy(dst: int, src: int, size: int, kind: int, stream: int) -> tuple[int]:
        def act() -> None:
            held = gpu.bytes_at(dst if kind == 1 else src, size)
            host = np.frombuffer((ctypes.c_uint8 * size).from_address(src if kind == 1 else dst), np.uint8)
            held[:], host[:] = (host, host) if kind == 1 else (held, held)

        gpu.streams[stream].tell(act)
        return (0,)

    def synchronize(stream: int) -> tuple[int]:
        gpu.streams[stream].run()
        return (0,)

    def free(address: int) -> tuple[int]:
        gpu.release(address, "device memory")
        return (0,)

    module.cudaMalloc = lambda size: (0, gpu.allocate(size))
    module.cudaFree, module.cudaMemcpyAsync, module.cudaStreamSynchronize = free, copy, synchronize
    module.cudaStreamCreate = lambda: (0, gpu.foreign_stream().handle)
    module.cudaStreamDestroy = lambda stream: (0,) if gpu.streams.pop(stream) else (1,)
    return module


@pytest.mark.parametrize("version", VERSIONS)
def test_the_program_runs_with_every_version_and_any_numpy(
    version: str,
    source: str,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    gpu = install(monkeypatch)
    gpu.stack.append(gpu.primary(0))  # CUDA's runtime makes it current by itself
    adapter = make_adapter(version, gpu)
    engine = Simulation(version, gpu, adapter, tmp_path).plan(parser.parse_model(HEADER + TYPED))
    bindings: Any = types.ModuleType("cuda.bindings")
    bindings.runtime = runtime(gpu)
    monkeypatch.setitem(sys.modules, "tensorrt", adapter.module)
    monkeypatch.setitem(sys.modules, "cuda", types.ModuleType("cuda"))
    monkeypatch.setitem(sys.modules, "cuda.bindings", bindings)
    monkeypatch.setattr(sys, "argv", ["run_engine.py", str(engine)])
    (tmp_path / "run_engine.py").write_text(source)
    runpy.run_path(str(tmp_path / "run_engine.py"))
    assert capsys.readouterr().out.splitlines() == [
        "y (2, 4) float32", "h (2, 2) float16", "i (2,) int32", "k (2,) bool"
    ]  # fmt: skip
    assert gpu.used_bytes == 0
    verbosities = [call.args for call in adapter.module.recorded_calls if call.member == "nvtx_verbosity"]
    assert verbosities == [(adapter.module.ProfilingVerbosity.NONE,)]


def test_the_program_in_cpp_writes_no_markers_of_layers_either() -> None:
    guide = (Path(__file__).parents[2] / "docs/deploy_program.md").read_text(encoding="utf-8")
    made = guide.count("->createExecutionContext()")
    assert guide.count("context->setNvtxVerbosity(nvinfer1::ProfilingVerbosity::kNONE)") == made == 1


def test_it_asks_tensorrt_for_no_numpy_type(source: str) -> None:
    assert "trt.nptype(" not in source


GUIDE = (Path(__file__).parents[2] / "docs/deploy_cpu.md").read_text(encoding="utf-8")


@pytest.mark.parametrize(
    ("target", "file"), [("onnxruntime", "run_onnx.py"), ("openvino", "run_openvino.py")]
)
def test_the_program_runs_what_build_writes(
    tiny_file: Callable[..., Path], tmp_path: Path, target: str, file: str
) -> None:
    if target == "openvino":
        pytest.importorskip("openvino", reason="pip install 'qcompile[openvino]'")
    found = re.search(rf"<!-- {file} -->\n```python\n(.*?)```", GUIDE, re.S)
    assert found
    (tmp_path / file).write_text(found[1], encoding="utf-8")
    built = qcompile.build(
        str(tiny_file("residual")), tmp_path / "built.onnx", target=target, precision="fp32"
    )
    said = subprocess.run(
        [sys.executable, "-P", file, Path(built.path).name], cwd=tmp_path, capture_output=True, text=True,
        timeout=120, check=False, env={"PATH": "", "ORT_DISABLE_TELEMETRY": "1"},
    )  # fmt: skip
    assert said.returncode == 0, said.stderr
    assert re.fullmatch(r"(\w+ \([\d, ]+\) float32\n)+", said.stdout), said.stdout
