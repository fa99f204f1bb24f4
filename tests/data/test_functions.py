"""Functions as data: memory that a loader uses again, an input called labels, refusals with a way out."""

from __future__ import annotations

import base64
import io
import json
from itertools import islice
from pathlib import Path

import numpy as np
import pytest
from batches_to_read import Script, labels_of, npz, rows, samples_of

from qcompile.data.batches import Data
from qcompile.errors import DataError
from qcompile.spec.tensors import TensorInfo

X = TensorInfo("x", "float32", ("batch", 3))
LOADERS = """
import torch
X = np.random.default_rng(0).standard_normal((5, 4, 3), np.float32)
L = X.argmax(2)

def arrays():
    x, labels = np.empty((4, 3), np.float32), np.empty(4, np.int64)
    for rows in X:
        x[:], labels[:] = rows, rows.argmax(1)
        yield {"x": x, "labels": labels}

def one_dict():
    batch = {}
    for rows in X:
        batch["x"], batch["labels"] = rows, rows.argmax(1)
        yield batch

def tensors():
    x, labels = torch.empty(4, 3), torch.empty(4, dtype=torch.int64)
    for rows in X:
        x.copy_(torch.from_numpy(rows.copy())), labels.copy_(x.argmax(1))
        yield x, labels

def views():
    memory = np.empty((3, 8), np.float32)
    for rows in X:
        memory[:, ::2] = rows.T
        yield ({"x": memory.T[::2]}, rows.argmax(1).tolist())

def mapped():
    from tempfile import TemporaryFile
    with TemporaryFile() as file:
        x = np.memmap(file, np.float32, "w+", shape=(4, 3))
        for rows in X:
            x[:] = rows
            yield torch.from_numpy(x), rows.argmax(1)

def one_list():
    batch = [None, None]
    for rows in X:
        batch[:] = rows, rows.argmax(1)
        yield batch

class Loader:
    def __iter__(self):
        return arrays()
"""


@pytest.mark.parametrize("kind", ["arrays", "one_dict", "tensors", "views", "mapped", "one_list", "Loader"])
@pytest.mark.parametrize("limit", [None, 6])
def test_a_loader_may_use_its_memory_again(script: Script, kind: str, limit: int | None) -> None:
    expected = list(
        Data(script("yield from ({'x': x, 'labels': l} for x, l in zip(X, L))", head=LOADERS), [X])
    )
    held = list(Data(script(f"return {kind}()", head=LOADERS), [X], limit=limit))
    for fresh, batch in zip(expected, held, strict=limit is None):
        count = batch.samples
        np.testing.assert_array_equal(batch.feeds["x"], fresh.feeds["x"][:count])
        np.testing.assert_array_equal(batch.labels, fresh.labels[:count])  # type: ignore[index, arg-type]


LABELS = TensorInfo("labels", "float32", ("batch", 3))
kinds = pytest.mark.parametrize("kind", ["npz", "folder", "polygraphy", "function"])
names = pytest.mark.parametrize("name", ["labels", "label", "y", "target", "targets"])


def written(folder: Path, kind: str, **arrays: np.ndarray) -> str:
    """The spelling of arrays that are stored in a kind of file, or that a function yields from a file."""
    (folder / "samples").mkdir()
    spec = npz(folder / "samples" / "data.npz", **arrays)
    if kind == "polygraphy":
        encoded = {}
        for name, array in arrays.items():
            content = io.BytesIO()
            np.save(content, array)
            encoded[name] = {"array": base64.b64encode(content.getvalue()).decode()}
        (folder / "inputs.json").write_text(json.dumps([encoded]))
        return str(folder / "inputs.json")
    if kind == "function":
        code = f"import numpy as np\ndef load():\n    yield dict(np.load({spec!r}))\n"
        (folder / "data.py").write_text(code)
        return f"{folder}/data.py:load"
    return str(folder / "samples") if kind == "folder" else spec


@kinds
@names
def test_an_input_called_like_labels_is_an_input(tmp_path: Path, kind: str, name: str) -> None:
    inputs = [X, TensorInfo(name, "float32", ("batch", 3))]
    batches = list(Data(written(tmp_path, kind, **{"x": rows(4), name: rows(4) + 7}), inputs))
    assert samples_of(batches) == [0, 1, 2, 3]
    np.testing.assert_array_equal(np.concatenate([batch.feeds[name] for batch in batches]), rows(4) + 7)
    assert labels_of(batches) is None


