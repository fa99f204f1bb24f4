"""The programs of the deployment pages run, with names that every version of TensorRT and ONNX Runtime has.

TensorRT and PyCUDA are stand-ins; the programs of docs/deploy_cpu.md run what `build` writes, with
nothing of qcompile.
"""

from __future__ import annotations

import gc
import re
import runpy
import shlex
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType

import onnxruntime
import pytest
from commands import Qc
from onnx import parser
from packaging_engines import make_engine
from recorded_tensorrt import VERSIONS
from simulated_cuda import install
from tensorrt_simulation import HEADER, simulate

import qcompile
from qcompile.building.deploy import package_triton

ROOT = Path(__file__).parents[3]
PAGES = [*sorted((ROOT / "docs").glob("deploy*.md")), ROOT / "docs/tensorrt.md"]
GUIDE = "\n".join(path.read_text(encoding="utf-8") for path in PAGES)


def program(name: str, language: str) -> str:
    match = re.search(rf"<!-- {re.escape(name)} -->\n```{language}\n(.*?)```", GUIDE, re.S)
    assert match, f"the guide has no program {name}"
    return match.group(1)


def test_the_configuration_that_the_guide_shows_is_what_is_written(tmp_path: Path) -> None:
    image = {"image": ((1, 3, 224, 224), (8, 3, 224, 224), (16, 3, 224, 224))}
    engine = make_engine(
        tmp_path / "model.engine", inputs={"image": ("batch", 3, 224, 224)},
        outputs={"logits": ("batch", 1000)}, profiles=[image],
    )  # fmt: skip
    packaged = package_triton(engine, tmp_path / "models", name="resnet")
    shown = re.search(r"```\n(name: \"resnet\".*?)```", GUIDE, re.S)
    assert shown
    assert packaged.config.split("\n", 1)[1] == shown.group(1)


def test_the_commands_for_onnx_runtime_write_what_the_guide_shows(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, tiny_file: Callable[..., Path], qc: Qc
) -> None:
    pytest.importorskip("tensorrt_rtx", reason="tensorrt-rtx is not installed")
    section = GUIDE.partition("## ONNX Runtime and Windows ML")[2].partition("\n## ")[0]
    shown = re.search(r"```console\n(.*?)```", section, re.S)
    assert shown
    tiny_file("residual", file="model.onnx", batch=2)
    monkeypatch.chdir(tmp_path)
    for line in shown.group(1).splitlines():
        assert qc(*shlex.split(line)[1:]).code == 0, line
    files = {f"model_ctx.onnx{ending}" for ending in ("", ".data", ".json")}
    assert files == {path.name for path in tmp_path.glob("model_ctx*")}
    assert "model_ctx.onnx.data" in section


def test_the_program_for_onnx_runtime_uses_names_that_it_has() -> None:
    source = program("run_ep_context.py", "python")
    compile(source, "run_ep_context.py", "exec")
    used = set(re.findall(r"\bort\.(\w+)", source))
    assert len(used) >= 4
    assert {name for name in used if not hasattr(onnxruntime, name)} == set()
    assert hasattr(onnxruntime.SessionOptions, "add_provider_for_devices")
    (device, *_) = onnxruntime.get_ep_devices()
    assert device.ep_name


TYPED = """typed (float[n,4] x, float16[n,2] half, int32[n] ids, bool[n] kept)
    => (float[n,4] y, float16[n,2] h, int32[n] i, bool[n] k) {
    y = Neg (x)
    h = Neg (half)
    i = Neg (ids)
    k = Not (kept)
}"""


@pytest.mark.parametrize("version", VERSIONS)
def test_the_program_runs_with_every_version_and_any_numpy(
    version: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    gpu = install(monkeypatch, pycuda=True)
    # Source: inducer/pycuda pycuda/autoprimaryctx.py.
    sys.modules["pycuda.driver"].Device(0).retain_primary_context().push()
    simulation = simulate(version, gpu, tmp_path)
    module, engine = simulation.adapter.module, simulation.plan(parser.parse_model(HEADER + TYPED))
    for name, stand_in in {"tensorrt": module, "pycuda.autoprimaryctx": ModuleType("autoprimaryctx")}.items():
        monkeypatch.setitem(sys.modules, name, stand_in)
    monkeypatch.setattr(sys, "argv", ["run_engine.py", str(engine)])
    (tmp_path / "run_engine.py").write_text(program("run_engine.py", "python"))
    runpy.run_path(str(tmp_path / "run_engine.py"))
    assert capsys.readouterr().out.splitlines() == [
        "y (2, 4) float32", "h (2, 2) float16", "i (2,) int32", "k (2,) bool"
    ]  # fmt: skip
    gc.collect()  # the program's function and its globals hold each other
    assert not +gpu.live
    assert "trt.nptype(" not in program("run_engine.py", "python")  # it needs names that numpy 2 has dropped
    assert simulation.told("nvtx_verbosity") == [(module.ProfilingVerbosity.NONE,)]


def test_the_program_in_cpp_writes_no_markers_of_layers_either() -> None:
    made = GUIDE.count("->createExecutionContext()")
    assert GUIDE.count("context->setNvtxVerbosity(nvinfer1::ProfilingVerbosity::kNONE)") == made == 1


@pytest.mark.parametrize(
    ("target", "file"), [("onnxruntime", "run_onnx.py"), ("openvino", "run_openvino.py")]
)
def test_the_program_runs_what_build_writes(
    tiny_file: Callable[..., Path], tmp_path: Path, target: str, file: str
) -> None:
    if target == "openvino":
        pytest.importorskip("openvino", reason="needs openvino")
    (tmp_path / file).write_text(program(file, "python"), encoding="utf-8")
    built = qcompile.build(tiny_file("residual"), tmp_path / "built.onnx", target=target, precision="fp32")
    said = subprocess.run(
        [sys.executable, "-P", file, Path(built.path).name], cwd=tmp_path, capture_output=True, text=True,
        timeout=120, check=False, env={"PATH": "", "ORT_DISABLE_TELEMETRY": "1"},
    )  # fmt: skip
    assert said.returncode == 0, said.stderr
    assert re.fullmatch(r"(\w+ \([\d, ]+\) float32\n)+", said.stdout), said.stdout
