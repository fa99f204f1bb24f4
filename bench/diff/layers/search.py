"""Find the tensor at which the SNR drops; each measurement halves the remaining region.

The *drop* of a tensor is the lowest signal-to-noise ratio measured upstream minus the tensor's ratio. Noise
does not disappear downstream. Tensors after a fault may look better (a residual add dilutes the noise, a mask
outweighs it), but they neither clear the fault nor shift the blame to later tensors. Ratios above `cap_db`
count as `cap_db`: losses above it are rounding.

The fault is the tensor with the largest drop if that is `ABRUPT_DB` or more: it adds more noise than all
before it. If noise only accumulates, it is the first tensor below the threshold. If a drop spans unmeasured
tensors, the region between is searched with as many taps as fit, at even shares of the upstream tensors (as
`git bisect` does on a graph with branches).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence

from ....model.graph.module_names import module_names
from ....model.outputs.judgement import ErrorSums
from .outcome import (
    CAP_DB,
    THRESHOLD_DB,
    EngineSearch,
    FirstBad,
    Layer,
    LayerDiff,
    Neighbour,
    PairCounts,
)
from .taps import LayerRuns

FLOOR_DB = -10.0  # lower ratios count as this one
ABRUPT_DB = 3.0  # noise of twice the power
_EQUAL_DB = 1e-6
_CHANGE_MARGIN_DB = 10.0  # taps matter if they change an output by more than a tenth of its error power


class Search:
    """Measured ratios and their drops; `upstream[i]` is the bit set of the tensors before tensor i."""

    def __init__(self, upstream: Sequence[int], *, cap_db: float) -> None:
        self.upstream, self.cap_db = list(upstream), cap_db
        self.snr_db: dict[int, float] = {}
        self._skipped = 0

    def record(self, snr_db: Mapping[int, float]) -> None:
        self.snr_db.update(snr_db)

    def skip(self, index: int) -> None:
        self._skipped |= 1 << index

    def drops(self) -> dict[int, float]:
        levels = {index: min(max(snr_db, FLOOR_DB), self.cap_db) for index, snr_db in self.snr_db.items()}
        ascending = [(1 << index, levels[index]) for index in sorted(levels, key=lambda i: levels[i])]
        drops: dict[int, float] = {}
        for index, level in levels.items():
            before = (lowest for bit, lowest in ascending if self.upstream[index] & bit)
            drops[index] = max(0.0, next(before, self.cap_db) - level)
        return drops

    def first_bad(self, threshold_db: float) -> int | None:
        """Return the first bad tensor; None if no tensor is below the threshold.

        Among tensors below it and those upstream, the largest drop if it is abrupt; else the first below.
        """
        below = [index for index, snr in self.snr_db.items() if snr < threshold_db]
        if not below:
            return None
        suspects = 0
        for index in below:
            suspects |= self.upstream[index] | 1 << index
        drops = {index: drop for index, drop in self.drops().items() if suspects >> index & 1}
        worst = _largest(drops)
        return worst if drops[worst] >= ABRUPT_DB else min(below)

    def is_gradual(self, threshold_db: float) -> bool:
        """Return whether the noise at the first bad tensor accumulated, as far as measured."""
        bad = self.first_bad(threshold_db)
        return bad is not None and self.drops()[bad] < ABRUPT_DB

    def region(self, threshold_db: float) -> list[int]:
        """Return the unmeasured tensors between the first bad one and measured ones upstream, in order.

        Empty if the drop is that of one tensor. If no tensor is bad, use the largest drop.
        """
        if not self.snr_db:
            return [index for index in range(len(self.upstream)) if not self._skipped >> index & 1]
        bad = self.first_bad(threshold_db)
        end = _largest(self.drops()) if bad is None else bad
        inside = self.upstream[end]
        for index in self.snr_db:
            if self.upstream[end] >> index & 1:
                inside &= ~(self.upstream[index] | 1 << index)
        inside &= ~self._skipped
        return [i for i in range(len(self.upstream)) if inside >> i & 1 and i not in self.snr_db]

    def choose(self, region: Sequence[int], fits: Callable[[Sequence[int]], bool], most: int) -> list[int]:
        """Return tensors of a region to measure together: as many as fit, at least one."""
        inside = sum(1 << index for index in region)
        before = {index: (self.upstream[index] & inside).bit_count() for index in region}
        ranked = sorted(region, key=lambda index: (before[index], index))
        for count in range(min(most, len(ranked)), 1, -1):
            share = len(ranked) / (count + 1) if count < len(ranked) else 1.0
            first = 0 if count == len(ranked) else 1
            indexes = list(dict.fromkeys(ranked[int(share * (j + first))] for j in range(count)))
            if fits(indexes):
                return sorted(indexes)
        return [ranked[len(ranked) // 2]]

    def cut(self, region: Sequence[int], most: int) -> list[int]:
        """Return the tensors at which the first half of a region ends: those upstream of no other.

        At most half remains, however the graph branches: each tensor of the half is, or precedes, an end.
        """
        ordered = sorted(region)
        half = ordered[: (len(ordered) + 1) // 2]
        ends = [index for index in half if not any(self.upstream[other] >> index & 1 for other in half)]
        return ends[-most:]


def pack_groups(indexes: Sequence[int], fits: Callable[[Sequence[int]], bool], most: int) -> list[list[int]]:
    """Return tensors in groups that fit, in order; a tensor that is too large forms a group alone."""
    groups: list[list[int]] = []
    for index in indexes:
        if groups and len(groups[-1]) < most and fits([*groups[-1], index]):
            groups[-1].append(index)
        else:
            groups.append([index])
    return groups


def _largest(drops: Mapping[int, float]) -> int:
    best = min(drops)
    for index, drop in sorted(drops.items()):
        if drop > drops[best] + _EQUAL_DB:
            best = index
    return best


class LayerSearch:
    """A comparison in progress: it chooses the tensors of each run and builds the result.

    If all pairs fit into few runs, all are measured and the table is complete. Otherwise each run taps
    tensors at even shares of the region with the largest drop, until the drop is that of one tensor.
    """

    def __init__(self, runs: LayerRuns, most: int, threshold_db: float | None, *, keep: bool) -> None:
        self.runs, self.most, self.pairs = runs, most, runs.pairs.pairs
        precision = runs.artifact.precision
        self.threshold_db = THRESHOLD_DB[precision] if threshold_db is None else threshold_db
        cap_db = max(CAP_DB[precision], self.threshold_db + 10.0)
        self.search = Search([pair.upstream for pair in self.pairs], cap_db=cap_db)
        assert runs.reference.weightless is not None, "the reference is an ONNX file"
        self.modules = module_names(runs.reference.weightless.model)
        self.errors: dict[int, ErrorSums] = {}
        self.outputs: dict[str, ErrorSums] = {}
        self.limit = 3 + int(math.log2(runs.artifact.layers)) - keep

    def run(self) -> None:
        """Measure until the largest drop is that of one tensor."""
        self._run_plain()
        unmeasured = [index for index in range(len(self.pairs)) if index not in self.errors]
        groups = pack_groups(unmeasured, self.runs.fits, self.most)
        if self.runs.runs + len(groups) <= self.limit:
            for group in groups:
                self._measure(group)
            return
        is_last = False
        while True:
            region = self.search.region(self.threshold_db)
            at_limit = self.runs.runs >= self.limit
            if region and not (at_limit and self.search.is_gradual(self.threshold_db)):
                self._measure(self.search.choose(region, self.runs.fits, self.most))
                continue
            if is_last or at_limit or not self.errors or not (near := self._unmeasured_near()):
                return
            is_last = True
            self._measure(near)

    def pairs_to_save(self) -> list[int]:
        """Return the pairs with values to save: the worst one and its neighbours."""
        worst = self.worst()
        return self._add_fitting(self._pairs_near(worst), [worst])

    def engine(self) -> EngineSearch | None:
        """Return the figures of the search inside an engine; None without rebuilds."""
        return None

    def outcome(self, reference: str, artifact: str, casts: dict[str, str]) -> LayerDiff:
        drops = self.search.drops()
        layers = {index: self._layer(index, drops[index]) for index in sorted(self.errors)}
        bad = self.search.first_bad(self.threshold_db)
        worst = self.pairs[bad or 0]
        ranked = sorted(layers, key=lambda index: (-layers[index].drop_db, layers[index].snr_db, index))
        if bad is not None:
            ranked = [bad, *(index for index in ranked if index != bad)]
        return LayerDiff(
            reference=reference,
            artifact=artifact,
            precision=self.runs.artifact.precision,
            samples=self.runs.samples.count,
            threshold_db=self.threshold_db,
            first_bad=None if bad is None else FirstBad(worst.reference, worst.operator, worst.node),
            layers=[layers[index] for index in ranked],
            pairs=PairCounts(
                paired=len(self.pairs),
                measured=len(layers),
                reference_only=self.runs.pairs.reference_only,
                artifact_only=self.runs.pairs.artifact_only,
            ),
            complete=len(self.errors) + len(self.runs.refused) == len(self.pairs),
            gradual=self.search.is_gradual(self.threshold_db),
            around=self._around(bad) if bad is not None else (),
            outputs={name: sums.snr_db for name, sums in self.outputs.items()},
            runs=self.runs.runs,
            memory_bytes=self.runs.memory_bytes,
            warnings=self._warnings(casts),
            engine=self.engine(),
        )

    def _measure(self, indexes: Sequence[int]) -> None:
        self._take(self.runs.measure(indexes))
        for index in indexes:
            if index not in self.errors:
                self.search.skip(index)

    def _run_plain(self) -> None:
        """Run both sides without taps and record the errors of their outputs."""
        self.outputs = self.runs.plain()
        indexes = {self.runs.pairs.named(name): sums for name, sums in self.outputs.items()}
        self._take({index: sums for index, sums in indexes.items() if index is not None})

    def _take(self, measured: dict[int, ErrorSums]) -> None:
        self.errors.update(measured)
        self.search.record({index: sums.snr_db for index, sums in measured.items()})

    def worst(self) -> int:
        bad = self.search.first_bad(self.threshold_db)
        return bad if bad is not None else min(self.errors, key=lambda i: self.errors[i].snr_db)

    def _pairs_near(self, index: int) -> list[int]:
        """Return the pairs up to two steps upstream and downstream."""
        before = [i for i, _, _ in self._walk(index, -1)]
        return list(dict.fromkeys([*before, *(i for i, _, _ in self._walk(index, 1))]))

    def _unmeasured_near(self) -> list[int]:
        measured = {*self.errors, *self.runs.refused}
        return self._add_fitting([i for i in self._pairs_near(self.worst()) if i not in measured], [])

    def _add_fitting(self, candidates: Sequence[int], indexes: list[int]) -> list[int]:
        """Return the indexes, with as many of the candidates as one run can tap."""
        for index in candidates:
            if index not in indexes and len(indexes) < self.most and self.runs.fits([*indexes, index]):
                indexes.append(index)
        return sorted(indexes)

    def _walk(self, index: int, direction: int, steps: int = 1) -> Iterator[tuple[int, int, int]]:
        """Yield (pair, steps, neighbour one step closer) up to two steps one way, depth first."""
        behind = (i for i, pair in enumerate(self.pairs) if index in pair.parents)
        for neighbour in self.pairs[index].parents if direction < 0 else behind:
            yield neighbour, steps * direction, index
            if steps < 2:
                yield from self._walk(neighbour, direction, steps + 1)

    def _around(self, bad: int) -> list[Neighbour]:
        nodes: list[Neighbour] = [self._neighbour(bad, 0, None)]
        for direction in (-1, 1):
            place_of = {(0, bad): 0}
            for index, steps, under in self._walk(bad, direction):
                parent = place_of[(steps - direction, under)]
                place_of[(steps, index)] = len(nodes)
                nodes.append(self._neighbour(index, steps, parent))
        return nodes

    def _neighbour(self, index: int, steps: int, under: int | None) -> Neighbour:
        pair, sums = self.pairs[index], self.errors.get(index)
        snr = sums.snr_db if sums is not None else None
        return Neighbour(
            steps, pair.reference, pair.operator, pair.node, snr, under, measured=sums is not None
        )

    def _layer(self, index: int, drop_db: float) -> Layer:
        pair, sums = self.pairs[index], self.errors[index]
        return Layer(
            tensor=pair.reference,
            artifact_tensor=pair.artifact,
            operator=pair.operator,
            node=pair.node,
            snr_db=sums.snr_db,
            drop_db=drop_db,
            max_abs_error=sums.max_abs_error,
            max_abs=sums.max_abs,
            elements=sums.elements,
            module=self.modules.get(pair.reference, ""),
        )

    def _warnings(self, casts: dict[str, str]) -> list[str]:
        warnings = [
            f"output {name!r} changes when tensors are tapped: {sums.snr_db:.1f} dB against itself; taps "
            "change fusions, so tensors may differ, too"
            for name, sums in self.runs.changed.items()
            if sums.snr_db < self.outputs.get(name, sums).snr_db + _CHANGE_MARGIN_DB
            and sums.snr_db < self.search.cap_db
        ]
        warnings += [f"input {name!r} is rounded to {kind} for the artifact" for name, kind in casts.items()]
        for index, why in self.runs.refused.items():
            warnings.append(f"tensor {self.pairs[index].reference!r} cannot be compared: {why}")
        if not self.outputs:
            warnings.append(
                "the outputs do not pair up by name, and their number differs: they are not compared"
            )
        return warnings
