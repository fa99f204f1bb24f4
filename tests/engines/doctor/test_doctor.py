"""Doctor: what is installed, what works here, and the fix for what does not."""

from __future__ import annotations

import json
import platform
from collections.abc import Callable
from dataclasses import asdict
from importlib.metadata import requires, version
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import qcompile
from qcompile.compiler.quantize.calibrate import calibrate
from qcompile.engines import doctor, names
from qcompile.engines.doctor import (
    Diagnosis,
    PrecisionState,
    TargetState,
    clash,
    extra_states,
    find_problems,
    gpu_types,
    installed_version,
    machine_facts,
    precision_states,
)
from qcompile.engines.gpu import why_no_gpu
from qcompile.engines.registry import engine
from qcompile.errors import InvalidOption, MissingFile, QCompileError
from qcompile.spec.words import CALIBRATED, PRECISIONS

MakePath = Callable[..., Path]
OnProcessor = Callable[..., None]

CLEAN = {"numba", "numpy", "onnx", "onnxruntime", "torch", "onnxscript", "onnxsim", "rich", "tensorrt-rtx"}


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
        *[(fits, {}, "", "") for fits in (
            CLEAN, (CLEAN - {"onnxruntime"}) | {"onnxruntime-openvino"}, CLEAN - {"torch", "onnxscript"},
            CLEAN - {"numba", "onnxruntime"},
        )],
        (CLEAN | {"tensorrt"}, {"tensorrt": "8.5.3.1", "numpy": "1.26.4"}, "", ""),
        (CLEAN | {"tensorrt"}, {"tensorrt": "10.16.1"}, "", ""),
    ],
)  # fmt: skip
def test_a_defect_has_a_fix(installed: set[str], versions: dict[str, str], problem: str, fix: str) -> None:
    found = find_problems(installed, lambda name: {"numpy": "2.4.6", **versions}.get(name, "1.0"))
    assert len(found) == bool(problem)
    for one in found:
        assert problem in one.problem
        assert one.fix == fix


def test_every_problem_is_reported_at_once() -> None:
    installed = (CLEAN | {"onnxruntime-gpu", "onnx-simplifier"}) - {"onnxscript", "numba"}
    assert len(find_problems(installed, lambda _: "1.26.4")) == 5


def test_doctor_reports_python_the_versions_of_what_is_here_and_every_target(diagnosis: Diagnosis) -> None:
    assert diagnosis.python == platform.python_version()
    assert diagnosis.machine["processor"]
    assert diagnosis.packages["onnxruntime"] == version("onnxruntime")
    assert all(diagnosis.packages.values())
    assert tuple(state.target for state in diagnosis.targets) == names()
    (cpu,) = (state for state in diagnosis.targets if state.target == "onnxruntime")
    assert cpu.why_not_build == cpu.why_not_run == cpu.fix == ""


@pytest.mark.skipif(find_spec("tensorrt") is not None, reason="TensorRT is installed")
def test_doctor_says_why_tensorrt_does_not_build_or_run_and_what_helps(diagnosis: Diagnosis) -> None:
    found = {state.target: state for state in diagnosis.targets}
    missing, rtx = found["tensorrt"], found["tensorrt-rtx"]
    for reason in (missing.why_not_build, missing.why_not_run):
        assert reason.startswith("tensorrt cannot be imported (")
    assert missing.fix.startswith("pip install 'tensorrt>=10'")
    assert ("builds without one" in missing.fix) == bool(why_no_gpu())
    assert rtx.why_not_build == ""
    if why_no_gpu():
        assert "NVIDIA driver" in rtx.why_not_run
        assert "machine with an NVIDIA GPU" in rtx.fix


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
    ("flag", "isa"),
    [("sse4", "avx2"), ("avx512_vnni", "avx512-vnni"), ("avx_vnni", "avx-vnni"), ("amx_int8", "amx")],
)
def test_what_int8_does_here_is_said(flag: str, isa: str, on_processor: OnProcessor) -> None:
    on_processor(flag)
    fitted = "weights are fitted so that no pair of products overflows, which costs accuracy"
    cost = fitted if isa == "avx2" else "weights use all 8 bits"
    assert machine_facts()["int8"] == f"INT8 on {isa}: {cost}"


