"""What an artifact does under load: latencies over rates of arriving requests, and the largest rate."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class ArrivalPoint:
    """Latencies of requests that arrive at a rate, whether or not earlier ones are answered.

    A latency counts from the arrival. Where more requests arrive than are answered, latencies grow for as
    long as one measures: none is told then.

    Attributes:
        rate_per_s: Requests that arrive in a second, on average; a request is one call, which is one batch.
        achieved_per_s: Requests that were answered in a second.
        requests: Number of answered requests.
        median_ms, p90_ms, p99_ms: None where it does not keep up.
        p99_low_ms, p99_high_ms: Interval of p99; an end is None where there are too few requests for it.
        backlog: The most requests that waited at once.
        busy: Share of the time in which it computed.
        keeps_up: Whether it answers as many requests as arrive.
    """

    rate_per_s: float
    achieved_per_s: float
    requests: int
    median_ms: float | None = None
    p90_ms: float | None = None
    p99_ms: float | None = None
    p99_low_ms: float | None = None
    p99_high_ms: float | None = None
    backlog: int = 0
    busy: float | None = None
    keeps_up: bool = True


@dataclass(frozen=True)
class LargestRate:
    """The largest rate of arriving requests whose p99 stays below a bound.

    Attributes:
        p99_below_ms: The bound.
        per_s: The largest rate whose p99 was below it; None where there is none, and `reason` says why.
        low_per_s: Largest rate at which the whole interval of p99 is below the bound; None where none is.
        high_per_s: Smallest rate at which the whole interval is above it, or that it does not keep up with.
        reason: Why there is no rate.
    """

    p99_below_ms: float
    per_s: float | None = None
    low_per_s: float | None = None
    high_per_s: float | None = None
    reason: str = ""
