"""What "auto" is of layers that stay in floating point."""

from __future__ import annotations

from typing import Any

import pytest

from qcompile.spec.artifacts import BuildSpec, with_floats


@pytest.mark.parametrize(
    ("options", "chosen", "floats"),
    [
        ({"target": "tensorrt", "precision": "int8"}, "fp16", "fp16"),
        ({"target": "tensorrt-rtx", "precision": "int8"}, "fp16", "fp16"),
        ({"target": "tensorrt-rtx", "precision": "int8", "layers": ("a=bf16",)}, "bf16", "bf16"),
        ({"target": "tensorrt-rtx", "precision": "int8", "float_precision": "fp32"}, "fp32", "fp32"),
        ({"target": "tensorrt", "precision": "int8", "mode": "weights"}, "auto", "fp32"),
        ({"target": "tensorrt", "precision": "fp8"}, "auto", "fp32"),
        ({"target": "onnxruntime", "precision": "int8"}, "auto", "fp32"),
        ({"target": "openvino", "precision": "int8", "float_precision": "bf16"}, "bf16", "bf16"),
    ],
)
def test_auto_is_fp16_in_int8_for_tensorrt(options: dict[str, Any], chosen: str, floats: str) -> None:
    spec = with_floats(BuildSpec(**options))
    assert (spec.float_precision, spec.floats) == (chosen, floats)