def test_doctor_says_which_interpreter_converts_tensorflow(diagnosis: Diagnosis) -> None:
    assert diagnosis.tensorflow.python
    if find_spec("tensorflow") is None:
        assert "cannot be imported" in diagnosis.tensorflow.problem
        assert "in another environment: python -m venv" in diagnosis.tensorflow.fix
    with pytest.raises(MissingFile, match="no executable"):
        doctor(python=["tensorflow=/nothing/python"])


def states(versions: dict[str, str], requirements: dict[str, list[str]]) -> dict[str, tuple[str, str, str]]:
    found = extra_states(lambda name: versions.get(name, ""), lambda name: requirements.get(name, []))
    return {one.extra: (one.state, one.problem or ", ".join(one.missing), one.fix) for one in found}


def test_an_extra_is_installed_incomplete_or_missing() -> None:
    found = states({"jinja2": "3.1.6", "jiwer": "4.0", "openvino": "2026.4", "onnxruntime-gpu": "1.31"}, {})
    assert found["openvino"] == ("installed", "", "")
    assert found["metrics"][0] == "incomplete"
    assert found["report"] == ("installed", "", "")
    of_cpu = "pip install 'onnxsim>=0.4.36' 'polygraphy>=0.53' 'nvidia-ml-py>=12' 'numba>=0.60'"
    assert found["cpu"][::2] == ("incomplete", of_cpu)
    of_tensorflow = "pip install 'tensorflow>=2.15' 'tf2onnx>=1.16'"
    assert found["tensorflow"] == ("missing", "tensorflow, tf2onnx", of_tensorflow)
    assert "onnxruntime" not in found["cpu"][1]  # another distribution holds the module


TORCHVISION = ["numpy", "torch==2.12.0", "pillow!=8.3.*,>=5.3", "gdown; extra == 'x'"]
TENSORFLOW = ["numpy<2.2.0,>=1.26.0", "protobuf!=4.21.0,<6.0.0dev,>=3.20.3"]


@pytest.mark.parametrize(
    ("extra", "asks", "versions", "problem", "fix"),
    [
        ("models", {"torchvision": TORCHVISION},
         {"torchvision": "0.27.0", "torch": "2.13.0+cpu", "pillow": "12.0"},
         "torchvision 0.27.0 is built for torch==2.12.0; 2.13.0+cpu is installed",
         "torch and torchvision of one build"),
        ("models", {"torchvision": TORCHVISION},
         {"torchvision": "0.27.0", "torch": "2.12.0", "pillow": "12.0"}, "", ""),
        ("tensorflow", {"tensorflow-cpu": TENSORFLOW},
         {"tensorflow-cpu": "2.19.0", "tf2onnx": "1.17", "numpy": "2.4.6"},
         "tensorflow-cpu 2.19.0 is built for numpy<2.2.0,>=1.26.0; 2.4.6 is installed",
         "an environment of its own"),
    ],
)  # fmt: skip
def test_packages_that_were_built_for_other_versions_are_broken(
    extra: str, asks: dict[str, list[str]], versions: dict[str, str], problem: str, fix: str
) -> None:
    state, found, way_out = states(versions, asks)[extra]
    assert state == ("broken" if problem else "incomplete")
    assert found == problem or not problem
    assert fix in way_out


def test_what_is_installed_here_by_pip_fits() -> None:
    assert clash("transformers", installed_version, requires) == ""


# TensorRT-RTX Support Matrix: FP16, BF16, FP8, FP4.
MATRIX = {"12.0": "YYYY", "8.9": "YYYN", "8.6": "YYNN", "7.5": "YNNN"}


@pytest.mark.parametrize("capability", MATRIX)
def test_the_types_are_those_of_the_support_matrix(capability: str) -> None:
    types = gpu_types(capability).types
    found = "".join("Y" if name in types else "N" for name in ("FP16", "BF16", "FP8", "FP4"))
    assert found == MATRIX[capability]


