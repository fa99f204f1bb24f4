"""What Triton says it spent its time on: its statistics extension (docs/protocol of its repository)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

_PARTS = ("queue", "compute_input", "compute_infer", "compute_output")


@dataclass(frozen=True)
class ServerTimes:
    """Cumulative counts and nanoseconds of a model's successful requests.

    Attributes:
        requests: How many there were.
        spent_ns: Part of the work to its nanoseconds over all of them.
    """

    requests: int
    spent_ns: Mapping[str, int]

    def since(self, before: ServerTimes) -> str:
        """Return the mean of each part since `before`, in words; empty where there was no request."""
        count = self.requests - before.requests
        if count <= 0:
            return ""
        queue, *compute = ((self.spent_ns[part] - before.spent_ns[part]) / count / 1e6 for part in _PARTS)
        given, infer, taken = compute
        return (
            f"the server says of its {count} requests meanwhile, on average: queue {queue:.3g} ms, "
            f"compute {sum(compute):.3g} ms (input {given:.3g}, inference {infer:.3g}, output {taken:.3g})"
        )


def server_times(value: Mapping[str, Any], version: str) -> ServerTimes | None:
    """Read statistics; None where they say nothing.

    Args:
        value: The answer, as JSON.
        version: Of the model; the sum over all versions where it is empty.
    """
    is_listed, requests, spent = False, 0, dict.fromkeys(_PARTS, 0)
    models = value.get("model_stats")
    for model in models if isinstance(models, list) else ():
        if not isinstance(model, Mapping) or (version and str(model.get("version")) != version):
            continue
        stats = model.get("inference_stats")
        if not isinstance(stats, Mapping):
            continue
        is_listed = True
        requests += _number(stats.get("success"), "count")
        for part in _PARTS:
            spent[part] += _number(stats.get(part), "ns")
    return ServerTimes(requests, spent) if is_listed else None


def _number(value: Any, key: str) -> int:
    """A figure; over gRPC, where JSON has no 64 bits, it is a text. A figure of 0 may be left out."""
    found = value.get(key, 0) if isinstance(value, Mapping) else 0
    return int(found) if str(found).isdecimal() else 0
