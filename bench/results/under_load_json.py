"""`arrivals` and `largest_rate` of a row as JSON; files of earlier versions have neither."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ...figures import number
from .under_load import ArrivalPoint, LargestRate


def arrivals_json(points: tuple[ArrivalPoint, ...]) -> list[dict[str, Any]]:
    """Return the points, without the figures that were not measured."""
    return [{name: value for name, value in vars(one).items() if value is not None} for one in points]


def largest_rate_json(found: LargestRate | None) -> dict[str, Any] | None:
    """Return the rate; `per_s` is null where there is none."""
    return None if found is None else dict(vars(found))


def read_arrivals(value: object) -> tuple[ArrivalPoint, ...]:
    """Read what `arrivals_json` wrote, without points that are damaged; from the smallest rate on."""
    points = []
    for item in value if isinstance(value, list) else ():
        point: Mapping[str, Any] = item if isinstance(item, Mapping) else {}
        rate, achieved = _positive(point.get("rate_per_s")), _positive(point.get("achieved_per_s"))
        requests, backlog = number(point.get("requests")), number(point.get("backlog"))
        if rate is None or achieved is None or requests is None or requests < 1:
            continue
        figures = {name: _positive(point.get(name)) for name in _FIGURES}
        keeps_up = point.get("keeps_up", True) is True and figures["median_ms"] is not None
        points.append(
            ArrivalPoint(
                rate, achieved, int(requests), **figures, backlog=int(max(backlog or 0, 0)), keeps_up=keeps_up
            )
        )
    return tuple(sorted(points, key=lambda one: one.rate_per_s))


def read_largest_rate(value: object) -> LargestRate | None:
    """Read what `largest_rate_json` wrote; None where the bound is none."""
    found: Mapping[str, Any] = value if isinstance(value, Mapping) else {}
    bound = _positive(found.get("p99_below_ms"))
    if bound is None:
        return None
    per_s, low, high = (_positive(found.get(name)) for name in ("per_s", "low_per_s", "high_per_s"))
    return LargestRate(bound, per_s, low, high, str(found.get("reason") or ""))


_FIGURES = ("median_ms", "p90_ms", "p99_ms", "p99_low_ms", "p99_high_ms", "busy")


def _positive(value: object) -> float | None:
    figure = number(value)
    return figure if figure is not None and figure > 0 else None
