"""Folders that `datasets` saves, and the packages that a kind of data needs."""

from __future__ import annotations

import importlib
import io
import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import datasets
import numpy as np
import pytest
import soundfile
from batches_to_read import image_input
from PIL import Image
from tokenizer_files import save_tokenizer

from qcompile.core.installation import install_hint
from qcompile.data.batches import Data
from qcompile.errors import DataError, EngineUnavailable, InvalidOption
from qcompile.model.sources.preprocessing import (
    AudioPreprocessing,
    ImagePreprocessing,
    TextPreprocessing,
    as_json,
)
from qcompile.spec.tensors import TensorInfo


def content(grey: int) -> dict[str, object]:
    file = io.BytesIO()
    Image.new("RGB", (4, 4), (grey,) * 3).save(file, "PNG")
    return {"bytes": file.getvalue(), "path": None}


@pytest.fixture
def pictures() -> Any:
    features = datasets.Features(
        {"image": datasets.Image(), "label": datasets.ClassLabel(names=["cat", "dog"])}
    )
    rows = {"image": [content(grey) for grey in range(0, 120, 10)], "label": [0] * 9 + [1] * 3}
    return datasets.Dataset.from_dict(rows, features=features)


def read(spec: str, info: Any, **options: Any) -> tuple[list[int], list[Any] | None]:
    batches = list(Data(spec, [info], batch_size=5, **options))
    greys = [round(float(one) * 255) for batch in batches for one in batch.feeds["x"][:, 0, 0, 0]]
    labels = [batch.labels for batch in batches if batch.labels is not None]
    return greys, np.concatenate(labels).tolist() if labels else None


@pytest.mark.parametrize("form", ["disk", "parquet", "arrow"])
def test_images_and_their_classes_are_read(tmp_path: Path, pictures: Any, form: str) -> None:
    spec, saved = f"{tmp_path}/set", tmp_path / ("set" if form == "disk" else "saved")
    pictures.save_to_disk(saved)
    if form == "parquet":
        pictures.to_parquet(tmp_path / "set" / "test-00000-of-00001.parquet")
    elif form == "arrow":
        (tmp_path / "set").mkdir()
        next(saved.glob("*.arrow")).rename(tmp_path / "set" / "data.arrow")
    assert read(spec, image_input()) == (list(range(0, 120, 10)), [0] * 9 + [1] * 3)
    assert read(spec, image_input(classes=("dog", "cat")))[1] == [1] * 9 + [0] * 3
    assert sorted(read(f"{spec}?samples=6", image_input())[1] or []) == [0] * 3 + [1] * 3
    halves = [read(f"{spec}?part={part}", image_input())[0] for part in ("calibration", "evaluation")]
    assert sorted(halves[0] + halves[1]) == list(range(0, 120, 10))
    assert Data(spec, [image_input()]).total == 12
    assert Data(spec, ()).digest() != Data(f"{spec}?samples=6", ()).digest()
    with pytest.raises(
        InvalidOption, match=r"column=imag: no such column; found image, label\n.*column=image"
    ):
        read(f"{spec}?column=imag", image_input())


def test_a_dict_of_splits_asks_for_one(tmp_path: Path, pictures: Any) -> None:
    both = datasets.DatasetDict({"train": pictures.select(range(9)), "test": pictures.select(range(9, 12))})
    both.save_to_disk(tmp_path / "set")
    for name in ("train", "test"):
        both[name].to_parquet(tmp_path / "files" / f"{name}-00000-of-00001.parquet")
    for spec, message in (
        ("set", r"holds train, test; one of them is required\n.*\?split=train"),
        ("set?split=val", "split=val: no such split; found train, test"),
        ("files", "holds test, train; one of them is required"),
    ):
        with pytest.raises(InvalidOption, match=message):
            read(f"{tmp_path}/{spec}", image_input())
    for name in ("set", "files"):
        assert read(f"{tmp_path}/{name}?split=test", image_input()) == ([90, 100, 110], [1, 1, 1])