def test_a_capability_is_spelled_as_nvidia_does_and_one_that_is_not_listed_takes_the_row_below() -> None:
    assert {gpu_types(text).capability for text in ("sm86", "SM_86", "8.6", "86", "sm86a")} == {"sm86"}
    types = gpu_types("sm88")
    assert (types.architecture, types.note) == ("Ampere (Orin)", "not in the tables: as sm87")
    assert gpu_types("sm61").types == ()
    assert gpu_types("sm121").note == ""
    # INT4 came with Turing and left with Hopper.
    with_int4 = [one for one in ("7.0", "7.5", "8.9", "9.0", "12.0") if "INT4" in gpu_types(one).types]
    assert with_int4 == ["7.5", "8.9"]
    assert [gpu_types(one).why_not("int4") == "" for one in ("7.5", "8.0", "12.0")] == [False, True, True]
    assert gpu_types("sm86").why_not("fp8") == "the Tensor Cores of sm86 take no FP8, which begins with sm89"


@pytest.mark.parametrize("text", ["", "RTX 3090", "sm", "sm3", "4.0", "sm30", "sm99999"])
def test_what_is_no_capability_is_refused(text: str) -> None:
    with pytest.raises(InvalidOption, match="a compute capability from sm50 on is required"):
        gpu_types(text)


@given(st.integers(50, 999))
def test_every_capability_answers_for_every_precision(number: int) -> None:
    types = gpu_types(f"sm{number}")
    assert types.why_not("fp32") == ""
    assert bool(types.why_not("bf16")) == (number < 80)
    assert bool(types.why_not("fp8")) == (number < 89)
    assert bool(types.why_not("nvfp4")) == bool(types.why_not("mxfp8")) == (number < 100)


ALL = [*map(TargetState, ("onnxruntime", "openvino", "tensorrt-rtx", "tensorrt", "torchscript"))]
NVFP4 = Path(__file__).parents[2] / "samples/blocks/nvfp4.onnx"
AHEAD = [TargetState("tensorrt-rtx", why_not_run="no NVIDIA driver", fix="another machine")]


def found(
    targets: list[TargetState], *gpus: str, here: bool = True
) -> dict[tuple[str, str, str], PrecisionState]:
    states = precision_states(targets, [gpu_types(one) for one in gpus], here=here)
    return {(one.target, one.device, one.precision): one for one in states}


def test_every_cell_that_is_not_fast_has_a_reason(on_processor: OnProcessor) -> None:
    on_processor()
    states = found(ALL, "sm75", "sm120")
    assert len(states) == len(PRECISIONS) * (3 + 2 * 2)
    assert all(bool(one.reason) == (one.state != "fast") for one in states.values())


