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

from collections.abc import Callable, Mapping, Sequence

FLOOR_DB = -10.0
"""Below it nothing is left to lose."""

ABRUPT_DB = 3.0
"""Noise of twice the power."""

_EQUAL_DB = 1e-6


class Search:
    """What is known of the drops.

    Args:
        upstream: Per tensor, in order of execution, a bit for each tensor before it.
        cap_db: See above.
    """

    def __init__(self, upstream: Sequence[int], *, cap_db: float) -> None:
        self.upstream, self.cap_db = list(upstream), cap_db
        self.snr_db: dict[int, float] = {}
        self._skipped = 0

    def record(self, snr_db: Mapping[int, float]) -> None:
        """Take in what was measured."""
        self.snr_db.update(snr_db)

    def skip(self, index: int) -> None:
        """Leave a tensor out: it could not be measured."""
        self._skipped |= 1 << index

    def level(self, index: int) -> float:
        """Return the ratio of a measured tensor, between the limits."""
        return min(max(self.snr_db[index], FLOOR_DB), self.cap_db)

    def drops(self) -> dict[int, float]:
        """Return the drop of each measured tensor, in decibels."""
        levels = {index: self.level(index) for index in self.snr_db}
        ascending = [(1 << index, level) for index, level in sorted(levels.items(), key=lambda one: one[1])]
        drops: dict[int, float] = {}
        for index, level in levels.items():
            before = (lowest for bit, lowest in ascending if self.upstream[index] & bit)
            drops[index] = max(0.0, next(before, self.cap_db) - level)
        return drops

    def bad(self, threshold_db: float) -> int | None:
        """Return the first bad tensor; None if none is below the threshold.

        It is the one with the largest drop that leads to one below the threshold, or where that is not
        abrupt, the first below.
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
        """Return the tensors between the first bad one and what was measured before it.

        In order of execution; empty when there are none, and the drop is that of one tensor. Where nothing
        is below the threshold, of the largest drop.
        """
        if not self.snr_db:
            return [index for index in range(len(self.upstream)) if not self._skipped >> index & 1]
        bad = self.bad(threshold_db)
        end = _largest(self.drops()) if bad is None else bad
        inside = self.upstream[end]
        for index in self.snr_db:
            if self.upstream[end] >> index & 1:
                inside &= ~(self.upstream[index] | 1 << index)
        return [index for index in _bits(inside & ~self._skipped) if index not in self.snr_db]

    def choose(self, region: Sequence[int], fits: Callable[[Sequence[int]], bool], most: int) -> list[int]:
        """Return tensors of a region to be measured together: as many as fit, one at least."""
        inside = sum(1 << index for index in region)
        before = {index: (self.upstream[index] & inside).bit_count() for index in region}
        ranked = sorted(region, key=lambda index: (before[index], index))
        for count in range(min(most, len(ranked)), 1, -1):
            share = len(ranked) / (count + 1) if count < len(ranked) else 1.0
            first = 0 if count == len(ranked) else 1
            chosen = list(dict.fromkeys(ranked[int(share * (j + first))] for j in range(count)))
            if fits(chosen):
                return sorted(chosen)
        return [ranked[len(ranked) // 2]]

    def cut(self, region: Sequence[int], most: int) -> list[int]:
        """Return the tensors at which the first half of a region ends: what is read of it behind the half.

        Wherever the largest drop then lies, no more than half of the region is left, however the graph
        branches: each tensor of the first half lies before one of these, or is one.
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


def _bits(mask: int) -> list[int]:
    positions = []
    while mask:
        low = mask & -mask
        positions.append(low.bit_length() - 1)
        mask ^= low
    return positions


def _largest(drops: Mapping[int, float]) -> int:
    """The first of those with the largest drop."""
    best = min(drops)
    for index, drop in sorted(drops.items()):
        if drop > drops[best] + _EQUAL_DB:
            best = index
    return best
