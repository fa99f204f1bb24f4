"""A model in one opset and in an older one, run by ONNX Runtime and compared."""

from __future__ import annotations

import numpy as np
import onnx
from numpy.typing import NDArray
from written_models import computed, text_model

from qcompile.compiler.opset.lower import lower_opset
from qcompile.model.graph.graph import model_io, opset
from qcompile.model.sessions.random_input import random_feeds
from qcompile.spec.tensors import Feeds


def model(version: int, signature: str, body: str, stored: str = "") -> onnx.ModelProto:
    """A model of one opset, in ONNX's text form."""
    return text_model(f"{signature} {stored} {{ {body} }}", opset=version, ir_version=10)


def run(proto: onnx.ModelProto, feeds: Feeds) -> list[NDArray[np.generic]]:
    """Run in ONNX Runtime as it is written."""
    return list(computed(proto, feeds).values())


def assert_the_same(
    before: onnx.ModelProto, highest: int = 17, feeds: Feeds | None = None
) -> onnx.ModelProto:
    """Lower a model, run both, and return the lowered one."""
    untouched = before.SerializeToString(deterministic=True)
    after = lower_opset(before, highest)
    assert opset(after) == highest
    assert before.SerializeToString(deterministic=True) == untouched
    onnx.checker.check_model(after, full_check=True)
    used = feeds or random_feeds(model_io(before).inputs, extent=2)
    for expected, found in zip(run(before, used), run(after, used), strict=True):
        assert found.dtype == expected.dtype
        rtol, atol = (4e-3, 4e-3) if found.dtype == np.float16 else (2e-5, 2e-6)
        np.testing.assert_allclose(found, expected, rtol=rtol, atol=atol)
    return after


def operators(proto: onnx.ModelProto) -> list[str]:
    """Operators in order."""
    return [node.op_type for node in proto.graph.node]
