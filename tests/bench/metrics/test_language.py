"""Perplexity and divergence against PyTorch, error rates against jiwer's vectors and an edit distance."""

from __future__ import annotations

import math
import subprocess
import sys
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as functional
from hypothesis import given, settings
from hypothesis import strategies as st
from scoring import inputs_of, scored, value

from qcompile.bench.metrics.accuracy import read_metric
from qcompile.bench.metrics.language import ctc_text
from qcompile.core.installation import install_hint
from qcompile.errors import DataError
from qcompile.model.sources.preprocessing import AudioPreprocessing, TextPreprocessing

VOCABULARY = ("<pad>", "<unk>", "|", "a", "b", "c")
TEXTS = np.array(["a", "b"])
LANGUAGE = inputs_of(TextPreprocessing(tokenizer="t", inputs=("x",), task="language-model"))


@settings(max_examples=30, deadline=None)
@given(seed=st.integers(0, 10**6), count=st.integers(1, 6), length=st.integers(2, 7))
def test_perplexity_is_the_exponential_of_pytorchs_cross_entropy(seed: int, count: int, length: int) -> None:
    rng = np.random.default_rng(seed)
    logits = (5 * rng.standard_normal((count, length, 11))).astype(np.float32)
    labels = rng.integers(0, 11, (count, length))
    labels[rng.random((count, length)) < 0.3] = -100
    labels[0, -1] = 3
    wide, target = torch.from_numpy(logits).double(), torch.from_numpy(labels)
    for metric, scores, truth in (
        ("perplexity", wide[:, :-1], target[:, 1:]),
        ("perplexity:causal", wide[:, :-1], target[:, 1:]),
        ("perplexity:masked", wide, target),
    ):
        expected = math.exp(functional.cross_entropy(scores.reshape(-1, 11), truth.reshape(-1)))
        assert value(metric, logits, labels, [1]) == pytest.approx(expected, rel=1e-10)


def test_a_model_that_knows_nothing_has_the_vocabulary_as_its_perplexity() -> None:
    found = scored("perplexity", np.zeros((12, 5, 32)), np.zeros((12, 5, 32)), np.zeros((12, 5), int))
    assert found.value == pytest.approx(32.0)
    assert (found.unit, found.higher_is_better) == ("units", False)


def test_probabilities_are_taken_as_they_are() -> None:
    logits = np.random.default_rng(1).standard_normal((4, 6, 9))
    labels = np.random.default_rng(2).integers(0, 9, (4, 6))
    shares = torch.from_numpy(logits).softmax(-1).numpy()
    assert value("perplexity", shares, labels) == pytest.approx(value("perplexity", logits, labels))


@settings(max_examples=30, deadline=None)
@given(seed=st.integers(0, 10**6), count=st.integers(10, 14))
def test_divergence_is_that_of_pytorch(seed: int, count: int) -> None:
    rng = np.random.default_rng(seed)
    for shape in ((7,), (5, 7), (7, 3, 2)):
        base, found = (3 * rng.standard_normal((2, count, *shape))).astype(np.float32)
        rows = [torch.from_numpy(one).double() for one in (base, found)]
        axis = 1 if len(shape) == 3 else -1
        theirs, mine = (one.movedim(axis, -1).reshape(-1, 7).log_softmax(-1) for one in rows)
        expected = functional.kl_div(mine, theirs, log_target=True, reduction="batchmean").item()
        result = scored("kl", base, found)
        assert result.value == pytest.approx(expected, rel=1e-9, abs=1e-12)
        assert result.drop.value == result.value
        assert value("kl", base) == 0.0


def test_divergence_leaves_out_positions_that_labels_ignore() -> None:
    rng = np.random.default_rng(3)
    base, found = rng.standard_normal((2, 12, 4, 6))
    labels = np.zeros((12, 4), int)
    labels[:, 2:] = -100
    metric = read_metric("kl", inputs=LANGUAGE)
    assert scored(metric, base, found, labels).value == pytest.approx(
        scored(metric, base[:, :2], found[:, :2]).value
    )


