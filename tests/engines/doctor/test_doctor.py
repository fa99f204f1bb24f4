"""What is installed, what works here, and the fix for what does not."""

from __future__ import annotations

import json
import platform
from importlib.metadata import version
from importlib.util import find_spec

import pytest

from qcompile.engines import doctor, names
from qcompile.engines.doctor import Diagnosis, find_problems
from qcompile.engines.gpu import why_no_gpu
from qcompile.errors import InvalidOption, MissingFile

CLEAN = {"numba", "numpy", "onnx", "onnxruntime", "torch", "onnxscript", "onnxsim", "rich", "tensorrt-rtx"}


def numpy_2(package: str) -> str:
    """Versions of a clean installation."""
    return {"numpy": "2.4.6"}.get(package, "1.0")


@pytest.fixture(scope="module")
def diagnosis() -> Diagnosis:
    """What `doctor` finds here."""
    return doctor()


def test_a_clean_installation_has_no_problem() -> None:
    assert find_problems(CLEAN, numpy_2) == []


def test_both_onnxruntimes_together_are_a_problem_with_one_command_as_its_fix() -> None:
    (problem,) = find_problems(CLEAN | {"onnxruntime-gpu"}, numpy_2)
    assert problem.problem.startswith("onnxruntime and onnxruntime-gpu are installed together")
    assert problem.fix == ("pip uninstall -y onnxruntime onnxruntime-gpu && pip install onnxruntime-gpu")


@pytest.mark.parametrize("only", ["onnxruntime", "onnxruntime-gpu", "onnxruntime-openvino"])
def test_any_one_onnxruntime_is_no_problem(only: str) -> None:
    assert find_problems((CLEAN - {"onnxruntime"}) | {only}, numpy_2) == []


def test_torch_without_onnxscript_is_a_problem() -> None:
    (problem,) = find_problems(CLEAN - {"onnxscript"}, numpy_2)
    assert problem.fix == "pip install onnxscript"
    assert find_problems(CLEAN - {"torch", "onnxscript"}, numpy_2) == []


def test_the_old_name_of_onnxsim_is_a_problem() -> None:
    (problem,) = find_problems(CLEAN | {"onnx-simplifier"}, numpy_2)
    assert "pip uninstall -y onnx-simplifier" in problem.fix


def test_numpy_1_is_a_problem() -> None:
    (problem,) = find_problems(CLEAN, lambda _: "1.26.4")
    assert "numpy 1.26.4 is installed" in problem.problem
    assert problem.fix == "pip install 'numpy>=2'"


def test_tensorrt_8_wants_numpy_1() -> None:
    installed = CLEAN | {"tensorrt"}
    versions = {"tensorrt": "8.5.3.1", "numpy": "2.4.6"}
    (problem,) = find_problems(installed, lambda name: versions.get(name, "1"))
    assert "TensorRT 8 is built for numpy 1" in problem.problem
    assert problem.fix == "pip install 'numpy<2'"
    assert find_problems(installed, lambda name: {**versions, "numpy": "1.26.4"}.get(name, "1")) == []
    newer = {"tensorrt": "10.16.1", "numpy": "2.4.6"}
    assert find_problems(installed, lambda name: newer.get(name, "1")) == []


def test_counting_by_numpy_is_a_problem_where_a_runtime_calibrates() -> None:
    (problem,) = find_problems(CLEAN - {"numba"}, numpy_2)
    assert problem.fix == "pip install numba"
    assert find_problems(CLEAN - {"numba", "onnxruntime"}, numpy_2) == []


def test_every_problem_is_reported_at_once() -> None:
    installed = (CLEAN | {"onnxruntime-gpu", "onnx-simplifier"}) - {"onnxscript", "numba"}
    assert len(find_problems(installed, lambda _: "1.26.4")) == 5


def test_doctor_reports_python_and_the_versions_of_what_is_here(diagnosis: Diagnosis) -> None:
    assert diagnosis.python == platform.python_version()
    assert diagnosis.processor
    assert diagnosis.packages["onnxruntime"] == version("onnxruntime")
    assert all(diagnosis.packages.values())


def test_doctor_reports_every_target(diagnosis: Diagnosis) -> None:
    assert tuple(state.target for state in diagnosis.targets) == names()
    states = {state.target: state for state in diagnosis.targets}
    assert states["onnxruntime"].why_not_build == states["onnxruntime"].why_not_run == ""
    assert states["onnxruntime"].fix == ""


@pytest.mark.skipif(find_spec("tensorrt") is not None, reason="TensorRT is installed")
def test_doctor_says_that_tensorrt_cannot_be_imported_and_what_to_install(diagnosis: Diagnosis) -> None:
    (state,) = (state for state in diagnosis.targets if state.target == "tensorrt")
    for reason in (state.why_not_build, state.why_not_run):
        assert reason.startswith("tensorrt cannot be imported (")
    assert state.fix.startswith("pip install 'qcompile[tensorrt]'")
    assert ("builds without one" in state.fix) == bool(why_no_gpu())


@pytest.mark.skipif(not why_no_gpu(), reason="a GPU is here")
def test_doctor_says_that_rtx_builds_here_and_needs_a_gpu_to_run(diagnosis: Diagnosis) -> None:
    (state,) = (state for state in diagnosis.targets if state.target == "tensorrt-rtx")
    assert state.why_not_build == ""
    assert "NVIDIA driver" in state.why_not_run
    assert "machine with an NVIDIA GPU" in state.fix


def test_the_json_form_is_plain(diagnosis: Diagnosis) -> None:
    value = json.loads(json.dumps(diagnosis.as_json()))
    assert set(value) == {
        "python", "system", "processor", "packages", "targets", "problems", "machine", "gpus", "asked",
        "precisions", "int8", "extras", "tensorflow",
    }  # fmt: skip
    assert set(value["int8"]) == {"isa", "cost", "measured", "measured_on", "sentence"}
    assert set(value["precisions"][0]) == {"target", "device", "precision", "state", "reason", "fix"}
    assert set(value["extras"][0]) == {"extra", "state", "missing", "problem", "fix"}
    assert set(value["targets"][0]) == {"target", "why_not_build", "why_not_run", "why_not_run_on_gpu", "fix"}


def test_doctor_answers_for_gpus_that_are_not_here() -> None:
    found = doctor(gpus=["sm86", "8.9"])
    assert [one.capability for one in found.asked] == ["sm86", "sm89"]
    devices = {one.device for one in found.precisions if one.target == "tensorrt-rtx"}
    assert devices == {"sm86", "sm89"}
    with pytest.raises(InvalidOption, match="a compute capability"):
        doctor(gpus=["rtx3090"])


def test_doctor_says_which_interpreter_converts_tensorflow(diagnosis: Diagnosis) -> None:
    assert diagnosis.tensorflow.python
    if find_spec("tensorflow") is None:
        assert "cannot be imported" in diagnosis.tensorflow.problem
        assert "in another environment: python -m venv" in diagnosis.tensorflow.fix
    with pytest.raises(MissingFile, match="no executable"):
        doctor(python=["tensorflow=/nothing/python"])
