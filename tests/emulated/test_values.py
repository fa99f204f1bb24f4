"""The proof of values on x86 without VNNI: an emulated Haswell runs artifacts whose products overflow."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from emulated import require_emulated, run_emulated
from numpy.typing import NDArray

import qcompile
from qcompile.engines.base import BuildRequest, Runner
from qcompile.engines.values import Execution, Values, check_values
from qcompile.model.onnx_file import load_onnx, model_io
from qcompile.spec.artifacts import BuildSpec

Made = Callable[..., Path]


class OnHaswell(Runner):
    """A file with the default options of ONNX Runtime there, which optimize it there."""

    def __init__(self, path: Path) -> None:
        self.path, self.io = path, model_io(load_onnx(path))

    def infer(self, feeds: dict[str, NDArray[Any]]) -> dict[str, NDArray[Any]]:
        (outputs,) = run_emulated("haswell", [(self.path, feeds)], self.path.parent / "haswell")
        return outputs

    def prepare(self, feeds: dict[str, NDArray[Any]]) -> Any:
        return lambda: self.infer(feeds)

    def close(self) -> None:
        pass


@pytest.fixture
def checked(on_processor: Callable[..., None]) -> Callable[[Path, NDArray[Any]], Values]:
    require_emulated("haswell")
    on_processor()  # no VNNI

    def check(path: Path, x: NDArray[Any]) -> Values:
        request = BuildRequest(
            str(path), path, BuildSpec(target="onnxruntime", precision="int8", isa="avx2"), samples=[{"x": x}]
        )
        execution = Execution("ONNX Runtime", shutil.copyfile, {"as it is": OnHaswell})
        return check_values(request, load_onnx(path), path, execution, {"x": x})

    return check


@pytest.mark.parametrize("isa", ["avx512-vnni", "avx2"])
def test_convolutions_that_overflow_are_found_and_named(
    isa: str, tiny_file: Made, samples: Made, tmp_path: Path, checked: Callable[..., Values]
) -> None:
    model, data = tiny_file("residual"), samples("residual", 16)
    ranges = qcompile.calibrate(model, str(data), tmp_path / "r").path
    path = qcompile.quantize(model, tmp_path / "q.onnx", ranges=ranges, target="onnxruntime", isa=isa).path
    found = checked(path, np.load(data)["x"])
    assert [check.passed for check in found.checks] == [isa == "avx2"]
    if isa != "avx2":
        assert "ONNX Runtime computes something else, from layer 'conv1' on: output 'y': " in found.failure
        assert found.failure.endswith(
            "pairs of its products overflow the 16 bits in which this processor adds them"
        )
        assert found.hint == "quantize it again with `isa` avx2, or give `allow_fallback`"


@pytest.mark.parametrize(
    ("isa", "weight_type"), [("avx512-vnni", "int8"), ("avx512-vnni", "uint8"), ("avx2", "int8")]
)
def test_dynamic_products_that_overflow_are_found_and_named(
    isa: str, weight_type: str, tiny_file: Made, tmp_path: Path, checked: Callable[..., Values]
) -> None:
    path = qcompile.quantize(
        tiny_file("mlp"), tmp_path / "q.onnx", mode="dynamic", weight_type=weight_type, isa=isa
    ).path  # fmt: skip
    found = checked(path, np.random.default_rng(0).standard_normal((16, 16)).astype(np.float32))
    overflow = (isa, weight_type) == ("avx512-vnni", "int8")
    assert [check.passed for check in found.checks] == [not overflow]
    if overflow:
        assert "from layer 'matmul1_quant' on" in found.failure
        assert found.hint == "quantize it again with `isa` avx2, or give `allow_fallback`"