@kinds
@names
def test_arrays_with_a_usual_name_of_labels_are_labels(tmp_path: Path, kind: str, name: str) -> None:
    batches = list(Data(written(tmp_path, kind, **{"x": rows(4), name: np.array([3, 1, 2, 0])}), [X]))
    assert samples_of(batches) == [0, 1, 2, 3]
    assert labels_of(batches) == [3, 1, 2, 0]


@kinds
def test_two_arrays_with_names_of_labels_are_refused(tmp_path: Path, kind: str) -> None:
    spec = written(tmp_path, kind, x=rows(4), y=np.arange(4), label=np.arange(4))
    with pytest.raises(DataError, match="label and y are names of labels; one array of labels is required"):
        list(Data(spec, [X]))


@pytest.mark.parametrize("dtype", ["int64", "float32", "<U1", "one-hot"])
def test_a_draw_is_balanced_over_labels_of_every_form(tmp_path: Path, dtype: str) -> None:
    classes = np.arange(40) // 30
    labels = np.eye(2)[classes] if dtype == "one-hot" else classes.astype(dtype)
    (batch,) = Data(f"{written(tmp_path, 'npz', x=rows(40), y=labels)}?samples=10", [X], batch_size=10)
    assert batch.labels is not None
    drawn = [int(float(label)) for label in (batch.labels.argmax(1) if labels.ndim > 1 else batch.labels)]
    assert (drawn == [0] * 5 + [1] * 5) == (dtype != "float32")


def test_labels_stand_beside_an_input_called_labels(script: Script) -> None:
    (batch,) = Data(
        script("x = np.ones((2, 3), np.float32)\nyield {'x': x, 'labels': x}, [1, 0]"), [X, LABELS]
    )
    assert labels_of([batch]) == [1, 0]
    (batch,) = Data(
        script("x = np.ones((2, 3), np.float32)\nyield {'x': x, 'labels': x, 'y': [1, 0]}"), [X, LABELS]
    )
    assert labels_of([batch]) == [1, 0]


@pytest.mark.parametrize(
    ("shape", "hint"),
    [((3,), "array[None]"), ((2, 1, 3), "one axis too many"), ((2, 4), "with a dynamic axis"), ((), "")],
)
def test_samples_of_another_shape_are_refused_with_a_way_out(
    script: Script, shape: tuple[int, ...], hint: str
) -> None:
    with pytest.raises(DataError, match=r"input 'x' has shape .*; \[batch,3\] is required") as refused:
        list(Data(script(f"yield np.zeros({shape}, np.float32)"), [X]))
    assert hint in refused.value.hint
    assert bool(hint) == bool(refused.value.hint)


def test_rows_for_a_model_without_an_axis_of_samples_are_refused_with_a_way_out(tmp_path: Path) -> None:
    spec, whole = npz(tmp_path / "data.npz", x=rows(4)), TensorInfo("x", "float32", (3,))
    with pytest.raises(DataError, match="3 is required") as refused:
        list(Data(spec, [whole]))
    assert "has no batch axis" in refused.value.hint


@pytest.mark.parametrize("value", ["[np.ones(3), np.ones(2)]", "torch.ones(1, 3, dtype=torch.bfloat16)"])
def test_what_numpy_makes_no_array_of_is_refused(script: Script, value: str) -> None:
    with pytest.raises(DataError, match=r"samples batch 0: holds a .* that is no array"):
        list(Data(script(f"import torch\nyield {{'x': {value}}}"), [X]))


@pytest.mark.parametrize(
    ("body", "limit", "told"),
    [
        ("while True: yield np.ones((4000, 3), np.float32)", None, True),
        ("while True: yield np.ones((4000, 3), np.float32)", 16_000, False),
        ("return [np.ones((4000, 3), np.float32)] * 4", None, False),  # its length is known
    ],
)
def test_a_function_without_end_is_told_once(
    script: Script, caplog: pytest.LogCaptureFixture, body: str, limit: int | None, told: bool
) -> None:
    spec = script(body)
    assert sum(batch.samples for batch in islice(Data(spec, [X], limit=limit), 4)) == 16_000
    assert [f"{spec}: 12000 samples so far" in text for text in caplog.messages] == [True] * told
