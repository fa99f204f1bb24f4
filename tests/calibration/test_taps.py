"""Tensors that share another's values: what runtimes fold, and what only moves values."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import onnx
import onnxruntime
import pytest
from observed_models import Array, model, normal
from onnx import TensorProto, helper

from qcompile.calibration.taps import QUANTIZABLE, Taps, choose_taps


def test_a_tensor_of_unknown_type_is_skipped_naming_the_node() -> None:
    made = model("m = custom.Mystery(x) r = Relu(m) y = Identity(x)")
    made.graph.node[1].name = "relu"
    taps = choose_taps(made)
    assert taps.names == ("x",)
    assert taps.skipped["m"] == "its type cannot be inferred (at Relu 'relu')"
    assert choose_taps(made, {"m"}).names == ()


def ints(*values: int) -> Array:
    return np.array(values, np.int64)


@pytest.mark.parametrize(("domain", "names"), [("custom", ()), ("ai.onnx", ("x", "y"))])
def test_an_operator_of_another_domain_is_not_the_one_of_that_name(
    domain: str, names: tuple[str, ...]
) -> None:
    made = model("y = Relu(x)")
    made.graph.node[0].domain = domain
    assert choose_taps(made).names == names


@pytest.mark.parametrize("operator", ["Identity", "Reshape", "Relu"])
def test_an_operator_of_another_domain_neither_moves_values_nor_is_folded(operator: str) -> None:
    made = model(f"a = Add(x, x) b = custom.{operator}(a) y = Sigmoid(b)")
    made.graph.value_info.append(helper.make_tensor_value_info("b", TensorProto.FLOAT, None))
    taps = choose_taps(made)
    assert taps.names == ("x", "a", "b", "y")
    assert taps.shared == {}


def test_every_quantizable_operator_is_one_of_onnxs() -> None:
    known = {schema.name for schema in onnx.defs.get_all_schemas_with_history() if not schema.domain}
    assert sorted(QUANTIZABLE - known) == []


IMAGE = "(float[n, 4, 8, 8] x) => (float[n, c, h, w] y)"


def values_of(made: onnx.ModelProto, feeds: Mapping[str, Array]) -> dict[str, Array]:
    """Everything that a model computes, by ONNX Runtime."""
    copy = onnx.ModelProto()
    copy.CopyFrom(made)
    del copy.graph.output[:]
    for name in dict.fromkeys(name for node in made.graph.node for name in node.output if name):
        copy.graph.output.append(onnx.ValueInfoProto(name=name))
    session = onnxruntime.InferenceSession(copy.SerializeToString(), providers=["CPUExecutionProvider"])
    names = [value.name for value in session.get_outputs()]
    return {**feeds, **dict(zip(names, session.run(names, dict(feeds)), strict=True))}


def assert_sources_hold_what_is_shared(made: onnx.ModelProto, taps: Taps, feeds: Mapping[str, Array]) -> None:
    found = values_of(made, feeds)
    for name, sources in taps.shared.items():
        assert set(sources) <= set(taps.names)
        held = np.concatenate([found[source].reshape(-1) for source in sources])
        assert np.isin(found[name], held).all()


# What runtimes fold: the activation behind an operator.


FOLDING = {
    "Conv": ("c = Conv (x, w)", {"w": normal(6, 4, 3, 3)}),
    "ConvTranspose": ("c = ConvTranspose (x, w)", {"w": normal(4, 6, 3, 3)}),
    "BatchNormalization": ("c = BatchNormalization (x, w, w, w, v)", {"w": normal(4), "v": normal(4) ** 2}),
    "MatMul": ("c = MatMul (x, w)", {"w": normal(8, 5)}),
    "Add": ("c = Add (x, x)", {}),
    "Sum": ("c = Sum (x, x, x)", {}),
    "Gemm": ("f = Flatten (x) c = Gemm (f, w)", {"w": normal(256, 5)}),
}
ACTIVATIONS = {"Relu": "Relu (c)", "Clip": "Clip (c, low, high)"}
LIMITS = {"low": np.array(0, np.float32), "high": np.array(6, np.float32)}


@pytest.mark.parametrize("activation", ACTIVATIONS)
@pytest.mark.parametrize("operator", FOLDING)
def test_a_tensor_that_only_an_activation_reads_shares_what_comes_out_of_it(
    operator: str, activation: str
) -> None:
    body, weights = FOLDING[operator]
    made = model(f"{body} r = {ACTIVATIONS[activation]} y = Sigmoid(r)", IMAGE, **weights, **LIMITS)
    taps = choose_taps(made)
    assert "c" not in taps.names
    assert taps.shared["c"] == ("r",)
    assert choose_taps(made, {"c"}).names == ("r",)


N4, TURNED = "(float[n, 4] x) => (float[n, 4] y)", "(float[n, 4] x) => (float[4, n] y)"
BRANCHES = """
    c = Add(x, x)
    r = Relu(c)
    i = If (condition) <
        then_branch = yes () => (float[n, 4] t) { t = Neg(c) },
        else_branch = no () => (float[n, 4] e) { e = Identity(x) }
    >
    y = Mul(r, i)
