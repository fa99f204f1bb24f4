"""Decide whether an artifact's outputs match its model's, output by output.

In fp32, tf32, fp16 and bf16 each element must be within `RTOL` relative, or within `ATOL_SHARE` of the
output's largest magnitude; below fp32, labels may also pass by the table. INT8, FP8, INT4, NVFP4 and MXFP8
have steps of 1/256 of the range or more, too coarse for an element-wise tolerance. The rule depends on the
kind of output:

| kind           | condition                                                 | passes with                   |
|----------------|-----------------------------------------------------------|-------------------------------|
| an `embedding` | two axes, and every row of the reference has length 1     | a mean cosine of 0.98         |
| `classes`      | two axes, and not named like features; or the user's rule | 15 dB, the same argmax in 95% |
| `labels`       | whole numbers, e.g. the class of each box                 | the same value in 95%         |
| a `signal`     | anything else, or a last axis of variable extent          | 15 dB                         |

If different heads produce the channels of an output (`output_forms`), each group of similar magnitude must
pass, and the decibels of the output are those of its worst group.

With few rows, the argmax fails only if an artifact that agrees in 95% of all rows would do as badly in less
than 5% of samples of this size (the upper tail of the binomial distribution of its flips).
"""

from __future__ import annotations

import dataclasses
import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ...errors import ModelError
from ...spec.tensors import format_shape
from .masks import masked_values, without_masks
from .output_forms import BOUNDED, UNKNOWN, OutputForm, Rule

RTOL = {"fp32": 1e-3, "tf32": 1e-2, "fp16": 1e-2, "bf16": 5e-2}
ATOL_SHARE = {"fp32": 1e-4, "tf32": 1e-2, "fp16": 1e-2, "bf16": 5e-2}
BY_SIGNAL = ("fp8", "int8", "int4", "nvfp4", "mxfp8")

SNR_DB = 15.0
_ROUNDING_DB = 100.0  # of float32: at this ratio, a different argmax is a tie
AGREEMENT = 0.95
COSINE = 0.98
_CHANCE = 0.05
_SIMILAR = 8.0  # parts with root mean squares within this factor are of similar magnitude
_SILENT = 0.01  # below this largest score, a head detects nothing
_UNIT = 1e-3  # tolerance for the length 1 of an embedding
_FEATURES = re.compile(r"embed|pool|hidden|feature|state|latent|vector|repr|mask|box|recon|image|pixel", re.I)

Batches = Sequence[NDArray[Any]]


@dataclass
class RowAgreement:
    """Agreement of the rows of one output, summed over batches without storing values.

    `same` of `rows` have the same argmax over the last axis; for labels, both count elements. `form` is known
    before the run. `cosines` is the sum over the rows.
    """

    name: str
    form: OutputForm = UNKNOWN
    same: int = 0
    rows: int = 0
    cosines: float = 0.0
    _whole: bool = False
    _two_axes: bool = True
    _unit: bool = True
    _one_hot: bool = True
    _several: bool = True
    _last: int = 0

    def add(self, expected: NDArray[Any], actual: NDArray[Any]) -> None:
        """Add a batch; both sides have the same shape."""
        if self.form.rule == "labels" or (self.form.rule is None and expected.dtype.kind in "iub"):
            # The difference of two class numbers is meaningless: 7 for 1 is as wrong as 2 for 1.
            self._whole = True
            self.same, self.rows = self.same + int((expected == actual).sum()), self.rows + expected.size
            return
        self._two_axes &= (
            expected.ndim == 2 and expected.dtype.kind == "f" and not self.form.has_dynamic_last_axis
        )
        last = expected.shape[-1] if expected.ndim else 0
        self._two_axes &= self._last in (0, last)  # a varying extent counts frames or words, not classes
        self._last = last
        self._several &= expected.ndim > 0 and expected.shape[-1] > 1
        if not self._several or expected.dtype.kind in "OUS" or not expected.size:
            return
        if not self._two_axes and self.form.rule is None:
            return  # certainly a signal
        x, y = (side.astype(np.float64) for side in without_masks(expected, actual)[:2])
        masked = masked_values(expected)
        if masked is not None:  # argmax of the other values
            expected, actual = np.where(masked, -np.inf, x), np.where(masked & (x == 0.0), -np.inf, y)
        same = expected.argmax(-1) == actual.argmax(-1)
        self.same, self.rows = self.same + int(same.sum()), self.rows + same.size
        lengths = np.linalg.norm(x, axis=-1)
        self._unit &= bool(np.all(np.abs(lengths - 1.0) < _UNIT))
        self._one_hot &= bool((x.max(-1) > 1.0 - _UNIT).all())
        scale = lengths * np.linalg.norm(y, axis=-1)
        with np.errstate(invalid="ignore"):
            self.cosines += float(np.sum(np.sum(x * y, axis=-1) / np.where(scale > 0, scale, 1.0)))

    @property
    def rule(self) -> Rule:
        """Rule for the output, see the module's table."""
        if self._whole:
            return "labels"
        if not self._several or not self.rows:
            return "signal"
        if self.form.rule is not None:
            return self.form.rule
        if not self._two_axes:
            return "signal"
        if self._unit and not self._one_hot:
            return "embedding"
        return "signal" if _FEATURES.search(self.name) else "classes"

    @property
    def agreement(self) -> float | None:
        """Share of rows with the same argmax, or of equal labels; None with other rules."""
        return self.same / self.rows if self.rule in ("classes", "labels") and self.rows else None

    @property
    def cosine(self) -> float | None:
        """Mean cosine of the rows of an embedding; None with other rules."""
        return self.cosines / self.rows if self.rule == "embedding" else None

    def verdict(self, *, loud: bool) -> tuple[bool, str]:
        """Return whether the output passes (`loud`: it has `SNR_DB`), and the criterion as text."""
        if self.rule == "embedding":
            return self.cosines / self.rows >= COSINE, f"embedding: mean cosine ≥ {COSINE:g}"
        if self.rule == "signal":
            return loud, f"signal: SNR ≥ {SNR_DB:g} dB"
        enough, words = enough_agreement(self.same, self.rows)
        if self.rule == "labels":
            return enough, f"labels: {words.replace('argmax', 'value').replace('rows', 'elements')}"
        return loud and enough, f"classes: SNR ≥ {SNR_DB:g} dB, {words}"