def test_classes_that_the_baseline_rules_out_do_not_diverge() -> None:
    base = np.tile([[0.0, 1.0, -np.inf]], (10, 1))
    found = np.tile([[0.0, 1.0, -50.0]], (10, 1))
    assert scored("kl", base, found).value == pytest.approx(0.0, abs=1e-12)
    with pytest.raises(DataError, match="kl: is infinite"):
        scored("kl", found, base)
    shares = np.tile([[0.5, 0.5, 0.0]], (10, 1))
    assert scored("kl", shares, np.tile([[0.5, 0.0, 0.5]], (10, 1))).value == pytest.approx(
        0.5 * math.log(0.5 / 1e-12), rel=1e-3
    )


@pytest.mark.parametrize(
    ("metric", "outputs", "labels", "message"),
    [
        ("perplexity", np.zeros((2, 5)), np.zeros((2, 5), int), r"logits \[batch, length, vocabulary\] and"),
        ("perplexity", np.zeros((2, 3, 4)), np.full((2, 3), 9), "label 9; 0 to 3 is required"),
        ("perplexity", np.zeros((2, 3, 4)), np.full((2, 3), -100), "no label counts"),
        ("kl", np.zeros((10, 3)), None, "equal shapes with an axis of samples"),
        ("wer", np.zeros((2, 4, 6)), TEXTS, "the model's inputs have no vocabulary.*\n  hint:.*vocabulary"),
        ("wer", np.zeros((2, 6)), TEXTS, r"texts \[batch\], or CTC logits"),
        ("wer", TEXTS, np.array([1, 2]), r"labels of type int64 and shape \(2,\); a text"),
        ("wer:speech", np.full((2, 3), 6), TEXTS, "holds class 6; the vocabulary has 6 entries"),
    ],
)
def test_what_cannot_be_read_is_refused(metric: str, outputs: Any, labels: Any, message: str) -> None:
    name, _, kind = metric.partition(":")
    found = np.zeros((10, 4)) if metric == "kl" else None
    with pytest.raises(DataError, match=message):
        scored(read_metric(name, inputs=speech() if kind else ()), outputs, found, labels)


WORDS = [  # Source: jiwer's tests/test_measures.py (test_input_gt_list_h_list, test_known_values)
    (["This is a test"], ["This is a test"], 0.0),
    (["This is a test"], [""], 1.0),
    (["This is a test"], ["This test"], 0.5),
    (["i am a short ground truth"], ["i am a considerably longer and very much incorrect hypothesis"], 7 / 6),
    (["X"], ["X X Y Y"], 3.0),
    (["X Y X"], ["X Z"], 2 / 3),
    (["X"], ["Y Z"], 2.0),
    # Source: jiwer's tests/test_empty_ref.py (test_multiple_one_empty_ref, test_one_empty_ref_and_hyp)
    (["hello world", ""], ["hello world", "done"], 0.5),
    (["hello world", ""], ["hello world", ""], 0.0),
]
CHARACTERS = [  # Source: jiwer's tests/test_cer.py
    (["This is a test"], ["This test"], 5 / 14),
    (["X"], ["X X Y Y"], 6.0),
    (["X Y X"], ["X Z"], 3 / 5),
    (["i", "am i good"], ["i am", "i good"], 0.6),
    (["i", "am i good"], ["i am", "y good"], 0.7),
]


@pytest.mark.parametrize(
    ("metric", "references", "hypotheses", "expected"),
    [("wer", *case) for case in WORDS] + [("cer", *case) for case in CHARACTERS],
)
def test_the_vectors_of_jiwer(
    metric: str, references: list[str], hypotheses: list[str], expected: float
) -> None:
    labels, outputs = np.array(references), np.array(hypotheses)
    assert value(metric, outputs, labels) == pytest.approx(expected, abs=1e-15)
    assert value(metric, outputs.astype(object), labels.astype(object)) == pytest.approx(expected)


