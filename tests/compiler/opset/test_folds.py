"""Blocks side by side are put back to an image as PyTorch's fold does; others keep Col2Im."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from onnx import numpy_helper, parser
from written_models import outputs_of

from qcompile.compiler.opset.plain_forms import folds_to_transposes


def fold(image: tuple[int, int], block: tuple[int, int], attributes: str) -> onnx.ModelProto:
    """A Col2Im."""
    model = parser.parse_model(
        '<ir_version: 8, opset_import: ["" : 18]> tiny (float[n,c,l] x) => (float[n,d,h,w] y)'
        f"{{ [fold] y = Col2Im<{attributes}>(x, image, block) }}"
    )
    for name, values in (("image", image), ("block", block)):
        model.graph.initializer.append(numpy_helper.from_array(np.array(values), name))
    onnx.checker.check_model(model)
    return model


@given(
    channels=st.integers(1, 3), rows=st.integers(1, 3), columns=st.integers(1, 3),
    down=st.integers(1, 3), across=st.integers(1, 3),
)  # fmt: skip
def test_the_image_is_that_of_pytorch(channels: int, rows: int, columns: int, down: int, across: int) -> None:
    image, block = (rows * down, columns * across), (rows, columns)
    model = fold(image, block, f"strides=[{rows},{columns}]")
    assert folds_to_transposes(model)
    onnx.checker.check_model(model)
    assert [node.op_type for node in model.graph.node] == ["Reshape", "Transpose", "Reshape"]
    x = np.random.default_rng(0).standard_normal((2, channels * rows * columns, down * across))
    expected = torch.nn.functional.fold(torch.from_numpy(x), image, block, stride=block).numpy()
    np.testing.assert_array_equal(outputs_of(model, x.astype(np.float32))[0], expected.astype(np.float32))


@pytest.mark.parametrize(
    "attributes",
    ["strides=[1,1]", "strides=[2,2], pads=[1,1,1,1]", "strides=[2,2], dilations=[2,2]", "strides=[2,1]"],
)
def test_blocks_that_overlap_or_are_padded_stay(attributes: str) -> None:
    model = fold((4, 4), (2, 2), attributes)
    before = model.SerializeToString()
    assert folds_to_transposes(model) == []
    assert model.SerializeToString() == before