@dataclass(frozen=True)
class Judgement:
    """Verdict on one output: whether it passed, the criterion, the measured figures."""

    output: str
    passed: bool
    criterion: str
    snr_db: float
    agreement: float | None
    cosine: float | None
    masks: str = ""

    @property
    def is_labels(self) -> bool:
        """Whether these are labels, for which a signal-to-noise ratio is meaningless."""
        return self.criterion.startswith("labels")

    @property
    def measured(self) -> str:
        """The measured figures as text."""
        if self.is_labels:
            return f"the same value in {self.agreement or 0:.0%} of elements"
        more = "" if self.agreement is None else f", same argmax in {self.agreement:.0%} of rows"
        more = more if self.cosine is None else f", cosine {self.cosine:.3f}"
        return f"{self.snr_db:.1f} dB{more}" + (f", {self.masks}" if self.masks else "")


def lowest_db(precision: str) -> float:
    """Return the signal-to-noise ratio below which most elements are wrong for a precision, in decibels.

    Each element then errs by the relative tolerance: 60 for fp32, 40 for fp16, 26 for bf16; 15 for int8.
    """
    return SNR_DB if precision in BY_SIGNAL else -20.0 * math.log10(RTOL.get(precision, RTOL["fp32"]))


def default_tolerances(precision: str, max_abs: float) -> tuple[float, float]:
    """Return the absolute and the relative tolerance of a precision; `max_abs` is the largest magnitude."""
    kind = precision if precision in RTOL else "fp32"
    return ATOL_SHARE[kind] * max_abs, RTOL[kind]


def judge_by_precision(
    reference: Mapping[str, Batches],
    actual: Mapping[str, Batches],
    precision: str,
    forms: Mapping[str, OutputForm] = MappingProxyType({}),
) -> list[Judgement]:
    """Judge every output of an artifact (name to batches) by the rule of its precision, like `diff`."""
    judgements = []
    for name, expected in reference.items():
        output = OutputSums(name, forms.get(name, UNKNOWN), precision)
        for a, b in zip(expected, actual[name], strict=True):
            output.add(a, b)
        passed, criterion = output.verdict()
        rows = output.rows
        of_rows = (rows.agreement, rows.cosine) if precision in BY_SIGNAL else (None, None)
        judgements.append(Judgement(name, passed, criterion, output.snr_db, *of_rows, output.sums.masks))
    return judgements


def judge_outputs(
    reference: Mapping[str, Batches],
    actual: Mapping[str, Batches],
    forms: Mapping[str, OutputForm] = MappingProxyType({}),
) -> list[Judgement]:
    """Judge every output of an integer artifact, like `judge_by_precision`; raise if shapes differ."""
    for name, expected in reference.items():
        for a, b in zip(expected, actual[name], strict=True):
            if a.shape != b.shape:
                raise ModelError(
                    f"output {name!r} is {format_shape(b.shape)}, and {format_shape(a.shape)} in float: "
                    "how many elements it has depends on values (NonZero, a boolean index), which differ",
                    hint="keep the layers that compute these values in float (`exclude`), or return all "
                    "elements and the mask beside them",
                )
    return judge_by_precision(reference, actual, "int8", forms)


