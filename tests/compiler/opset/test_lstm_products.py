"""LSTMs written as products, against ONNX Runtime's own LSTM kernel."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from onnx import TensorProto, helper, numpy_helper

import qcompile
from qcompile.compiler.check import OnnxReference
from qcompile.compiler.opset.lstm_products import closed_lstms, lstm_inputs, open_lstms, quantize_states

INPUT, HIDDEN = 6, 5
OUTPUTS = ("y", "y_h", "y_c")


def lstm(
    direction: str = "bidirectional", *, bias: bool = True, opset: int = 20, outputs: int = 3, **more: Any
) -> onnx.ModelProto:
    """x [length, batch, 6] through one LSTM of 5; `more` are attributes, or inputs by their position."""
    generator = np.random.default_rng(0)
    ways = 2 if direction == "bidirectional" else 1
    shapes = {"w": (ways, 4 * HIDDEN, INPUT), "r": (ways, 4 * HIDDEN, HIDDEN), "b": (ways, 8 * HIDDEN)}
    stored = [
        numpy_helper.from_array(generator.normal(0, 0.6, shape).astype(np.float32), name)
        for name, shape in shapes.items()
    ]
    names = ["x", "w", "r", "b" if bias else "", "", "", "", ""]
    for position in ("4", "5", "6", "7"):
        names[int(position)] = more.pop(f"input_{position}", "")
    node = helper.make_node(
        "LSTM", names, list(OUTPUTS[:outputs]), "lstm", hidden_size=HIDDEN, direction=direction, **more
    )
    values = [
        helper.make_tensor_value_info(name, TensorProto.FLOAT, shape)
        for name, shape in (
            ("x", ["length", "batch", INPUT]),
            ("y", ["length", ways, "batch", HIDDEN]),
            ("y_h", [ways, "batch", HIDDEN]),
            ("y_c", [ways, "batch", HIDDEN]),
        )
    ]
    graph = helper.make_graph([node], "g", values[:1], values[1 : 1 + outputs], stored)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=8)


def computed(model: onnx.ModelProto, x: NDArray[np.float32], folder: Path) -> list[NDArray[Any]]:
    onnx.checker.check_model(model, full_check=True)
    onnx.save(model, folder / "m.onnx")
    return list(OnnxReference(folder / "m.onnx")({"x": x}))


@given(
    direction=st.sampled_from(["forward", "reverse", "bidirectional"]),
    bias=st.booleans(),
    opset=st.sampled_from([13, 17, 18, 20]),
    outputs=st.integers(1, 3),
    length=st.integers(1, 7),
    batch=st.integers(1, 4),
)
@settings(max_examples=25, deadline=None)
def test_an_opened_lstm_computes_the_same(
    direction: str, bias: bool, opset: int, outputs: int, length: int, batch: int,
    tmp_path_factory: pytest.TempPathFactory,
) -> None:  # fmt: skip
    folder = tmp_path_factory.mktemp("lstm")
    x = np.random.default_rng(1).standard_normal((length, batch, INPUT)).astype(np.float32)
    model = lstm(direction, bias=bias, opset=opset, outputs=outputs)
    expected = computed(model, x, folder)
    assert open_lstms(model) == ["lstm"]
    assert "LSTM" not in {node.op_type for node in model.graph.node}
    for array, other in zip(expected, computed(model, x, folder), strict=True):
        np.testing.assert_allclose(other, array, atol=2e-6)


def test_the_state_is_multiplied_in_integers_and_keeps_its_signal(tmp_path: Path) -> None:
    x = np.random.default_rng(1).standard_normal((32, 4, INPUT)).astype(np.float32)
    model = lstm()
    expected = computed(model, x, tmp_path)[0]
    open_lstms(model)
    assert quantize_states(model) == 2
    found = computed(model, x, tmp_path)[0]
    noise = float(((found - expected) ** 2).sum())
    assert noise > 0
    assert 10 * np.log10(float((expected**2).sum()) / noise) > 35


def test_weights_of_the_state_have_a_scale_per_channel() -> None:
    model = lstm("forward")
    weight = numpy_helper.to_array(model.graph.initializer[1])[0]  # [4 * hidden, hidden]
    open_lstms(model)
    quantize_states(model)
    stored = {tensor.name: numpy_helper.to_array(tensor) for tensor in model.graph.initializer}
    (scale,) = [array for name, array in stored.items() if name.endswith("state_weight/scale")]
    np.testing.assert_allclose(scale, np.abs(weight).max(1) / 127, rtol=1e-6)


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        ({"clip": 3.0}, "not the usual ones"),
        ({"input_forget": 1}, "not the usual ones"),
        ({"activations": ["Relu", "Tanh", "Tanh"]}, "not the usual ones"),
        ({"input_4": "lengths"}, "sequence lengths"),
        ({"input_7": "peepholes"}, "peepholes"),
        ({"input_5": "state"}, "first state"),
    ],
)
def test_other_lstms_stay_and_say_why(options: dict[str, Any], reason: str) -> None:
    model = lstm("forward", **options)
    before = model.SerializeToString()
    assert open_lstms(model) == []
    assert reason in closed_lstms(model)["lstm"]
    assert lstm_inputs(model) == set()
    assert model.SerializeToString() == before


def test_what_is_excluded_by_name_stays() -> None:
    model = lstm()
    assert open_lstms(model, exclude={"lstm"}) == []
    assert closed_lstms(model) == {"lstm": "it was excluded"}
    assert lstm_inputs(model) == {"x"}


def test_tensorrt_builds_it_with_the_products_of_states_in_int8(tmp_path: Path) -> None:
    model = lstm()
    open_lstms(model)
    quantize_states(model)
    onnx.save(model, tmp_path / "m.onnx")
    shapes = {f"{kind}_shapes": {"x": (8, n, INPUT)} for kind, n in (("min", 1), ("opt", 4), ("max", 32))}
    built = qcompile.build(
        tmp_path / "m.onnx", tmp_path / "m.engine", target="tensorrt-rtx", gpus=["sm86"],
        allow_fallback=True, **shapes,  # type: ignore[arg-type]
    )  # fmt: skip
    found = built.manifest.proof["layers_by_precision"]
    assert found == {"fp32": {"MATRIX_MULTIPLY": 2}, "int8": {"MATRIX_MULTIPLY": 2}}
