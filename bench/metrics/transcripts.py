"""Word and character error rate of transcripts, by jiwer.

A hypothesis is a text, or the classes of a CTC model, whose repeats and blanks are left out (Graves et al.,
Connectionist Temporal Classification, ICML 2006): the likeliest class at each step, no search.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ...data.readers import require_package
from ...errors import DataError
from ...model.preprocessing import AudioPreprocessing, preprocessing_of
from ...tensors import TensorInfo
from .metric import Metric, Outputs, Scored, Truth, first_output, require_numbers

_SPECIAL = re.compile(r"<.+>|\[.+\]")
_WORD_DELIMITER = "|"
_WORD_BEGIN = "▁"


class ErrorRate(Metric):
    """Substitutions, deletions and insertions over the words, or characters, of all references together.

    The first output is texts [batch], CTC logits [batch, steps, classes] or their classes [batch, steps];
    labels are texts [batch]. Blanks around and between words are as jiwer's defaults have them; case counts.

    Args:
        name: "wer" or "cer".
        audio: How the model's input is made, which holds the vocabulary; None where nobody said.

    Raises:
        EngineUnavailable: If jiwer is not installed.
    """

    higher_is_better = False
    undefined = "the references hold no word; at least one is required"

    def __init__(self, name: str, audio: AudioPreprocessing | None = None) -> None:
        self.name, self._audio = name, audio
        require_package("jiwer", "jiwer", f"computes {name}", extra="metrics")
        import jiwer

        self._process = jiwer.process_words if name == "wer" else jiwer.process_characters

    def for_inputs(self, inputs: Sequence[TensorInfo]) -> ErrorRate:
        preprocessing = preprocessing_of(inputs)
        return ErrorRate(self.name, preprocessing if isinstance(preprocessing, AudioPreprocessing) else None)

    def score(self, outputs: Outputs, reference: Outputs, truth: Truth) -> Scored:
        references = _references(truth, self.name)
        hypotheses = self._hypotheses(outputs, truth)
        rows = [self._errors(*pair) for pair in zip(references, hypotheses, strict=True)]
        return Scored(np.array(rows, np.float64).reshape(-1, 2), None, np.array(hypotheses, dtype=str))

    def _errors(self, reference: str, hypothesis: str) -> tuple[int, int]:
        """Errors, and the words or characters of the reference."""
        if not reference.strip():  # jiwer 3 refuses it; jiwer 4 counts what is there as insertions
            text = hypothesis.strip()
            return len(text.split()) if self.name == "wer" else len(text), 0
        counted = self._process(reference, hypothesis)
        missed = counted.substitutions + counted.deletions
        return missed + counted.insertions, missed + counted.hits

    def _hypotheses(self, outputs: Outputs, truth: Truth) -> list[str]:
        name, output = first_output(outputs, truth.where)
        if output.dtype.kind in "USO" and output.size == truth.samples:
            return [as_text(one) for one in output.ravel()]
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
                hint="give `metric` file.py:function, which may decode them",
            )
        if self._audio is None or not self._audio.vocabulary:
            raise DataError(
                f"{self.name}: the model's inputs name no vocabulary, which decodes output {name!r}",
                hint="export with a `preprocessing` of kind audio that has `vocabulary` and `blank`",
            )
        if classes.size and classes.max() >= len(self._audio.vocabulary):
            raise DataError(
                f"{truth.where}: output {name!r} holds class {classes.max()}; "
                f"the vocabulary has {len(self._audio.vocabulary)} entries"
            )
        return [ctc_text(row, self._audio.vocabulary, self._audio.blank) for row in classes]


def ctc_text(classes: NDArray[np.int64], vocabulary: Sequence[str], blank: int) -> str:
    """Return the text of a path of classes: repeats joined, blanks left out.

    `|` and a leading `▁` are blanks between words; entries such as `<unk>` and `[PAD]` are left out.
    """
    kept = classes[np.append(True, classes[1:] != classes[:-1])] if classes.size else classes
    pieces = [vocabulary[index] for index in kept if index != blank]
    spaced = " " not in vocabulary
    text = "".join(
        " " if spaced and piece == _WORD_DELIMITER else piece
        for piece in pieces
        if not _SPECIAL.fullmatch(piece)
    )
    return " ".join(text.replace(_WORD_BEGIN, " ").split())


def as_text(value: Any) -> str:
    """Return a text of an array of texts or of bytes."""
    return value.decode("utf-8", "replace") if isinstance(value, bytes) else str(value)


def _references(truth: Truth, metric: str) -> list[str]:
    if truth.labels is None:
        raise DataError(f"{truth.where}: has no labels; {metric} needs the text of each sample")
    labels = np.asarray(truth.labels)
    if labels.dtype.kind not in "USO" or labels.size != truth.samples:
        raise DataError(
            f"{truth.where}: labels of type {labels.dtype} and shape {labels.shape}; a text for each of "
            f"the {truth.samples} samples is required"
        )
    return [as_text(one) for one in labels.ravel()]
