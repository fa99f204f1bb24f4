"""Read the name of a metric, and choose the metric of `auto`; `docs/measuring.md` lists names and choices."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ...errors import DataError, InvalidOption
from ...model.outputs.judgement import RowAgreement
from ...model.sources.preprocessing import preprocessing_of
from ...model.sources.source import did_you_mean
from ...spec.tensors import TensorInfo
from ...spec.words import AUTO, METRIC, METRIC_PARAMETERS, METRICS
from .classes import F1, EntityF1, MeanIoU, TopK, is_iob2
from .detection import MeanAveragePrecision
from .language import Divergence, ErrorRate, Perplexity
from .metric import Metric, Outputs, Scored, Truth, are_classes, first_output
from .values import DEFAULT_K, Ndcg, Neighbours, Similarity, Spearman, UserMetric, cosine, mean_squared_error

# Name of the metric to a function of the full text and the parameter after the colon.
_FACTORIES: Mapping[str, Callable[[str, str], Metric]] = {
    "top1": lambda text, _: TopK(text, 1),
    "top5": lambda text, _: TopK(text, 5),
    "f1": lambda text, kind: EntityF1(text) if kind == "entities" else F1(text, kind or "macro"),
    "miou": lambda text, _: MeanIoU(text),
    "map": MeanAveragePrecision,
    "wer": lambda text, _: ErrorRate(text),
    "cer": lambda text, _: ErrorRate(text),
    "ndcg": lambda text, k: Ndcg(text, int(k) if k else None),
    "neighbours": lambda text, k: Neighbours(text, int(k or DEFAULT_K)),
    "spearman": lambda text, _: Spearman(text),
    "perplexity": lambda text, kind: Perplexity(text, shift=kind != "masked"),
    "kl": lambda text, _: Divergence(text),
    "cosine": lambda text, _: Similarity(text, cosine, unit="points", higher_is_better=True),
    "mse": lambda text, _: Similarity(text, mean_squared_error, unit="units", higher_is_better=False),
}


def read_metric(text: str, *, base: Path | None = None, inputs: Sequence[TensorInfo] = ()) -> Metric:
    """Return the metric that `text` names; the path of a user function is relative to `base`."""
    if text == AUTO:
        return Automatic(AUTO).for_inputs(inputs)
    name, colon, parameter = text.partition(":")
    if name in _FACTORIES and (not colon or name in METRIC_PARAMETERS):
        if colon and not re.fullmatch(METRIC_PARAMETERS[name][1], parameter):
            kinds = METRIC_PARAMETERS[name][1].split("|")
            if len(kinds) == 1:
                raise InvalidOption(f"metric {text!r}: {name}:K with K from 1 is required", option="metric")
            raise InvalidOption(
                f"metric {text!r}: {name} or {name}: followed by {', '.join(kinds)} is required",
                hint=did_you_mean(parameter, kinds, f"{name}:"),
                option="metric",
            )
        return _FACTORIES[name](text, parameter).for_inputs(inputs)
    if not colon:
        raise InvalidOption(
            f"metric {text!r} is unknown; {METRIC} is required",
            hint=did_you_mean(text, (AUTO, *METRICS)),
            option="metric",
        )
    return UserMetric(text, base=base)


class Automatic(Metric):
    """Placeholder for `auto`: chooses another metric from the first batch."""

    needs_labels = False

    def resolve(self, outputs: Outputs, truth: Truth) -> Metric:
        name, reason = choose(outputs, truth, self.inputs)
        metric = read_metric(name, inputs=self.inputs)
        metric.note = f"{name}: {reason}"
        return metric

    def score(self, outputs: Outputs, reference: Outputs, truth: Truth) -> Scored:
        raise NotImplementedError("`auto` scores nothing: call `resolved` first")


def choose(outputs: Outputs, truth: Truth, inputs: Sequence[TensorInfo]) -> tuple[str, str]:
    preprocessing = preprocessing_of(inputs)
    task, classes = (preprocessing.task, preprocessing.classes) if preprocessing else ("", ())
    if truth.labels is None:
        kind = "kl" if task == "language-model" else "cosine"
        return kind, "the data has no labels, so outputs are compared with the baseline's"
    labels = np.asarray(truth.labels)
    name, first = first_output(outputs, truth.where)
    if labels.dtype.kind in "USO":
        return "wer", "labels are texts"
    if labels.dtype.kind not in "fiub":
        raise DataError(f"{truth.where}: labels of type {labels.dtype}; numbers or texts are required")
    if (
        labels.ndim == 3
        and labels.shape[2] in (5, 6, 7)
        and (task == "object-detection" or (labels.dtype.kind == "f" and labels.shape != first.shape))
    ):
        return "map", "labels are boxes"
    rows = RowAgreement(name)
    rows.add(first, first)
    task = "embedding" if not task and rows.rule == "embedding" else task
    if task == "embedding" and first.size != truth.samples and labels.shape != first.shape:
        kind = "cosine" if labels.dtype.kind in "iub" else "neighbours"
        return kind, "embeddings are compared with the baseline's, not with labels of another kind"
    if are_classes(labels):
        return _choose_for_classes(labels, first, task, classes)
    if labels.size == truth.samples and first.size == truth.samples:
        if task == "embedding":
            return "spearman", "labels are one number per sample"
        return "mse", "labels are one number per sample"
    return "mse", f"labels are numbers to compare with output {name!r}"


def _choose_for_classes(
    labels: NDArray[Any], first: NDArray[Any], task: str, classes: Sequence[str]
) -> tuple[str, str]:
    if labels.ndim == 2 and labels.shape[1] > 1:
        if task == "language-model":
            return "perplexity", "labels are the tokens of a language model"
        if task == "token-classification" and is_iob2(classes):
            return "f1:entities", "labels are tags of entities"
        if task == "token-classification":
            return "f1", "labels are a class of each token"
        if labels.shape == first.shape and first.dtype.kind == "f":
            return "ndcg", "labels are the relevance of each item"
    if labels.ndim == 3:
        return "miou", "labels are a class of each pixel"
    if first.dtype.kind in "iub" and labels.squeeze().shape == first.squeeze().shape:
        return "f1:micro", "labels and outputs are one class each; this is the share of correct outputs"
    if labels.size == len(labels) == first.size:
        return "mse", "labels and outputs are one number per sample"
    where = "sample" if labels.size == len(labels) else "position"
    return "top1", f"labels are one class per {where}"
