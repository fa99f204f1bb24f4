"""A built engine is run and held against ONNX Runtime, or the manifest says why it was not.

The runner is a stand-in that computes with ONNX Runtime: what is tested is what is made of its outputs.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from mode_models import written

from qcompile.engines.base import BuildOutcome, BuildRequest, Runner
from qcompile.engines.tensorrt.verify import verified
from qcompile.errors import ArtifactError, BuildError, DataError, EngineUnavailable, ModelError
from qcompile.model.graph.graph import model_io
from qcompile.model.graph.onnx_file import read_graph
from qcompile.model.sessions.session import make_session, session_options
from qcompile.spec.artifacts import BuildSpec
from qcompile.spec.tensorrt import TensorRTOptions
from qcompile.spec.tensors import Feeds
from qcompile.spec.words import Precision

MakeFile = Callable[..., Path]
Profile = dict[str, dict[str, list[int]]]
PROFILE: Profile = {"x": {"min": [1, 4, 8, 8], "opt": [3, 4, 8, 8], "max": [8, 4, 8, 8]}}


class Stand(Runner):
    """Runs the ONNX file itself; `change` is what its engine does differently, `refuse` what it fails on."""

    contains = "nothing"

    def __init__(
        self,
        model: Path,
        change: Callable[[Any], Any] = lambda y: y,
        refuse: Callable[[Feeds], Exception | None] = lambda _: None,
    ) -> None:
        self.model, self._change, self._refuse = model, change, refuse
        self._session = make_session(model, session_options())
        self.shapes: list[tuple[int, ...]] = []

    def infer(self, feeds: Feeds) -> dict[str, Any]:
        if refused := self._refuse(feeds):
            raise refused
        self.shapes.append(feeds["x"].shape)
        return {"y": self._change(self._session.run(["y"], feeds)[0])}

    def prepare(self, feeds: Feeds) -> Any:
        raise NotImplementedError

    def close(self) -> None:
        """Nothing to free."""


def outcome(model: Path, *profiles: Profile) -> BuildOutcome:
    proof = {"profiles": list(profiles), "has_run": False}
    return BuildOutcome("engine", model_io(read_graph(model).load()), 1, 1, proof, {}, ())


def request(
    model: Path, precision: Precision = "fp32", *, sample: Feeds | None = None, calibrator: str = "",
    **options: Any,
) -> BuildRequest:  # fmt: skip
    more: dict[str, Any] = {"calibrator": calibrator, "data": "d.npz"} if calibrator else {}
    spec = BuildSpec(target="tensorrt", precision=precision, tensorrt=TensorRTOptions(**options), **more)
    return BuildRequest(str(model), model, spec, samples=[] if sample is None else [sample])


def run(stand: Stand, asked: BuildRequest | None = None, *profiles: Profile) -> BuildOutcome:
    """What verification makes of a stand-in for the engine of a model."""
    built = outcome(stand.model, *(profiles or [PROFILE]))
    return verified(built, asked or request(stand.model), lambda: stand)


def noisy(decibels: float) -> Callable[[Any], Any]:
    """What adds noise of this ratio to an output."""

    def change(y: Any) -> Any:
        noise = np.random.default_rng(7).standard_normal(y.shape)
        scale = np.linalg.norm(y) / np.linalg.norm(noise) * 10 ** (-decibels / 20)
        return (y + scale * noise).astype(y.dtype)

    return change


def test_equal_outputs_are_recorded_at_the_shapes_of_the_profile(model: Path) -> None:
    stand = Stand(model)
    found = run(stand)
    assert found.proof["has_run"] is True
    (check,) = found.checks
    assert (check.passed, check.name) == (True, "same outputs as ONNX Runtime")
    assert stand.shapes == [(3, 4, 8, 8), (1, 4, 8, 8), (8, 4, 8, 8)]
    assert found.proof["run_on"] == [f"random input at {kind}" for kind in ("OPT", "MIN", "MAX")]
    assert (found.warnings, found.failure) == ((), "")


def test_a_corner_of_the_profile_that_the_graph_cannot_compute_is_left_out(tmp_path: Path) -> None:
    # Each input of a profile has its own smallest values; together they need not be an input of the graph.
    body = "(float[n,12] x, int64[2] size) => (float[a,b] y) { y = Reshape(x, size) }"
    ranges = {
        "x": {"min": [1, 12], "opt": [4, 12], "max": [8, 12]},
        "size": {"min": [1, 1], "opt": [6, 8], "max": [96, 96]},
    }

    def strict(feeds: Feeds) -> Exception | None:  # as TensorRT would
        fits = feeds["x"].size == np.prod(feeds["size"])
        return None if fits else ArtifactError("reshape changes volume")

    found = run(Stand(written(tmp_path / "m.onnx", body), refuse=strict), None, ranges)
    assert found.proof["run_on"] == ["random input at OPT"]
    assert (found.failure, found.warnings) == ("", ())


def test_every_profile_is_tried_and_the_largest_shape_where_it_is_cheap(model: Path) -> None:
    stand = Stand(model)
    four_times = {"x": {"min": [2, 4, 8, 8], "opt": [2, 4, 8, 8], "max": [8, 4, 8, 8]}}
    assert run(Stand(model), None, four_times).proof["run_on"] == [
        f"random input at {x}" for x in ("OPT", "MAX")
    ]
    wide = {"x": {"min": [1, 4, 8, 8], "opt": [3, 4, 8, 8], "max": [13, 4, 8, 8]}}
    found = run(stand, None, wide, PROFILE)
    # MAX has more than 4 times the elements of OPT; OPT and MIN of the second are those of the first.
    assert [shape[0] for shape in stand.shapes] == [3, 1, 8]
    places = ("OPT of profile 0", "MIN of profile 0", "MAX of profile 1")
    assert found.proof["run_on"] == [f"random input at {place}" for place in places]


def test_a_batch_of_two_is_run_where_the_optimum_is_one(model: Path) -> None:
    stand = Stand(model, lambda y: y + (y[0] if len(y) > 1 else 0))
    found = run(stand, None, {"x": {"min": [1, 4, 8, 8], "opt": [1, 4, 8, 8], "max": [64, 4, 8, 8]}})
    assert found.proof["run_on"] == ["random input at OPT", "random input at OPT in a batch of 2"]
    assert stand.shapes == [(1, 4, 8, 8), (2, 4, 8, 8)]
    assert "output 'y' of the engine has" in found.failure
    assert run(stand, None, {"x": {kind: [1, 4, 8, 8] for kind in ("min", "opt", "max")}}).failure == ""


def test_the_users_data_comes_first_and_is_left_out_where_no_profile_takes_it(model: Path) -> None:
    asked = request(model, sample={"x": np.ones((2, 4, 8, 8), np.float32)})
    stand = Stand(model)
    found = run(stand, asked)
    assert stand.shapes[0] == (2, 4, 8, 8)
    assert "on the data, random input at OPT" in found.checks[0].detail
    outside = DataError("input 'x' has shape 2x4x8x8, outside the profiles")
    found = run(Stand(model, refuse=lambda feeds: outside if len(feeds["x"]) == 2 else None), asked)
    assert "not run on the data: input 'x' has shape 2x4x8x8" in found.warnings[0]
    assert found.checks[0].passed


def test_shapes_that_neither_the_engine_nor_the_model_takes_cost_no_engine(tmp_path: Path) -> None:
    body = """(float[n,4,8,8] x) => (float[a,b] y) {
        s = Constant <value_ints = [3, 256]> () y = Reshape (x, s) }"""
    model = written(tmp_path / "m.onnx", body)

    def failing(*batches: int) -> Stand:  # as TensorRT fails at run time where shapes do not fit together
        failed = ModelError("m.engine: the engine failed")
        return Stand(model, refuse=lambda feeds: failed if len(feeds["x"]) in batches else None)

    assert run(failing(1, 8)).proof["run_on"] == ["random input at OPT"]
    with pytest.raises(ModelError, match="the engine failed"):  # where the model computes
        run(failing(1, 3, 8))


@pytest.mark.parametrize(
    ("sample", "on_data"), [({"x": np.float32}, True), ({"x": np.float16}, True), ({}, False)]
)
def test_the_data_gets_the_types_of_the_inputs(sample: dict[str, Any], on_data: bool, model: Path) -> None:
    feeds = {name: np.ones((2, 4, 8, 8), dtype) for name, dtype in sample.items()}
    run_on = run(Stand(model), request(model, sample=feeds)).proof["run_on"]
    assert isinstance(run_on, list)
    assert ("the data" in run_on) == on_data


@pytest.mark.parametrize(
    ("precision", "enough", "poor"),
    [
        *[("fp32", 90, 12), ("fp32", 90, 55), ("tf32", 60, 35)],
        *[("fp16", 60, 35), ("bf16", 50, 20), ("int8", 20, 10)],
    ],
)
def test_each_precision_has_a_limit(precision: Precision, enough: float, poor: float, model: Path) -> None:
    good = run(Stand(model, noisy(enough)), request(model, precision))
    assert (good.checks[0].passed, good.failure, good.warnings) == (True, "", ())
    bad = run(Stand(model, noisy(poor)), request(model, precision))
    assert not bad.checks[0].passed
    assert bad.failure.startswith(f"output 'y' of the engine has {poor:.1f} dB")
    assert "against ONNX Runtime on random input at OPT" in bad.failure


def test_a_few_elements_beyond_the_limit_are_a_warning(model: Path) -> None:
    def change(y: Any) -> Any:
        y = y.copy()
        y.flat[0] += 1.2e-3 * np.abs(y).max()
        return y

    found = run(Stand(model, change))
    assert (found.checks[0].passed, found.failure) == (False, "")
    assert re.search("atol.*is required", found.warnings[0])


def test_random_input_says_little_of_scales_that_tensorrt_found(model: Path) -> None:
    asked = request(model, "int8", calibrator="native")
    found = run(Stand(model, noisy(5)), asked)
    assert (found.failure, found.checks[0].passed) == ("", False)
    assert "'y' of the engine has 5.0 dB" in found.warnings[0]
    shown = replace(asked, samples=[{"x": np.ones((2, 4, 8, 8), np.float32)}])
    assert "'y' of the engine has 5.0 dB" in run(Stand(model, noisy(5)), shown).failure


def test_outputs_of_another_shape_fail(model: Path) -> None:
    found = run(Stand(model, lambda y: y[:, :1]))
    assert found.failure.startswith("output 'y' is ")
    assert " where ONNX Runtime gives " in found.failure
    assert not found.checks[0].passed


def test_a_type_onnx_runtime_lacks_is_held_against_the_users_model(model: Path, tmp_path: Path) -> None:
    graph = onnx.load(model)
    graph.graph.node[0].op_type = "NoSuchOperator"
    onnx.save(graph, tmp_path / "bf16.onnx")
    asked = replace(request(tmp_path / "bf16.onnx", "bf16"), source=str(model))
    assert "20.0 dB" in run(Stand(model, noisy(20)), asked).failure


@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_nan_or_infinity_fails_the_build(value: float, model: Path) -> None:
    with pytest.raises(BuildError, match="computes NaN or infinity, ONNX Runtime does not") as caught:
        run(Stand(model, lambda y: y * np.float32(value)))
    assert "`layers`" in caught.value.hint


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({}, "the engine was not run: no GPU"),
        ({"strip_weights": True}, "stored without weights"),
        ({"io_formats": ("x=:chw32",)}, "special memory formats"),
    ],
)
def test_what_cannot_be_run_leaves_a_reason(options: dict[str, Any], said: str, model: Path) -> None:
    def refuse() -> Runner:
        assert not options, "it was loaded"
        raise EngineUnavailable("no GPU", engine="tensorrt")

    found = verified(outcome(model, PROFILE), request(model, **options), refuse)
    assert said in found.warnings[0]
    assert found.proof["has_run"] is False


def test_an_operator_that_onnx_runtime_lacks_leaves_finite_outputs_to_be_seen(tmp_path: Path) -> None:
    text = """<ir_version: 8, opset_import: ["" : 17, "com.example" : 1]>
        g (float[3,4,8,8] x) => (float[3,4,8,8] y) { y = com.example.Odd(x) }"""
    model = tmp_path / "m.onnx"
    onnx.save(onnx.parser.parse_model(text), model)

    class Odd(Stand):
        """Any engine with the operator."""

        def __init__(self, value: float) -> None:
            self._value = value

        def infer(self, feeds: Feeds) -> dict[str, Any]:
            return {"y": feeds["x"] * np.float32(self._value)}

    found = verified(outcome(model), request(model), lambda: Odd(2.0))
    assert found.checks[0].name == "runs on this GPU"
    assert "not compared" in found.checks[0].detail
    with pytest.raises(BuildError, match="computes NaN or infinity: output 'y'"):
        verified(outcome(model), request(model), lambda: Odd(np.nan))
