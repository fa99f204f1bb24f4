"""Images, texts and recordings through the verbs that take data, and in a recipe of another folder."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import onnx
import pytest
import soundfile
from PIL import Image
from tokenizer_files import save_tokenizer
from written_models import model_of

import qcompile
from qcompile.core.artifact import read_manifest
from qcompile.data.batches import Data
from qcompile.model.graph.input_notes import InputNote, write_notes
from qcompile.model.graph.onnx_file import read_weightless
from qcompile.model.sources.preprocessing import (
    AudioPreprocessing,
    ImagePreprocessing,
    Preprocessing,
    TextPreprocessing,
    as_json,
)

RNG = np.random.default_rng(0)
IMAGES = """(float[batch,3,8,8] x) => (float[batch,2] out) {
    c = Conv<kernel_shape=[3,3]>(x, w) r = Relu(c) p = GlobalAveragePool(r) f = Flatten(p) out = MatMul(f, v)
}"""
TEXTS = """(int64[batch,length] input_ids, int64[batch,length] attention_mask) => (float[batch,2] out) {
    e = Gather(w, input_ids) one = Constant<value_ints=[-1]>() m = Unsqueeze(attention_mask, one)
    f = Cast<to=1>(m) g = Mul(e, f) s = ReduceMean<axes=[1], keepdims=0>(g) out = MatMul(s, v)
}"""
AUDIO = """(float[batch,time] input_values) => (float[batch,2] out) {
    one = Constant<value_ints=[1]>() x = Unsqueeze(input_values, one)
    c = Conv<kernel_shape=[16], strides=[8]>(x, w) r = Relu(c) p = GlobalAveragePool(r) f = Flatten(p)
    out = MatMul(f, v)
}"""
WEIGHTS = {IMAGES: (4, 3, 3, 3), TEXTS: (80, 4), AUDIO: (4, 1, 16)}


def write_model(path: Path, text: str, preprocessing: Preprocessing | None) -> Path:
    """Write a tiny model that says how samples become its inputs."""
    weights = {"w": RNG.standard_normal(WEIGHTS[text]), "v": RNG.standard_normal((4, 2))}
    model = model_of(text, named=True, **{name: array.astype(np.float32) for name, array in weights.items()})
    shapes = {"x": (1, 3, 8, 8), "input_values": (1, 800)}
    if preprocessing is not None:
        notes = {
            value.name: InputNote(shapes.get(value.name, (1, 8)), preprocessing=as_json(preprocessing))
            for value in model.graph.input
        }
        write_notes(model, notes)
    onnx.save(model, path)
    return path


def images(folder: Path) -> str:
    for number in range(12):
        path = folder / "photos" / "ab"[number % 2] / f"{number}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(RNG.integers(0, 256, (9, 11, 3), np.uint8)).save(path)
    return f"{folder}/photos"


def lines(folder: Path) -> str:
    words = ["cat", "dog", "mat"]
    texts = [" ".join(words[place] for place in (n % 3, n // 3 % 3, n // 9)) for n in range(12)]
    rows = [json.dumps({"text": text, "label": number % 2}) for number, text in enumerate(texts)]
    (folder / "a.jsonl").write_text("\n".join(rows))
    return f"{folder}/a.jsonl"


def recordings(folder: Path) -> str:
    for number in range(12):
        path = folder / "said" / "ab"[number % 2] / f"{number}.wav"
        path.parent.mkdir(parents=True, exist_ok=True)
        soundfile.write(path, RNG.uniform(-1, 1, 600 + 20 * number), 8000)
    return f"{folder}/said"


IMAGE = ImagePreprocessing(input="x", height=8, width=8)
VOICE = AudioPreprocessing(inputs=("input_values",), rate_hz=8000)
KINDS = {
    "images": (images, IMAGES, IMAGE),
    "jsonl": (lines, TEXTS, None),
    "audio": (recordings, AUDIO, VOICE),
}


@pytest.mark.parametrize("kind", KINDS)
def test_they_calibrate_quantize_and_simplify(tmp_path: Path, kind: str) -> None:
    write, text, preprocessing = KINDS[kind]
    if text == TEXTS:
        tokenizer = str(save_tokenizer(tmp_path / "tokenizer"))
        preprocessing = TextPreprocessing(tokenizer=tokenizer, inputs=("input_ids", "attention_mask"))
    model, data = write_model(tmp_path / "m.onnx", text, preprocessing), write(tmp_path)
    qcompile.simplify(model, tmp_path / "s.onnx", data=data)
    ranges = qcompile.calibrate(tmp_path / "s.onnx", data, tmp_path / "m.ranges", samples=6)
    assert ranges.manifest.proof["samples"] == 6
    halves = [
        qcompile.calibrate(model, f"{data}?part={part}", tmp_path / f"{part}.ranges")
        for part in ("calibration", "evaluation")
    ]
    assert sum(int(str(half.manifest.proof["samples"])) for half in halves) == 12
    quantized = qcompile.quantize(
        tmp_path / "s.onnx", tmp_path / "q.onnx", ranges=tmp_path / "m.ranges", data=data, allow_loss=True
    )
    assert quantized.path.is_file()


RECIPE = """
version = 1
name = "tiny"
[model]
source = "m.onnx"
[data]
calibration = "images:photos?part=calibration&samples=4"
evaluation = "photos?part=evaluation"
[[artifact]]
name = "int8"
target = "onnxruntime"
precision = "int8"
"""
BENCH = """
[bench]
metric = "top1"
max_time_s = 0.1
precision_target = 0.5
"""


@pytest.mark.parametrize("bench", ["", pytest.param(BENCH, marks=pytest.mark.slow)])
def test_a_recipe_of_another_folder_reads_its_images_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, bench: str
) -> None:
    write_model(tmp_path / "m.onnx", IMAGES, IMAGE)
    images(tmp_path)
    (tmp_path / "recipe.toml").write_text(RECIPE + bench)
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    qcompile.run(tmp_path / "recipe.toml", output=tmp_path / "out")
    assert not bench or "top1" in (tmp_path / "out" / "results.json").read_text()
    manifest = read_manifest(next((tmp_path / "out").glob("*.ranges")))
    assert manifest.proof["samples"] == 4
    again: list[str] = []
    qcompile.run(
        tmp_path / "recipe.toml", output=tmp_path / "out", progress=lambda text, *_: again.append(text)
    )
    assert not [text for text in again if "calibrat" in text or "round" in text]


def test_export_reads_images_as_the_preprocessing_says_that_it_notes(tmp_path: Path) -> None:
    import torch

    photos, model = images(tmp_path), write_model(tmp_path / "plain.onnx", IMAGES, None)
    module = torch.nn.Sequential(torch.nn.Conv2d(3, 4, 3), torch.nn.ReLU())
    made = [
        qcompile.export(str(model), tmp_path / "a.onnx", data=photos, preprocessing="cifar10"),
        qcompile.export(
            module, tmp_path / "b.onnx", inputs=["x:[batch,3,8,8]"], data=photos, preprocessing="cifar10"
        ),
    ]
    for one in made:
        [batch] = Data(photos, read_weightless(one.path).io.inputs, batch_size=12)
        assert batch.feeds["x"].shape == (12, 3, 8, 8)
        assert batch.feeds["x"].min() < -1.5  # normalized
