"""Thresholds, methods and their spelling; scales, zero points and rounding as ONNX Runtime has them."""

from __future__ import annotations

import math
import re
from pathlib import Path
from typing import get_args

import numpy as np
import onnx
import onnxruntime
import pytest
from distributions import DISTRIBUTIONS, draw, histogram
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays
from onnxruntime.quantization.quant_utils import compute_scale_zp

from qcompile.bench.report import svg
from qcompile.bench.report.range_plots import LINES
from qcompile.calibration.histogram import BINS, Histogram
from qcompile.calibration.qparams import (
    FLOAT8_E4M3,
    INT8,
    UINT8,
    QParams,
    Scheme,
    choose_qparams,
    choose_weight_qparams,
    dequantize,
    quantize,
    scale_and_zero_point,
)
from qcompile.calibration.thresholds import (
    METHOD_AMAX,
    METHODS,
    Method,
    MethodName,
    amax,
    amax_by_method,
    amax_percentile,
    parse_method,
)
from qcompile.errors import CalibrationError, InvalidOption

EVERY_METHOD = [Method(name) for name in METHODS]
BOTH_WAYS = pytest.mark.parametrize("symmetric", [True, False], ids=["symmetric", "asymmetric"])
BY_EVERY_METHOD = pytest.mark.parametrize("method", EVERY_METHOD, ids=str)


def test_a_method_is_a_word_a_row_and_a_line_of_the_page() -> None:
    assert get_args(MethodName) == METHODS
    assert {*METHOD_AMAX, "auto"} == {*METHODS}
    page = (Path(__file__).parents[2] / "docs" / "calibration.md").read_text()
    table = page.partition("## Which method")[2].partition("\n\n`")[0]
    assert {*re.findall(r"^\| `(\w+)", table, re.MULTILINE)} == {*METHODS}


def test_no_two_methods_have_one_line() -> None:
    assert len({*LINES.values()}) == len(METHODS) == len(LINES)
    colours = {colour for colour, _ in LINES.values()}
    assert colours <= svg.COLOURS.keys()
    assert len(colours) == min(len(METHODS), len(svg.LINES))


@settings(deadline=None)
@given(
    st.lists(st.floats(allow_nan=False, allow_infinity=False, width=32), min_size=1, max_size=200),
    st.floats(0.001, 100) | st.sampled_from([50.0, 99.9, 99.99, 100.0]),
)
def test_a_percentile_of_any_magnitudes_is_within_one_bin_of_numpys(
    values: list[float], percentile: float
) -> None:
    array = np.array(values, np.float32)
    made = histogram(array)
    found = amax_percentile(made, percentile)
    expected = float(np.percentile(np.abs(array.astype(np.float64)), percentile))
    assert abs(found - expected) <= made.width * (1 + 1e-9)
    assert found <= made.largest
    assert amax(made, Method("percentile", percentile)) == found


@settings(deadline=None)
@given(st.lists(st.floats(allow_nan=False, allow_infinity=False, width=32), min_size=1, max_size=50))
def test_no_method_goes_above_the_largest_magnitude(values: list[float]) -> None:
    array = np.array(values, np.float32)
    made, largest = histogram(array), float(np.abs(array).max())
    for method in EVERY_METHOD:
        for symmetric in (True, False):
            found = amax(made, method, symmetric=symmetric)
            assert 0 <= found <= largest
            assert (found > 0) == (largest > 0)


@BOTH_WAYS
@BY_EVERY_METHOD
@pytest.mark.parametrize("name", DISTRIBUTIONS)
def test_scaling_by_a_power_of_two_scales_every_threshold(name: str, method: Method, symmetric: bool) -> None:
    values = draw(name, 3000)
    expected = amax(histogram(values), method, symmetric=symmetric) * 1024
    assert amax(histogram(values * 1024), method, symmetric=symmetric) == expected


@BY_EVERY_METHOD
def test_an_empty_histogram_has_no_threshold(method: Method) -> None:
    with pytest.raises(CalibrationError, match="no values were observed"):
        amax(Histogram(), method)


def test_values_of_which_all_magnitudes_are_equal_are_kept_whole() -> None:
    made = histogram(np.array([2.5, -2.5] * 100, np.float32))
    assert amax_by_method(made) == dict.fromkeys(METHODS, 2.5)
    assert made.magnitudes().shape == (BINS,)


