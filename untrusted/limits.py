"""How much a verb on a stranger's files may take."""

from __future__ import annotations

import math
from dataclasses import dataclass

from ..errors import InvalidOption

MEMORY_GB = 8.0
"""Default of the memory that the processes of a verb may hold together, in 10**9 bytes."""
TIME_S = 1800.0
"""Default of the time that a verb may take."""
_LEAST_MEMORY_GB = 0.1


@dataclass(frozen=True)
class Limits:
    """Limits of one verb with all processes that it starts.

    Attributes:
        memory_gb: Memory of their own that they may hold together, in 10**9 bytes. Mapped files, as weights
            are, do not count: the system can drop their pages.
        time_s: Seconds by the clock.

    Raises:
        InvalidOption: If one is no number above the least.
    """

    memory_gb: float = MEMORY_GB
    time_s: float = TIME_S

    def __post_init__(self) -> None:
        for name, value, least in (
            ("memory_limit_gb", self.memory_gb, _LEAST_MEMORY_GB),
            ("time_limit_s", self.time_s, math.ulp(0.0)),
        ):
            if not least <= value < math.inf:
                required = f"a number from {least} on" if least == _LEAST_MEMORY_GB else "a positive number"
                raise InvalidOption(f"`{name}` {value}: {required} is required", option=name)
