"""Search where the SNR drops: each measurement halves what is left.

A tensor's *drop* is how far its signal-to-noise ratio lies below the lowest of all that was measured before
it. Noise that is there already cannot leave again, so tensors behind a fault that look better (a residual
add that dilutes it, a mask that outweighs it) take no blame from it, and what follows them puts none on
itself. Ratios above `cap_db` count as it: what is lost there is rounding.

The fault is the tensor with the largest drop, if that is `ABRUPT_DB` or more: there more noise is made than
in all before it. Where noise only adds up, it is the first below the threshold. Of a drop that spans tensors
not measured yet, the region in between is searched: as many taps as may be at once, at even shares of what
lies upstream (as `git bisect` does on a graph with branches).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence

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

FLOOR_DB = -10.0  # below it nothing is left to lose
ABRUPT_DB = 3.0  # noise of twice the power
_EQUAL_DB = 1e-6
_TELLING_DB = 10.0  # taps that change an output by a tenth of its error have no part in it


class Search:
    """What is known of the drops; `upstream` has a bit for each tensor before one, in order of execution."""

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

    def bad(self, threshold_db: float) -> int | None:
        """Return the first bad tensor; None if none is below the threshold.

        It is that with the largest drop on the way to one below, or where it is not abrupt, the first below.
        """
        below = [index for index, snr in self.snr_db.items() if snr < threshold_db]
        if not below:
            return None
        leads = 0
        for index in below:
            leads |= self.upstream[index] | 1 << index
        drops = {index: drop for index, drop in self.drops().items() if leads >> index & 1}
        worst = _largest(drops)
        return worst if drops[worst] >= ABRUPT_DB else min(below)

    def is_gradual(self, threshold_db: float) -> bool:
        """Return whether the noise that makes tensors bad adds up, as far as is measured."""
        bad = self.bad(threshold_db)
        return bad is not None and self.drops()[bad] < ABRUPT_DB

    def region(self, threshold_db: float) -> list[int]:
        """Return the tensors between the first bad one and what was measured before it, in their order.

        Empty where the drop is that of one tensor. Where nothing is below the threshold, of the largest drop.
        """
        if not self.snr_db:
            return [index for index in range(len(self.upstream)) if not self._skipped >> index & 1]
        bad = self.bad(threshold_db)
        end = _largest(self.drops()) if bad is None else bad
        inside = self.upstream[end]
        for index in self.snr_db:
            if self.upstream[end] >> index & 1:
                inside &= ~(self.upstream[index] | 1 << index)
        inside &= ~self._skipped
        return [i for i in range(len(self.upstream)) if inside >> i & 1 and i not in self.snr_db]

    def choose(self, region: Sequence[int], fits: Callable[[Sequence[int]], bool], most: int) -> list[int]:
        """Return tensors of a region to be measured together: as many as fit, one at least."""
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
        """Return the tensors at which the first half of a region ends: what is read of it behind the half.

        However the graph branches, no more than half is left: each of the half lies before one, or is one.
        """
        ordered = sorted(region)
        half = ordered[: (len(ordered) + 1) // 2]
        ends = [index for index in half if not any(self.upstream[other] >> index & 1 for other in half)]
        return ends[-most:]


def packed(indexes: Sequence[int], fits: Callable[[Sequence[int]], bool], most: int) -> list[list[int]]:
    """Return tensors in groups that fit, in order; a tensor too large is alone in its group."""
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


class Refinement:
    """What is known of a comparison so far, what is asked next, and what comes out.

    Where all pairs fit into few runs, all are measured, and the table is complete. Otherwise each run taps
    tensors at even shares of the region in which the largest drop lies, until it is that of one tensor.
    """

    def __init__(self, runs: LayerRuns, most: int, threshold_db: float | None, *, keep: bool) -> None:
        self.runs, self.most, self.pairs = runs, most, runs.pairs.pairs
        precision = runs.artifact.precision
        self.threshold_db = THRESHOLD_DB[precision] if threshold_db is None else threshold_db
        cap_db = max(CAP_DB[precision], self.threshold_db + 10.0)
        self.search = Search([pair.upstream for pair in self.pairs], cap_db=cap_db)
        self.errors: dict[int, ErrorSums] = {}
        self.outputs: dict[str, ErrorSums] = {}
        self.limit = 3 + int(math.log2(runs.artifact.layers)) - keep

    def run(self) -> None:
        """Measure until the largest drop is that of one tensor."""
        self._run_plain()
        unmeasured = [index for index in range(len(self.pairs)) if index not in self.errors]
        groups = packed(unmeasured, self.runs.fits, self.most)
        if self.runs.runs + len(groups) <= self.limit:
            for group in groups:
                self._measure(group)
            return
        looked_around = False
        while True:
            region = self.search.region(self.threshold_db)
            enough = self.runs.runs >= self.limit
            if region and not (enough and self.search.is_gradual(self.threshold_db)):
                self._measure(self.search.choose(region, self.runs.fits, self.most))
                continue
            if looked_around or enough or not self.errors or not (near := self._unknown_near()):
                return
            looked_around = True
            self._measure(near)

    def shown(self) -> list[int]:
        """Return the pairs whose values are worth keeping: the worst, and what is around it."""
        worst = self.worst()
        return self._fitting(self._near(worst), [worst])

    def engine(self) -> EngineSearch | None:
        """Return what the search inside an engine took; None where nothing was rebuilt."""
        return None

    def outcome(self, reference: str, artifact: str, casts: dict[str, str]) -> LayerDiff:
        drops = self.search.drops()
        layers = {index: self._layer(index, drops[index]) for index in sorted(self.errors)}
        bad = self.search.bad(self.threshold_db)
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
        """Run both sides as they are: the outputs are measured then."""
        self.outputs = self.runs.plain()
        indexes = {self.runs.pairs.named(name): sums for name, sums in self.outputs.items()}
        self._take({index: sums for index, sums in indexes.items() if index is not None})

    def _take(self, measured: dict[int, ErrorSums]) -> None:
        self.errors.update(measured)
        self.search.record({index: sums.snr_db for index, sums in measured.items()})

    def worst(self) -> int:
        bad = self.search.bad(self.threshold_db)
        return bad if bad is not None else min(self.errors, key=lambda i: self.errors[i].snr_db)

    def _near(self, index: int) -> list[int]:
        """Pairs up to two steps before and behind one."""
        before = [i for i, _, _ in self._walk(index, -1)]
        return list(dict.fromkeys([*before, *(i for i, _, _ in self._walk(index, 1))]))

    def _unknown_near(self) -> list[int]:
        measured = {*self.errors, *self.runs.refused}
        return self._fitting([index for index in self._near(self.worst()) if index not in measured], [])

    def _fitting(self, candidates: Sequence[int], indexes: list[int]) -> list[int]:
        """The indexes with as many of the candidates as one run may read."""
        for index in candidates:
            if index not in indexes and len(indexes) < self.most and self.runs.fits([*indexes, index]):
                indexes.append(index)
        return sorted(indexes)

    def _walk(self, index: int, way: int, steps: int = 1) -> Iterator[tuple[int, int, int]]:
        """Yield (pair, steps, pair that it hangs on) up to two steps one way, depth first."""
        behind = (i for i, pair in enumerate(self.pairs) if index in pair.parents)
        for neighbour in self.pairs[index].parents if way < 0 else behind:
            yield neighbour, steps * way, index
            if steps < 2:
                yield from self._walk(neighbour, way, steps + 1)

    def _around(self, bad: int) -> list[Neighbour]:
        nodes: list[Neighbour] = [self._neighbour(bad, 0, None)]
        for way in (-1, 1):
            at = {(0, bad): 0}
            for index, steps, under in self._walk(bad, way):
                parent = at[(steps - way, under)]
                at[(steps, index)] = len(nodes)
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
        )

    def _warnings(self, casts: dict[str, str]) -> list[str]:
        warnings = [
            f"output {name!r} changes when tensors are tapped: {sums.snr_db:.1f} dB against itself; the "
            "fusions differ, and so may the tensors"
            for name, sums in self.runs.changed.items()
            if sums.snr_db < self.outputs.get(name, sums).snr_db + _TELLING_DB
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
