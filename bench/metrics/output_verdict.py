"""Compare outputs: floats by Polygraphy's tolerances, integers by the rule of their kind.

The precision decides which outputs count as equal (`model.outputs.judgement`), unless an output has
tolerances. `judge` compares all batches at once with Polygraphy. `RunningDifference` compares batch by batch,
by the same rules, without storing outputs.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import Any

import numpy as np
from msgspec import UNSET
from numpy.typing import NDArray

from ...core.progress import quiet
from ...errors import InvalidOption
from ...model.outputs.boxes import BoxAgreement
from ...model.outputs.judgement import BY_SIGNAL, SNR_DB, OutputSums, default_tolerances
from ...model.outputs.masks import without_masks
from ...model.outputs.output_forms import UNKNOWN, OutputForm, Rule
from ...spec.tensors import mismatch
from ..measure.artifacts import pair_outputs
from ..results.row import Difference
from .metric import Outputs


@dataclass(frozen=True)
class Tolerances:
    """Limits that replace the defaults, by output name; "" means every output not named."""

    atol: Mapping[str, float] = field(default_factory=dict)
    rtol: Mapping[str, float] = field(default_factory=dict)
    snr_db: Mapping[str, float] = field(default_factory=dict)

    def of(self, output: str) -> list[float | None]:
        """Return `atol`, `rtol` and `snr_db` of an output; None means no limit."""
        return [limits.get(output, limits.get("")) for limits in (self.atol, self.rtol, self.snr_db)]


@dataclass(frozen=True)
class OutputDifference:
    """Verdict on one output, with the requirement in words.

    Attributes:
        passed: Polygraphy's verdict (tolerances per batch, signal-to-noise ratio over all batches), combined
            with the agreement for INT8.
        agreement: Share of rows with the same argmax, for classes.
        cosine: Mean cosine of the rows, for embeddings.
        rule: Assumed kind of the output: "classes", "embedding", "labels" or "signal".
    """

    output: str
    passed: bool
    criterion: str
    max_abs_error: float
    snr_db: float
    agreement: float | None
    cosine: float | None = None
    rule: Rule = "signal"


def judge(
    reference: Sequence[Outputs],
    outputs: Sequence[Outputs],
    precision: str,
    tolerances: Tolerances | None = None,
    rules: Mapping[str, Rule] | None = None,
    forms: Mapping[str, OutputForm] = MappingProxyType({}),
) -> list[OutputDifference]:
    """Compare outputs batch by batch with Polygraphy.

    `rules` come from the user, `forms` from a graph. Outputs pair by name, or by position if there are as
    many but under other names.
    """
    tolerances, rules, names = tolerances or Tolerances(), rules or {}, list(reference[0])
    outputs = [pair_outputs(a, b, complete=False) for a, b in zip(reference, outputs, strict=True)]
    additional = [name for name in outputs[0] if name not in names]
    for limits in (tolerances.atol, tolerances.rtol, tolerances.snr_db, rules):
        for name in limits:
            if name and name not in names:
                kind = "rule" if limits is rules else "tolerance"
                raise InvalidOption(
                    f"{kind} for {name!r}: no such output; the outputs are {', '.join(names)}"
                )
    differences = []
    for name in (*names, *additional):
        expected, actual = ([batch.get(name) for batch in side] for side in (reference, outputs))
        form = forms.get(name, UNKNOWN)
        form = replace(form, rule=rules.get(name, rules.get("", form.rule)))
        output = _OutputSums(name, form, precision)
        for a, b in zip(expected, actual, strict=True):
            output.compare(a, b)
        if output.mismatch:
            differences.append(OutputDifference(name, False, output.mismatch, np.inf, -np.inf, None))
            continue
        pairs = zip(expected, actual, strict=True)
        numbers = [_as_numbers(a, b) for a, b in pairs if a is not None and b is not None]
        sides = [a for a, _ in numbers], [b for _, b in numbers]
        passed, criterion = _verdict(output, *sides, precision, tolerances)
        rows, sums = output.rows, output.sums
        figures = (sums.max_abs_error, output.snr_db, rows.agreement, rows.cosine, rows.rule)
        differences.append(OutputDifference(name, passed, output.with_masks(criterion), *figures))
    if all(entry.passed for entry in differences):
        return differences
    boxes = BoxAgreement()
    for batch, output_batch in zip(reference, outputs, strict=True):
        boxes.add(batch, output_batch)
    if all(entry.passed for entry in differences if entry.output in boxes.names):
        return differences
    # Boxes may differ in order or number, so an elementwise comparison is meaningless for them.
    passed, criterion = boxes.verdict()
    return [
        replace(entry, passed=passed, criterion=criterion, agreement=boxes.share, cosine=None, rule="labels")
        if entry.output in boxes.names
        else entry
        for entry in differences
    ]


def _verdict(
    output: _OutputSums,
    expected: list[NDArray[Any]],
    actual: list[NDArray[Any]],
    precision: str,
    tolerances: Tolerances,
) -> tuple[bool, str]:
    atol, rtol, snr_db = tolerances.of(output.rows.name)
    if snr_db is not None:
        return _polygraphy_snr(expected, actual, snr_db), f"SNR ≥ {snr_db:g} dB"
    if atol is None and rtol is None:
        if precision in BY_SIGNAL:
            passed, criterion = output.verdict()
            if output.rows.rule in ("classes", "signal"):  # Polygraphy computes one ratio over all channels
                passed &= _polygraphy_snr(expected, actual, SNR_DB)
            return passed, criterion
        if output.may_flip:
            return output.verdict()
        atol, rtol = default_tolerances(precision, output.sums.max_abs)
    atol, rtol = atol or 0.0, rtol or 0.0
    from polygraphy.comparator import SimpleCompareFunc

    # Polygraphy's rtol is relative to the second side, here the reference.
    compare = SimpleCompareFunc(atol=atol, rtol=rtol, infinities_compare_equal=True)
    return _compare(actual, expected, compare), f"atol {atol:.3g}, rtol {rtol:g}"


def _as_numbers(expected: NDArray[Any], actual: NDArray[Any]) -> tuple[NDArray[Any], NDArray[Any]]:
    """Return both sides in a form that Polygraphy subtracts: masks become 0, texts 1 if equal, else 0."""
    if expected.dtype.kind in "OUS":
        return np.ones(expected.shape), np.asarray(expected == actual, np.float64)
    a, b = without_masks(expected, actual)[:2]
    kind = np.float64 if expected.dtype.kind == "b" else None
    return np.asarray(a, kind, order="C"), np.asarray(b, kind, order="C")


def _polygraphy_snr(expected: list[NDArray[Any]], output: list[NDArray[Any]], limit: float) -> bool:
    from polygraphy.comparator import SnrCompareFunc

    # The first side is the signal. Batches are joined, so that the verdict uses the reported ratio, which
    # does not depend on the batch size.
    first, second = (np.concatenate([batch.ravel() for batch in side]) for side in (expected, output))
    return not first.size or _compare([first], [second], SnrCompareFunc(snr_threshold=limit))


def _compare(first: list[NDArray[Any]], second: list[NDArray[Any]], compare: Any) -> bool:
    from polygraphy.comparator import Comparator, RunResults
    from polygraphy.logger import G_LOGGER

    results = RunResults()
    results.add([{"output": array} for array in first], runner_name="first")
    results.add([{"output": array} for array in second], runner_name="second")
    with quiet(), G_LOGGER.verbosity(G_LOGGER.CRITICAL):
        return bool(Comparator.compare_accuracy(results, compare_func=compare))


class _OutputSums(OutputSums):
    """Sums that store the first difference of shape or type, in words, as `mismatch`."""

    mismatch = ""

    def compare(self, expected: NDArray[Any] | None, actual: NDArray[Any] | None) -> None:
        """Add a batch; None means that a side lacks the output."""
        if differs := mismatch(expected, actual, self.precision):
            self.mismatch = self.mismatch or "{} is required, {} found".format(*differs)
        elif expected is not None and actual is not None:
            self.add(expected, actual)

    @property
    def snr_db(self) -> float:
        """Ratio over all batches so far; -inf if the shapes differ."""
        return -math.inf if self.mismatch else super().snr_db

    def verdict(self) -> tuple[bool, str]:
        return (False, self.mismatch) if self.mismatch else super().verdict()

    def with_masks(self, criterion: str) -> str:
        """Return a criterion with a note on masked values, if any."""
        return f"{criterion}; {self.sums.masks}" if self.sums.masks else criterion


class RunningDifference:
    """Accumulate one artifact's difference from the baseline; `precision` sets the limits for equality."""

    def __init__(self, precision: str, forms: Mapping[str, OutputForm] = MappingProxyType({})) -> None:
        self._precision, self._forms, self._outputs = precision, forms, dict[str, _OutputSums]()
        self._boxes = BoxAgreement()

    def add(self, reference: Outputs, outputs: Outputs) -> None:
        """Add a batch; `pair_outputs` matches the outputs."""
        outputs = pair_outputs(reference, outputs, complete=False)
        for name in {**reference, **outputs}:
            if name not in self._outputs:
                self._outputs[name] = _OutputSums(name, self._forms.get(name, UNKNOWN), self._precision)
            self._outputs[name].compare(reference.get(name), outputs.get(name))
        self._boxes.add(reference, outputs)

    def result(self) -> Difference:
        """Return the worst output's figures, and whether all outputs passed."""
        verdicts, boxes = {name: output.verdict() for name, output in self._outputs.items()}, self._boxes
        if not all(verdicts[name][0] for name in boxes.names):
            passed, criterion = boxes.verdict()
            verdicts |= dict.fromkeys(boxes.names, (passed, criterion))
            if all(verdict for name, (verdict, _) in verdicts.items() if name not in boxes.names):
                return Difference(
                    output=boxes.names[0], agreement=boxes.share, passed=passed, criterion=criterion
                )
        # The signal-to-noise ratio of labels is meaningless if enough of them are equal.
        informative = [
            name
            for name, output in self._outputs.items()
            if not (output.rows.rule == "labels" and verdicts[name][0])
        ]
        name = min(informative or self._outputs, key=lambda name: self._outputs[name].snr_db)
        worst = self._outputs[name]
        mismatches = "; ".join(
            f"output {name!r}: {sums.mismatch}"
            for name, sums in self._outputs.items()
            if sums.mismatch and name not in boxes.names and not sums.rows.form.shape_operator
        )
        passed = all(passed for passed, _ in verdicts.values())
        criterion = worst.with_masks(verdicts[name][1])
        if worst.mismatch:
            return Difference(
                output=name, snr_db=-math.inf, max_abs_error=math.inf, mean_abs_error=math.inf,
                passed=passed, criterion=criterion, mismatch=mismatches or UNSET,
            )  # fmt: skip
        return Difference(
            output=name, snr_db=worst.snr_db, max_abs_error=worst.sums.max_abs_error,
            mean_abs_error=worst.sums.mean_abs_error, agreement=worst.rows.agreement,
            passed=passed, criterion=criterion,
        )  # fmt: skip
