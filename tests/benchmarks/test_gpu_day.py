"""The day on a GPU, as far as it goes without one: its kit, its checks on TensorRT-RTX, its processes."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import onnx
import pytest

BENCHMARKS = Path(__file__).resolve().parents[2] / "benchmarks"
SCRIPT = BENCHMARKS / "gpu_day.py"
VERSIONS = ("8.5.3", "10.16", "11.4")


@pytest.fixture(scope="module")
def harness() -> Iterator[dict[str, ModuleType]]:
    """The modules of `gpu_day_harness`, which is no package."""
    folder = str(BENCHMARKS / "gpu_day_harness")
    names = ("graphs", "packing", "placement", "kit", "day", "checks", "steps")
    sys.path.insert(0, folder)
    try:
        yield {name: __import__(name) for name in names}
    finally:
        sys.path.remove(folder)
        for name in names:
            sys.modules.pop(name, None)


@pytest.fixture(scope="module")
def kit(harness: dict[str, ModuleType], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A kit without ResNet-50."""
    folder: Path = tmp_path_factory.mktemp("kit")
    harness["kit"].prepare(folder, lambda _: None, resnet50=False)
    return folder


@pytest.fixture
def unpacked(harness: dict[str, ModuleType], kit: Path, tmp_path: Path) -> Path:
    """The kit as it is laid out on the GPU host."""
    folder = tmp_path / "kit"
    folder.mkdir()
    for path in kit.iterdir():
        (folder / path.name).symlink_to(path)
    harness["kit"].unpack(kit, folder)
    return folder


