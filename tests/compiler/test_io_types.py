"""Other types outside, the same model inside: ONNX Runtime runs both, and numpy casts in between."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import ml_dtypes
import numpy as np
import onnx
import onnxruntime
import pytest
from mode_models import normal, static, written
from numpy.typing import NDArray
from written_models import model_of, outputs_of

from qcompile.compiler.check import OnnxReference
from qcompile.compiler.io_types import INTEGERS, set_io_types
from qcompile.errors import InvalidOption
from qcompile.model.onnx_file import model_io
from qcompile.model.session import make_session, optimize_file, session_options

EMBEDDED = """(int64[n] ids, float[n,2] x, bool choose) => (float[n,2] y, int64[n] next, float[n,2] twice) {
    twice = Add(x, x)
    y = If(choose) <then_branch = t () => (float[n,2] a) { a = Mul(twice, x) },
                    else_branch = e () => (float[n,2] b) { b = Sub(x, twice) }>
    one = Constant <value_int = 1> ()  next = Add(ids, one)
}
"""


def types_of(model: onnx.ModelProto) -> dict[str, str]:
    """Name to type of every input and output."""
    io = model_io(model)
    return {tensor.name: tensor.dtype for tensor in (*io.inputs, *io.outputs)}


@pytest.fixture
def embedded() -> onnx.ModelProto:
    """Integers, floats, and tensors that graphs inside nodes read."""
    return model_of(EMBEDDED)


def feeds(**types: str) -> dict[str, NDArray[np.generic]]:
    """Feeds of the embedded model, cast to types."""
    x = np.random.default_rng(0).standard_normal((3, 2))
    return {
        "ids": np.array([1, 2, 100], types.get("ids", "int64")),
        "x": x.astype(types.get("x", "float32")),
        "choose": np.array(True),
    }


@pytest.mark.parametrize("floats", ["float16", "float64"])
@pytest.mark.parametrize("integers", [name for name in INTEGERS if name != "int64"])
def test_floats_and_integers_are_cast_at_the_edge(
    embedded: onnx.ModelProto, floats: str, integers: str
) -> None:
    outside = {"x": floats, "y": floats, "ids": integers, "next": integers}
    model = set_io_types(embedded, outside)
    assert types_of(model) == types_of(embedded) | outside
    fed = feeds(x=floats, ids=integers)
    y, following, twice = outputs_of(model, fed)
    expected = outputs_of(embedded, feeds() | {"x": fed["x"].astype(np.float32)})
    assert (y.dtype, following.dtype) == (floats, integers)
    np.testing.assert_array_equal(y, expected[0].astype(floats))
    np.testing.assert_array_equal(following, [2, 3, 101])
    np.testing.assert_array_equal(twice, expected[2])


def test_an_output_that_is_read_inside_keeps_its_precision_there(embedded: onnx.ModelProto) -> None:
    model = set_io_types(embedded, {"twice": "float16"})
    y, _, twice = outputs_of(model, feeds())
    expected = outputs_of(embedded, feeds())
    assert twice.dtype == np.float16
    np.testing.assert_array_equal(y, expected[0])


def test_bfloat16_is_possible_where_the_opset_has_it(tiny: Callable[..., onnx.ModelProto]) -> None:
    model = set_io_types(tiny("mlp"), {"x": "bfloat16", "y": "bfloat16"})
    assert types_of(model) == {"x": "bfloat16", "y": "bfloat16"}
    onnx.checker.check_model(model, full_check=True)
    x = np.random.default_rng(0).standard_normal((2, 16)).astype(ml_dtypes.bfloat16)
    session = onnxruntime.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    value = onnxruntime.OrtValue.ortvalue_from_numpy_with_onnx_type(
        x.view(np.uint16), onnx.TensorProto.BFLOAT16
    )
    binding = session.io_binding()
    binding.bind_ortvalue_input("x", value)
    binding.bind_output("y")
    session.run_with_iobinding(binding)
    assert binding.get_outputs()[0].data_type() == "tensor(bfloat16)"
    with pytest.raises(InvalidOption, match="Cast of bfloat16 needs opset 13; the model is of 11"):
        set_io_types(tiny("mlp", opset=11), {"x": "bfloat16"})


def test_there_and_back_is_the_same_up_to_rounding_and_the_model_given_is_untouched(
    tiny: Callable[..., onnx.ModelProto],
) -> None:
    model = tiny("residual")
    before = model.SerializeToString(deterministic=True)
    changed = set_io_types(set_io_types(model, {"x": "float16"}), {"x": "float32"})
    assert model.SerializeToString(deterministic=True) == before
    x = np.random.default_rng(0).standard_normal((2, 4, 8, 8)).astype(np.float32)
    rounded = x.astype(np.float16).astype(np.float32)
    np.testing.assert_array_equal(outputs_of(changed, {"x": x})[0], outputs_of(model, {"x": rounded})[0])


def test_a_stored_tensor_may_be_an_output_and_an_input_that_is_one_keeps_its_type() -> None:
    text = "(float[2] x) => (float[2] y, float[2] w) <float[2] w = {1.5, 2.5}> { y = Mul(x, w) }"
    y, w = outputs_of(set_io_types(model_of(text), {"w": "float64"}), {"x": np.ones(2, np.float32)})
    assert w.dtype == np.float64
    np.testing.assert_array_equal(w, [1.5, 2.5])
    np.testing.assert_array_equal(y, [1.5, 2.5])
    model = model_of("(float[2] x) => (float[2] x, float[2] y) { y = Relu(x) }")
    with pytest.raises(InvalidOption, match="is both an input and an output of the model"):
        set_io_types(model, {"x": "float16"})


@pytest.mark.parametrize(
    ("types", "message"),
    [
        ({"z": "float16"}, "named 'z': inputs are ids, x, choose; outputs are y, next, twice"),
        ({"x": "half"}, "'half' was asked for; float16, bfloat16, float32, float64 are possible"),
        ({"x": "int8"}, "'x' of float32: 'int8' was asked for; float16"),
        ({"ids": "float32"}, "'ids' of int64: 'float32' was asked for; int8, uint8"),
        ({"choose": "int8"}, "'choose' of bool: 'int8' was asked for; no other type is possible"),
    ],
)
def test_what_cannot_be_is_refused_with_what_can(
    embedded: onnx.ModelProto, types: dict[str, str], message: str
) -> None:
    with pytest.raises(InvalidOption, match=message):
        set_io_types(embedded, types)


@pytest.mark.parametrize("target", ["openvino", "tensorrt"])
def test_pairs_stay_pairs_and_compute_what_they_say(target: str, tmp_path: Path) -> None:
    model = written(
        tmp_path / "m.onnx",
        "(float[n,16] x) => (float[n,16] y) { a = MatMul(x, w) b = Relu(a) y = MatMul(b, v) }",
        w=normal(16, 16),
        v=normal(16, 16, seed=1),
    )
    x = normal(64, 16)
    np.savez(tmp_path / "x.npz", x=x)
    made = static(model, tmp_path, target=target).path
    plain = make_session(made, session_options(optimize=False)).run(None, {"x": x})[0]
    np.testing.assert_allclose(OnnxReference(made, integers=False)({"x": x})[0], plain, rtol=1e-5, atol=1e-6)

    optimized = tmp_path / "optimized.onnx"
    optimize_file(made, optimized, session_options(integers=False), without=["WeightBiasQuantization"])
    kinds = [node.op_type for node in onnx.load(optimized).graph.node]
    assert kinds.count("QuantizeLinear") == 2  # of the activations; the weights' are computed once
    assert not any(kind.startswith("QLinear") or "Integer" in kind for kind in kinds)
    assert onnxruntime.InferenceSession(optimized, providers=["CPUExecutionProvider"])
