"""Sums of squares, piece by piece, against the same over whole arrays."""

from __future__ import annotations

import json
import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from qcompile.comparison.layers.forms import Form
from qcompile.model.output_error import ErrorSums, output_error

FLOATS = st.floats(-1e6, 1e6, width=32) | st.sampled_from([math.nan, math.inf, -math.inf])
PAIRS = hnp.arrays(np.float32, st.tuples(st.just(2), st.integers(1, 60)), elements=FLOATS)


@given(PAIRS, st.integers(1, 61))
def test_pieces_add_up_to_the_whole(pair: np.ndarray, size: int) -> None:
    reference, found = pair
    sums = ErrorSums()
    for start in range(0, reference.size, size):
        sums.add(reference[start : start + size], found[start : start + size])
    whole = output_error(reference, found)
    assert sums.snr_db == pytest.approx(whole.snr_db, rel=1e-9, abs=1e-9)
    assert (sums.max_abs_error, sums.max_abs) == (whole.max_abs_error, whole.max_abs)
    assert sums.elements == reference.size
    assert ErrorSums.from_json(json.loads(json.dumps(sums.as_json(), allow_nan=False))) == sums


def test_integers_are_scaled_as_dequantize_linear_does() -> None:
    from onnx import TensorProto, helper, numpy_helper
    from onnx.reference import ReferenceEvaluator

    generator = np.random.default_rng(0)
    for axis, count in ((1, 1), (1, 3), (2, 5)):
        values = generator.integers(0, 256, (2, 3, 5), dtype=np.uint8)
        scale = generator.uniform(0.01, 1, count).astype(np.float32)
        zero = generator.integers(0, 256, count, dtype=np.uint8)
        stored = [
            numpy_helper.from_array(scale if count > 1 else scale[0], "s"),
            numpy_helper.from_array(zero if count > 1 else zero[0], "z"),
        ]
        node = helper.make_node("DequantizeLinear", ["q", "s", "z"], ["y"], axis=axis)
        inputs = [helper.make_tensor_value_info("q", TensorProto.UINT8, values.shape)]
        outputs = [helper.make_tensor_value_info("y", TensorProto.FLOAT, values.shape)]
        model = helper.make_model(helper.make_graph([node], "dequantize", inputs, outputs, stored))
        (expected,) = ReferenceEvaluator(model).run(None, {"q": values})
        form = Form(tuple(map(float, scale)), tuple(map(int, zero)), axis)
        found = np.concatenate(list(form.pieces(form.ordered(values), 4)))
        np.testing.assert_array_equal(found.reshape(values.shape), expected)


def test_channels_last_is_read_in_the_order_of_the_reference() -> None:
    image = np.arange(2 * 3 * 4 * 5).reshape(2, 3, 4, 5)
    form = Form(channels_last=True)
    np.testing.assert_array_equal(form.ordered(image.transpose(0, 2, 3, 1)), image)
