"""A built engine is run once and held against ONNX Runtime, or the manifest says why it was not.

The runner is a stand-in that computes with ONNX Runtime: what is tested is what is made of its outputs.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest

from qcompile.engines.base import BuildOutcome, BuildRequest, Runner
from qcompile.engines.tensorrt.options import TensorRTOptions
from qcompile.engines.tensorrt.verify import verified
from qcompile.errors import BuildError, EngineUnavailable
from qcompile.model.onnx_file import load_onnx, model_io
from qcompile.model.session import make_session, session_options
from qcompile.tensors import Feeds

MakeFile = Callable[..., Path]
PROFILE = {"x": {"min": [1, 4, 8, 8], "opt": [3, 4, 8, 8], "max": [8, 4, 8, 8]}}


class Stand(Runner):
    """Runs the ONNX file itself; `change` is what its engine does differently."""

    contains = "nothing"

    def __init__(self, model: Path, change: Callable[[Any], Any]) -> None:
        self._session, self._change = make_session(model, session_options()), change
        self.io = model_io(load_onnx(model))
        self.shapes: list[tuple[int, ...]] = []

    def infer(self, feeds: Feeds) -> dict[str, Any]:
        self.shapes.append(feeds["x"].shape)
        return {"y": self._change(self._session.run(["y"], feeds)[0])}

    def prepare(self, feeds: Feeds) -> Any:
        raise NotImplementedError

    def close(self) -> None:
        """Nothing to free."""


def outcome(model: Path, **proof: Any) -> BuildOutcome:
    return BuildOutcome(
        "engine", model_io(load_onnx(model)), 1, 1, {"profiles": [PROFILE], "has_run": False, **proof}, {}, ()
    )


def request(model: Path, **options: Any) -> BuildRequest:
    return BuildRequest(str(model), model, "fp32", options=TensorRTOptions(**options) if options else None)


def test_equal_outputs_are_recorded_at_the_opt_shape(tiny_file: MakeFile) -> None:
    model = tiny_file("residual")
    stand = Stand(model, lambda y: y)
    found = verified(outcome(model), request(model), lambda: stand)
    assert found.proof["has_run"] is True
    (check,) = found.checks
    assert check.passed
    assert check.name == "same outputs as ONNX Runtime"
    assert stand.shapes == [(3, 4, 8, 8)]
    assert found.warnings == ()


def test_outputs_that_are_far_away_are_a_warning_and_a_failed_check(tiny_file: MakeFile) -> None:
    model = tiny_file("residual")
    found = verified(outcome(model), request(model), lambda: Stand(model, lambda y: -y))
    assert not found.checks[0].passed
    assert "dB from ONNX Runtime's on random input" in found.warnings[0]


@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_nan_or_infinity_fails_the_build(value: float, tiny_file: MakeFile) -> None:
    model = tiny_file("residual")
    with pytest.raises(BuildError, match="computes NaN or infinity") as caught:
        verified(outcome(model), request(model), lambda: Stand(model, lambda y: y * np.float32(value)))
    assert "`layers`" in caught.value.hint


def test_a_runtime_that_cannot_run_here_leaves_the_reason(tiny_file: MakeFile) -> None:
    def refuse() -> Runner:
        raise EngineUnavailable("no PyCUDA", engine="tensorrt")

    found = verified(outcome(tiny_file("mlp")), request(tiny_file("mlp")), refuse)
    assert found.proof["has_run"] is False
    assert found.warnings == ("the engine was not run: no PyCUDA",)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"strip_weights": True}, "stored without weights"),
        ({"io_formats": ("x=:chw32",)}, "memory format of their own"),
    ],
)
def test_what_cannot_be_run_is_not_tried(options: dict[str, Any], said: str, tiny_file: MakeFile) -> None:
    def never() -> Runner:
        pytest.fail("it was loaded")

    model = tiny_file("mlp")
    found = verified(outcome(model), request(model, **options), never)
    assert said in found.warnings[0]
    assert found.proof["has_run"] is False


def test_an_operator_that_onnx_runtime_lacks_leaves_finite_outputs_to_be_seen(tmp_path: Path) -> None:
    text = """<ir_version: 8, opset_import: ["" : 17, "com.example" : 1]>
        tiny (float[3,4,8,8] x) => (float[3,4,8,8] y) { y = com.example.Odd(x) }"""
    model = tmp_path / "m.onnx"
    onnx.save(onnx.parser.parse_model(text), model)

    class Odd(Stand):
        """Any engine with the operator."""

        def __init__(self, value: float) -> None:
            self._value = value

        def infer(self, feeds: Feeds) -> dict[str, Any]:
            return {"y": feeds["x"] * np.float32(self._value)}

    found = verified(outcome(model, profiles=[]), request(model), lambda: Odd(2.0))
    assert found.checks[0].name == "runs on this GPU"
    assert "not compared" in found.checks[0].detail
    with pytest.raises(BuildError, match="output 'y' holds NaN or infinity"):
        verified(outcome(model, profiles=[]), request(model), lambda: Odd(np.nan))
