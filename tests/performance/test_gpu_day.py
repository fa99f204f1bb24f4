"""The day on a GPU, as far as it goes without one: its kit, its checks on TensorRT-RTX, its processes."""

from __future__ import annotations

import importlib.util
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import onnx
import pytest

BENCHMARKS = Path(__file__).resolve().parent
SCRIPT = BENCHMARKS / "gpu_day.py"


@pytest.fixture(scope="module")
def harness() -> Iterator[dict[str, ModuleType]]:
    """The modules of `gpu_day_harness`, which is no package."""
    folder = str(BENCHMARKS / "gpu_day_harness")
    names = ("graphs", "random_weights", "placement", "steps", "kit", "day", "checks", "headline")
    sys.path.insert(0, folder)
    try:
        yield {name: __import__(name) for name in names}
    finally:
        sys.path.remove(folder)
        for name in names:
            sys.modules.pop(name, None)


@pytest.fixture
def script() -> ModuleType:
    """The script itself."""
    spec = importlib.util.spec_from_file_location("gpu_day", SCRIPT)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


NETWORKS = ("resnet_small", "bert_small")


@pytest.fixture(scope="module")
def kit(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A kit of small networks."""
    folder = tmp_path_factory.mktemp("kit")
    done = run("prepare", "--kit", str(folder), "--only", *NETWORKS)
    assert done.returncode == 0, done.stdout + done.stderr
    return folder


def run(*arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    """Run the script to its end."""
    return subprocess.run(
        [sys.executable, str(SCRIPT), *arguments],
        capture_output=True, text=True, check=False, timeout=300, env={**os.environ, **environment},
    )  # fmt: skip


def lines(folder: Path) -> list[dict[str, Any]]:
    """What a day has written."""
    (path,) = folder.glob("*/gpu-day.jsonl")
    return [json.loads(line) for line in path.read_text().splitlines()]


def steps(folder: Path) -> dict[str, dict[str, Any]]:
    """Step to what came of it."""
    return {line["step"]: line for line in lines(folder) if "step" in line}


def outputs(model: onnx.ModelProto, feeds: dict[str, Any]) -> Any:
    """ONNX Runtime's first output, unoptimized."""
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    return onnxruntime.InferenceSession(model.SerializeToString(), options).run(None, feeds)[0]


def day_of(harness: dict[str, ModuleType], kit: Path, folder: Path, **about: Any) -> Any:
    """A check's day in this process."""
    target, gpus = about.get("target", "tensorrt"), about.get("gpus", ())
    return harness["day"].Day(kit, folder, target, gpus, folder / "n.json", sys.executable)


@pytest.mark.parametrize("name", [*NETWORKS, "residual.int8", "bert_small.int8"])
def test_weights_that_do_not_travel_are_drawn_again(
    name: str, harness: dict[str, ModuleType], kit: Path, tmp_path: Path
) -> None:
    day = day_of(harness, kit, tmp_path)
    graph = day.graph(f"{name}.onnx")
    feeds, expected = day.batch(name)
    assert (kit / f"{name}.onnx").stat().st_size < 0.3 * graph.stat().st_size
    np.testing.assert_array_equal(outputs(onnx.load(graph), feeds), next(iter(expected.values())))
    if name == "residual.int8":
        changed = Path(shutil.copytree(kit, tmp_path / "kit"))
        (changed / "bert.onnx").write_bytes(b"other")
        with pytest.raises(ValueError, match=r"bert\.onnx: missing, or not the file"):
            harness["steps"].read_index(changed)


BUILT = {
    "environment": "passed", "tiny": "built", "tiny_loaded": "not run", "bert": "built",
    "group_norm": "built", "int64_calibration": "passed", "shape_tensor": "built", "two_runners": "built",
    "cuda_graphs": "built", "two_profiles": "built", "residual_qdq": "built", "refit": "not run",
    "timing_cache": "not run", "group_norm_fresh": "not run", "version_compatible": "not run",
    "hardware_compatible": "passed",
}  # fmt: skip
"""What comes of each check for TensorRT-RTX without a GPU."""


def checked(
    harness: dict[str, ModuleType], name: str, kit: Path, folder: Path, **about: Any
) -> dict[str, Any]:
    """Carry out a check in this process."""
    day = day_of(harness, kit, folder, **about)
    try:
        getattr(harness["checks"], name)(day)
        day.see(result="passed")
    except harness["day"].NotRun as reason:
        day.see(result=harness["day"].result_of(reason), reason=str(reason))
    found: dict[str, Any] = json.loads((folder / "n.json").read_text())
    return found


@pytest.mark.parametrize("name", BUILT)
def test_a_check_does_with_tensorrt_rtx_what_needs_no_gpu(
    name: str, harness: dict[str, ModuleType], kit: Path, tmp_path: Path
) -> None:
    pytest.importorskip("tensorrt_rtx")
    from qcompile.engines.gpu import why_no_gpu

    if not why_no_gpu():
        pytest.skip("a GPU is here, and the day itself can be run")
    found = checked(harness, name, kit, tmp_path, target="tensorrt-rtx", gpus=("sm86",))
    assert found["result"] == BUILT[name], found


ON_STAND_INS = {
    "8.5.3": "environment tiny group_norm int64_calibration shape_tensor version_compatible refit",
    "10.16": "tiny two_runners cuda_graphs two_profiles hardware_compatible timing_cache",
    "11.4": "int64_calibration group_norm version_compatible refit",
}
"""Version to the checks of it that are not slow where a processor computes."""


@pytest.mark.parametrize(
    ("version", "name"),
    [(version, name) for version in ON_STAND_INS for name in ON_STAND_INS[version].split()],
)
def test_a_check_builds_and_runs_on_the_stand_ins_of_every_version(
    name: str, version: str, harness: dict[str, ModuleType], kit: Path, tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    from simulated_whole import install

    install(monkeypatch, tmp_path, version)
    found = checked(harness, name, kit, tmp_path)
    assert found["result"] == "passed", found
    if (name, version) in (("int64_calibration", "11.4"), ("version_compatible", "8.5.3")):
        assert any("has no" in str(part) for part in found.values())


@pytest.mark.parametrize(
    ("version", "network"),
    [
        ("8.5.3", "bert_small"),
        pytest.param("10.16", "resnet_small", marks=pytest.mark.slow),
        pytest.param("11.4", "bert_small", marks=pytest.mark.slow),
    ],
)
def test_pytorch_is_measured_against_engines_of_three_precisions(
    version: str, network: str, kit: Path, tmp_path: Path
) -> None:
    builds = [f"build.{network}.{variant}" for variant in ("fp32", "fp16", "int8")]
    done = run("run", "--kit", str(kit), "--results", str(tmp_path), "--simulated", version,
               "--only", *builds, f"measure.{network}")  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    built = {name: steps(tmp_path)[name]["engine build"]["proof"] for name in builds}
    weighted = [set(proof["layers_by_precision"]) - {"fp16"} for proof in built.values()]
    attention = {"fp32"} if version == "8.5.3" and network == "bert_small" else set()  # FP16 by a flag there
    assert weighted == [{"fp32"}, set(), {"int8"} | attention]
    assert "fp16" in built[builds[2]]["engine_layers_by_precision"]
    rows = {(line["batch"], line["row"]): line for line in lines(tmp_path) if "row" in line}
    engines = [f"TensorRT {name}{end}" for name in ("fp32", "fp16", "int8") for end in ("", ", CUDA graph")]
    titles = ["PyTorch FP32", "PyTorch FP16", *engines]
    assert list(rows) == [(batch, title) for batch in (1, 2) for title in titles]
    for (_, title), row in rows.items():
        assert row["latency_ms"] > 0
        assert ("speedup" in row) == (title != "PyTorch FP32")
        assert row["snr_db"] > (20 if "int8" in title else 100 if "FP32" in title or "fp32" in title else 40)
    assert not list(tmp_path.glob("*/recordings/*"))
    assert f"{network}, batch 1, against PyTorch FP32: PyTorch FP16" in done.stdout


def test_the_limits_of_a_part_fit_into_its_time(
    script: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "argv", ["gpu_day.py", "run"])
    planned = script._steps(script._options(), tmp_path, ["resnet50", "bert_base", "mobilenetv2"])
    for share in (1.0, 0.1):  # of its limit, that each step takes
        now, ends = 0.0, {}
        for number, step in enumerate(planned):
            limit = step.limit_s(script.ENDS[step.part] - now, planned[number + 1 :])
            assert limit >= (step.seconds if step.part in "ab" else 0) - 1e-9
            now += share * limit
            ends[step.part] = now
        assert all(end <= script.ENDS[part] + 1e-9 for part, end in ends.items())
        assert share < 1 or ends == pytest.approx({"a": 120, "b": 660, "c": 900})
    assert [step.name for step in planned][3:7] == [
        "build.resnet50.fp32", "build.resnet50.fp16", "build.resnet50.int8", "measure.resnet50"
    ]  # fmt: skip


def test_the_day_needs_neither_onnx_runtime_nor_pytorch_nor_an_installation(
    kit: Path, tmp_path: Path
) -> None:
    pytest.importorskip("tensorrt_rtx")
    for name in ("onnxruntime", "torch", "click", "rich", "safetensors", "onnxsim", "polygraphy", "psutil"):
        (tmp_path / f"{name}.py").write_text("raise ImportError('not on the GPU host')")
    names = ["build.resnet_small.fp16", "build.bert_small.int8"]
    done = run(
        "run", "--kit", str(kit), "--results", str(tmp_path / "results"), "--target", "tensorrt-rtx",
        "--gpu", "sm86", "--only", "environment", *names, "bert", "residual_qdq", PYTHONPATH=str(tmp_path),
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    assert "PyTorch: PyTorch cannot be imported (not on the GPU host); pip install" in done.stdout
    found = steps(tmp_path / "results")
    assert [one["result"] for one in found.values()] == ["passed"] + ["built"] * 4
    built = found["residual_qdq"]
    assert built["residual.two"]["pairs_of_qdq"] == built["residual.one"]["pairs_of_qdq"] + 1
    assert built["residual.one build"]["proof"]["layers_by_precision"]["int8"]["CONVOLUTION"] == 2
    (folder,) = (tmp_path / "results").iterdir()
    recorded = (folder / "recordings" / built["recordings"][0]).read_text()
    assert "Builder.build_serialized_network" in recorded
    assert built["died_in"] == ""


def test_what_is_missing_is_said_with_the_command_that_brings_it(kit: Path, tmp_path: Path) -> None:
    results = ("run", "--results", str(tmp_path / "results"), "--kit")
    for name in ("numpy", "onnx", "msgspec"):
        (tmp_path / f"{name}.py").write_text(f"raise ImportError('no {name} here')")
    bare = run(*results, str(kit), "--target", "tensorrt-rtx", PYTHONPATH=str(tmp_path))
    assert bare.returncode == 2
    assert "lacks numpy (no numpy here), onnx (no onnx here), msgspec (no msgspec here); " in bare.stdout
    assert f"{sys.executable} -m pip install numpy onnx msgspec" in bare.stdout
    assert {one["result"] for one in steps(tmp_path / "results").values()} == {"not run"}
    shutil.rmtree(tmp_path / "results")
    without = run(*results, str(kit), "--only", "environment", "tiny", "measure.bert_small")
    assert without.returncode == 2
    found = steps(tmp_path / "results")
    assert found["environment"]["packages"]["numpy"] == np.__version__
    assert {one["result"] for one in found.values()} == {"not run"}
    assert "pip install 'tensorrt>=10'" in found["tiny"]["reason"]
    lost = run(*results, str(tmp_path / "none"))
    assert lost.returncode == 2
    assert "none: no whole kit" in lost.stderr
    assert "make gpu-day-kit" in lost.stderr
    assert "Traceback" not in bare.stdout + bare.stderr + without.stdout + without.stderr + lost.stderr


def test_steps_that_hang_or_crash_are_ended_and_what_they_saw_is_kept(
    harness: dict[str, ModuleType], tmp_path: Path
) -> None:
    (tmp_path / "recordings").mkdir()
    notes = "import json, sys; json.dump({'saw': 1}, open(sys.argv[1], 'w')); print('said', flush=True); "
    ways = {
        "hangs": ("import time; time.sleep(600)", 3.0),
        "crashes": ("import os, signal; os.kill(os.getpid(), signal.SIGSEGV)", 60.0),
        "fails": ("raise SystemExit(1)", 60.0),
    }
    found = {}
    for name, (text, limit) in ways.items():
        command = [sys.executable, "-c", notes + text, str(tmp_path / f"{name}.json")]
        found[name] = harness["steps"].ended(name, command, limit, tmp_path, record=name == "crashes")
    assert [one["result"] for one in found.values()] == ["timed out", "crashed", "failed"]
    assert found["crashes"]["signal"] == "SIGSEGV"
    assert all(one["saw"] == 1 and one["output"].startswith("said\n") for one in found.values())
    assert "Segmentation fault" in found["crashes"]["output"]