SPELLINGS = {
    **{name: Method(name) for name in METHODS},
    "percentile": Method("percentile", 99.99),
    **{f"percentile:{text}": Method("percentile", float(text)) for text in ("99.9", "99.999", "100", "0.5")},
}


@pytest.mark.parametrize("text", SPELLINGS)
def test_every_spelling_is_read_and_what_a_method_prints_too(text: str) -> None:
    assert parse_method(text) == SPELLINGS[text] == parse_method(str(SPELLINGS[text]))


MISSPELLED = {
    f"unknown; known are {', '.join(METHODS)} and": (
        "", "kl", "Entropy", " mse", "mse:", "entropy:99", "auto:99.9", ":", ":99", "99.9",
    ),
    "is not a number": (
        "percentile:", "percentile:x", "percentile:99%", "percentile:99:9", "percentile:9,9",
    ),
    "above 0 and at most 100 is required": (
        *(f"percentile:{number}" for number in ("0", "-1", "100.01", "nan", "inf", "-inf", "1e9")),
    ),
}  # fmt: skip


@pytest.mark.parametrize(("said", "text"), [(said, text) for said in MISSPELLED for text in MISSPELLED[said]])
def test_a_misspelled_method_is_refused(said: str, text: str) -> None:
    with pytest.raises(InvalidOption, match=said):
        parse_method(text)


@pytest.mark.parametrize("percentile", [0.0, -1.0, 100.1, math.nan])
def test_a_percentile_out_of_range_is_refused(percentile: float) -> None:
    with pytest.raises(InvalidOption, match="above 0 and at most 100"):
        amax_percentile(histogram(draw("normal", 10)), percentile)


ASYMMETRIC_INT8 = Scheme(-128, 127, symmetric=False)
SCHEMES = (UINT8, INT8, ASYMMETRIC_INT8)
FLOATS = st.floats(-(2.0**100), 2.0**100, width=32, allow_subnormal=False)


@pytest.mark.parametrize(
    ("low", "high", "scheme", "scale", "zero_point"),
    [
        (-1.0, 3.0, UINT8, 4 / 255, 64),  # 1 / (4 / 255) = 63.75
        (-1.0, 3.0, INT8, 3 / 127, 0),
        (-1.0, 3.0, ASYMMETRIC_INT8, 4 / 255, -64),  # -128 + 63.75, rounded
        (-3.0, 1.0, INT8, 3 / 127, 0),
        (0.5, 2.55, UINT8, 0.01, 0),  # the range is made to hold zero
        (-2.55, -0.5, UINT8, 0.01, 255),
        (-0.5, 254.5, UINT8, 1.0, 0),  # halves go to the even number
        (-1.5, 253.5, UINT8, 1.0, 2),
        (0.0, 0.0, UINT8, 1.0, 0),
        (0.0, 0.0, INT8, 1.0, 0),
        (-1e-40, 1e-40, INT8, 1.0, 0),  # subnormal
        (-448.0, 896.0, FLOAT8_E4M3, 2.0, 0),
    ],
)
def test_parameters_are_those_worked_out_by_hand(
    low: float, high: float, scheme: Scheme, scale: float, zero_point: int
) -> None:
    made = choose_qparams(low, high, scheme)
    assert (made.scale, made.zero_point) == (np.float32(scale), zero_point)
    assert (made.scale.dtype, made.scale.shape, made.axis) == (np.float32, (), None)
    assert made.zero_point.dtype == (np.uint8 if scheme is UINT8 else np.int8)
    assert (made.qmin, made.qmax) == (scheme.qmin, scheme.qmax)


@given(ends=st.lists(FLOATS, min_size=2, max_size=2).map(sorted), scheme=st.sampled_from(SCHEMES))
@settings(deadline=None)
def test_parameters_are_those_of_onnx_runtimes_quantizer(ends: list[float], scheme: Scheme) -> None:
    low, high = (np.array(end, np.float32) for end in ends)
    qmin = -127 if scheme is INT8 else scheme.qmin  # its symmetric integers leave -128 out
    limits = (np.array(limit, np.int64) for limit in (qmin, scheme.qmax))
    zero_point, scale = compute_scale_zp(low, high, *limits, symmetric=scheme.symmetric)
    made = choose_qparams(low, high, scheme)
    assert made.scale == scale
    if made.scale != 1 or scheme is not ASYMMETRIC_INT8:  # of zeros alone, any zero point will do
        assert made.zero_point == zero_point


