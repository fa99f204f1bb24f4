"""`auto`: the metric that follows from the model's task, the labels and the outputs of the first batch.

| labels                                                      | metric                                    |
|-------------------------------------------------------------|-------------------------------------------|
| none                                                        | `kl` of a language model, else `cosine`   |
| texts                                                       | `wer`                                     |
| boxes [images, most, 5 to 7]                                | `map`                                     |
| classes of each pixel [images, height, width]               | `miou`                                    |
| classes of each token, language model                       | `perplexity`                              |
| classes of each token, classes named O, B-..., I-...        | `f1:entities`                             |
| classes of each token, token classification                 | `f1`                                      |
| one class per sample or position                            | `top1`                                    |
| whole numbers of the shape of the scores [batch, items]     | `ndcg`                                    |
| one number per sample, and so the output; embedding         | `spearman`                                |
| others of embeddings: whole numbers, or not                 | `cosine`, `neighbours`                    |
| other numbers                                               | `mse`                                     |
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ...errors import DataError
from ...model.preprocessing import preprocessing_of
from ...spec.words import AUTO
from ...tensors import TensorInfo
from .classes import is_iob2
from .metric import Metric, Outputs, Scored, Truth, first_output

Make = Callable[[str], Metric]


class Automatic(Metric):
    """Chooses another metric when it sees the first batch.

    Args:
        make: Makes a metric of its name.
        inputs: The model's.
    """

    name = AUTO
    needs_labels = False

    def __init__(self, make: Make, inputs: Sequence[TensorInfo] = ()) -> None:
        self._make, self._inputs = make, tuple(inputs)

    def for_inputs(self, inputs: Sequence[TensorInfo]) -> Automatic:
        return Automatic(self._make, inputs)

    def resolved(self, outputs: Outputs, truth: Truth) -> Metric:
        name, reason = choose(outputs, truth, self._inputs)
        metric = self._make(name).for_inputs(self._inputs)
        metric.note = f"{name}: {reason}"
        return metric

    def score(self, outputs: Outputs, reference: Outputs, truth: Truth) -> Scored:
        """See `Metric.score`; `resolved` is asked first, as each batch might choose another metric."""
        raise NotImplementedError("resolve it with the first batch")


def choose(outputs: Outputs, truth: Truth, inputs: Sequence[TensorInfo]) -> tuple[str, str]:
    """Return the metric and the reason for it."""
    said = preprocessing_of(inputs)
    task, classes = (said.task, said.classes) if said else ("", ())
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
    if task == "embedding" and first.size != truth.samples and labels.shape != first.shape:
        kind = "cosine" if labels.dtype.kind in "iub" else "neighbours"
        return kind, "embeddings are compared with the baseline's, not with labels of another kind"
    if _are_classes(labels):
        return _of_classes(labels, first, task, classes)
    if labels.size == truth.samples and first.size == truth.samples:
        if task == "embedding":
            return "spearman", "labels are one number per sample"
        return "mse", "labels are one number per sample"
    return "mse", f"labels are numbers, which output {name!r} is compared with"


def _of_classes(
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
    if labels.size == len(labels) == first.size:
        return "mse", "labels and outputs are one number per sample"
    where = "sample" if labels.size == len(labels) else "position"
    return "top1", f"labels are one class per {where}"


def _are_classes(labels: NDArray[Any]) -> bool:
    if labels.dtype.kind in "iub":
        return True
    return bool(np.isfinite(labels).all() and (labels == np.floor(labels)).all())
