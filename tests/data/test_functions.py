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


@pytest.mark.parametrize("kind", ["npz", "folder", "polygraphy", "function"])
def test_an_input_called_labels_is_an_input(tmp_path: Path, script: Script, kind: str) -> None:
    x, labels = rows(4), rows(4) + 7
    if kind in ("npz", "folder"):
        folder = tmp_path / "samples"
        folder.mkdir()
        spec = npz(folder / "data.npz", x=x, labels=labels)
        spec = str(folder) if kind == "folder" else spec
    elif kind == "polygraphy":
        encoded = {}
        for name, array in (("x", x), ("labels", labels)):
            content = io.BytesIO()
            np.save(content, array)
            encoded[name] = {"array": base64.b64encode(content.getvalue()).decode()}
        (tmp_path / "inputs.json").write_text(json.dumps([encoded]))
        spec = str(tmp_path / "inputs.json")
    else:
        head = "X = np.repeat(np.arange(4, dtype=np.float32)[:, None], 3, axis=1)"
        spec = script("yield {'x': X, 'labels': X + 7}", head=head)
    batches = list(Data(spec, [X, LABELS]))
    assert samples_of(batches) == [0, 1, 2, 3]
    np.testing.assert_array_equal(np.concatenate([batch.feeds["labels"] for batch in batches]), labels)
    assert labels_of(batches) is None


def test_labels_stand_beside_an_input_called_labels(script: Script) -> None:
    (batch,) = Data(
        script("x = np.ones((2, 3), np.float32)\nyield {'x': x, 'labels': x}, [1, 0]"), [X, LABELS]
    )
    assert labels_of([batch]) == [1, 0]
    with pytest.raises(DataError, match="no input 'y' in the model") as refused:
        list(Data(script("yield {'x': 1, 'labels': 1, 'y': 1}"), [X, LABELS]))
    assert refused.value.hint == "yield (inputs, labels)"


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
