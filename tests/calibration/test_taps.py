from __future__ import annotations

from collections.abc import Callable

import onnx
import pytest
from observed_models import model
from onnx import TensorProto, helper, parser

from qcompile.calibration.taps import QUANTIZABLE, choose_taps

Tiny = Callable[..., onnx.ModelProto]


def test_activations_are_observed_in_the_models_order_and_weights_are_not(tiny: Tiny) -> None:
    taps = choose_taps(tiny("residual"))
    assert taps.names == ("x", "r1", "c2", "r2", "p", "y")
    assert taps.shared == {"c1": ("r1",), "a": ("r2",), "f": ("p",)}
    assert taps.skipped == {}
    assert taps.types == dict.fromkeys(taps.names, "float32")


@pytest.mark.parametrize("name", ["residual", "mlp", "elementwise"])
def test_every_float_activation_at_a_quantizable_operator_is_observed_or_shares(
    tiny: Tiny, name: str
) -> None:
    made = tiny(name)
    stored = {tensor.name for tensor in made.graph.initializer}
    activations = {name for node in made.graph.node for name in (*node.input, *node.output)} - stored
    taps = choose_taps(made)
    assert set(taps.names) | set(taps.shared) == activations
    assert {source for sources in taps.shared.values() for source in sources} <= set(taps.names)


def test_the_model_is_left_as_it_was(tiny: Tiny) -> None:
    made = tiny("residual")
    before = made.SerializeToString()
    choose_taps(made)
    choose_taps(made, {"c1", "a"})
    assert made.SerializeToString() == before


def test_constants_computed_inside_the_graph_are_not_observed() -> None:
    made = model(
        """
        one = Constant <value = float[1] {1.0}> ()
        two = Add(one, one)
        y = Add(x, two)
        """
    )
    assert choose_taps(made).names == ("x", "y")
    assert choose_taps(made, {"x", "one", "two", "y"}).names == ("x", "y")


def test_an_integer_tensor_is_skipped_with_its_reason() -> None:
    made = model("e = Exp(x) y = Gather(e, ids)", "(float[n, 4] x, int64[m] ids) => (float[m, 4] y)")
    taps = choose_taps(made)
    assert taps.names == ("e",)
    assert taps.skipped == {"ids": "it is int64, not a float"}
    assert choose_taps(made, {"ids"}).skipped == taps.skipped


def test_a_tensor_of_unknown_type_is_skipped_naming_the_node() -> None:
    made = model("m = custom.Mystery(x) r = Relu(m) y = Identity(x)")
    made.graph.node[1].name = "relu"
    taps = choose_taps(made)
    assert taps.names == ("x",)
    assert taps.skipped["m"] == "its type cannot be inferred (at Relu 'relu')"
    assert choose_taps(made, {"m"}).names == ()


def test_an_operator_of_another_domain_is_not_the_one_of_that_name() -> None:
    assert choose_taps(only_relu("custom")).names == ()
    assert choose_taps(only_relu("ai.onnx")).names == ("x", "y")


def only_relu(domain: str) -> onnx.ModelProto:
    value = helper.make_tensor_value_info
    graph = helper.make_graph(
        [helper.make_node("Relu", ["x"], ["y"], "node", domain=domain)],
        "g",
        [value("x", TensorProto.FLOAT, [2])],
        [value("y", TensorProto.FLOAT, [2])],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


@pytest.mark.parametrize("operator", ["Identity", "Reshape", "Relu"])
def test_an_operator_of_another_domain_neither_moves_values_nor_is_folded(operator: str) -> None:
    made = model(f"a = Add(x, x) b = custom.{operator}(a) y = Sigmoid(b)")
    made.graph.value_info.append(helper.make_tensor_value_info("b", TensorProto.FLOAT, None))
    taps = choose_taps(made)
    assert taps.names == ("x", "a", "b", "y")
    assert taps.shared == {}


def test_optional_inputs_left_out_are_no_tensors() -> None:
    made = model(
        'y = Resize <mode = "nearest"> (x, , scales)',
        "(float[1, 1, n, n] x, float[4] scales) => (float[1, 1, m, m] y)",
    )
    assert "" not in choose_taps(made).names
    assert choose_taps(made).skipped == {}


@pytest.mark.parametrize(
    ("written", "dtype"),
    [("float", "float32"), ("float16", "float16"), ("bfloat16", "bfloat16"), ("double", "float64")],
)
def test_the_type_of_every_observed_tensor_is_told(written: str, dtype: str) -> None:
    taps = choose_taps(model("a = Sigmoid(x) y = Neg(a)", f"({written}[n] x) => ({written}[n] y)"))
    assert taps.types == {"x": dtype, "a": dtype}
    assert taps.names == ("x", "a")


def test_a_cast_to_integers_and_back_separates_what_is_observed_from_what_is_not() -> None:
    made = model(
        "a = Cast <to = 7> (x) b = Add(a, a) c = Cast <to = 10> (b) d = Relu(c) y = Cast <to = 1>(d)"
    )
    taps = choose_taps(made)
    assert taps.types == {"c": "float16", "d": "float16"}
    assert sorted(taps.skipped) == ["a", "b"]


# Where somebody says which tensors are wanted.


def test_only_wanted_tensors_are_observed_in_the_models_order(tiny: Tiny) -> None:
    taps = choose_taps(tiny("residual"), ["y", "c2", "x"])
    assert taps.names == ("x", "c2", "y")
    assert taps.shared == {}


def test_a_wanted_tensor_brings_those_whose_values_it_holds(tiny: Tiny) -> None:
    taps = choose_taps(tiny("residual"), {"f", "c1"})
    assert taps.names == ("r1", "p")
    assert taps.shared == {"c1": ("r1",), "f": ("p",)}


def test_a_wanted_tensor_may_lie_at_any_operator() -> None:
    assert choose_taps(model("a = Exp(x) b = Log(a) y = Relu(b)"), {"a"}).names == ("a",)


def test_every_quantizable_operator_is_one_of_onnxs() -> None:
    known = {schema.name for schema in onnx.defs.get_all_schemas_with_history() if not schema.domain}
    assert sorted(QUANTIZABLE - known) == []


def test_an_operator_of_another_domain_is_not_one_that_folds() -> None:
    made = parser.parse_model(
        '<ir_version: 8, opset_import: ["" : 17, "custom" : 1]> g (float[n, 4] x) => (float[n, 4] y)'
        " <float[n, 4] c> { c = custom.Add(x, x) y = Relu(c) }"
    )
    assert choose_taps(made).names == ("c", "y")
