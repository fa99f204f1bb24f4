"""Metrics of language: perplexity, divergence from the baseline, and error rates of transcripts by jiwer.

The first two take logits. If the baseline's output is a distribution (no value below 0, sums of 1), the
outputs are probabilities instead, and values below 1e-12 count as 1e-12.

A hypothesis is a text, or a CTC model's classes without repeats and blanks (Graves et al., Connectionist
Temporal Classification, ICML 2006). Decoding takes the most likely class at each step, without a search.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ...errors import DataError
from ...model.sources.preprocessing import AudioPreprocessing
from .metric import (
    IGNORED_POSITION,
    Floats,
    Metric,
    Outputs,
    Scored,
    Truth,
    first_output,
    labels_of,
    require_classes,
    require_numbers,
)

_SMALLEST_PROBABILITY = 1e-12
_SUM_TOLERANCE = 1e-3
_SPECIAL = re.compile(r"<.+>|\[.+\]")
_WORD_DELIMITER = "|"
_WORD_BEGIN = "▁"


class Perplexity(Metric):
    """`exp` of the mean negative log-likelihood of the labels, in nats, over all positions of the data.

    The first output is logits [batch, length, vocabulary]; labels are [batch, length], -100 for positions
    that do not count. The logits at a position predict the next label in a causal model (transformers shifts
    them in the same way), and the label at the same position in a masked model.
    """

    unit, higher_is_better = "units", False

    def __init__(self, name: str, *, shift: bool = True) -> None:
        super().__init__(name)
        self._shift = shift

    def score(self, outputs: Outputs, reference: Outputs, truth: Truth) -> Scored:
        name, logits = first_output(outputs, truth.where)
        labels = self.class_labels(truth, logits)
        if logits.ndim != 3 or labels.shape != logits.shape[:2]:
            raise DataError(
                f"{truth.where}: output {name!r} of shape {logits.shape} with labels of shape "
                f"{labels.shape}; logits [batch, length, vocabulary] and labels [batch, length] are required",
                hint="give `metric` file.py:function for outputs of another form",
            )
        require_numbers(name, logits, truth.where, finite=False)
        if self._shift:
            logits, labels = logits[:, :-1], labels[:, 1:]
        counted = labels != IGNORED_POSITION
        require_classes(labels[counted], logits.shape[2], truth.where)
        normalized = is_distribution(reference[name])
        rows = []
        for row, label, counts in zip(logits, labels, counted, strict=True):  # by sample, to save memory
            scores = log_probabilities(row[counts], normalized=normalized)
            rows.append([-scores[np.arange(len(scores)), label[counts]].sum(), float(len(scores))])
        return Scored(np.array(rows, np.float64).reshape(-1, 2))

    def finished(self, values: Floats) -> Floats:
        with np.errstate(over="ignore"):
            return np.asarray(np.exp(values))


class Divergence(Metric):
    """Mean over rows of KL(baseline ‖ artifact) of the softmax, in nats.

    The first output is [batch, classes], [batch, positions, classes], or [batch, classes, height, width].
    Positions that labels [batch, positions] mark with -100 do not count; other labels have no effect.
    """

    unit, higher_is_better, needs_labels = "units", False, False

    def score(self, outputs: Outputs, reference: Outputs, truth: Truth) -> Scored:
        name, output = first_output(outputs, truth.where)
        expected = reference[name]
        if output.shape != expected.shape or output.ndim < 2 or output.shape[0] != truth.samples:
            raise DataError(
                f"{truth.where}: output {name!r} is of shape {output.shape}, the baseline's of "
                f"{expected.shape}; equal shapes with an axis of samples and one of classes are required"
            )
        require_numbers(name, output, truth.where, finite=False)
        require_numbers(name, expected, truth.where, finite=False)
        if output.ndim > 3 and not self.classes_last:
            output, expected = np.moveaxis(output, 1, -1), np.moveaxis(expected, 1, -1)
        counted = np.ones(output.shape[:-1], bool)
        if truth.labels is not None and np.shape(truth.labels) == counted.shape and counted.ndim > 1:
            counted = np.asarray(truth.labels) != IGNORED_POSITION
        normalized = is_distribution(expected)
        rows = []
        for *sides, counts in zip(output, expected, counted, strict=True):
            log_q, log_p = (log_probabilities(side[counts], normalized=normalized) for side in sides)
            differs = (log_p > -np.inf) & (log_p != log_q)
            ratio = np.subtract(log_p, log_q, out=np.zeros_like(log_p), where=differs)
            rows.append([(np.exp(log_p) * ratio).sum(), float(counts.sum())])
        return Scored(np.array(rows, np.float64).reshape(-1, 2))


def is_distribution(values: NDArray[Any]) -> bool:
    if not values.size or values.min() < 0:
        return False
    sums = values.sum(axis=-1, dtype=np.float64)
    return bool(np.abs(sums - 1.0).max() <= _SUM_TOLERANCE)


def log_probabilities(values: NDArray[Any], *, normalized: bool) -> Floats:
    """Return the log-softmax over the last axis, or, if `normalized`, the logarithm of the probabilities."""
    wide: Floats = values.astype(np.float64)
    if normalized:
        wide = np.maximum(wide, _SMALLEST_PROBABILITY)
        return np.asarray(np.log(wide / wide.sum(axis=-1, keepdims=True)))
    wide = wide - wide.max(axis=-1, keepdims=True, initial=-np.inf)
    with np.errstate(divide="ignore"):
        return np.asarray(wide - np.log(np.exp(wide).sum(axis=-1, keepdims=True)))


class ErrorRate(Metric):
    """Substitutions, deletions and insertions over the words, or characters, of all references together.

    The first output is texts [batch], CTC logits [batch, steps, classes] or their classes [batch, steps];
    labels are texts [batch]. Whitespace is handled by jiwer's defaults; case is significant.
    """

    package = ("jiwer", "jiwer")
    higher_is_better = False
    undefined = "the references hold no word; at least one is required"

    def score(self, outputs: Outputs, reference: Outputs, truth: Truth) -> Scored:
        labels = labels_of(truth, self.name, "the text of each sample")
        if labels.dtype.kind not in "USO" or labels.size != truth.samples:
            raise DataError(
                f"{truth.where}: labels of type {labels.dtype} and shape {labels.shape}; a text for each of "
                f"the {truth.samples} samples is required"
            )
        references = [as_text(text) for text in labels.ravel()]
        hypotheses = self._hypotheses(outputs, truth)
        rows = [self._errors(*pair) for pair in zip(references, hypotheses, strict=True)]
        return Scored(np.array(rows, np.float64).reshape(-1, 2), None, np.array(hypotheses, dtype=str))

    def _errors(self, reference: str, hypothesis: str) -> tuple[int, int]:
        import jiwer

        if not reference.strip():  # jiwer 3 raises for it; jiwer 4 counts the hypothesis as insertions
            text = hypothesis.strip()
            return len(text.split()) if self.name == "wer" else len(text), 0
        process = jiwer.process_words if self.name == "wer" else jiwer.process_characters
        counted = process(reference, hypothesis)
        missed = counted.substitutions + counted.deletions
        return missed + counted.insertions, missed + counted.hits

    def _hypotheses(self, outputs: Outputs, truth: Truth) -> list[str]:
        name, output = first_output(outputs, truth.where)
        if output.dtype.kind in "USO" and output.size == truth.samples:
            return [as_text(text) for text in output.ravel()]
        classes: NDArray[np.int64] | None = None
        if output.dtype.kind == "f" and output.ndim == 3:
            require_numbers(name, output, truth.where, finite=False)
            classes = output.argmax(axis=2)
        elif output.dtype.kind in "iu" and output.ndim == 2:
            classes = output.astype(np.int64)
        if classes is None or len(classes) != truth.samples:
            raise DataError(
                f"{truth.where}: output {name!r} {output.dtype}{list(output.shape)} for "
                f"{truth.samples} samples; texts [batch], or CTC logits [batch, steps, classes], required",
                hint="use numbers for labels that are class names; or give `metric` file.py:function",
            )
        audio = self.preprocessing
        if not isinstance(audio, AudioPreprocessing) or not audio.vocabulary:
            raise DataError(
                f"{self.name}: the model's inputs have no vocabulary to decode output {name!r}",
                hint="export with a `preprocessing` of kind audio that has `vocabulary` and `blank`",
            )
        if classes.size and classes.max() >= len(audio.vocabulary):
            raise DataError(
                f"{truth.where}: output {name!r} holds class {classes.max()}; "
                f"the vocabulary has {len(audio.vocabulary)} entries"
            )
        return [ctc_text(row, audio.vocabulary, audio.blank) for row in classes]


def ctc_text(classes: NDArray[np.int64], vocabulary: Sequence[str], blank: int) -> str:
    """Return the text of a sequence of CTC classes, without repeats and blanks.

    `|` and a leading `▁` become spaces between words; entries like `<unk>` and `[PAD]` are left out.
    """
    path = classes[np.append(True, classes[1:] != classes[:-1])] if classes.size else classes
    pieces = [vocabulary[index] for index in path if index != blank]
    spaced = " " not in vocabulary
    text = "".join(
        " " if spaced and piece == _WORD_DELIMITER else piece
        for piece in pieces
        if not _SPECIAL.fullmatch(piece)
    )
    return " ".join(text.replace(_WORD_BEGIN, " ").split())


def as_text(value: Any) -> str:
    return value.decode("utf-8", "replace") if isinstance(value, bytes) else str(value)
