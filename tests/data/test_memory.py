"""Samples in memory: every form holds the same samples; a refusal of a wrong type names the accepted ones."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import qcompile
from qcompile.calibration import load_ranges
from qcompile.data.batches import Data
from qcompile.data.memory import MOST_READ, copied_beside, public_spelling, stored
from qcompile.errors import DataError, InvalidOption
from qcompile.spec.artifacts import BuildSpec
from qcompile.spec.tensors import TensorInfo

torch = pytest.importorskip("torch", reason="loaders of torch")
datasets = pytest.importorskip("datasets", reason="data sets of Hugging Face")

X = np.random.default_rng(0).standard_normal((12, 3, 4), np.float32)
LABELS = np.arange(12) % 4
INPUT = TensorInfo("x", "float32", ("batch", 3, 4))


def batches() -> Iterator[dict[str, Any]]:
    for rows in (slice(0, 8), slice(8, 12)):
        yield {"x": X[rows], "labels": LABELS[rows]}


def torch_set() -> Any:
    return torch.utils.data.TensorDataset(torch.from_numpy(X), torch.from_numpy(LABELS))


def of_hugging_face() -> Any:
    rows = datasets.Dataset.from_dict({"x": X.tolist(), "label": LABELS.tolist()})
    return rows.with_format("numpy", dtype=np.float32)


LABELLED: dict[str, Callable[[], Any]] = {
    "dict of arrays": lambda: {"x": X, "labels": LABELS},
    "list of samples": lambda: list(zip(X, LABELS, strict=True)),
    "generator function": lambda: batches,
    "generator": batches,
    "function that returns a loader": lambda: lambda: torch.utils.data.DataLoader(torch_set(), batch_size=5),
    "DataLoader": lambda: torch.utils.data.DataLoader(torch_set(), batch_size=5),
    "map-style data set": torch_set,
    "datasets.Dataset": of_hugging_face,
}


@pytest.mark.parametrize("form", LABELLED)
def test_every_form_holds_the_same_samples_and_labels(form: str) -> None:
    read = list(Data(stored(LABELLED[form]()), [INPUT]))
    assert np.array_equal(np.concatenate([batch.feeds["x"] for batch in read]), X)
    assert np.array_equal(np.concatenate([batch.labels for batch in read]), LABELS)


@pytest.mark.parametrize("form", [X, torch.from_numpy(X), list(X)], ids=["array", "tensor", "list"])
def test_arrays_without_names_belong_to_the_only_input(form: Any) -> None:
    read = list(Data(stored(form), [INPUT]))
    assert np.array_equal(np.concatenate([batch.feeds["x"] for batch in read]), X)


def test_arrays_of_a_tuple_follow_the_order_of_the_inputs() -> None:
    pair = [INPUT, TensorInfo("file", "int64", ("batch",))]
    (batch,) = Data(stored([(X, LABELS, LABELS + 1)]), pair)
    assert np.array_equal(batch.feeds["file"], LABELS)
    assert np.array_equal(batch.labels, LABELS + 1)
    (batch,) = Data(stored({"x": X[:5], "file": LABELS[:5]}), pair)  # `numpy.savez` reserves this name
    assert np.array_equal(batch.feeds["file"], LABELS[:5])


def test_the_content_decides_the_name_and_the_digest() -> None:
    first, same, other = stored(X), stored(torch.from_numpy(X.copy())), stored(X + 1)
    assert first == same != other
    assert stored(batches) == stored(batches())
    assert Data(first, [INPUT]).digest() != Data(other, [INPUT]).digest()
    assert public_spelling(first) == Path(first).name
    assert public_spelling("images/?samples=4") == "images/?samples=4"


def test_a_data_set_with_features_is_read_by_datasets() -> None:
    text = stored(datasets.Dataset.from_dict({"text": ["a", "b"]}))
    assert text.startswith("datasets:")
    assert (Path(text.partition(":")[2]) / "dataset_info.json").is_file()


def test_files_of_memory_are_copied_beside_a_recipe(tmp_path: Path) -> None:
    for form in (X, batches):
        text = copied_beside(stored(form), tmp_path / "recipe")
        assert Path(text).parent == tmp_path / "recipe"
        assert sum(len(batch.feeds["x"]) for batch in Data(text, [INPUT])) == len(X)
        assert copied_beside(text, tmp_path / "elsewhere") == text


def test_an_endless_generator_is_read_to_the_samples_that_are_used() -> None:
    endless = ({"x": X} for _ in itertools.count())
    assert Data(stored(endless, inputs=[INPUT], limit=30), [INPUT]).total == 36
    spec = BuildSpec(target="onnxruntime", data=({"x": X[:1]} for _ in itertools.count()))  # type: ignore[arg-type]
    assert spec.data
    assert Data(spec.data, [INPUT]).total == MOST_READ


@pytest.mark.parametrize("value", [5, b"images", pytest.param(object(), id="object"), 0.5], ids=str)
def test_a_wrong_type_is_refused_with_the_accepted_ones(value: object) -> None:
    with pytest.raises(
        InvalidOption, match=r"`evaluation`.*a dict of arrays.*DataLoader.*Dataset is required"
    ):
        qcompile.benchmark(["model.onnx"], evaluation=value)  # type: ignore[arg-type]


def broken() -> Iterator[Any]:
    yield X
    raise OSError("the share is gone")


@pytest.mark.parametrize(
    ("value", "problem"),
    [
        (["a", "b"], "item 0: holds str; arrays or tensors are required"),
        ([], "holds no samples"),
        ({"x": np.array([None])}, "'x': holds Python objects"),
        (broken, "raised OSError at batch 1: the share is gone"),
        ([({"labels": X}, LABELS)], "further labels"),
    ],
)
def test_samples_that_cannot_be_read_are_refused(value: Any, problem: str) -> None:
    with pytest.raises(DataError, match=problem):
        stored(value)


def test_a_dictionary_of_splits_is_refused() -> None:
    splits = datasets.DatasetDict(train=datasets.Dataset.from_dict({"x": [1]}))
    with pytest.raises(InvalidOption, match="holds train; one Dataset is required") as caught:
        stored(splits)
    assert caught.value.hint == "choose a split, such as data['train']"


def test_the_verbs_take_samples_in_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """From the loader to the measured INT8 file: export reads the shapes, workers read the files."""
    monkeypatch.chdir(tmp_path)
    torch.manual_seed(0)
    net = torch.nn.Sequential(
        torch.nn.Flatten(), torch.nn.Linear(12, 16), torch.nn.ReLU(), torch.nn.Linear(16, 4)
    )
    loader = torch.utils.data.DataLoader(torch_set(), batch_size=4)
    exported = qcompile.export(net.eval(), "m.onnx", data=loader).manifest.io
    assert exported
    assert exported.inputs[0].shape == ("batch", 3, 4)
    ranges = load_ranges(qcompile.calibrate("m.onnx", loader, "m.ranges", samples=8).path)
    assert ranges.samples == 8
    int8 = {"target": "onnxruntime", "precision": "int8", "ranges": "m.ranges", "allow_loss": True}
    qcompile.build("m.onnx", "int8.onnx", data=X, **int8)
    compared = qcompile.diff("m.onnx", "int8.onnx", data=torch_set(), metric="top1")
    assert compared.samples == 12
    results = qcompile.benchmark(["int8.onnx"], baseline="m.onnx", evaluation=torch_set(), max_time_s=0.1)
    assert results.rows[1].accuracy
    assert results.rows[1].accuracy.samples == 12
    assert str(results.settings["evaluation"]).startswith("samples-")
    proposed = qcompile.init("m.onnx", "recipe/recipe.toml", data={"input": X, "labels": LABELS})
    assert '"samples-' in proposed.text
    assert len(list((tmp_path / "recipe").glob("samples-*.npz"))) == 1
    tuned = qcompile.tune(
        "m.onnx", loader, "tuned", targets=["onnxruntime"], max_drop=50, max_time_s=0.1, metric="top1"
    )
    assert tuned.recipe.is_file()