def run(*arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    """Run the script to its end."""
    return subprocess.run(
        [sys.executable, str(SCRIPT), *arguments],
        capture_output=True, text=True, check=False, timeout=300, env={**os.environ, **environment},
    )  # fmt: skip


def result(folder: Path) -> dict[str, Any]:
    """The one JSON file that a day has written."""
    (path,) = folder.glob("*/gpu-day.json")
    found: dict[str, Any] = json.loads(path.read_text())
    return found


def outputs(model: onnx.ModelProto, feeds: dict[str, Any]) -> Any:
    """ONNX Runtime's first output, unoptimized."""
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    return onnxruntime.InferenceSession(model.SerializeToString(), options).run(None, feeds)[0]


def test_every_graph_says_what_old_parsers_ask_for(harness: dict[str, ModuleType]) -> None:
    graphs = harness["graphs"]
    made = [graphs.bert(opset=16), graphs.group_norm(), graphs.integers(), graphs.shaped(), graphs.residual()]
    for model in made:
        assert model.opset_import[0].version == 16
        operators = {node.op_type for node in model.graph.node}
        assert not operators & {"LayerNormalization", "GroupNormalization"}
        for node in model.graph.node:
            if node.op_type == "Conv":
                assert "kernel_shape" in {item.name for item in node.attribute}, node.name
    assert "LayerNormalization" in {node.op_type for node in graphs.bert().graph.node}


def test_both_spellings_of_bert_compute_the_same(harness: dict[str, ModuleType]) -> None:
    graphs = harness["graphs"]
    feeds = dict(harness["kit"].feeds_of(graphs.bert()))
    found, expected = (outputs(graphs.bert(opset=opset), feeds) for opset in (16, 17))
    # The weights are drawn in the same order, so the networks are the same.
    np.testing.assert_allclose(found, expected, atol=1e-4)


def test_a_file_that_changed_on_the_way_is_named(harness: dict[str, ModuleType], unpacked: Path) -> None:
    assert harness["kit"].read_index(unpacked)["kit"] == 1
    (unpacked / "bert.onnx").unlink()
    (unpacked / "bert.onnx").write_bytes(b"other")
    with pytest.raises(ValueError, match=r"bert\.onnx: missing, or not the file"):
        harness["kit"].read_index(unpacked)


def test_weights_that_travel_in_8_bits_are_the_same_again(
    harness: dict[str, ModuleType], kit: Path, unpacked: Path
) -> None:
    model, feeds = onnx.load(unpacked / "residual.int8.onnx"), dict(np.load(kit / "residual.int8.feeds.npz"))
    np.testing.assert_array_equal(outputs(model, feeds), np.load(kit / "residual.int8.outputs.npz")["y"])
    assert harness["packing"].packed(model).ByteSize() < 0.5 * model.ByteSize()


def test_the_two_placements_differ_by_a_pair_for_each_add(
    harness: dict[str, ModuleType], kit: Path, unpacked: Path
) -> None:
    placement, model = harness["placement"], onnx.load(unpacked / "residual.int8.onnx")
    amax = json.loads((kit / "residual.amax.json").read_text())
    one, two = placement.with_one(model), placement.with_two(model, amax)
    assert placement.pairs(two) == placement.pairs(one) + len(amax) == placement.pairs(one) + 1
    feeds, expected = (
        dict(np.load(kit / "residual.int8.feeds.npz")),
        np.load(kit / "residual.int8.outputs.npz"),
    )
    for graph in (one, two):
        onnx.checker.check_model(graph)
        np.testing.assert_allclose(outputs(graph, feeds), expected["y"], atol=0.1)
    (add,) = (node for node in one.graph.node if node.op_type == "Add")
    made_by = {output: node.op_type for node in one.graph.node for output in node.output}
    assert {made_by[name] for name in add.input} == {"Conv", "DequantizeLinear"}


BUILT = {
    "environment": "passed", "bert": "built", "group_norm": "built", "int64_calibration": "passed",
    "shape_tensor": "built", "two_runners": "built", "cuda_graphs": "built", "two_profiles": "built",
    "residual_qdq": "built", "refit": "not run", "timing_cache": "not run", "group_norm_fresh": "not run",
    "version_compatible": "not run", "hardware_compatible": "passed",
}  # fmt: skip
"""What comes of each check for TensorRT-RTX without a GPU."""


def checked(
    harness: dict[str, ModuleType], name: str, kit: Path, folder: Path, **about: Any
) -> dict[str, Any]:
    """Carry out a check in this process."""
    day = harness["day"].Day(
        kit, folder, about.get("target", "tensorrt"), about.get("gpus", ()), folder / "n.json"
    )
    try:
        harness["checks"].CHECKS[name][0](day)
        day.see(result="passed")
    except harness["day"].NotRun as reason:
        day.see(result=harness["day"].result_of(reason), reason=str(reason))
    found: dict[str, Any] = json.loads((folder / "n.json").read_text())
    return found


@pytest.mark.parametrize("name", BUILT)
def test_a_check_does_with_tensorrt_rtx_what_needs_no_gpu(
    name: str, harness: dict[str, ModuleType], unpacked: Path, tmp_path: Path
) -> None:
    pytest.importorskip("tensorrt_rtx")
    from qcompile.engines.gpu import why_no_gpu

    if not why_no_gpu():
        pytest.skip("a GPU is here, and the day itself can be run")
    found = checked(harness, name, unpacked, tmp_path, target="tensorrt-rtx", gpus=("sm86",))
    assert found["result"] == BUILT[name], found


def test_every_check_is_tried_here(harness: dict[str, ModuleType]) -> None:
    assert set(BUILT) == set(harness["checks"].CHECKS)


ON_STAND_INS = (
    "environment", "group_norm", "int64_calibration", "shape_tensor", "two_runners", "cuda_graphs", "refit",
    "version_compatible", "hardware_compatible", "timing_cache", "two_profiles",
)  # fmt: skip
"""The checks that are not slow where a processor computes."""


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("name", ON_STAND_INS)
def test_a_check_builds_and_runs_on_the_stand_ins_of_every_version(
    name: str,
    version: str,
    harness: dict[str, ModuleType],
    unpacked: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    from simulated_whole import install

    install(monkeypatch, tmp_path, version)
    found = checked(harness, name, unpacked, tmp_path)
    assert found["result"] == "passed", found
    refused = {"version_compatible": "8.5.3", "hardware_compatible": "8.5.3", "int64_calibration": "11.4"}
    if refused.get(name) == version:
        assert any("has no" in str(part) for part in found.values())


def test_the_day_needs_neither_onnx_runtime_nor_pytorch_nor_an_installation(
    kit: Path, tmp_path: Path
) -> None:
    pytest.importorskip("tensorrt_rtx")
    for name in ("onnxruntime", "torch", "click", "rich", "safetensors", "onnxsim", "polygraphy", "psutil"):
        (tmp_path / f"{name}.py").write_text("raise ImportError('not on the GPU host')")
    done = run(
        "run", "--kit", str(kit), "--results", str(tmp_path / "results"), "--target", "tensorrt-rtx",
        "--gpu", "sm86", "--only", "environment", "bert", "residual_qdq", PYTHONPATH=str(tmp_path),
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    found = result(tmp_path / "results")
    assert [one["result"] for one in found["checks"].values()] == ["passed", "built", "built"]
    built = found["checks"]["residual_qdq"]
    assert built["residual.two"]["pairs_of_qdq"] == built["residual.one"]["pairs_of_qdq"] + 1
    assert built["residual.one build"]["proof"]["layers_by_precision"]["int8"]["CONVOLUTION"] == 2
    (folder,) = (tmp_path / "results").iterdir()
    recorded = (folder / "recordings" / built["recordings"][0]).read_text()
    assert "Builder.build_serialized_network" in recorded
    assert built["died_in"] == ""


def test_a_day_that_is_interrupted_leaves_its_json_whole(kit: Path, tmp_path: Path) -> None:
    pytest.importorskip("tensorrt_rtx")
    child = subprocess.Popen(
        [sys.executable, str(SCRIPT), "run", "--kit", str(kit), "--results", str(tmp_path),
         "--target", "tensorrt-rtx"],
        stdout=subprocess.PIPE, text=True, start_new_session=True,
        # A shell starts its background jobs with SIGINT ignored, and children inherit that.
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    )  # fmt: skip
    try:
        while not list(tmp_path.glob("*/gpu-day.json")):
            assert child.poll() is None
            time.sleep(0.05)
        child.send_signal(signal.SIGINT)
        said, _ = child.communicate(timeout=60)
    finally:
        child.kill()
    found = result(tmp_path)
    assert child.returncode == 130
    assert found["interrupted"]
    assert "environment" in found["checks"]
    assert "interrupted" in said


def test_a_day_that_cannot_begin_says_why_and_the_way_out(kit: Path, tmp_path: Path) -> None:
    def begun(*options: str) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, *options, "--results", str(tmp_path / "results")]
        return subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)

    bare = begun("-S", str(SCRIPT), "run", "--kit", str(kit))  # no installed package
    assert bare.returncode == 2
    assert "has no numpy, onnx, msgspec; carry it for this Python" in bare.stderr
    lost = begun(str(SCRIPT), "run", "--kit", str(tmp_path / "none"))
    assert lost.returncode == 2
    assert "none: no whole kit" in lost.stderr
    assert "make gpu-day-kit" in lost.stderr
    assert "Traceback" not in bare.stderr + lost.stderr
    assert not (tmp_path / "results").exists()


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
        found[name] = harness["steps"].ended(name, command, limit, tmp_path)
    assert [one["result"] for one in found.values()] == ["timed out", "crashed", "failed"]
    assert found["crashes"]["signal"] == "SIGSEGV"
    assert all((one["saw"], one["output"]) == (1, "said\n") for one in found.values())


def test_a_recording_that_ends_in_a_call_says_in_which(
    harness: dict[str, ModuleType], tmp_path: Path
) -> None:
    (tmp_path / "recordings").mkdir()
    log = {
        "callback": "ILogger.log",
        "on": 1,
        "args": [{"enum": "Severity.ERROR"}, "out of memory"],
        "gives": None,
    }
    lines = [{"recording": 1}, {"n": 1, "call": "Builder.create_network"}, {"n": 1, "gives": 3},
             {"n": 2, "call": "Builder.build_serialized_network"}, {"n": 3, "in": 2, **log}]  # fmt: skip
    (tmp_path / "recordings/bert.jsonl").write_text("\n".join(map(json.dumps, lines)) + '\n{"n": 4, "cal')
    found = harness["steps"].recorded(tmp_path, "bert")
    assert found["tensorrt_said"] == ["ERROR: out of memory"]
    assert found["died_in"] == "Builder.build_serialized_network"
