"""Tensors that share another's values: what runtimes fold, and what only moves values."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import onnx
import onnxruntime
import pytest
from observed_models import Array, model

from qcompile.calibration.taps import Taps, choose_taps

IMAGE = "(float[n, 4, 8, 8] x) => (float[n, c, h, w] y)"


def normal(*shape: int) -> Array:
    return np.random.default_rng(0).standard_normal(shape).astype(np.float32)


def ints(*values: int) -> Array:
    return np.array(values, np.int64)


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


@pytest.mark.parametrize("operator", ["Sigmoid", "Mul", "AveragePool"])
def test_an_activation_behind_another_operator_is_not_folded(operator: str) -> None:
    bodies = {
        "Sigmoid": "c = Sigmoid(x)",
        "Mul": "c = Mul(x, x)",
        "AveragePool": "c = AveragePool <kernel_shape = [2, 2]> (x)",
    }
    taps = choose_taps(model(f"{bodies[operator]} r = Relu(c) y = Sigmoid(r)", IMAGE))
    assert taps.names == ("x", "c", "r", "y")
    assert taps.shared == {}


def test_a_tensor_that_is_read_beside_its_activation_is_observed_itself() -> None:
    taps = choose_taps(model("c = Add(x, x) r = Relu(c) y = Mul(r, c)"))
    assert taps.names == ("x", "c", "r", "y")
    assert taps.shared == {}


def test_a_tensor_that_two_activations_read_is_observed_itself() -> None:
    taps = choose_taps(model("c = Add(x, x) r = Relu(c) s = Relu(c) y = Mul(r, s)"))
    assert "c" in taps.names


def test_an_output_of_the_model_is_observed_itself_though_an_activation_reads_it() -> None:
    taps = choose_taps(model("c = Add(x, x) y = Relu(c)", "(float[n] x) => (float[n] y, float[n] c)"))
    assert taps.names == ("x", "c", "y")
    assert taps.shared == {}


def test_a_tensor_that_a_subgraph_captures_is_observed_itself() -> None:
    made = model(
        """
        c = Add(x, x)
        r = Relu(c)
        i = If (condition) <
            then_branch = yes () => (float[n, 4] t) { t = Neg(c) },
            else_branch = no () => (float[n, 4] e) { e = Identity(x) }
        >
        y = Mul(r, i)
        """,
        "(float[n, 4] x, bool condition) => (float[n, 4] y)",
    )
    taps = choose_taps(made)
    assert taps.names == ("x", "c", "r", "i", "y")
    assert taps.shared == {}


def test_an_input_of_the_model_is_observed_itself_though_an_activation_reads_it() -> None:
    assert choose_taps(model("r = Relu(x) y = Sigmoid(r)")).names == ("x", "r", "y")


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


def test_all_parts_of_a_split_share_what_was_split() -> None:
    taps = choose_taps(model("a = Sigmoid(x) b, c = Split <axis = 1> (a) y = Mul(b, c)"))
    assert taps.shared == {"b": ("a",), "c": ("a",)}


def test_a_row_looked_up_in_a_table_of_weights_is_observed_itself() -> None:
    made = model(
        "g = Gather(table, ids) y = Sigmoid(g)", "(int64[n] ids) => (float[n, 3] y)", table=normal(5, 3)
    )
    taps = choose_taps(made)
    assert taps.names == ("g", "y")
    assert taps.shared == {}


def test_what_moves_integers_that_become_floats_later_is_not_observed() -> None:
    made = model(
        "r = Reshape(ids, s) f = Cast <to = 1> (r) y = Sigmoid(f)",
        "(int64[n, 4] ids) => (float[m] y)",
        s=ints(-1),
    )
    taps = choose_taps(made)
    assert taps.names == ("f", "y")
    assert taps.shared == {}


def test_the_values_of_a_concat_are_those_of_all_its_inputs() -> None:
    made = model("a = Sigmoid(x) b = Tanh(x) c = Concat <axis = 1> (a, x, b) y = Exp(c)")
    taps = choose_taps(made)
    assert taps.names == ("x", "a", "b")
    assert taps.shared == {"c": ("a", "x", "b")}
    feeds = {"x": normal(3, 4)}
    found = values_of(made, feeds)
    inputs = np.concatenate([found[source].reshape(-1) for source in taps.shared["c"]])
    np.testing.assert_array_equal(np.sort(found["c"], axis=None), np.sort(inputs))


def test_a_concat_with_a_constant_is_observed_itself() -> None:
    taps = choose_taps(model("a = Sigmoid(x) c = Concat <axis = 0> (a, k) y = Exp(c)", k=normal(1, 4)))
    assert taps.names == ("x", "a", "c")
    assert taps.shared == {}


def test_chains_lead_to_where_the_values_come_from() -> None:
    made = model(
        """
        a = Conv <pads = [1, 1, 1, 1]> (x, w)
        b = Relu(a)
        c = MaxPool <kernel_shape = [2, 2]> (b)
        d = Sigmoid(x)
        e = MaxPool <kernel_shape = [2, 2]> (d)
        f = Concat <axis = 1> (c, e)
        g = Reshape(f, s)
        h = Transpose <perm = [1, 0]> (g)
        y = Tanh(h)
        """,
        "(float[n, 4, 8, 8] x) => (float[p, q] y)",
        w=normal(4, 4, 3, 3),
        s=ints(-1, 49),
    )
    taps = choose_taps(made)
    assert taps.names == ("x", "b", "d", "y")
    assert taps.shared == {
        "a": ("b",),
        "c": ("b",),
        "e": ("d",),
        "f": ("b", "d"),
        "g": ("b", "d"),
        "h": ("b", "d"),
    }
    shared_by_movement = {name: sources for name, sources in taps.shared.items() if name != "a"}
    assert_sources_hold_what_is_shared(
        made, Taps(taps.names, taps.types, shared_by_movement, {}), {"x": normal(2, 4, 8, 8)}
    )


def test_a_chain_ends_where_a_constant_comes_in() -> None:
    made = model(
        "a = Sigmoid(x) c = Concat <axis = 0> (a, k) t = Transpose(c) y = Exp(t)",
        "(float[n, 4] x) => (float[4, m] y)",
        k=normal(1, 4),
    )
    taps = choose_taps(made)
    assert taps.names == ("x", "a", "c")
    assert taps.shared == {"t": ("c",)}


def test_values_that_are_moved_keep_an_activation_from_being_shared_with_its_input() -> None:
    made = model(
        "c = Add(x, x) t = Transpose(c) r = Relu(t) y = Exp(r)", "(float[n, 4] x) => (float[4, n] y)"
    )
    taps = choose_taps(made)
    assert taps.names == ("x", "c", "r")
    assert taps.shared == {"t": ("c",)}


def test_what_only_moves_an_input_of_the_model_shares_it() -> None:
    taps = choose_taps(model("t = Transpose(x) y = Sigmoid(t)", "(float[n, 4] x) => (float[4, n] y)"))
    assert taps.names == ("x", "y")
    assert taps.shared == {"t": ("x",)}