def test_texts_pairs_and_tags_are_read(tmp_path: Path) -> None:
    folder = save_tokenizer(tmp_path / "tokenizer")
    said = TextPreprocessing(tokenizer=str(folder), inputs=("input_ids",), classes=("B", "A"))
    info = TensorInfo("input_ids", "int64", ("n", "t"), preprocessing=as_json(said))
    columns = {"tokens": datasets.Value("string"), "ner_tags": datasets.ClassLabel(names=["A", "B"])}
    tags = datasets.Features({name: datasets.List(feature) for name, feature in columns.items()})
    rows = {"tokens": [["cat", "mat"], ["dog"]], "ner_tags": [[0, 1], [1]]}
    datasets.Dataset.from_dict(rows, features=tags).save_to_disk(tmp_path / "tags")
    [batch] = Data(str(tmp_path / "tags"), [info])
    assert batch.labels.tolist() == [[-100, 1, 0, *[-100] * 5], [-100, 0, *[-100] * 6]]
    rows = {"sentence": ["the cat", "a dog"], "label": [1, 0]}  # type: ignore[dict-item]
    datasets.Dataset.from_dict(rows).save_to_disk(tmp_path / "texts")
    data = Data(f"{tmp_path}/texts?samples=1", [info])
    assert data.total == 1
    assert [one.samples for one in data] == [1]


def test_recordings_have_classes_or_transcripts(tmp_path: Path) -> None:
    files = []
    for number in range(2):
        soundfile.write(tmp_path / f"{number}.wav", np.full(80, 0.1 * number), 8000, subtype="FLOAT")
        files.append({"bytes": (tmp_path / f"{number}.wav").read_bytes(), "path": f"{number}.wav"})
    rows = {"audio": files, "text": ["go on", "stop"], "label": [4, 2]}
    recordings = datasets.Dataset.from_dict(rows).cast_column("audio", datasets.Audio())
    recordings.save_to_disk(tmp_path / "set")
    for task, labels in (("", [4, 2]), ("speech-recognition", ["go on", "stop"])):
        said = AudioPreprocessing(inputs=("x",), rate_hz=8000, normalize=False, task=task)  # type: ignore[arg-type]
        info = TensorInfo("x", "float32", ("n", "t"), preprocessing=as_json(said))
        [batch] = Data(str(tmp_path / "set"), [info])
        assert batch.labels.tolist() == labels
        np.testing.assert_allclose(batch.feeds["x"], [[0.0] * 80, [0.1] * 80], atol=1e-6)


def test_a_damaged_folder_is_named(tmp_path: Path, pictures: Any) -> None:
    pictures.save_to_disk(tmp_path / "set")
    next((tmp_path / "set").glob("*.arrow")).write_bytes(b"nothing")
    with pytest.raises(DataError, match="set: cannot be read by datasets"):
        read(str(tmp_path / "set"), image_input())


HEAVY = ("PIL", "transformers", "datasets", "soundfile", "scipy", "torch", "onnx", "pyarrow")


def test_data_is_spelled_and_digested_without_heavy_packages(tmp_path: Path) -> None:
    (tmp_path / "photos").mkdir()
    (tmp_path / "photos" / "0.png").write_bytes(b"x")
    (tmp_path / "a.txt").write_text("a\n")
    code = f"""
import sys
from qcompile.data.batches import Data
for spec in ("photos?preprocessing=imagenet", "a.txt"):
    Data(spec, (), base=__import__("pathlib").Path({str(tmp_path)!r})).digest()
print([name for name in {HEAVY!r} if name in sys.modules])
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


@pytest.mark.parametrize(
    ("module", "package", "name", "said"),
    [
        ("PIL", "pillow", "0.png", ImagePreprocessing(input="x", height=4, width=4)),
        ("transformers", "transformers", "a.txt", TextPreprocessing(tokenizer="t", inputs=("x",))),
        ("soundfile", "soundfile", "0.wav", AudioPreprocessing(inputs=("x",))),
        ("transformers", "transformers", "0.wav", AudioPreprocessing(inputs=("x",), extractor="e")),
        ("datasets", "datasets", "a.parquet", ImagePreprocessing(input="x", height=4, width=4)),
    ],
)
def test_a_missing_package_is_named_with_its_extra(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    module: str,
    package: str,
    name: str,
    said: ImagePreprocessing | TextPreprocessing | AudioPreprocessing,
) -> None:
    (tmp_path / "set").mkdir()
    (tmp_path / "set" / name).write_text(json.dumps("x"))
    spec = str(tmp_path / "set" / (name if name.endswith(("txt", "parquet")) else ""))
    imported = importlib.import_module

    def refuse(name: str, *arguments: Any) -> Any:
        return imported(f"missing.{name}" if name == module else name, *arguments)

    monkeypatch.setattr(importlib, "import_module", refuse)
    axes = ("n", 3, 4, 4) if isinstance(said, ImagePreprocessing) else ("n", "t")
    info = TensorInfo("x", "float32", axes, preprocessing=as_json(said))
    with pytest.raises(EngineUnavailable, match=rf"{package} .*\n  hint: {re.escape(install_hint('data'))}"):
        list(Data(spec, [info]))