def enough_agreement(same: int, rows: int) -> tuple[bool, str]:
    """Return whether `same` of `rows` are 95%, within chance, and the requirement as text."""
    required = f"same argmax in ≥ {AGREEMENT:.0%} of rows"
    if not rows or same / rows >= AGREEMENT:
        return True, required
    if flips_by_chance(rows - same, rows) >= _CHANCE - 1e-12:
        return True, f"{required} ({same} of {rows}: within chance)"
    return False, required


def flips_by_chance(flips: int, rows: int) -> float:
    """Return the probability of at least `flips` flips if each row flips with probability `1 - AGREEMENT`."""
    total, share = math.lgamma(rows + 1), 1.0 - AGREEMENT
    return math.fsum(
        math.exp(
            total - math.lgamma(k + 1) - math.lgamma(rows - k + 1)
            + k * math.log(share) + (rows - k) * math.log1p(-share)
        )
        for k in range(flips, rows + 1)
    )  # fmt: skip


FLOAT_RTOL = 1e-3
"""Largest error, as a share of the reference's largest magnitude, that counts as equal in float32."""


@dataclass
class ErrorSums:
    """Distance of an output from its reference, summed piece by piece without storing values.

    NaN at the same place is equal, and masks are left out (see `masks`). Any other value against them is an
    infinite error. Each text has the value 1, and an error of 1 if it differs.

    `signal` and `noise` are sums of squares, of the reference and of the error; `max_abs` is the reference's.
    The output does not mask `unmasked` of the reference's `masked` values.
    """

    signal: float = 0.0
    noise: float = 0.0
    max_abs: float = 0.0
    max_abs_error: float = 0.0
    elements: int = 0
    abs_error: float = 0.0
    masked: int = 0
    unmasked: int = 0

    def add(self, reference: NDArray[Any], output: NDArray[Any]) -> tuple[NDArray[Any], NDArray[Any]]:
        """Add elements of both sides; return the reference's values and absolute errors, flat, in float64.

        Reference values that are masked or not finite become 0.
        """
        if reference.shape != output.shape:
            raise ValueError(f"shapes differ: {reference.shape} and {output.shape}")
        reference, output, masked, unmasked = without_masks(reference, output)
        self.masked, self.unmasked = self.masked + masked, self.unmasked + unmasked
        values, error = _values_and_errors(reference, output)
        with np.errstate(over="ignore"):
            self.noise += float(np.dot(error, error))
            self.signal += float(np.dot(values, values))
        self.max_abs_error = max(self.max_abs_error, float(error.max(initial=0.0)))
        self.max_abs = max(self.max_abs, float(np.abs(values).max(initial=0.0)))
        self.elements += values.size
        self.abs_error += float(error.sum())
        return values, error

    def join(self, other: ErrorSums) -> None:
        """Add the sums of another instance."""
        for name, value in vars(other).items():
            total = getattr(self, name)
            setattr(self, name, max(total, value) if name.startswith("max") else total + value)

    @property
    def rms(self) -> float:
        """Root of the mean square of the reference."""
        return math.sqrt(self.signal / max(self.elements - self.masked, 1))

    @property
    def snr_db(self) -> float:
        """Signal-to-noise ratio: `10 log10(Σ ref² / Σ (ref − out)²)`, see `decibels`."""
        return decibels(self.signal, self.noise)

    @property
    def mean_abs_error(self) -> float:
        """Mean absolute error over elements that are not masked; 0 without elements."""
        return self.abs_error / max(self.elements - self.masked, 1)

    @property
    def masks(self) -> str:
        """Note on masked values; empty without them."""
        if self.unmasked:
            return f"{self.unmasked} of {self.masked} masked values masked no more"
        return f"{self.masked} masked values left out" if self.masked else ""

    @property
    def close(self) -> bool:
        """Whether float32 rounding explains the difference."""
        return self.max_abs_error <= FLOAT_RTOL * self.max_abs + 1e-6


