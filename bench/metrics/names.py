"""Read the spelling of a metric.

| metric                  | value                                                                        |
|-------------------------|------------------------------------------------------------------------------|
| `top1`, `top5`          | share of labels among the largest scores (`classes.TopK`)                     |
| `f1[:AVERAGE]`          | F1 of classes, of token classes, or of entities (`classes.F1`, `EntityF1`)      |
| `miou`                  | mean intersection over union of classes (`classes.MeanIoU`)                   |
| `map[:50]`              | COCO's mean average precision (`detection`)                      |
| `wer`, `cer`            | word and character error rate (`transcripts.ErrorRate`)                       |
| `ndcg[:K]`, `spearman`  | rankings (`ranking`)                                                          |
| `neighbours[:K]`        | nearest neighbours kept (`ranking.Neighbours`)                             |
| `perplexity`, `kl`      | distributions (`language`)                                                    |
| `cosine`, `mse`         | against targets, or the baseline's outputs (`values.Similarity`)              |
| `file.py:function`      | what the user's function says (`values.OwnMetric`)                            |
| `auto`                  | one of them (`automatic.Automatic`)                                           |
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from ...errors import InvalidOption
from ...spec.words import AUTO, METRIC, METRIC_PARAMETERS, METRICS
from ...tensors import TensorInfo
from .automatic import Automatic
from .classes import F1, EntityF1, MeanIoU, TopK
from .detection import MeanAveragePrecision
from .language import Divergence, Perplexity
from .metric import Metric
from .ranking import DEFAULT_K, Ndcg, Neighbours, Spearman
from .transcripts import ErrorRate
from .values import OwnMetric, Similarity, cosine, mean_squared_error

Make = Callable[[str, str], Metric]
"""The spelling, and what stands behind its colon, to the metric."""

_MAKERS: Mapping[str, Make] = {
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
    """Return the metric of a spelling.

    Args:
        text: One of the table above.
        base: Folder that a function's file is looked for from.
        inputs: The model's inputs, whose preprocessing names task, classes and vocabulary.
    """
    if text == AUTO:
        return Automatic(read_metric, inputs)
    name, colon, parameter = text.partition(":")
    if name in _MAKERS and (not colon or name in METRIC_PARAMETERS):
        if colon and not re.fullmatch(METRIC_PARAMETERS[name][1], parameter):
            raise _wrong_parameter(text, name, parameter)
        return _MAKERS[name](text, parameter).for_inputs(inputs)
    if not colon:
        near = difflib.get_close_matches(text, (AUTO, *METRICS), n=1)
        raise InvalidOption(
            f"metric {text!r} is unknown; {METRIC} is required",
            hint=f"did you mean {near[0]!r}?" if near else "",
            option="metric",
        )
    return OwnMetric(text, base=base)


def _wrong_parameter(text: str, name: str, parameter: str) -> InvalidOption:
    known = METRIC_PARAMETERS[name][1].split("|")
    if len(known) == 1:
        return InvalidOption(f"metric {text!r}: {name}:K with K from 1 is required", option="metric")
    near = difflib.get_close_matches(parameter, known, n=1)
    return InvalidOption(
        f"metric {text!r}: {name} or {name}: followed by {', '.join(known)} is required",
        hint=f"did you mean {f'{name}:{near[0]}'!r}?" if near else "",
        option="metric",
    )
