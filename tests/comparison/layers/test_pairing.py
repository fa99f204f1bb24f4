"""Which tensor is which, by name and by structure."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

import qcompile
from qcompile.comparison.layers.pairing import Pairs, pair_outputs, pair_tensors


def partners(pairs: Pairs) -> dict[str, str]:
    return {pair.artifact: pair.reference for pair in pairs.pairs}


@pytest.fixture
def quantized(
    tiny_file: Callable[..., Path], samples: Callable[..., Path], tmp_path: Path
) -> Callable[..., onnx.ModelProto]:
    """`quantized("residual", "tensorrt")` is the tiny model in INT8."""

    def make(name: str, target: Any, **options: Any) -> onnx.ModelProto:
        model = tiny_file(name)
        ranges = qcompile.calibrate(model, str(samples(name)), tmp_path / f"{target}.ranges")
        output = tmp_path / f"{name}.{target}.onnx"
        qcompile.quantize(model, output, ranges=ranges.path, target=target, **options)
        return onnx.load(output)

    return make


def test_integers_pair_with_what_they_stand_for_and_a_folded_relu_with_its_output(
    tiny: Callable[..., onnx.ModelProto], quantized: Callable[..., onnx.ModelProto]
) -> None:
    pairs = pair_tensors(tiny("residual"), quantized("residual", "onnxruntime"))
    found = partners(pairs)
    assert found["r1_QuantizeLinear_Output"] == "r1"  # Relu is gone: Conv makes it
    assert found["c2_QuantizeLinear_Output"] == "c2"
    assert found["y"] == "y"
    assert set(pairs.reference_only) == {"c1", "a"}
    conv = next(pair for pair in pairs.pairs if pair.reference == "c2")
    assert (conv.operator, conv.node) == ("Conv", "conv2")
    assert conv.form.is_integer
    assert [pairs.pairs[i].reference for i in conv.parents] == ["r1"]


def test_a_relu_that_stays_pairs_by_itself(
    tiny: Callable[..., onnx.ModelProto], quantized: Callable[..., onnx.ModelProto]
) -> None:
    pairs = pair_tensors(tiny("residual"), quantized("residual", "tensorrt"))
    assert {pair.reference for pair in pairs.pairs} == {"x", "c1", "r1", "c2", "a", "r2", "p", "f", "y"}
    assert not pairs.reference_only
    assert not pairs.artifact_only


def test_what_the_optimizer_of_onnx_runtime_leaves_pairs_by_the_names_of_nodes(
    tiny: Callable[..., onnx.ModelProto], quantized: Callable[..., onnx.ModelProto], tmp_path: Path
) -> None:
    quantized("residual", "onnxruntime")
    built = tmp_path / "built.onnx"
    qcompile.build(tmp_path / "residual.onnxruntime.onnx", built, target="onnxruntime", precision="int8")
    artifact = onnx.load(built)
    assert not any(node.op_type == "DequantizeLinear" for node in artifact.graph.node)
    pairs = pair_tensors(tiny("residual"), artifact)
    assert {pair.reference for pair in pairs.pairs} == {"x", "r1", "c2", "r2", "p", "f", "y"}
    last = {pair.reference: pair.form.channels_last for pair in pairs.pairs}
    assert last["r1"]
    assert not last["f"]


def test_halves_pair_by_name_and_casts_are_no_tensors(
    tiny: Callable[..., onnx.ModelProto], tiny_file: Callable[..., Path], tmp_path: Path
) -> None:
    for precision in ("fp16", "bf16"):
        output = tmp_path / f"{precision}.onnx"
        qcompile.quantize(tiny_file("residual"), output, precision=precision)
        found = partners(pair_tensors(tiny("residual"), onnx.load(output)))
        assert {"c1", "r1", "c2", "a", "r2", "p", "f"} <= set(found)
        assert all(name == partner for name, partner in found.items() if name != "y/inner")


def renamed(model: onnx.ModelProto, *, nodes: bool) -> onnx.ModelProto:
    """The model with other names of tensors, and without names of nodes."""
    inputs = {value.name for value in model.graph.input}
    stored = {tensor.name for tensor in model.graph.initializer}
    for node in model.graph.node:
        node.name = "" if nodes else node.name
        for names in (node.input, node.output):
            names[:] = [name if name in inputs | stored else f"other/{name}" for name in names]
    for value in model.graph.output:
        value.name = f"other/{value.name}"
    return model


@pytest.mark.parametrize("name", ["residual", "mlp", "elementwise"])
@pytest.mark.parametrize("nodes", [False, True])
def test_renamed_tensors_pair_by_their_nodes_or_by_structure(
    tiny: Callable[..., onnx.ModelProto], name: str, nodes: bool
) -> None:
    pairs = pair_tensors(tiny(name), renamed(tiny(name), nodes=nodes))
    assert partners(pairs) == {f"other/{pair.reference}": pair.reference for pair in pairs.pairs}
    assert not pairs.reference_only
    assert not pairs.artifact_only


def test_twins_that_read_the_same_pair_in_their_order() -> None:
    def model(prefix: str) -> onnx.ModelProto:
        nodes = [helper.make_node("MatMul", ["x", f"w{i}"], [f"{prefix}{i}"]) for i in range(3)]
        nodes.append(helper.make_node("Sum", [f"{prefix}{i}" for i in range(3)], ["y"]))
        value = helper.make_tensor_value_info
        stored = [helper.make_tensor(f"w{i}", TensorProto.FLOAT, [2, 2], [float(i)] * 4) for i in range(3)]
        x, y = (value(name, TensorProto.FLOAT, [1, 2]) for name in ("x", "y"))
        return helper.make_model(helper.make_graph(nodes, "twins", [x], [y], stored))

    found = partners(pair_tensors(model("a"), model("b")))
    assert found == {"b0": "a0", "b1": "a1", "b2": "a2", "y": "y"}


def test_what_has_no_partner_is_said(tiny: Callable[..., onnx.ModelProto]) -> None:
    model = tiny("mlp")
    model.graph.node.append(helper.make_node("Neg", ["m1"], ["n"], "neg"))
    pairs = pair_tensors(tiny("mlp"), model)
    assert pairs.artifact_only == ("n",)
    pairs = pair_tensors(model, tiny("mlp"))
    assert pairs.reference_only == ("n",)


def test_an_engine_pairs_by_its_outputs_alone(tiny: Callable[..., onnx.ModelProto]) -> None:
    pairs = pair_outputs(tiny("residual"), ["y", "r1", "a", "nothing"])
    assert [(pair.reference, pair.upstream, pair.parents) for pair in pairs.pairs] == [
        ("r1", 0, ()),
        ("a", 0b01, (0,)),
        ("y", 0b11, (1,)),
    ]
    assert set(pairs.reference_only) == {"c1", "c2", "r2", "p", "f"}


def test_upstream_is_what_onnx_says_the_tensor_is_computed_from(light_models: dict[str, Path]) -> None:
    for path in list(light_models.values())[:3]:
        model = onnx.load(path)
        pairs = pair_tensors(model, model)
        assert len(pairs.pairs) > 20
        read_by: dict[str, set[str]] = {}
        for node in model.graph.node:
            before = {name for one in node.input for name in {one} | read_by.get(one, set())}
            read_by.update((name, before) for name in node.output)
        for pair in pairs.pairs:
            expected = {i for i, other in enumerate(pairs.pairs) if other.artifact in read_by[pair.artifact]}
            assert {i for i in range(len(pairs.pairs)) if pair.upstream >> i & 1} == expected


def test_scales_of_moved_integers_are_those_of_what_they_were() -> None:
    from qcompile.comparison.layers.forms import Forms

    nodes = [
        helper.make_node("QuantizeLinear", ["x", "s", "z"], ["q"]),
        helper.make_node("Transpose", ["q"], ["t"], perm=[0, 2, 3, 1]),
        helper.make_node("MaxPool", ["t"], ["m"], kernel_shape=[1, 1]),
    ]
    stored = [
        onnx.numpy_helper.from_array(np.float32(0.5), "s"),
        onnx.numpy_helper.from_array(np.uint8(3), "z"),
    ]
    forms = Forms(helper.make_graph(nodes, "moved", [], [], stored))
    form = forms.of("m")
    assert (form.scale, form.zero_point, form.channels_last) == ((0.5,), (3,), True)
    assert forms.of("x") is None
