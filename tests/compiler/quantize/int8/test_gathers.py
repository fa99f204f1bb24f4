"""Gathers by a matrix of indices compute the same by a vector, and OpenVINO compiles them behind INT8."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest
from hypothesis import given
from hypothesis import strategies as st
from mode_models import normal, static, written
from written_models import model_of, outputs_of

from qcompile.compiler.quantize.int8.rewrites import gather_by_vectors


@given(axis=st.integers(-4, 3), rows=st.integers(1, 3), columns=st.integers(1, 4), free=st.booleans())
def test_the_result_is_that_of_numpy(axis: int, rows: int, columns: int, free: bool) -> None:
    indices = np.random.default_rng(rows).integers(-2, 2, (rows, columns))
    x = np.random.default_rng(0).standard_normal((3, 2, 4, 5)).astype(np.float32)
    shape = "n,2,4,5" if free else "3,2,4,5"
    model = model_of(
        f"(float[{shape}] x) => (float y) {{ y = Gather<axis={axis}>(x, i) }}", named=True, i=indices
    )
    gather_by_vectors(model)
    onnx.checker.check_model(model)
    assert [node.op_type for node in model.graph.node] == ["Gather", "Reshape"]
    np.testing.assert_array_equal(outputs_of(model, x)[0], np.take(x, indices, axis))


@pytest.mark.parametrize(
    ("shape", "gather", "indices"),
    [
        ("3,2,4", "Gather<axis=1>(x, i)", [0, 1]),  # a vector already
        ("n,h,w", "Gather<axis=0>(x, i)", [[0, 1]]),  # two extents behind the axis are unknown
    ],
)
def test_others_stay_as_they_are(shape: str, gather: str, indices: list[object]) -> None:
    text = f"(float[{shape}] x) => (float y) {{ y = {gather} }}"
    model = model_of(text, named=True, i=np.array(indices))
    before = model.SerializeToString()
    gather_by_vectors(model)
    assert model.SerializeToString() == before


def test_openvino_compiles_windows_of_a_convolution(tmp_path: Path) -> None:
    import openvino

    model = written(
        tmp_path / "m.onnx",
        """(float[n,4,8,8] x) => (float[n,6,2,5,8] y) {
            a = Conv(x, w) b = Gather<axis=2>(a, i) y = Relu(b) }""",
        w=normal(6, 4, 1, 1),
        i=np.array([[0, 1, 2, 3, 4], [3, 4, 5, 6, 7]]),
    )
    np.savez(tmp_path / "x.npz", x=normal(8, 4, 8, 8))
    artifact = static(model, tmp_path, target="openvino")
    openvino.Core().compile_model(artifact.path, "CPU")