class OutputSums:
    """Measures of one output over all batches so far; `form` is known before the run.

    `atol` is the smallest absolute tolerance with which every element passes, by it or by the precision's
    relative tolerance.
    """

    def __init__(self, name: str, form: OutputForm = UNKNOWN, precision: str = "int8") -> None:
        self.rows, self.sums, self.atol = RowAgreement(name, form), ErrorSums(), 0.0
        self.precision, self.parts = precision, form.parts
        self._by_part = [ErrorSums() for _ in self.parts.ends] if self.parts else []

    def add(self, expected: NDArray[Any], actual: NDArray[Any]) -> None:
        """Add a batch; both sides have the same shape."""
        values, error = self.sums.add(expected, actual)
        if self.precision not in BY_SIGNAL:
            # As in Polygraphy, an element fails if it exceeds both tolerances, not their sum.
            _, rtol = default_tolerances(self.precision, 0.0)
            self.atol = max(self.atol, float(error[error > rtol * np.abs(values)].max(initial=0.0)))
        self.rows.add(expected, actual)
        if self.parts is not None:
            cut = [np.split(side, self.parts.ends[:-1], self.parts.axis) for side in (expected, actual)]
            for sums, a, b in zip(self._by_part, *cut, strict=True):
                sums.add(a, b)

    @property
    def groups(self) -> dict[str, ErrorSums]:
        """Parts joined by similar magnitude, named after their operators; without parts, a single group.

        Parts with scores below `_SILENT` are left out, because they detect nothing.
        """
        if self.parts is None:
            return {"": self.sums}
        groups: list[tuple[list[str], float, ErrorSums]] = []
        parts = zip(self.parts.operators, self._by_part, strict=True)
        for operator, sums in sorted(parts, key=lambda part: -part[1].rms):
            if operator in BOUNDED and sums.max_abs < _SILENT:
                continue
            if groups and sums.rms >= groups[-1][1] / _SIMILAR:
                groups[-1][0].append(operator)
                groups[-1][2].join(sums)
            else:
                groups.append(([operator], sums.rms, dataclasses.replace(sums)))
        if len(groups) < 2:
            return {"": self.sums}
        named = [(", ".join(dict.fromkeys(operators)), sums) for operators, _, sums in groups]
        names = [name for name, _ in named]
        return {f"{n} ({sums.rms:.2g})" if names.count(n) > 1 else n: sums for n, sums in named}

    @property
    def snr_db(self) -> float:
        """Signal-to-noise ratio, of the worst group if different heads produce the output."""
        return min(sums.snr_db for sums in self.groups.values())

    def verdict(self) -> tuple[bool, str]:
        """Return whether the output passes the rule of the precision, and the criterion as text."""
        groups = self.groups
        if self.precision in BY_SIGNAL:
            passed, criterion = self.rows.verdict(loud=self.snr_db >= SNR_DB)
            passed |= self.rows.rule == "classes" and self.snr_db >= _ROUNDING_DB
            if len(groups) > 1 and self.rows.rule in ("classes", "signal"):
                figures = "; ".join(f"{name}: {sums.snr_db:.1f} dB" for name, sums in groups.items())
                criterion += f" in each group of channels ({figures})"
            return passed, criterion
        atol, rtol = default_tolerances(self.precision, self.sums.max_abs)
        if self.atol > atol and self.may_flip:
            return self.rows.verdict(loud=False)
        return self.atol <= atol, f"atol {atol:.3g}, rtol {rtol:g}"

    @property
    def may_flip(self) -> bool:
        """Whether these are labels below fp32: the smallest error changes some."""
        return self.rows.rule == "labels" and self.precision != "fp32"


def output_error(reference: NDArray[Any], output: NDArray[Any]) -> ErrorSums:
    """Compare one output with its reference of the same shape."""
    sums = ErrorSums()
    sums.add(reference, output)
    return sums


def decibels(signal: float, noise: float) -> float:
    """Return `10 log10(signal / noise)`; `inf` for zero noise, `-inf` for zero signal or infinite noise."""
    if noise == 0.0:
        return math.inf
    if signal == 0.0 or not math.isfinite(noise):
        return -math.inf
    return 10.0 * (math.log10(signal) - math.log10(noise))


def _values_and_errors(reference: NDArray[Any], output: NDArray[Any]) -> tuple[NDArray[Any], NDArray[Any]]:
    if reference.dtype.kind in "OUS":
        same = np.asarray(reference == output).ravel()
        return np.ones(same.size), 1.0 - same
    a, b = reference.astype(np.float64).ravel(), output.astype(np.float64).ravel()
    with np.errstate(invalid="ignore", over="ignore"):
        error = np.abs(a - b)
        if not math.isfinite(float(error.sum())):
            error[(a == b) | (np.isnan(a) & np.isnan(b))] = 0.0
            error[~np.isfinite(error)] = math.inf
            a[~np.isfinite(a)] = 0.0
    return a, error
