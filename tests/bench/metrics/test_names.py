"""Names of metrics: the guide's table, and which follows from task, labels and outputs."""

from __future__ import annotations

import re
import shlex
import wave
from pathlib import Path
from typing import Any

import click
import numpy as np
import pytest
from named_models import LETTERS, SOUNDS, SPEECH, add_json, make_folder
from numpy.typing import NDArray
from scoring import inputs_of

import qcompile
from qcompile.bench.measure.artifacts import describe, shared_io
from qcompile.bench.metrics.accuracy import ScoreSums, described_inputs, read_metric
from qcompile.bench.metrics.bounds import (
    DROP_CONFIDENCE,
    FEWEST_UNITS,
    RESAMPLES,
    fewest_samples,
    right_or_wrong_interval,
    tail_of,
)
from qcompile.bench.metrics.detection import MeanAveragePrecision
from qcompile.bench.metrics.metric import Truth
from qcompile.bench.results.row import unit_of
from qcompile.cli.main import group
from qcompile.data.batches import Data
from qcompile.engines.registry import engine
from qcompile.errors import DataError
from qcompile.model.sources.preprocessing import (
    AudioPreprocessing,
    ImagePreprocessing,
    Preprocessing,
    Task,
    TextPreprocessing,
)
from qcompile.spec.words import AUTO, F1_KINDS, MAP_KINDS, METRIC_PATTERN, METRICS

GUIDE = Path(qcompile.__file__).parent / "docs" / "measuring.md"
SECTION = GUIDE.read_text(encoding="utf-8").partition("## Metrics\n")[2].partition("\n## ")[0]
ROWS = [
    [cell.strip() for cell in line.strip("|").split("|")]
    for line in SECTION.partition("### Detectors")[0].splitlines()
    if line.startswith("| `") and not line.startswith("| `metric`")
]
DOCUMENTED = {name: row for row in ROWS for name in re.findall(r"`([^`]+)`", row[0])}


def test_every_metric_and_parameter_is_in_the_table() -> None:
    known = {name.partition(":")[0] for name in DOCUMENTED} - {"file.py"}
    assert known == {*METRICS, AUTO}
    for kind in F1_KINDS[1:]:
        assert f"f1:{kind}" in DOCUMENTED
    for kind in MAP_KINDS:
        assert f"map:{kind}" in DOCUMENTED


@pytest.mark.parametrize("name", [name for name in DOCUMENTED if name not in ("file.py:function", AUTO)])
def test_what_the_table_says_of_a_metric_holds(name: str) -> None:
    assert re.fullmatch(METRIC_PATTERN.strip("^$"), name)
    task = TextPreprocessing(tokenizer="t", inputs=("x",), task="token-classification", classes=("O", "B-X"))
    metric = read_metric(name, inputs=inputs_of(task))
    row = DOCUMENTED[name]
    assert metric.name == name
    assert metric.unit == unit_of(name)
    said = row[5].partition(";")[2 if name == "mse" else 0]
    assert ("units" in said) == (metric.unit == "units")
    assert ("less is better" in said) != metric.higher_is_better
    without = "none" in row[4]
    assert without != metric.needs_labels


def test_the_stated_interval_is_the_one_that_is_computed() -> None:
    text = " ".join(SECTION.split())
    assert f"Each drop has a {DROP_CONFIDENCE:.0%} interval" in text
    resamples = f"{RESAMPLES} resamples ({MeanAveragePrecision('map').resamples} for `map`"
    assert f"The bootstrap draws {resamples}" in text
    assert f"loses 100 points if fewer than {FEWEST_UNITS} samples differ" in text
    high = 100 * right_or_wrong_interval(0, 0, 500, tail_of(1))[1]
    assert (
        f"500 samples, none changed: at most {high:.2f} points with {DROP_CONFIDENCE:.0%} confidence" in text
    )
    for budget in (0.2, 0.5, 1, 2):
        row = [f"{fewest_samples(budget / 100, candidates):,}" for candidates in (1, 3, 6)]
        assert f"| {budget} | {' | '.join(row)} |" in text


@pytest.mark.parametrize("samples", [10, 50, 500, 5000])
def test_the_table_of_coverage_ends_with_the_bounds_that_are_computed(samples: int) -> None:
    [row] = [line for line in SECTION.splitlines() if line.startswith("| none changed: at most |")]
    bounds = [f"{100 * right_or_wrong_interval(0, 0, samples, tail_of(k))[1]:.2f}" for k in (1, 6)]
    assert f"| {' | '.join(bounds)} |" in row


def test_the_examples_are_commands_that_exist() -> None:
    lines = [line.strip() for line in SECTION.splitlines() if line.startswith("    qcompile ")]
    assert len(lines) == 3
    for line in lines:
        name, *arguments = shlex.split(line)[1:]
        command = group.get_command(click.Context(group), name)
        parsed = command.make_context(name, list(arguments))
        assert re.fullmatch(METRIC_PATTERN.strip("^$"), parsed.params["metric"])


IDS, CLASSES = np.zeros((4, 6), int), np.array([0, 1, 2, 0])


def text(task: Task, *classes: str) -> TextPreprocessing:
    """A model of texts."""
    return TextPreprocessing(tokenizer="t", inputs=("x",), task=task, classes=classes)


