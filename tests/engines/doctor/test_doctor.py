"""What is installed, what works here, and the fix for what does not."""

from __future__ import annotations

import json
import platform
from collections.abc import Callable
from dataclasses import asdict
from importlib.metadata import version
from importlib.util import find_spec

import pytest

from qcompile.engines import doctor, names
from qcompile.engines.doctor import Diagnosis, find_problems
from qcompile.engines.doctor.diagnosis import machine_facts
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


@pytest.mark.parametrize(
    ("installed", "versions", "problem", "fix"),
    [
        (CLEAN | {"onnxruntime-gpu"}, {}, "onnxruntime and onnxruntime-gpu are installed together",
         "pip uninstall -y onnxruntime onnxruntime-gpu && pip install onnxruntime-gpu"),
        (CLEAN - {"onnxscript"}, {}, "torch is installed without onnxscript", "pip install onnxscript"),
        (CLEAN | {"onnx-simplifier"}, {}, "an old name of onnxsim", "pip uninstall -y onnx-simplifier && "
         "pip install --force-reinstall onnxsim"),
        (CLEAN, {"numpy": "1.26.4"}, "numpy 1.26.4 is installed", "pip install 'numpy>=2'"),
        (CLEAN | {"tensorrt"}, {"tensorrt": "8.5.3.1"}, "TensorRT 8 is built for numpy 1",
         "pip install 'numpy<2'"),
        (CLEAN - {"numba"}, {}, "numba is missing", "pip install numba"),
    ],
)  # fmt: skip
def test_a_defect_is_named_with_its_fix(
    installed: set[str], versions: dict[str, str], problem: str, fix: str
) -> None:
    (found,) = find_problems(installed, lambda name: versions.get(name) or numpy_2(name))
    assert problem in found.problem
    assert found.fix == fix


@pytest.mark.parametrize(
    ("installed", "versions"),
    [
        (CLEAN, {}),
        ((CLEAN - {"onnxruntime"}) | {"onnxruntime-openvino"}, {}),
        (CLEAN - {"torch", "onnxscript"}, {}),
        (CLEAN | {"tensorrt"}, {"tensorrt": "8.5.3.1", "numpy": "1.26.4"}),
        (CLEAN | {"tensorrt"}, {"tensorrt": "10.16.1"}),
        (CLEAN - {"numba", "onnxruntime"}, {}),
    ],
)
def test_what_fits_is_no_defect(installed: set[str], versions: dict[str, str]) -> None:
    assert find_problems(installed, lambda name: versions.get(name) or numpy_2(name)) == []


def test_every_problem_is_reported_at_once() -> None:
    installed = (CLEAN | {"onnxruntime-gpu", "onnx-simplifier"}) - {"onnxscript", "numba"}
    assert len(find_problems(installed, lambda _: "1.26.4")) == 5


def test_doctor_reports_python_and_the_versions_of_what_is_here(diagnosis: Diagnosis) -> None:
    assert diagnosis.python == platform.python_version()
    assert diagnosis.machine["processor"]
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
    value = json.loads(json.dumps(asdict(diagnosis)))
    assert set(value) == {
        "python", "system", "packages", "targets", "problems", "machine", "gpus", "types", "precisions",
        "extras", "tensorflow",
    }  # fmt: skip
    assert set(value["machine"]) == {
        "processor", "architecture", "features", "isa", "int8", "threads", "memory_bytes", "free_bytes",
    }  # fmt: skip
    assert set(value["precisions"][0]) == {"target", "device", "precision", "state", "reason", "fix"}
    assert set(value["extras"][0]) == {"extra", "state", "missing", "problem", "fix"}
    assert set(value["targets"][0]) == {"target", "why_not_build", "why_not_run", "why_not_run_on_gpu", "fix"}


@pytest.mark.parametrize(
    ("flag", "said"),
    [
        (
            "sse4",
            "INT8 on avx2: weights are fitted so that no pair of products overflows, which costs accuracy",
        ),
        ("avx512_vnni", "INT8 on avx512-vnni: weights use all 8 bits"),
        ("avx_vnni", "INT8 on avx-vnni: weights use all 8 bits"),
        ("amx_int8", "INT8 on amx: weights use all 8 bits"),
    ],
)
def test_what_int8_does_here_is_said(flag: str, said: str, on_processor: Callable[..., None]) -> None:
    on_processor(flag)
    assert machine_facts()["int8"] == said


def test_doctor_answers_for_gpus_that_are_not_here() -> None:
    found = doctor(gpus=["sm86", "8.9"])
    assert [one.capability for one in found.types] == ["sm86", "sm89"]
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
