"""Engines are found by name; a name belongs to one."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from qcompile.engines.base import BuildRequest, Engine
from qcompile.engines.build import build_engine
from qcompile.engines.registry import engine, names, register
from qcompile.errors import EngineUnavailable, InvalidOption
from qcompile.spec.artifacts import BuildSpec
from qcompile.spec.words import PRECISIONS


def test_the_engines_are_these() -> None:
    assert names() == ("onnxruntime", "openvino", "tensorrt-rtx", "tensorrt", "torchscript", "pytorch")


@pytest.mark.parametrize("name", names())
def test_an_engine_knows_its_name_and_says_why_it_cannot(name: str) -> None:
    found = engine(name)
    assert isinstance(found, Engine)
    assert found.name == name
    assert found.takes in ("onnx", "pytorch")
    assert found.fix() or not found.why_not_run()


@pytest.mark.parametrize("name", ["onnxruntime", "openvino", "tensorrt-rtx", "torchscript"])
def test_an_engine_that_can_build_here_names_the_precision_its_graph_must_have(name: str) -> None:
    found = engine(name)
    assert found.why_not_build() == ""
    assert found.suffix.startswith(".")
    needed = [found.graph_precision(precision) for precision in found.precisions]
    expected = {
        "torchscript": ["fp32"] * 5,
        "openvino": ["fp32", "fp32", "fp32", "int8", "int4"],
        "tensorrt-rtx": ["fp32", "fp32", "fp16", "bf16", "int8", "fp8", "int4", "nvfp4", "mxfp8"],
    }
    assert needed == expected.get(name, ["fp32", "fp16", "bf16", "int8", "int4"])
    assert set(found.precisions) <= set(PRECISIONS)


def test_a_name_that_is_taken_is_refused() -> None:
    with pytest.raises(InvalidOption, match=r"engine 'tensorrt' is registered already \(\.tensorrt\)"):
        register("tensorrt", ".elsewhere", "Other")
    assert type(engine("tensorrt")).__name__ == "TensorRT"


def test_an_unknown_name_is_refused_with_the_known_ones_and_the_nearest() -> None:
    with pytest.raises(
        InvalidOption, match="target 'onnx-runtime' is unknown; known are onnxruntime"
    ) as caught:
        engine("onnx-runtime")
    assert caught.value.hint == "did you mean 'onnxruntime'?"
    assert caught.value.data["option"] == "target"


def test_a_name_that_is_near_to_none_has_no_hint() -> None:
    with pytest.raises(InvalidOption) as caught:
        engine("zzz")
    assert caught.value.hint == ""


def test_the_registry_imports_no_runtime() -> None:
    program = (
        "import sys; from qcompile.engines.registry import names; names(); "
        "print(sorted({'onnxruntime', 'torch', 'tensorrt_rtx', 'tensorrt', 'onnx'} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


@pytest.mark.skipif(not engine("tensorrt").why_not_build(), reason="TensorRT builds here")
def test_an_engine_that_cannot_build_says_so_before_it_looks_at_the_model(tmp_path: Path) -> None:
    request = BuildRequest("nowhere.onnx", tmp_path / "out" / "m.engine", BuildSpec(target="tensorrt"))
    with pytest.raises(EngineUnavailable, match="target tensorrt cannot build here: ") as caught:
        build_engine(request)
    assert caught.value.data["engine"] == "tensorrt"
    assert caught.value.data["reason"] == engine("tensorrt").why_not_build()
    assert caught.value.hint
    assert not (tmp_path / "out").exists()
