"""Samples are run one by one only where that gives the tensors that whole batches give."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import onnx.parser
import onnxruntime
import pytest
from numpy.typing import NDArray

from qcompile.compiler.quantize.activations import observe_rows, run_samples
from qcompile.compiler.quantize.weights.hessians import collect_hessians
from qcompile.data.batches import Data
from qcompile.model.onnx_file import model_io

MODELS = {
    "a running sum over time": "a = CumSum(x, first) y = MatMul(a, w)",
    "a state over time": """
        u = Unsqueeze(x, second) h = RNN <hidden_size = 4> (u, in, by) a = Squeeze(h, both) y = MatMul(a, w)
    """,
    "attention between rows": """
        t = Transpose(x) m = MatMul(x, t) s = Softmax(m) a = MatMul(s, x) y = MatMul(a, w)
    """,
}


def normal(*shape: int) -> NDArray[np.float32]:
    return np.random.default_rng(sum(shape)).standard_normal(shape).astype(np.float32)


def model_and_data(body: str, batches: list[NDArray[np.float32]], folder: Path) -> tuple[Path, Data]:
    model = onnx.parser.parse_model(
        f'<ir_version: 8, opset_import: ["" : 17]> g (float[n, 4] x) => (float[n, 3] y) {{ {body} }}'
    )
    stored = {
        "w": normal(4, 3),
        "in": normal(1, 4, 4),
        "by": normal(1, 4, 4),
        "first": np.array(0),
        "second": np.array([1]),
        "both": np.array([1, 2]),
    }
    read = {name for node in model.graph.node for name in node.input}
    model.graph.initializer.extend(
        onnx.numpy_helper.from_array(array, name) for name, array in stored.items() if name in read
    )
    onnx.save(model, folder / "m.onnx")
    (folder / "d").mkdir()
    for index, batch in enumerate(batches):
        np.save(folder / "d" / f"{index}.npy", batch)
    return folder / "m.onnx", Data(str(folder / "d"), model_io(model).inputs)


def computed(path: Path, batch: NDArray[np.float32]) -> NDArray[np.float32]:
    """What the tensor `a` holds when the whole batch is fed."""
    model = onnx.load(path)
    model.graph.output.append(onnx.helper.make_tensor_value_info("a", 1, None))
    session = onnxruntime.InferenceSession(model.SerializeToString())
    array: NDArray[np.float32] = session.run(["a"], {"x": batch})[0]
    return array


@pytest.mark.parametrize("name", MODELS)
def test_rows_that_meet_in_the_model_are_run_together(name: str, tmp_path: Path) -> None:
    batches = [normal(7, 4), normal(5, 4)]
    path, data = model_and_data(MODELS[name], batches, tmp_path)
    whole = np.concatenate([computed(path, batch) for batch in batches])
    found = observe_rows(onnx.load(path), path, {"a": -1}, data)["a"].amax
    np.testing.assert_allclose(found, np.abs(whole).max(axis=0), rtol=1e-5)


@pytest.mark.parametrize("name", MODELS)
def test_hessians_are_those_of_whole_batches_though_the_first_samples_are_zeros(
    name: str, tmp_path: Path
) -> None:
    batches = [normal(7, 4), normal(5, 4)]
    batches[0][:2] = 0  # two samples of zeros are the same alone and together, whatever the model does
    path, data = model_and_data(MODELS[name], batches, tmp_path)
    whole = np.concatenate([computed(path, batch) for batch in batches])
    found = collect_hessians(path, ["a"], data, limit=100)["a"]
    np.testing.assert_allclose(found, 2 * whole.T @ whole, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("limit", [None, 1, 7, 9])
def test_samples_of_a_batch_axis_are_run_one_by_one(limit: int | None, tmp_path: Path) -> None:
    path, data = model_and_data("a = Relu(x) y = MatMul(a, w)", [normal(7, 4), normal(5, 4)], tmp_path)
    extents = [arrays["a"].shape[0] for _, arrays in run_samples(onnx.load(path), path, ["a"], data, limit)]
    assert extents == [1] * (limit or 12)