@given(ends=st.lists(st.floats(-1e4, 1e4, width=32), min_size=2, max_size=2).map(sorted))
def test_a_range_holds_zero_and_is_reached_at_both_ends(ends: list[float]) -> None:
    low, high = ends
    for scheme in SCHEMES:
        made = scale_and_zero_point(np.float32(low), np.float32(high), scheme)
        scale, zero_point = map(float, made)
        assert made[0].dtype == made[1].dtype == np.float32
        assert scheme.qmin <= zero_point <= scheme.qmax
        assert scale > 0
        first, last = ((q - zero_point) * scale for q in (scheme.qmin, scheme.qmax))
        slack = scale * 0.501 + 1e-30
        assert first <= min(low, 0.0) + slack
        assert last >= max(high, 0.0) - slack


def test_nan_stays_nan() -> None:
    """So that it is refused by name where scales are checked, and not quantized with a scale of 1."""
    assert math.isnan(choose_weight_qparams(np.array([[np.nan, 1.0]], np.float32), 0).scale[0])


def through_onnx_runtime(values: np.ndarray, qparams: QParams) -> tuple[np.ndarray, np.ndarray]:
    """What QuantizeLinear and DequantizeLinear make of the values."""
    axis = {} if qparams.axis is None else {"axis": qparams.axis}
    nodes = [
        onnx.helper.make_node("QuantizeLinear", ["x", "scale", "zero_point"], ["q"], **axis),
        onnx.helper.make_node("DequantizeLinear", ["q", "scale", "zero_point"], ["y"], **axis),
    ]
    stored = [
        onnx.numpy_helper.from_array(qparams.scale, "scale"),
        onnx.numpy_helper.from_array(qparams.zero_point, "zero_point"),
    ]
    graph = onnx.helper.make_graph(
        nodes,
        "pair",
        [onnx.helper.make_tensor_value_info("x", 1, None)],
        [onnx.helper.make_empty_tensor_value_info(name) for name in "qy"],
        stored,
    )
    model = onnx.helper.make_model(graph, ir_version=8, opset_imports=[onnx.helper.make_opsetid("", 17)])
    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    session = onnxruntime.InferenceSession(model.SerializeToString(), options)
    integers, floats = session.run(None, {"x": values})
    return integers, floats


@given(
    values=arrays.arrays(
        np.float32,
        arrays.array_shapes(min_dims=2, max_dims=4, max_side=4),
        elements=st.floats(-50, 50, width=32),
    ),
    scheme=st.sampled_from(SCHEMES),
    data=st.data(),
)
@settings(deadline=None, max_examples=60)
def test_rounding_is_that_of_onnx_runtime(values: np.ndarray, scheme: Scheme, data: st.DataObject) -> None:
    axis = data.draw(st.sampled_from([None, *range(values.ndim)]))
    shape = () if axis is None else (values.shape[axis],)
    ends = [
        data.draw(arrays.arrays(np.float32, shape, elements=st.floats(low, low + 20, width=32)))
        for low in (-20, 0)
    ]
    qparams = choose_qparams(*ends, scheme, axis)
    integers, floats = through_onnx_runtime(values, qparams)
    np.testing.assert_array_equal(quantize(values, qparams), integers)
    np.testing.assert_array_equal(dequantize(integers, qparams), floats)
    assert quantize(values, qparams).dtype == integers.dtype
    assert dequantize(integers, qparams).dtype == np.float32


@given(
    weight=arrays.arrays(
        np.float32,
        arrays.array_shapes(min_dims=1, max_dims=4, max_side=5),
        elements=st.floats(-(2.0**60), 2.0**60, width=32, allow_subnormal=False),
    ),
    data=st.data(),
)
@settings(deadline=None)
def test_each_channel_by_itself_gives_the_same(weight: np.ndarray, data: st.DataObject) -> None:
    axis = data.draw(st.integers(0, weight.ndim - 1))
    qparams = choose_weight_qparams(weight, axis)
    scales, quantized = qparams.scale, quantize(weight, qparams)
    for index in range(weight.shape[axis]):
        channel, found = weight.take(index, axis), quantized.take(index, axis)
        amax = float(np.abs(channel).max())
        assert scales[index] == np.float32(amax / 127 if amax / 127 >= np.finfo(np.float32).tiny else 1.0)
        np.testing.assert_array_equal(found, np.clip(np.round(channel / scales[index]), -128, 127))
        assert np.abs(found.astype(int)).max(initial=0) <= 127
