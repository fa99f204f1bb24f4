"""INT8 of ONNX Runtime on ARM: an emulated Cortex-A57, a Neoverse N1, and QEMU's `max` without SME.

Found with ONNX Runtime 1.31.1 on QEMU 7.2.22. Weights of -127 to 127 are exact on all three, for every layer
and pair of types here. Weights of -128 are not: some kernels add two products in int16, and twice
(-128) * (-128) wraps to -32768. These kernels read uint8 activations less 128, so a 0, as of ReLU, is -128.

| layer with weights of -128                        | Cortex-A57: no dot product   | Neoverse N1, `max` |
|---------------------------------------------------|------------------------------|--------------------|
| depthwise 3x3, channels a multiple of 16          | (0,2) (1,3) (4,6) (5,7) wrap | the same           |
| other depthwise, channels a multiple of 8         | neighbours wrap              | the same           |
| depthwise, other numbers of channels              | exact                        | exact              |
| uint8 by int8: other convolutions, products, LSTM | halves of 16 wrap            | exact              |
| int8 by int8: products                            | halves of 16 wrap            | exact              |
| int8 by int8: 3x3 of 64 channels                  | halves of 16 wrap            | exact              |
| int8 by int8: other convolutions                  | exact                        | exact              |
| uint8 by uint8                                    | exact                        | exact              |

Halves of 16 are the elements k and k + 8 of each 16 of the depth, which is kernel, then channels.

With SME, which QEMU 7.2 has on `max`, DynamicQuantizeMatMul returns different rows for equal rows. Whether
the emulator or the kernel is wrong is open, so SME is off.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
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
from pairwise_sums import Pairs, halves_of_16, neighbours, wrap16

Array = NDArray[Any]
PROCESSORS = ("cortex-a57", "neoverse-n1", "arm-max")
TYPES = [("uint8", "int8"), ("uint8", "uint8"), ("int8", "int8")]
ROWS = (1, 9)


def pairs_of_3x3(_depth: int) -> Pairs:
    """What the kernel of depthwise 3x3 adds first."""
    return [(0, 2), (1, 3), (4, 6), (5, 7)]


def layers_of(weights: str) -> dict[str, Layer]:
    """Layers of all types, by name."""
    layers: dict[str, Layer] = {}
    for types in TYPES:
        kind = " by ".join(types)
        shapes = {**CONVOLUTIONS, **DEPTHWISE}
        layers |= {f"{kind}, {name}": convolution(*types, weights, **how) for name, how in shapes.items()}
        layers |= {
            f"{kind}, {name} of {rows}": product(name, *types, weights, rows=rows)
            for name in PRODUCTS
            for rows in ROWS
        }
    layers |= {
        f"uint8 by int8, {name} of {rows}": dynamic(name, weights, rows=rows)
        for name in DYNAMIC
        for rows in ROWS
    }
    return layers | {
        f"{kind} by int8, Q/DQ {name}": qdq(name, kind, weights)
        for kind in ("uint8", "int8")
        for name in ("Conv", "MatMul")
    }


def wrapping(name: str, processor: str) -> bool:
    """Whether a layer with weights of -128 wraps."""
    types, layer = name.split(", ", 1)
    if types == "uint8 by uint8" or layer == "depthwise, odd":
        return False
    if layer in DEPTHWISE:
        return True
    if processor != "cortex-a57":
        return False
    if types == "uint8 by int8":
        return True
    return layer not in CONVOLUTIONS.keys() - {"dense 3x3, deep"} | {"Q/DQ Conv"}


def wrapped(name: str, layer: Layer) -> Array:
    """Return the output of a layer whose pairs wrap."""
    pairs: Callable[[int], Pairs] = halves_of_16
    if "depthwise" in name:
        pairs = pairs_of_3x3 if "3x3" in name else neighbours
    # The rows of Q/DQ are uint8 here, whatever their type is.
    return layer.in_pairs(pairs, wrap16, offset=128 if "Q/DQ" in name or name.startswith("uint8") else 0)


Outputs = dict[tuple[str, str], tuple[Layer, Array]]


@pytest.fixture(scope="module", params=PROCESSORS)
def processor(request: pytest.FixtureRequest) -> str:
    name: str = request.param
    require_emulated(name)
    return name


@pytest.fixture(scope="module")
def outputs(processor: str, tmp_path_factory: pytest.TempPathFactory) -> Outputs:
    """Weights and name to layer and output."""
    layers = {
        (weights, name): layer
        for weights in ("8 bits", "8 bits and -128")
        for name, layer in layers_of(weights).items()
    }
    return run_layers(processor, layers, tmp_path_factory.mktemp(processor))


def test_weights_from_minus_127_to_127_are_exact(outputs: Outputs) -> None:
    for (weights, name), (layer, output) in outputs.items():
        if weights == "8 bits":
            assert_equal(output, layer.exact(), name)


def test_weights_of_minus_128_are_exact_where_no_kernel_adds_in_int16(
    processor: str, outputs: Outputs
) -> None:
    for (_, name), (layer, output) in outputs.items():
        if not wrapping(name, processor):
            assert_equal(output, layer.exact(), name)


def test_pairs_of_weights_of_minus_128_wrap(processor: str, outputs: Outputs) -> None:
    names = set()
    for (weights, name), (layer, output) in outputs.items():
        if weights == "8 bits and -128" and wrapping(name, processor):
            names.add(name)
            assert_equal(output, wrapped(name, layer), name)
            assert (np.abs(output - layer.exact().astype(float).reshape(output.shape)) > 1e-3).any(), name
    assert len(names) == (41 if processor == "cortex-a57" else 6)


@pytest.mark.parametrize("kernel", [3, 5])
def test_the_channels_of_a_depthwise_convolution_choose_the_kernel(kernel: int, tmp_path: Path) -> None:
    require_emulated("neoverse-n1")
    layers = {
        channels: convolution(
            "uint8", "int8", "8 bits and -128", channels, channels, [kernel, kernel], group=channels
        )
        for channels in (4, 8, 12, 24, 32)
    }
    for channels, (layer, output) in run_layers("neoverse-n1", layers, tmp_path).items():
        pairs = pairs_of_3x3 if kernel == 3 and channels % 16 == 0 else neighbours
        expected = layer.exact() if channels % 8 else layer.in_pairs(pairs, wrap16, offset=128)
        assert_equal(output, expected, f"{channels} channels")