"""


@pytest.mark.parametrize(
    ("body", "signature", "weights", "names", "shared"),
    [
        # An activation behind these is not folded.
        ("c = Sigmoid(x) r = Relu(c) y = Sigmoid(r)", N4, {}, "x c r y", {}),
        ("c = Mul(x, x) r = Relu(c) y = Sigmoid(r)", N4, {}, "x c r y", {}),
        ("c = AveragePool <kernel_shape = [2, 2]> (x) r = Relu(c) y = Sigmoid(r)", IMAGE, {}, "x c r y", {}),
        ("r = Relu(x) y = Sigmoid(r)", N4, {}, "x r y", {}),
        ("c = custom.Add(x, x) y = Relu(c)", N4 + " <float[n, 4] c>", {}, "c y", {}),
        # Somebody else reads the tensor: a node, two activations, the user, a subgraph.
        ("c = Add(x, x) r = Relu(c) y = Mul(r, c)", N4, {}, "x c r y", {}),
        ("c = Add(x, x) r = Relu(c) s = Relu(c) y = Mul(r, s)", N4, {}, "x c r s y", {}),
        ("c = Add(x, x) y = Relu(c)", "(float[n] x) => (float[n] y, float[n] c)", {}, "x c y", {}),
        (BRANCHES, "(float[n, 4] x, bool condition) => (float[n, 4] y)", {}, "x c r i y", {}),
        # What moves values shares them as far as they come from one place.
        ("a = Sigmoid(x) b, c = Split <axis = 1> (a) y = Mul(b, c)", N4, {}, "x a y", {"b": "a", "c": "a"}),
        ("t = Transpose(x) y = Sigmoid(t)", TURNED, {}, "x y", {"t": "x"}),
        ("c = Add(x, x) t = Transpose(c) r = Relu(t) y = Exp(r)", TURNED, {}, "x c r", {"t": "c"}),
        ("a = Sigmoid(x) c = Concat <axis = 0> (a, k) y = Exp(c)", N4, {"k": normal(1, 4)}, "x a c", {}),
        (
            "a = Sigmoid(x) c = Concat <axis = 0> (a, k) t = Transpose(c) y = Exp(t)",
            TURNED, {"k": normal(1, 4)}, "x a c", {"t": "c"},
        ),
        # A table of weights, and integers, hold no activations.
        (
            "g = Gather(k, ids) y = Sigmoid(g)",
            "(int64[n] ids) => (float[n, 3] y)", {"k": normal(5, 3)}, "g y", {},
        ),
        (
            "r = Reshape(ids, s) f = Cast <to = 1> (r) y = Sigmoid(f)",
            "(int64[n, 4] ids) => (float[m] y)", {"s": ints(-1)}, "f y", {},
        ),
    ],
)  # fmt: skip
def test_who_reads_a_tensor_decides_whether_it_is_observed_itself(
    body: str, signature: str, weights: dict[str, Array], names: str, shared: dict[str, str]
) -> None:
    taps = choose_taps(model(body, signature, **weights))
    assert taps.names == tuple(names.split())
    assert taps.shared == {name: (source,) for name, source in shared.items()}


# What only moves values.


MOVING = {
    "MaxPool": ("m = MaxPool <kernel_shape = [3, 3], pads = [1, 1, 1, 1]> (a)", {}),
    "Reshape": ("m = Reshape (a, s)", {"s": ints(-1, 16)}),
    "Transpose": ("m = Transpose <perm = [0, 2, 3, 1]> (a)", {}),
    "Squeeze": ("u = Unsqueeze (a, s) m = Squeeze (u, s)", {"s": ints(2)}),
    "Unsqueeze": ("m = Unsqueeze (a, s)", {"s": ints(0)}),
    "Flatten": ("m = Flatten (a)", {}),
    "Split": ("m, other = Split <axis = 1> (a)", {}),
    "Gather": ("m = Gather <axis = 1> (a, s)", {"s": ints(3, 0, 3)}),
    "Identity": ("m = Identity (a)", {}),
    "DepthToSpace": ("m = DepthToSpace <blocksize = 2> (a)", {}),
    "SpaceToDepth": ("m = SpaceToDepth <blocksize = 2> (a)", {}),
}


@pytest.mark.parametrize("operator", MOVING)
def test_what_only_moves_values_shares_what_goes_in(operator: str) -> None:
    body, weights = MOVING[operator]
    made = model(f"a = Sigmoid(x) {body} y = Exp(m)", "(float[n, 4, 8, 8] x) => (float y)", **weights)
    made.graph.output[0].type.tensor_type.ClearField("shape")
    taps = choose_taps(made)
    assert taps.names == ("x", "a")
    assert taps.shared["m"] == ("a",)
    assert choose_taps(made, {"m"}).names == ("a",)
    assert_sources_hold_what_is_shared(made, taps, {"x": normal(2, 4, 8, 8)})


def test_the_values_of_a_concat_are_those_of_all_its_inputs() -> None:
    made = model("a = Sigmoid(x) b = Tanh(x) c = Concat <axis = 1> (a, x, b) y = Exp(c)")
    taps = choose_taps(made)
    assert taps.names == ("x", "a", "b")
    assert taps.shared == {"c": ("a", "x", "b")}
    feeds = {"x": normal(3, 4)}
    found = values_of(made, feeds)
    inputs = np.concatenate([found[source].reshape(-1) for source in taps.shared["c"]])
    np.testing.assert_array_equal(np.sort(found["c"], axis=None), np.sort(inputs))
