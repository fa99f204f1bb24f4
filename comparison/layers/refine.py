"""What is known of a comparison so far, what is asked next, and what comes out.

Where all pairs fit into few runs, all are measured, and the table is complete. Otherwise each run taps
tensors at even shares of the region in which the largest drop lies, until it is that of one tensor.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from ...model.output_error import ErrorSums
from .outcome import CAP_DB, THRESHOLD_DB, EngineSearch, Layer, LayerDiff, Neighbour
from .search import Search, packed
from .taps import LayerRuns

_TELLING_DB = 10.0  # taps that change an output by a tenth of its error have no part in it


class Refinement:
    """What is known so far, and what is asked next."""

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
        self.outputs = self.runs.plain()
        known = {self.runs.pairs.named(name): sums for name, sums in self.outputs.items()}
        self._take({index: sums for index, sums in known.items() if index is not None})
        rest = [index for index in range(len(self.pairs)) if index not in self.errors]
        groups = packed(rest, self.runs.fits, self.most)
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
        chosen: list[int] = []
        for index in [worst, *self._near(worst)]:
            if not chosen or (len(chosen) < self.most and self.runs.fits([*chosen, index])):
                chosen.append(index)
        return sorted(chosen)

    def engine(self) -> EngineSearch | None:
        """Return what the search inside an engine took; None where nothing was rebuilt."""
        return None

    def outcome(self, reference: str, artifact: str, casts: dict[str, str]) -> LayerDiff:
        """Return what was found."""
        drops = self.search.drops()
        layers = {index: self._layer(index, drops[index]) for index in sorted(self.errors)}
        bad = self.search.bad(self.threshold_db)
        ranked = sorted(layers, key=lambda index: (-layers[index].drop_db, layers[index].snr_db, index))
        if bad is not None:
            ranked = [bad, *(index for index in ranked if index != bad)]
        return LayerDiff(
            reference=reference,
            artifact=artifact,
            precision=self.runs.artifact.precision,
            samples=self.runs.samples.count,
            threshold_db=self.threshold_db,
            first_bad=layers[bad] if bad is not None else None,
            layers=[layers[index] for index in ranked],
            paired=len(self.pairs),
            complete=len(self.errors) + len(self.runs.refused) == len(self.pairs),
            reference_only=self.runs.pairs.reference_only,
            artifact_only=self.runs.pairs.artifact_only,
            gradual=self.search.is_gradual(self.threshold_db),
            around=self._around(bad) if bad is not None else (),
            outputs={name: sums.snr_db for name, sums in self.outputs.items()},
            runs=self.runs.runs,
            memory_bytes=self.runs.memory_bytes,
            warnings=self._warnings(casts),
            engine=self.engine(),
        )

    def _measure(self, chosen: Sequence[int]) -> None:
        self._take(self.runs.measure(chosen))
        for index in chosen:
            if index not in self.errors:
                self.search.skip(index)

    def _take(self, measured: dict[int, ErrorSums]) -> None:
        self.errors.update(measured)
        self.search.record({index: sums.snr_db for index, sums in measured.items()})

    def worst(self) -> int:
        """Return the first bad pair, or the one with the lowest ratio."""
        bad = self.search.bad(self.threshold_db)
        return bad if bad is not None else min(self.errors, key=lambda i: self.errors[i].snr_db)

    def _near(self, index: int) -> list[int]:
        """Pairs up to two steps before and behind one."""
        before = [i for i, _, _ in self._walk(index, -1)]
        return list(dict.fromkeys([*before, *(i for i, _, _ in self._walk(index, 1))]))

    def _unknown_near(self) -> list[int]:
        chosen: list[int] = []
        for index in self._near(self.worst()):
            new = index not in self.errors and index not in self.runs.refused
            if new and len(chosen) < self.most and self.runs.fits([*chosen, index]):
                chosen.append(index)
        return sorted(chosen)

    def _walk(self, start: int, way: int) -> list[tuple[int, int, int]]:
        """(pair, steps, pair that it hangs on) up to two steps one way, depth first."""
        neighbours: list[tuple[int, int, int]] = []

        def visit(index: int, steps: int) -> None:
            if way < 0:
                near = list(self.pairs[index].parents)
            else:
                near = [i for i, pair in enumerate(self.pairs) if index in pair.parents]
            for one in near:
                neighbours.append((one, steps, index))
                if abs(steps) < 2:
                    visit(one, steps + way)

        visit(start, way)
        return neighbours

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
        return Neighbour(steps, pair.reference, pair.operator, pair.node, snr, under)

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