def edits(one: list[str], other: list[str]) -> int:
    """Levenshtein's distance, by its recurrence."""
    row = list(range(len(other) + 1))
    for i, a in enumerate(one, 1):
        last, row[0] = row[0], i
        for j, b in enumerate(other, 1):
            last, row[j] = row[j], min(row[j] + 1, row[j - 1] + 1, last + (a != b))
    return row[-1]


TEXT = st.text(alphabet=st.sampled_from("aß 漢é\N{COMBINING ACUTE ACCENT}😀b"), max_size=9)


@settings(max_examples=80, deadline=None)
@given(st.lists(st.tuples(TEXT, TEXT), min_size=1, max_size=6))
def test_a_set_has_all_errors_over_all_words(pairs: list[tuple[str, str]]) -> None:
    references, hypotheses = (list(side) for side in zip(*pairs, strict=True))
    split: dict[str, Any] = {"wer": str.split, "cer": lambda text: list(" ".join([text]).strip())}
    for metric, units in split.items():
        counted = [(units(a), units(b)) for a, b in pairs]
        total = sum(len(a) for a, _ in counted)
        if not total:
            with pytest.raises(DataError, match="the references hold no word"):
                value(metric, np.array(hypotheses), np.array(references))
            continue
        expected = sum(edits(a, b) for a, b in counted) / total
        assert value(metric, np.array(hypotheses), np.array(references), [1]) == pytest.approx(expected)


def speech() -> list[Any]:
    """Inputs of a speech recognizer with CTC."""
    return inputs_of(AudioPreprocessing(inputs=("x",), task="speech-recognition", vocabulary=VOCABULARY))


@pytest.mark.parametrize(
    ("path", "vocabulary", "text"),
    [
        ([3, 3, 0, 3, 4], VOCABULARY, "aab"),
        ([0, 0], VOCABULARY, ""),
        ([2, 3, 2, 2, 4, 5, 2], VOCABULARY, "a bc"),
        ([3, 1, 4], VOCABULARY, "ab"),
        ([], VOCABULARY, ""),
        ([1, 2, 1], ("", "▁he", "llo"), "hello he"),
        ([1, 2, 3], ("", "|", " ", "x"), "| x"),
        ([1, 0, 1], ("blank", "a"), "aa"),
    ],
)
def test_repeats_are_joined_and_blanks_left_out(
    path: list[int], vocabulary: tuple[str, ...], text: str
) -> None:
    assert ctc_text(np.array(path, int), vocabulary, 0) == text


def test_logits_and_classes_are_decoded_by_the_models_vocabulary() -> None:
    paths = np.array([[3, 0, 3, 2, 4], [5, 5, 0, 0, 0]])
    logits = np.eye(6, dtype=np.float32)[paths]
    labels = np.array(["aa b", "a"])
    metric = read_metric("wer", inputs=speech())
    assert value(metric, logits, labels) == value(metric, paths, labels) == pytest.approx(1 / 3)


def test_an_error_rate_that_rises_is_a_drop_in_points() -> None:
    labels = np.array(["one two three"] * 40)
    worse = np.array(["one two three"] * 30 + ["one too three"] * 10)
    found = scored("wer", labels, worse, labels)
    assert (found.value, found.higher_is_better, found.unit) == (pytest.approx(10 / 120), False, "points")
    assert found.agreement == 0.75
    assert found.drop.value == pytest.approx(100 * 10 / 120)
    assert 0 < found.drop.low < found.drop.value


def test_without_jiwer_the_extra_is_named() -> None:
    program = (
        "import sys\nsys.modules['jiwer'] = None\n"
        "from qcompile.bench.metrics.accuracy import read_metric\n"
        "from qcompile.errors import EngineUnavailable\n"
        "read_metric('top1')\n"
        "try:\n    read_metric('wer')\n"
        "except EngineUnavailable as error:\n    print(error.message, error.hint)\n"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert "jiwer computes wer, and cannot be imported" in done.stdout
    assert install_hint("metrics") in done.stdout
