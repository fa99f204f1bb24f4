"""Mean average precision of detectors: COCO's, with an interval over images."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ...errors import DataError
from ...tensors import TensorInfo
from .coco import AREAS, IOU_THRESHOLDS, AveragePrecision, MatchedImage, match_image
from .detector_outputs import DetectorInput, detector_form, detector_input
from .metric import Outputs, RecordMetric, Scored, Truth, Values, require_numbers

Floats = NDArray[np.float64]


class MeanAveragePrecision(RecordMetric):
    """COCO's mAP: the mean over classes, 10 thresholds of IoU (0.50 to 0.95) and 101 recalls.

    `map:50` and `map:75` have that threshold alone; `map:small`, `map:medium` and `map:large` boxes of that
    area. Labels are [images, most, 5 to 7]: class, x1, y1, x2, y2 in pixels of the model's input, and where
    given whether a box is a crowd, and its area; class -1 pads. A record is the matched image.

    Args:
        name: As the user spelled it.
        kind: What stands behind the colon; empty for COCO's main figure.
        detector: What is known of the input.
    """

    resamples = 500
    undefined = "no box is to be found in the labels; at least one is required"

    def __init__(self, name: str, kind: str = "", detector: DetectorInput | None = None) -> None:
        self.name, self._kind, self._detector = name, kind, detector or DetectorInput()
        self.area = AREAS.get(kind, AREAS["all"])
        self.thresholds = np.array([int(kind) / 100.0]) if kind.isdigit() else IOU_THRESHOLDS

    def for_inputs(self, inputs: Sequence[TensorInfo]) -> MeanAveragePrecision:
        """See `Metric.for_inputs`: size and classes decide how some outputs are read."""
        return MeanAveragePrecision(self.name, self._kind, detector_input(inputs))

    def score(self, outputs: Outputs, reference: Outputs, truth: Truth) -> Scored:
        """See `Metric.score`."""
        boxes = boxes_of(truth, self.name)
        for name, array in outputs.items():
            require_numbers(name, array, truth.where, finite=False)
        form, read = detector_form(outputs, truth.samples, self._detector, truth.where)
        self.note = f"{self.name}: {form}"
        images = read(outputs)
        records = [
            match_image(found, labelled[labelled[:, 0] >= 0], self.thresholds, self.area)
            for found, labelled in zip(images, boxes, strict=True)
        ]
        return Scored(records=records)

    def arrays_of(self, record: MatchedImage) -> tuple[NDArray[Any], ...]:
        """See `RecordMetric.arrays_of`."""
        return record.classes, record.scores, record.matched, record.ignored, record.positives

    def record_of(self, arrays: Sequence[NDArray[Any]]) -> MatchedImage:
        """See `RecordMetric.record_of`."""
        return MatchedImage(*arrays)

    def values(self, scored: Sequence[Scored]) -> Values:
        """See `Metric.values`."""
        average = _average(scored)

        def values(weights: Floats) -> Floats:
            each = average(weights)
            there = ~np.isnan(each)
            count = there.sum(axis=1)
            total = np.where(there, each, 0.0).sum(axis=1)
            return np.where(count > 0, total / np.maximum(count, 1), np.nan)

        return values

    def classes(self, scored: Sequence[Scored]) -> dict[int, tuple[float, int]]:
        """See `Metric.classes`: the average precision of each class."""
        average = _average(scored)
        [values] = average(np.ones((1, sum(one.units for one in scored))))
        return {
            int(label): (float(value), int(samples))
            for label, value, samples in zip(average.classes, values, average.samples, strict=True)
        }


def boxes_of(truth: Truth, metric: str) -> Floats:
    """Return the labelled boxes, [images, most, 5 to 7].

    Raises:
        DataError: If the labels are no boxes.
    """
    if truth.labels is None:
        raise DataError(f"{truth.where}: has no labels; {metric} needs boxes")
    labels = np.asarray(truth.labels)
    if labels.ndim != 3 or labels.shape[0] != truth.samples or labels.shape[2] not in (5, 6, 7):
        raise DataError(
            f"{truth.where}: labels of shape {labels.shape} for {truth.samples} images; boxes "
            "[images, most, 5 to 7] are required: class, x1, y1, x2, y2, is a crowd, area"
        )
    require_numbers("labels", labels, truth.where, finite=True)
    return labels.astype(np.float64)


def _average(scored: Sequence[Scored]) -> AveragePrecision:
    return AveragePrecision([record for part in scored for record in part.records])