def image(task: Task) -> ImagePreprocessing:
    """A model of images."""
    return ImagePreprocessing(height=8, width=8, task=task)


@pytest.mark.parametrize(
    ("labels", "output", "preprocessing", "expected"),
    [
        (CLASSES, (4, 3), None, "top1"),
        (CLASSES, (4, 3), image("image-classification"), "top1"),
        (CLASSES[:, None], (4, 3), text("text-classification"), "top1"),
        (CLASSES.astype(np.float32), (4, 3), None, "top1"),  # as `top1` alone takes them
        (IDS, (4, 3, 6), None, "top1"),
        (np.zeros((4, 8, 8), int), (4, 3, 8, 8), None, "miou"),
        (np.zeros((4, 8, 8), np.uint8), (4, 3, 8, 8), image("semantic-segmentation"), "miou"),
        (np.zeros((4, 2, 5), np.float32), (4, 9, 7), None, "map"),
        (np.zeros((4, 2, 6), np.float32), (4, 9, 7), image("object-detection"), "map"),
        (np.array(["a", "b", "c", "d"]), (4, 9, 5), None, "wer"),
        (np.array(["a", "b", "c", "d"]), (4, 9, 5), AudioPreprocessing(inputs=("x",)), "wer"),
        (IDS, (4, 6, 9), text("language-model"), "perplexity"),
        (IDS, (4, 6, 3), text("token-classification", "O", "B-PER", "I-PER"), "f1:entities"),
        (IDS, (4, 6, 3), text("token-classification", "noun", "verb"), "f1"),
        (np.zeros((4, 6), int), (4, 6), None, "ndcg"),
        (np.linspace(0, 1, 4), (4, 1), None, "mse"),
        (CLASSES, (4, 1), None, "mse"),
        (np.linspace(0, 1, 4), (4,), text("embedding"), "spearman"),
        (np.full((4, 6), 0.5), (4, 6), None, "mse"),
        (CLASSES, (4, 6), text("embedding"), "cosine"),
        (np.linspace(0, 1, 4), (4, 6), text("embedding"), "neighbours"),
        (None, (4, 6), None, "cosine"),
        (None, (4, 6), text("embedding"), "cosine"),
        (None, (4, 6, 9), text("language-model"), "kl"),
    ],
)
def test_the_metric_follows_from_task_labels_and_outputs(
    labels: NDArray[Any] | None, output: tuple[int, ...], preprocessing: Preprocessing | None, expected: str
) -> None:
    inputs = inputs_of(preprocessing) if preprocessing else []
    metric = read_metric("auto", inputs=inputs)
    chosen = metric.resolve({"y": np.zeros(output, np.float32)}, Truth(labels, 4, "data"))
    assert chosen.name == expected
    assert chosen.note.startswith(f"{expected}: ")
    assert not metric.needs_labels


def test_another_metric_stays_itself() -> None:
    metric = read_metric("top5")
    assert metric.resolve({"y": np.zeros((4, 3))}, Truth(CLASSES, 4, "data")) is metric


def test_labels_of_no_known_type_are_refused() -> None:
    with pytest.raises(DataError, match="labels of type complex128; numbers or texts"):
        read_metric("auto").resolve({"y": np.zeros((4, 3))}, Truth(CLASSES * 1j, 4, "data"))


SAMPLES = 4


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
    io = shared_io([describe(f"hf:{folder}")])
    metric = read_metric("auto", inputs=described_inputs(io, []))
    sums: ScoreSums | None = None
    with engine("pytorch").open(f"hf:{folder}", threads=1) as runner:
        for batch in Data(f"audio:{tmp_path}/wav", io.inputs):
            truth = Truth(batch.labels, batch.samples, batch.where)
            outputs = runner.infer(batch.feeds)
            metric = metric.resolve(outputs, truth)
            sums = sums or ScoreSums(metric)
            scored = metric.score(outputs, outputs, truth)
            sums.add(scored, scored, truth.samples)
    assert (metric.name, sums.samples) == ("wer", SAMPLES)
    assert sums.value() > 0


@pytest.mark.parametrize(("labels", "shape"), [(CLASSES, (4,)), (CLASSES, (4, 1)), (IDS, (4, 6))])
def test_outputs_that_are_classes_are_compared_as_classes(
    labels: NDArray[Any], shape: tuple[int, ...]
) -> None:
    outputs = {"label": labels.reshape(shape).copy()}
    outputs["label"].flat[:1] = 7  # one is wrong, and no number's distance tells how much
    truth = Truth(labels, 4, "data")
    metric = read_metric(AUTO).resolve(outputs, truth)
    assert metric.name == "f1:micro"
    sums = ScoreSums(metric)
    sums.add(metric.score(outputs, outputs, truth), metric.score(outputs, outputs, truth), 4)
    assert sums.value() == pytest.approx(1 - 1 / labels.size)


def test_rows_of_length_1_are_embeddings_and_no_scores() -> None:
    rows = np.random.default_rng(4).standard_normal((4, 6)).astype(np.float32)
    rows /= np.linalg.norm(rows, axis=1, keepdims=True)
    chosen = {}
    for output in (rows, rows * 2, np.eye(4, 6, dtype=np.float32)):
        chosen[float(output.max())] = read_metric(AUTO).resolve({"y": output}, Truth(CLASSES, 4, "data")).name
    assert list(chosen.values()) == ["cosine", "top1", "top1"]
