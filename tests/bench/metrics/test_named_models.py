"""The metric of models and data by name is chosen: task, classes and vocabulary travel with the inputs."""

from __future__ import annotations

import json
import wave
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from named_models import (
    GPT2,
    LETTERS,
    SMALL,
    SOUNDS,
    SPEECH,
    WORDS,
    add_json,
    add_tokenizer,
    make_folder,
)

from qcompile.bench.metrics.accuracy import ScoreSums, accuracy, read_metric
from qcompile.bench.metrics.metric import Truth
from qcompile.bench.metrics.quality import described_inputs
from qcompile.bench.outputs import describe, shared_io
from qcompile.bench.results.row import Accuracy
from qcompile.data.batches import Data
from qcompile.engines.registry import engine

SAMPLES = 12


def measured(model: Path, data: str) -> tuple[str, Accuracy]:
    """The metric that is chosen for a folder and data, and its value against the model itself."""
    spelling = f"hf:{model}"
    io = shared_io([describe(spelling)])
    metric = read_metric("auto", inputs=described_inputs(io, []))
    sums: ScoreSums | None = None
    with engine("pytorch").open(spelling, threads=1) as runner:
        for batch in Data(data, io.inputs):
            truth = Truth(batch.labels, batch.samples, batch.where)
            outputs = runner.infer(batch.feeds)
            metric = metric.resolved(outputs, truth)
            sums = sums or ScoreSums(metric)
            scored = metric.score(outputs, outputs, truth)
            sums.add(scored, scored, truth.samples)
    assert sums is not None
    assert sums.samples == SAMPLES
    return metric.name, accuracy(sums, sums)


def sentences(rng: np.random.Generator) -> list[list[str]]:
    """Words of the tokenizer."""
    return [[str(word) for word in rng.choice(WORDS, rng.integers(2, 8))] for _ in range(SAMPLES)]


@pytest.mark.filterwarnings("ignore")
def test_a_language_model_has_a_perplexity(tmp_path: Path) -> None:
    folder = make_folder(tmp_path / "gpt", "GPT2", "GPT2LMHeadModel", GPT2)
    add_tokenizer(folder, inputs=("input_ids", "attention_mask"))
    lines = sentences(np.random.default_rng(0))
    (tmp_path / "texts.txt").write_text("\n".join(map(" ".join, lines)))
    metric, found = measured(folder, f"text:{tmp_path}/texts.txt")
    assert metric == "perplexity"
    assert found.value == pytest.approx(64, rel=0.2)  # random weights know nothing of 64 words


@pytest.mark.filterwarnings("ignore")
def test_a_tagger_of_entities_has_their_f1(tmp_path: Path) -> None:
    names = {0: "O", 1: "B-PER", 2: "I-PER"}
    options: dict[str, Any] = {**SMALL, "id2label": names, "label2id": {v: k for k, v in names.items()}}
    folder = make_folder(tmp_path / "ner", "Bert", "BertForTokenClassification", options)
    add_tokenizer(folder)
    rng = np.random.default_rng(0)
    rows = [
        {"tokens": words, "ner_tags": rng.integers(0, 3, len(words)).tolist()} for words in sentences(rng)
    ]
    (tmp_path / "tags.jsonl").write_text("\n".join(map(json.dumps, rows)))
    metric, found = measured(folder, f"jsonl:{tmp_path}/tags.jsonl")
    assert metric == "f1:entities"
    assert 0 <= found.value < 0.6


@pytest.mark.filterwarnings("ignore")
def test_a_recognizer_of_speech_has_a_word_error_rate(tmp_path: Path) -> None:
    folder = make_folder(tmp_path / "ctc", "Wav2Vec2", "Wav2Vec2ForCTC", SPEECH)
    add_json(folder, "vocab.json", LETTERS)
    add_json(folder, "preprocessor_config.json", SOUNDS)
    rng = np.random.default_rng(0)
    rows = ["file_name,text"]
    (tmp_path / "wav").mkdir()
    for index in range(SAMPLES):
        with wave.open(str(tmp_path / "wav" / f"{index:02}.wav"), "wb") as file:
            file.setparams((1, 2, 16000, 0, "NONE", ""))
            file.writeframes((rng.standard_normal(1600) * 3000).astype("<i2").tobytes())
        rows.append(f"{index:02}.wav,{' '.join(rng.choice(['a', 'ab', 'cab'], 3))}")
    (tmp_path / "wav" / "metadata.csv").write_text("\n".join(rows))
    metric, found = measured(folder, f"audio:{tmp_path}/wav")
    assert metric == "wer"
    assert found.value > 0
