"""Compare one output: by Polygraphy's tolerances for floats, by the rule of its kind for integers.

What counts as equal depends on the precision (`model.judgement`), unless tolerances are given for an output.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ...errors import InvalidOption
from ...model.judgement import ATOL_SHARE, BY_SIGNAL, RTOL, SNR_DB, RowAgreement, Rule
from ...model.output_error import ErrorSums
from ...progress import quiet
from ..outputs import paired

Outputs = Mapping[str, NDArray[Any]]


@dataclass(frozen=True)
class Tolerances:
    """Limits that replace the defaults, by output name; the name "" is every other output."""

    atol: Mapping[str, float] = field(default_factory=dict)
    rtol: Mapping[str, float] = field(default_factory=dict)
    snr_db: Mapping[str, float] = field(default_factory=dict)

    def given(self, output: str) -> bool:
        """Whether there is any limit for an output."""
        return any(output in limits or "" in limits for limits in (self.atol, self.rtol, self.snr_db))


@dataclass(frozen=True)
class OutputDifference:
    """The verdict on one output.

    Attributes:
        output: Its name.
        passed: Polygraphy's verdict (tolerances on every batch, the signal-to-noise ratio on all together),
            and the agreement for INT8.
        criterion: What was required, in words.
        max_abs_error, snr_db: Of all batches together.
        agreement: Of classes: the share of rows with the same argmax.
        cosine: Of embeddings: the mean cosine of the rows.
        rule: What the output was taken for: "classes", "embedding" or "signal".
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
) -> list[OutputDifference]:
    """Compare outputs batch by batch with Polygraphy.

    Outputs pair by name, or by position where names differ and their number is the same.
    """
    tolerances = tolerances or Tolerances()
    outputs = [paired(a, b) for a, b in zip(reference, outputs, strict=True)]
    names = list(reference[0])
    rules = rules or {}
    for limits in (tolerances.atol, tolerances.rtol, tolerances.snr_db, rules):
        for name in limits:
            if name and name not in names:
                kind = "rule" if limits is rules else "tolerance"
                raise InvalidOption(
                    f"{kind} for {name!r}: no such output; the outputs are {', '.join(names)}"
                )
    rows_of = {name: RowAgreement(name, rules.get(name, rules.get(""))) for name in names}
    return [_judge_output(rows_of[name], reference, outputs, precision, tolerances) for name in names]


def _judge_output(
    rows: RowAgreement,
    reference: Sequence[Outputs],
    outputs: Sequence[Outputs],
    precision: str,
    tolerances: Tolerances,
) -> OutputDifference:
    name = rows.name
    expected = [batch[name] for batch in reference]
    output = [batch[name] for batch in outputs]
    for a, b in zip(expected, output, strict=True):
        if a.shape != b.shape:
            return OutputDifference(
                name, False, f"shape {a.shape} is required, {b.shape} found", np.inf, -np.inf, None
            )
    total = ErrorSums()
    for a, b in zip(expected, output, strict=True):
        total.add(a, b)
        rows.add(a, b)
    limit = _limit(tolerances.snr_db, name)
    if limit is not None:
        passed, criterion = _polygraphy_snr(expected, output, limit), f"SNR ≥ {limit:g} dB"
    elif precision in BY_SIGNAL and not tolerances.given(name):
        passed, criterion = rows.verdict(loud=_polygraphy_snr(expected, output, SNR_DB))
    else:
        kind = precision if precision in RTOL else "fp32"
        rtol = _limit(tolerances.rtol, name)
        atol = _limit(tolerances.atol, name)
        if rtol is None and atol is None:
            rtol, atol = RTOL[kind], ATOL_SHARE[kind] * total.max_abs
        passed = _polygraphy_simple(expected, output, atol or 0.0, rtol or 0.0)
        criterion = f"atol {atol or 0.0:.3g}, rtol {rtol or 0.0:g}"
    return OutputDifference(
        name,
        passed,
        criterion,
        total.max_abs_error,
        total.snr_db,
        rows.agreement,
        rows.cosine,
        rows.rule,
    )


def _polygraphy_simple(
    expected: list[NDArray[Any]], output: list[NDArray[Any]], atol: float, rtol: float
) -> bool:
    from polygraphy.comparator import SimpleCompareFunc

    # Its rtol is relative to the second side, which is the reference here.
    compare = SimpleCompareFunc(atol=atol, rtol=rtol, infinities_compare_equal=True)
    return _compare(output, expected, compare)


def _polygraphy_snr(expected: list[NDArray[Any]], output: list[NDArray[Any]], limit: float) -> bool:
    from polygraphy.comparator import SnrCompareFunc

    # The signal is the first side. All batches are one: the verdict is on the ratio that is told, and how
    # samples were batched does not change it.
    first, second = (np.concatenate([batch.ravel() for batch in side]) for side in (expected, output))
    return _compare([first], [second], SnrCompareFunc(snr_threshold=limit))


def _compare(first: list[NDArray[Any]], second: list[NDArray[Any]], compare: Any) -> bool:
    from polygraphy.comparator import Comparator, RunResults
    from polygraphy.logger import G_LOGGER

    results = RunResults()
    results.add([{"output": array} for array in first], runner_name="first")
    results.add([{"output": array} for array in second], runner_name="second")
    with quiet(), G_LOGGER.verbosity(G_LOGGER.CRITICAL):
        return bool(Comparator.compare_accuracy(results, compare_func=compare))


def _limit(limits: Mapping[str, float], name: str) -> float | None:
    return limits.get(name, limits.get(""))
