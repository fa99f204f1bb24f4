"""A built engine is run and held against ONNX Runtime, or the manifest says why it was not.

The runner is a stand-in that computes with ONNX Runtime: what is tested is what is made of its outputs.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest

from qcompile.engines.base import BuildOutcome, BuildRequest, Runner
from qcompile.engines.tensorrt.verify import verified
from qcompile.errors import ArtifactError, BuildError, DataError, EngineUnavailable, ModelError
from qcompile.model.onnx_file import load_onnx, model_io
from qcompile.model.session import make_session, session_options
from qcompile.spec.artifacts import BuildSpec
from qcompile.spec.tensorrt import TensorRTOptions
from qcompile.spec.words import Precision
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


def request(
    model: Path, precision: Precision = "fp32", *, sample: Feeds | None = None, calibrator: str = "",
    **options: Any,
) -> BuildRequest:  # fmt: skip
    more: dict[str, Any] = {"calibrator": calibrator, "data": "d.npz"} if calibrator else {}
    spec = BuildSpec(target="tensorrt", precision=precision, tensorrt=TensorRTOptions(**options), **more)
    return BuildRequest(str(model), model, spec, samples=[] if sample is None else [sample])


def noisy(decibels: float) -> Callable[[Any], Any]:
    """What adds noise of this ratio to an output."""

    def change(y: Any) -> Any:
        noise = np.random.default_rng(7).standard_normal(y.shape)
        scale = np.linalg.norm(y) / np.linalg.norm(noise) * 10 ** (-decibels / 20)
        return (y + scale * noise).astype(y.dtype)

    return change


def test_equal_outputs_are_recorded_at_the_shapes_of_the_profile(tiny_file: MakeFile) -> None:
    model = tiny_file("residual")
    stand = Stand(model, lambda y: y)
    found = verified(outcome(model), request(model), lambda: stand)
    assert found.proof["has_run"] is True
    (check,) = found.checks
    assert check.passed
    assert check.name == "same outputs as ONNX Runtime"
    assert stand.shapes == [(3, 4, 8, 8), (1, 4, 8, 8), (8, 4, 8, 8)]
    assert found.proof["run_on"] == [
        "random input at OPT", "random input at MIN", "random input at MAX"
    ]  # fmt: skip
    assert (found.warnings, found.failure) == ((), "")


def test_a_corner_of_the_profile_that_the_graph_cannot_compute_is_left_out(tmp_path: Path) -> None:
    # Each input of a profile has its own smallest values; together they need not be an input of the graph.
    text = """<ir_version: 8, opset_import: ["" : 17]> g (float[n,12] x, int64[2] size) => (float[a,b] y) {
        y = Reshape(x, size) }"""
    model = tmp_path / "m.onnx"
    onnx.save(onnx.parser.parse_model(text), model)
    ranges = {
        "x": {"min": [1, 12], "opt": [4, 12], "max": [8, 12]},
        "size": {"min": [1, 1], "opt": [6, 8], "max": [96, 96]},
    }

    class Strict(Stand):
        """Fails where TensorRT would."""

        def infer(self, feeds: Feeds) -> dict[str, Any]:
            if feeds["x"].size != np.prod(feeds["size"]):
                raise ArtifactError("reshape changes volume")
            return super().infer(feeds)

    stand = Strict(model, lambda y: y)
    found = verified(outcome(model, profiles=[ranges]), request(model), lambda: stand)
    assert found.proof["run_on"] == ["random input at OPT"]
    assert (found.failure, found.warnings) == ("", ())


def test_every_profile_is_tried_and_the_largest_shape_where_it_is_cheap(tiny_file: MakeFile) -> None:
    model = tiny_file("residual")
    stand = Stand(model, lambda y: y)
    wide = {"x": {"min": [1, 4, 8, 8], "opt": [3, 4, 8, 8], "max": [13, 4, 8, 8]}}
    found = verified(outcome(model, profiles=[wide, PROFILE]), request(model), lambda: stand)
    # MAX has more than 4 times the elements of OPT; OPT and MIN of the second are those of the first.
    assert [shape[0] for shape in stand.shapes] == [3, 1, 8]
    assert found.proof["run_on"] == [
        "random input at OPT of profile 0", "random input at MIN of profile 0",
        "random input at MAX of profile 1",
    ]  # fmt: skip


def test_a_batch_of_two_is_run_where_the_optimum_is_one(tiny_file: MakeFile) -> None:
    model = tiny_file("residual")

    def leaking(y: Any) -> Any:
        return y + (y[0] if len(y) > 1 else 0)

    wide = {"x": {"min": [1, 4, 8, 8], "opt": [1, 4, 8, 8], "max": [64, 4, 8, 8]}}
    stand = Stand(model, leaking)
    found = verified(outcome(model, profiles=[wide]), request(model), lambda: stand)
    assert found.proof["run_on"] == ["random input at OPT", "random input at OPT in a batch of 2"]
    assert stand.shapes == [(1, 4, 8, 8), (2, 4, 8, 8)]
    assert "output 'y' of the engine has" in found.failure
    alone = {"x": {kind: [1, 4, 8, 8] for kind in ("min", "opt", "max")}}
    assert verified(outcome(model, profiles=[alone]), request(model), lambda: stand).failure == ""


def test_the_users_data_comes_first_and_is_left_out_where_no_profile_takes_it(tiny_file: MakeFile) -> None:
    model = tiny_file("residual")
    sample = {"x": np.ones((2, 4, 8, 8), np.float32)}
    stand = Stand(model, lambda y: y)
    found = verified(outcome(model), request(model, sample=sample), lambda: stand)
    assert stand.shapes[0] == (2, 4, 8, 8)
    assert "on the data, random input at OPT" in found.checks[0].detail

    class Narrow(Stand):
        """It takes no batch of 2."""

        def infer(self, feeds: Feeds) -> dict[str, Any]:
            if len(feeds["x"]) == 2:
                raise DataError("input 'x' has shape 2x4x8x8, outside the profiles")
            return super().infer(feeds)

    found = verified(outcome(model), request(model, sample=sample), lambda: Narrow(model, lambda y: y))
    assert "not run on the data: input 'x' has shape 2x4x8x8" in found.warnings[0]
    assert found.checks[0].passed


def test_shapes_that_neither_the_engine_nor_the_model_takes_cost_no_engine(tmp_path: Path) -> None:
    text = """<ir_version: 8, opset_import: ["" : 17]>
        m (float[n,4,8,8] x) => (float[a,b] y) {
            s = Constant <value_ints = [3, 256]> ()
            y = Reshape (x, s)
        }"""
    model = tmp_path / "m.onnx"
    onnx.save(onnx.parser.parse_model(text), model)

    class Refusing(Stand):
        """As TensorRT fails at run time where shapes do not fit together."""

        def infer(self, feeds: Feeds) -> dict[str, Any]:
            if len(feeds["x"]) in (1, 8):
                raise ModelError("m.engine: the engine failed")
            return super().infer(feeds)

    found = verified(outcome(model), request(model), lambda: Refusing(model, lambda y: y))
    assert found.proof["run_on"] == ["random input at OPT"]

    class Failing(Refusing):
        """It fails where the model computes."""

        def infer(self, feeds: Feeds) -> dict[str, Any]:
            if len(feeds["x"]) == 3:
                raise ModelError("m.engine: the engine failed")
            return super().infer(feeds)

    with pytest.raises(ModelError, match="the engine failed"):
        verified(outcome(model), request(model), lambda: Failing(model, lambda y: y))


@pytest.mark.parametrize(
    ("sample", "run"), [({"x": np.float32}, True), ({"x": np.float16}, True), ({}, False)]
)
def test_the_data_is_given_in_the_types_of_the_engines_inputs(
    sample: dict[str, Any], run: bool, tiny_file: MakeFile
) -> None:
    model = tiny_file("residual")
    feeds = {name: np.ones((2, 4, 8, 8), dtype) for name, dtype in sample.items()}
    found = verified(outcome(model), request(model, sample=feeds), lambda: Stand(model, lambda y: y))
    run_on = found.proof["run_on"]
    assert isinstance(run_on, list)
    assert ("the data" in run_on) == run


@pytest.mark.parametrize(
    ("precision", "enough", "poor"),
    [
        ("fp32", 90, 12),
        ("fp32", 90, 55),
        ("tf32", 60, 35),
        ("fp16", 60, 35),
        ("bf16", 50, 20),
        ("int8", 20, 10),
    ],
)
def test_the_limit_belongs_to_the_precision(
    precision: Precision, enough: float, poor: float, tiny_file: MakeFile
) -> None:
    model = tiny_file("residual")
    good = verified(outcome(model), request(model, precision), lambda: Stand(model, noisy(enough)))
    assert good.checks[0].passed
    assert (good.failure, good.warnings) == ("", ())
    bad = verified(outcome(model), request(model, precision), lambda: Stand(model, noisy(poor)))
    assert not bad.checks[0].passed
    assert bad.failure.startswith(f"output 'y' of the engine has {poor:.1f} dB")
    assert "against ONNX Runtime on random input at OPT" in bad.failure


def test_a_few_elements_beyond_the_limit_are_a_warning(tiny_file: MakeFile) -> None:
    def change(y: Any) -> Any:
        y = y.copy()
        y.flat[0] += 1.2e-3 * np.abs(y).max()
        return y

    model = tiny_file("residual")
    found = verified(outcome(model), request(model), lambda: Stand(model, change))
    assert not found.checks[0].passed
    assert found.failure == ""
    assert "atol" in found.warnings[0]
    assert "is required" in found.warnings[0]


def test_random_input_says_little_of_scales_that_tensorrt_found(tiny_file: MakeFile) -> None:
    model = tiny_file("residual")
    asked = request(model, "int8", calibrator="native")
    found = verified(outcome(model), asked, lambda: Stand(model, noisy(5)))
    assert (found.failure, found.checks[0].passed) == ("", False)
    assert "'y' of the engine has 5.0 dB" in found.warnings[0]
    shown = replace(asked, samples=[{"x": np.ones((2, 4, 8, 8), np.float32)}])
    found = verified(outcome(model), shown, lambda: Stand(model, noisy(5)))
    assert "'y' of the engine has 5.0 dB" in found.failure


def test_outputs_of_another_shape_fail(tiny_file: MakeFile) -> None:
    model = tiny_file("residual")
    found = verified(outcome(model), request(model), lambda: Stand(model, lambda y: y[:, :1]))
    assert "shapes differ" in found.failure
    assert not found.checks[0].passed


def test_a_type_that_onnx_runtime_cannot_compute_is_held_against_the_users_model(
    tiny_file: MakeFile, tmp_path: Path
) -> None:
    model, graph = tiny_file("residual"), tmp_path / "bf16.onnx"
    made = onnx.load(model)
    made.graph.node[0].op_type = "NoSuchOperator"
    onnx.save(made, graph)
    asked = replace(request(graph, "bf16"), source=str(model))
    found = verified(outcome(model), asked, lambda: Stand(model, noisy(20)))
    assert "20.0 dB" in found.failure


@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_nan_or_infinity_fails_the_build(value: float, tiny_file: MakeFile) -> None:
    model = tiny_file("residual")
    with pytest.raises(BuildError, match="computes NaN or infinity, ONNX Runtime does not") as caught:
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
    with pytest.raises(BuildError, match="computes NaN or infinity: output 'y'"):
        verified(outcome(model, profiles=[]), request(model), lambda: Odd(np.nan))