@pytest.mark.parametrize(
    ("machine", "features", "openvino", "onnxruntime"),
    [
        ("x86_64", (), "emulated emulated runs", "emulated runs"),
        ("x86_64", ("avx512_vnni",), "emulated emulated fast", "emulated fast"),
        ("x86_64", ("avx_vnni", "avx512_bf16"), "emulated fast fast", "emulated fast"),
        ("x86_64", ("amx_int8", "amx_bf16", "avx512_fp16"), "fast fast fast", "emulated fast"),
        ("aarch64", ("asimd", "asimddp", "asimdhp"), "", "runs fast"),
        ("aarch64", ("asimd",), "", "emulated runs"),
    ],
)
def test_processors_are_as_fast_as_their_instructions(
    machine: str, features: tuple[str, ...], openvino: str, onnxruntime: str, on_processor: OnProcessor,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    on_processor(*features)
    monkeypatch.setattr("platform.machine", lambda: machine)
    states = found(ALL)
    assert [states["onnxruntime", "cpu", one].state for one in ("fp16", "int8")] == onnxruntime.split()
    if openvino:
        assert [states["openvino", "cpu", one].state for one in ("fp16", "bf16", "int8")] == openvino.split()
    if features == ("asimd",):
        assert "neon has no product of 8 bits" in states["onnxruntime", "cpu", "int8"].reason


def test_a_target_that_is_missing_says_what_to_install(on_processor: OnProcessor) -> None:
    on_processor("avx512_vnni")
    missing = TargetState("openvino", "cannot be imported", "cannot be imported", fix="pip install it")
    one = found([missing])["openvino", "cpu", "int8"]
    assert (one.state, one.reason, one.fix) == ("no", "cannot be imported", "pip install it")


@pytest.mark.parametrize(
    ("target", "gpu", "states"),
    [
        ("tensorrt", "sm86", {"int8": "fast", "fp8": "no"}),
        ("tensorrt", "sm89", {"fp8": "fast", "int4": "runs", "nvfp4": "no"}),
        # Ahead of time; of sm75 INT8 has fp16 between its layers.
        ("tensorrt-rtx", "sm120", {"nvfp4": "builds"}),
        ("tensorrt-rtx", "sm75", {"fp16": "builds", "int8": "builds", "fp32": "no"}),
        ("tensorrt-rtx", "sm90", {"fp16": "no"}),
        ("tensorrt-rtx", "", {"fp16": "builds"}),
    ],
)
def test_a_gpu_runs_what_its_tensor_cores_take(
    target: str, gpu: str, states: dict[str, str], on_processor: OnProcessor
) -> None:
    on_processor()
    gpus = [gpu] if gpu else []
    table = found(ALL, *gpus) if target == "tensorrt" else found(AHEAD, *gpus, here=not gpu)
    assert {name: table[target, gpu or "gpu", name].state for name in states} == states
    if gpu == "sm75":
        assert "only matrices of fp16 and int8 on sm75" in table[target, gpu, "fp32"].reason


def builds(model: Path, folder: Path, **options: Any) -> bool:
    """Whether a build, of a graph that is made for its target, succeeds."""
    try:
        if (options["target"], options["precision"]) in (("onnxruntime", "fp16"), ("onnxruntime", "bf16")):
            model = qcompile.quantize(model, folder / "half.onnx", **options).path
        qcompile.build(model, folder / "built", **options)
    except QCompileError:
        return False
    return True


@pytest.mark.parametrize("target", ["onnxruntime", "openvino"])
@pytest.mark.parametrize("precision", ["fp32", "tf32", "fp16", "bf16", "fp8", "nvfp4"])
def test_the_table_fits_the_build(target: str, precision: str, tiny_file: MakePath, tmp_path: Path) -> None:
    """On whatever processor this runs: the state is fast where, and only where, the build proves it."""
    stated = found(ALL)[target, "cpu", precision].state
    built = builds(tiny_file("mlp"), tmp_path, target=target, precision=precision)
    assert built == (stated in ("fast", "runs"))


@pytest.mark.skipif(bool(engine("tensorrt-rtx").why_not_build()), reason="TensorRT-RTX is not installed")
@pytest.mark.parametrize("precision", ["fp16", "bf16", "int8", "fp8", "nvfp4"])
def test_rtx_fits_the_table(precision: str, tiny_file: MakePath, samples: MakePath, tmp_path: Path) -> None:
    """NVIDIA's builder is the oracle of the table of types; a graph of NVFP4 comes from elsewhere."""
    model = NVFP4 if precision == "nvfp4" else tiny_file("mlp")
    if precision in CALIBRATED:
        ranges = calibrate(model, str(samples("mlp")), tmp_path / "m.ranges", targets=["tensorrt"], threads=1)
        model = qcompile.quantize(
            model, tmp_path / "q.onnx", target="tensorrt", precision=precision, ranges=ranges.path
        ).path
    for gpu in ("sm75", "sm86", "sm89", "sm120", "sm90"):
        stated = found(AHEAD, gpu, here=False)["tensorrt-rtx", gpu, precision].state
        built = builds(model, tmp_path, target="tensorrt-rtx", precision=precision, gpus=[gpu])
        assert built == (stated == "builds"), gpu
