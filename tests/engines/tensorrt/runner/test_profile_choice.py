"""The tightest profile that fits is chosen; what fits none is refused with the ranges."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tensorrt_simulation import Simulation, values

from qcompile.engines.tensorrt.runner.profile_choice import Extremes, FeedShapes, Profile, fitting_profiles
from qcompile.errors import DataError

WIDE = {"x": [[1, 4], [4, 4], [64, 4]]}
SMALL = {"x": [[1, 4], [2, 4], [8, 4]]}
LARGE = {"x": [[9, 4], [32, 4], [32, 4]]}


@pytest.mark.parametrize(("count", "index"), [(1, 1), (8, 1), (9, 2), (32, 2), (33, 0), (64, 0)], ids=str)
def test_the_tightest_profile_runs_and_only_a_change_is_told(
    simulation: Simulation, count: int, index: int
) -> None:
    x = values(count, 4)
    with simulation.open("negate", profiles=[WIDE, SMALL, LARGE]) as runner:
        for _ in range(3):
            np.testing.assert_array_equal(runner.infer({"x": x})["y"], -x)
        told = simulation.told("set_optimization_profile_async")
        assert [arguments[0] for arguments in told] == ([index] if index else [])
        assert simulation.told("set_input_shape") == [("x", (count, 4))]


def test_profiles_change_back_and_forth(simulation: Simulation) -> None:
    with simulation.open("negate", profiles=[WIDE, SMALL, LARGE]) as runner:
        for count in (2, 40, 20, 2, 2, 64, 1):
            x = values(count, 4)
            np.testing.assert_array_equal(runner.infer({"x": x})["y"], -x)
        told = simulation.told("set_optimization_profile_async")
        assert [arguments[0] for arguments in told] == [1, 0, 2, 1, 0, 1]


@pytest.mark.parametrize(
    ("feeds", "said"),
    [
        ((65, 1), "input 'a' has shape 65x4, outside .*; required: 1x4 to 2x4 or 4x4 to 8x4\n"),
        ((3, 1), "input 'a' has shape 3x4, outside .*; required: 1x4 to 2x4 or 4x4 to 8x4\n"),
        ((1, 9), "input 'b' has shape 9x4, outside .*; required: 1x4 or 5x4 to 6x4\n"),
        (
            (1, 6),
            "each input fits an .* no profile fits all of a:1x4, b:6x4; required: a 1x4 to 2x4, b 1x4; or a",
        ),
    ],
)
def test_shapes_outside_all_profiles_are_refused_with_the_ranges(
    newest: Simulation, feeds: tuple[int, int], said: str
) -> None:
    profiles = [
        {"a": [[1, 4], [1, 4], [2, 4]], "b": [[1, 4]] * 3},
        {"a": [[4, 4], [4, 4], [8, 4]], "b": [[5, 4], [5, 4], [6, 4]]},
    ]
    with newest.open("sum", profiles=profiles) as runner:
        with pytest.raises(DataError, match=said) as caught:
            runner.infer({"a": values(feeds[0], 4), "b": values(feeds[1], 4)})
        assert "`max_shapes`" in caught.value.hint or "profile" in caught.value.hint


def test_a_fixed_model_has_one_profile_that_takes_all(simulation: Simulation) -> None:
    import onnx
    from onnx import parser

    model: onnx.ModelProto = parser.parse_model(
        '<ir_version: 8, opset_import: ["" : 17]> fixed (float[2,4] x) => (float[2,4] y) { y = Neg (x) }'
    )
    with simulation.open(model, runner={"streams": 3}) as runner:
        np.testing.assert_array_equal(runner.infer({"x": values(2, 4)})["y"], -values(2, 4))


def test_values_of_shape_inputs_choose_a_profile(simulation: Simulation) -> None:
    shape = {"x": [[1, 4]] * 3}
    options: dict[str, Any] = {
        "host": ["size"],
        "profiles": [shape, shape],
        "values": [{"size": [[1, 4], [4, 4], [4, 4]]}, {"size": [[5, 4], [9, 4], [9, 4]]}],
    }
    with simulation.open("shaped", **options) as runner:
        for count in (2, 7, 3):
            size = np.array([count, 4], np.int32)
            assert runner.infer({"x": values(1, 4), "size": size})["y"].shape == (count, 4)
        told = simulation.told("set_optimization_profile_async")
        assert [arguments[0] for arguments in told] == [1, 0]


extremes = st.tuples(st.integers(1, 9), st.integers(1, 9), st.integers(1, 9)).map(
    lambda three: Extremes(*((extent,) for extent in sorted(three)))
)


@given(st.lists(extremes, min_size=1, max_size=6), st.integers(1, 9))
def test_the_first_is_never_wider_than_another_that_fits(ranges: list[Extremes], extent: int) -> None:
    profiles = [Profile(index, {"x": found}, {}) for index, found in enumerate(ranges)]
    fits = [found for found in ranges if found.min[0] <= extent <= found.max[0]]
    feed_shapes = FeedShapes({"x": (extent,)}, {})
    if not fits:
        with pytest.raises(DataError, match="input 'x' has shape"):
            fitting_profiles(profiles, feed_shapes)
        return
    found = fitting_profiles(profiles, feed_shapes)
    assert len(found) == len(fits)
    assert found[0].shapes["x"].max == min(fit.max for fit in fits)
