"""Ranges of a calibration: a histogram of every observed tensor, and the amax chosen from it.

The histograms serve every method without another run of the model. The ranges of all shards merge to exactly
the ranges of one run.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated

import msgspec

from ..core.figures import counted
from ..core.notebook import Plot, html_of, plot_of
from ..errors import CalibrationError
from .histogram import Histogram
from .thresholds import Method, amax, limits

_Positive = Annotated[int, msgspec.Meta(ge=1)]
FEW = 8
"""Most samples of a calibration that gets a warning."""


def few_samples(subject: str, samples: int) -> list[str]:
    """Return a warning if there are `FEW` samples or fewer; `subject` precedes their number."""
    return [f"{subject} {counted(samples, 'sample')}; 64 to 256 are usual"] if 0 < samples <= FEW else []


class Portion(msgspec.Struct, frozen=True):
    """The part of a data set that was observed.

    Attributes:
        samples: Number of samples observed.
        shards: Number of parts that the data was divided into.
        parts: Sorted numbers of the observed parts, from 1. All parts together become one part of one.
    """

    samples: Annotated[int, msgspec.Meta(ge=0)]
    shards: _Positive = 1
    parts: tuple[_Positive, ...] = (1,)

    def __str__(self) -> str:
        return "" if self.shards == 1 else f" ({', '.join(map(str, self.parts))} of {self.shards} parts)"

    def joined(self, other: Portion) -> Portion:
        """Return the union of two portions of the same data."""
        if self.shards != other.shards:
            first, second = (
                "one part" if count == 1 else f"{count} parts" for count in (self.shards, other.shards)
            )
            raise CalibrationError(
                f"the same data is cut into {first} in one ranges file and {second} in another; "
                "samples would count twice",
                hint="give every shard the same number of parts",
            )
        if twice := set(self.parts) & set(other.parts):
            part = f"part {min(twice)} of {self.shards}" if self.shards > 1 else "the same data"
            message = f"{part} is in both ranges files; its samples would count twice"
            raise CalibrationError(message, hint="merge each part once")
        samples, parts = self.samples + other.samples, tuple(sorted(self.parts + other.parts))
        is_whole = len(parts) == self.shards
        return Portion(samples) if is_whole else Portion(samples, self.shards, parts)


@dataclass
class Ranges:
    """Observed values of a model's tensors, and the default method of choosing thresholds.

    Attributes:
        model: Fingerprint of the ONNX file that was observed.
        portions: Digest of data to the portion of it that was observed.
        method: Default method.
        histograms: Tensor name to counts, which are empty if the tensor had no values.
        shared: Tensor name to the observed tensors that together determine its range.
        skipped: Tensor name to the reason why it was not observed.
        fixed: Tensor name to amax, read from TensorRT's cache, which has no histograms.
        modules: Tensor name to the module of PyTorch that computes it.
    """

    model: str
    portions: dict[str, Portion] = field(default_factory=dict)
    method: Method = field(default_factory=Method)
    histograms: dict[str, Histogram] = field(default_factory=dict)
    shared: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    skipped: Mapping[str, str] = field(default_factory=dict)
    fixed: Mapping[str, float] = field(default_factory=dict)
    modules: Mapping[str, str] = field(default_factory=dict)

    @property
    def samples(self) -> int:
        """Number of samples observed."""
        return sum(portion.samples for portion in self.portions.values())

    @property
    def data(self) -> str:
        """Digests and parts of the observed data, as one text."""
        return ", ".join(f"{digest}{portion}" for digest, portion in sorted(self.portions.items()))

    def plot(self, top: int = 12) -> Plot:
        """Return a picture of the `top` worst tensors: histograms with the thresholds of every method."""
        return plot_of(self, top=top)

    def _repr_html_(self) -> str:
        return html_of(self)

    def require_model(self, path: Path, fingerprint: str) -> None:
        """Raise CalibrationError, which names the file, if the ranges were observed on another model."""
        if self.model != fingerprint:
            raise CalibrationError(
                f"{path}: the ranges were observed on another model "
                f"({self.model[:19]}…, this is {fingerprint[:19]}…)",
                hint="calibrate this very file; simplify comes before calibrate",
                file=path,
            )

    def names(self) -> Iterator[str]:
        """Yield the tensors that have a range."""
        yield from self.fixed
        yield from (name for name, histogram in self.histograms.items() if not histogram.is_empty)
        for name, sources in self.shared.items():
            if not all(self.histograms[source].is_empty for source in sources):
                yield name

    def sources(self, tensor: str) -> tuple[str, ...]:
        """Return the observed tensors that hold a tensor's values: itself, or the tensors in `shared`."""
        return self.shared.get(tensor, (tensor,))

    def histogram(self, tensor: str) -> Histogram:
        """Return the merged counts of a tensor's `sources`."""
        sources = [self.histograms[name] for name in self.sources(tensor) if name in self.histograms]
        values = [histogram for histogram in sources if not histogram.is_empty]
        if not values:
            reason = "it was empty in every sample" if sources else "it was not observed"
            raise CalibrationError(
                f"tensor {tensor!r} has no range: {self.skipped.get(tensor, reason)}",
                hint="calibrate the model that is quantized, for the same target",
                tensor=tensor,
            )
        if len(values) == 1:
            return values[0]
        total = copy.deepcopy(values[0])
        for histogram in values[1:]:
            total.merge(histogram)
        return total

    def amax(self, tensor: str, method: Method | None = None, *, symmetric: bool = True) -> float:
        """Return the clipping magnitude of a tensor, in its units, 0 or more; the int8 scale is amax / 127.

        Args:
            method: Chooses the threshold; None means `self.method`.
            symmetric: Minimize the error on the grid of symmetric int8; else of 255 steps over the range.

        Raises:
            CalibrationError: If the tensor was not observed, or a method is given for a TensorRT cache.
        """
        if tensor in self.fixed:
            if method is not None:
                raise CalibrationError(
                    f"a TensorRT cache has one scale per tensor: {method} cannot be chosen",
                    hint="leave `method` out, or calibrate with qcompile",
                    tensor=tensor,
                )
            return self.fixed[tensor]
        return amax(self.histogram(tensor), method or self.method, symmetric=symmetric)

    def limits(
        self, tensor: str, method: Method | None = None, *, symmetric: bool = True
    ) -> tuple[float, float]:
        """Return (low, high), the quantized range of a tensor in its units: low <= 0 <= high."""
        limit = self.amax(tensor, method, symmetric=symmetric)
        if tensor in self.fixed:
            return -limit, limit
        return limits(self.histogram(tensor), limit, symmetric=symmetric)

    def merge(self, other: Ranges) -> None:
        """Add the counts of another calibration of the same model: another shard, or other data."""
        if other.model != self.model:
            raise CalibrationError(
                "ranges of different models cannot be merged",
                hint="calibrate every shard on the same ONNX file",
            )
        if self.fixed or other.fixed:
            raise CalibrationError("a TensorRT cache holds scales, not counts: it cannot be merged")
        observed = set(self.histograms) ^ set(other.histograms)
        every = {*self.shared, *other.shared}
        shared = {name for name in every if self.shared.get(name) != other.shared.get(name)}
        for differing, problem in (
            (observed, "is in one ranges file only; both must observe the same"),
            (shared, "shares other tensors' ranges in one ranges file only"),
        ):
            if differing:
                raise CalibrationError(
                    f"tensor {min(differing)!r} {problem}",
                    hint="calibrate every shard for the same `targets`",
                    tensor=min(differing),
                )
        portions = dict(self.portions)
        for digest, portion in other.portions.items():
            portions[digest] = portions[digest].joined(portion) if digest in portions else portion
        self.portions = portions
        for name, histogram in other.histograms.items():
            self.histograms[name].merge(histogram)
