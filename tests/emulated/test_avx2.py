"""INT8 of ONNX Runtime on x86 without VNNI: an emulated Haswell.

Found with ONNX Runtime 1.31.1 on QEMU 7.2.22. The kernels of uint8 by int8 use `vpmaddubsw`: two neighbouring
products are added and saturated to int16.

| layer                                                     | sums                                        |
|-----------------------------------------------------------|---------------------------------------------|
| QLinearConv: dense, 1x1, grouped, 1-D to 3-D              | pairs saturate; depth: kernel, then channel |
| QLinearConv, depthwise with one output per channel        | exact                                       |
| MatMulInteger, QLinearMatMul, QGemm, MatMulIntegerToFloat | pairs saturate, for one row and for many    |
| DynamicQuantizeMatMul, DynamicQuantizeLSTM                | pairs saturate                              |
| uint8 by uint8, int8 by int8                              | exact                                       |
| Q/DQ with int8 activations                                | as uint8 by int8: the optimizer converts it |

Pairs are (0, 1), (2, 3), ... of the depth of a group; the last of an odd depth stays single. Weights of
7 bits are exact. The configuration entry `session.x64quantprecision` = 1 makes weights of 8 bits exact, since
the optimizer then makes them uint8; a QLinearMatMul that is not made of Q/DQ still saturates.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from emulated import require_emulated
from integer_layers import (
    CONVOLUTIONS,
    DEPTHWISE,
    DYNAMIC,
    PRODUCTS,
    Layer,
    assert_equal,
    convolution,
    dynamic,
    product,
    qdq,
    run_layers,
)
from numpy.typing import NDArray
from pairwise_sums import neighbours, saturate16

Array = NDArray[Any]
ROWS = (1, 9)
QDQ = [(operator, kind) for operator in ("Conv", "MatMul") for kind in ("uint8", "int8")]
PRECISE = {"session.x64quantprecision": "1"}


def layers_of(weights: str) -> dict[str, Layer]:
    """Layers of uint8 by int8, by name."""
    layers = {
        name: convolution("uint8", "int8", weights, **how) for name, how in (CONVOLUTIONS | DEPTHWISE).items()
    }
    layers |= {
        f"{operator} of {rows}": product(operator, "uint8", "int8", weights, rows=rows)
        for operator in PRODUCTS
        for rows in ROWS
    }
    layers |= {f"{name} of {rows}": dynamic(name, weights, rows=rows) for name in DYNAMIC for rows in ROWS}
    layers |= {f"Q/DQ {operator} {kind}": qdq(operator, kind, weights) for operator, kind in QDQ}
    return layers


SATURATING = [
    *CONVOLUTIONS,
    *(f"{operator} of {rows}" for operator in (*PRODUCTS, *DYNAMIC) for rows in ROWS),
    *(f"Q/DQ {operator} {kind}" for operator, kind in QDQ),
]
SAME_TYPES = ("uint8", "int8")

Outputs = dict[tuple[str, str], tuple[Layer, Array]]


def layers_of_one_type(kind: str) -> dict[str, Layer]:
    """Layers of uint8 by uint8, or of int8 by int8, by name."""
    weights = "8 bits and -128"
    layers = {
        name: convolution(kind, kind, weights, **how) for name, how in (CONVOLUTIONS | DEPTHWISE).items()
    }
    return layers | {name: product(name, kind, kind, weights, rows=9) for name in PRODUCTS}


def layers_of_other_operands() -> dict[str, Layer]:
    """Layers of uint8 by int8 with zero points, odd depths, and weights that are inputs."""
    operands: list[dict[str, Any]] = [
        {"rows": rows, "depth": depth, "stored": stored, "a_zero": zero}
        for rows in (1, 7)
        for depth in (37, 64, 1030)
        for stored in (True, False)
        for zero in (0, 5)
    ]
    layers = {str(how): product("MatMulInteger", "uint8", "int8", "8 bits", **how) for how in operands}
    shifted = convolution("uint8", "int8", "8 bits", **CONVOLUTIONS["dense 3x3"], x_zero=5)
    return layers | {"convolution with a zero point": shifted}


@pytest.fixture(scope="module")
def outputs(tmp_path_factory: pytest.TempPathFactory) -> Outputs:
    """Group and name to layer and output."""
    require_emulated("haswell")
    groups = {
        "8 bits": layers_of("8 bits and -128"),
        "7 bits": layers_of("7 bits"),
        "other operands": layers_of_other_operands(),
        **{kind: layers_of_one_type(kind) for kind in SAME_TYPES},
    }
    layers = {(group, name): layer for group, members in groups.items() for name, layer in members.items()}
    return run_layers("haswell", layers, tmp_path_factory.mktemp("haswell"))


@pytest.fixture(scope="module")
def precise(tmp_path_factory: pytest.TempPathFactory) -> dict[str, tuple[Layer, Array]]:
    """Name to layer and output, weights of 8 bits."""
    require_emulated("haswell")
    folder = tmp_path_factory.mktemp("haswell-precise")
    return run_layers("haswell", layers_of("8 bits and -128"), folder, config=PRECISE)


def saturated(layer: Layer) -> Array:
    return layer.in_pairs(neighbours, saturate16)


@pytest.mark.parametrize("name", SATURATING)
def test_pairs_of_uint8_by_int8_saturate(outputs: Outputs, name: str) -> None:
    layer, output = outputs["8 bits", name]
    assert_equal(output, saturated(layer), name)
    assert (np.abs(saturated(layer).astype(float) - layer.exact()) > 1e-3).any(), "the layer shows saturation"


def test_channels_are_neighbours_in_a_convolution(outputs: Outputs) -> None:
    _, output = outputs["8 bits", "dense 3x3"]
    other_order = convolution(
        "uint8", "int8", "8 bits and -128", **CONVOLUTIONS["dense 3x3"], channels_last=False
    )
    assert (saturated(other_order) != output).any()


def test_pairs_do_not_depend_on_rows_depth_zero_point_or_whether_weights_are_stored(outputs: Outputs) -> None:
    for (group, name), (layer, output) in outputs.items():
        if group == "other operands":
            assert_equal(output, saturated(layer), name)


@pytest.mark.parametrize("name", DEPTHWISE)
def test_depthwise_convolutions_are_exact(outputs: Outputs, name: str) -> None:
    layer, output = outputs["8 bits", name]
    assert_equal(output, layer.exact(), name)
    assert (saturated(layer) != layer.exact()).any()


@pytest.mark.parametrize("kind", SAME_TYPES)
def test_operands_of_one_type_are_multiplied_exactly(outputs: Outputs, kind: str) -> None:
    for (group, name), (layer, output) in outputs.items():
        if group == kind:
            assert_equal(output, layer.exact(), name)


def test_weights_of_7_bits_are_exact(outputs: Outputs) -> None:
    for (group, name), (layer, output) in outputs.items():
        if group == "7 bits":
            assert_equal(output, layer.exact(), name)


@pytest.mark.parametrize("name", [*SATURATING, *DEPTHWISE])
def test_x64quantprecision_makes_8_bits_exact_but_for_qlinearmatmul(
    precise: dict[str, tuple[Layer, Array]], name: str
) -> None:
    layer, output = precise[name]
    assert_equal(output, saturated(layer) if name.startswith("QLinearMatMul") else layer.exact(), name)
