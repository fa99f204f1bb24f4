"""Every spelling that docs/data.md shows is read, in a folder that holds what the guide says of it."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import soundfile
from PIL import Image
from tokenizer_files import save_tokenizer

from qcompile.data.batches import Data
from qcompile.data.spelling import KEYS, parse_spelling
from qcompile.model.preprocessing import AudioPreprocessing, ImagePreprocessing, TextPreprocessing, as_json
from qcompile.tensors import TensorInfo

GUIDE = (Path(__file__).parents[1] / "docs" / "data.md").read_text(encoding="utf-8")
BLOCKS = {
    name: [line.partition("  #")[0].strip() for line in lines.strip().splitlines()]
    for name, lines in re.findall(r"<!-- spellings: (\w+) -->\n```\n(.*?)```", GUIDE, re.DOTALL)
}
RNG = np.random.default_rng(0)
PIXELS = TensorInfo(
    "x", "float32", ("n", 3, 8, 8), preprocessing=as_json(ImagePreprocessing(input="x", height=8, width=8))
)
WAVES = TensorInfo(
    "x", "float32", ("n", "t"), preprocessing=as_json(AudioPreprocessing(inputs=("x",), rate_hz=8000))
)


def picture(path: Path) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray(RNG.integers(0, 256, (9, 11, 3), np.uint8)).save(path)


def make_images(folder: Path) -> list[TensorInfo]:
    for number in range(8):
        picture(folder / "photos" / ("cat", "dog")[number % 2] / f"{number}.jpg")
        picture(folder / "flat" / f"{number}.png")
        picture(folder / "splits" / ("train", "val")[number % 2] / f"{number}.png")
        picture(folder / "labelled" / f"{number}.png")
    rows = "".join(f"{number}.png,{number % 2}\n" for number in range(8))
    (folder / "labelled" / "metadata.csv").write_text(f"file_name,label\n{rows}")
    picture(folder / "scenes" / "images" / "1.png")
    (folder / "scenes" / "masks").mkdir()
    Image.fromarray(RNG.integers(0, 3, (9, 11), np.uint8)).save(folder / "scenes" / "masks" / "1.png")
    boxes = {
        "images": [{"id": 1, "file_name": "images/1.png"}],
        "categories": [{"id": 1, "name": "cat"}],
        "annotations": [{"image_id": 1, "category_id": 1, "bbox": [1, 1, 5, 5]}],
    }
    (folder / "scenes" / "boxes.json").write_text(json.dumps(boxes))
    return [PIXELS]


def make_rows(folder: Path) -> list[TensorInfo]:
    import datasets

    rows = [{"text": "the cat", "label": "good"}, {"text": "a dog ran", "label": "bad"}]
    pairs = [{"premise": "the cat sat", "hypothesis": "a cat", "label": 1}]
    tags = [{"tokens": ["cat", "sat"], "ner_tags": [1, 0]}]
    for name, content in (("reviews", rows), ("pairs", pairs), ("tags", tags)):
        (folder / f"{name}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in content))
    (folder / "lines.txt").write_text("the cat\n\na dog ran\n")
    (folder / "reviews.csv").write_text("review,stars\nthe cat,4\na dog,2\n")
    for number in range(4):
        picture(folder / "files" / f"{number}.png")
    paths = [str(path) for path in sorted((folder / "files").iterdir())]
    rows = datasets.Dataset.from_dict({"image": paths, "label": [0, 1, 0, 1]})
    rows = rows.cast_column("image", datasets.Image())
    rows.save_to_disk(folder / "saved")
    rows.to_parquet(folder / "parquet" / "test-00000-of-00001.parquet")
    for name in ("said/yes/1.wav", "said/no/2.flac", "spoken/1.wav"):
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        soundfile.write(folder / name, RNG.uniform(-1, 1, 800), 8000)
    (folder / "spoken" / "metadata.csv").write_text("file_name,label\n1.wav,go on\n")
    names = ("input_ids", "attention_mask")
    said = TextPreprocessing(tokenizer=str(save_tokenizer(folder / "tokenizer")), inputs=names)
    return [TensorInfo(name, "int64", ("n", "t"), preprocessing=as_json(said)) for name in names]


def make_arrays(folder: Path) -> list[TensorInfo]:
    from polygraphy.json import save_json

    x = RNG.standard_normal((12, 3, 8, 8)).astype(np.float32)
    np.savez(folder / "arrays.npz", x=x, labels=np.arange(12))
    np.save(folder / "x.npy", x)
    (folder / "folder").mkdir()
    np.save(folder / "folder" / "0.npy", x)
    save_json([{"x": x}], str(folder / "inputs.json"))
    (folder / "samples.py").write_text(
        "import numpy as np\ndef load():\n    yield np.zeros((2, 3, 8, 8), np.float32)\n"
    )
    return [PIXELS]


MAKERS: dict[str, Callable[[Path], list[TensorInfo]]] = {
    "images": make_images,
    "rows": make_rows,
    "arrays": make_arrays,
}
UNLABELLED = {"flat", "lines.txt", "reviews.jsonl?column=text", "x.npy", "folder", "inputs.json"}


@pytest.mark.parametrize("name", BLOCKS)
def test_every_spelling_of_the_guide_is_read(tmp_path: Path, name: str) -> None:
    made = MAKERS[name](tmp_path)
    for spec in BLOCKS[name]:
        inputs = [WAVES] if spec in ("said", "audio:spoken") else made
        inputs = [PIXELS] if spec.startswith(("saved", "parquet")) else inputs
        data = Data(spec, inputs, base=tmp_path)
        batches = list(data)
        assert data.total in (None, sum(one.samples for one in batches)), spec
        assert data.digest() == Data(spec, (), base=tmp_path).digest(), spec
        labelled = spec not in UNLABELLED and not spec.endswith("py:load")
        assert all((one.labels is not None) == labelled or "split" in spec for one in batches), spec


def test_the_guide_shows_every_block_and_every_key() -> None:
    assert set(BLOCKS) == set(MAKERS)
    shown: set[Any] = {parse_spelling(spec).kind for lines in BLOCKS.values() for spec in lines}
    assert shown
    for key in {key for keys in KEYS.values() for key in keys}:
        assert f"{key}=" in GUIDE, key
