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
        memory_gb: Memory of their own that they may hold together, in 10**9 bytes. Files that are mapped
            into memory, as weights are, do not count: the system can drop their pages.
        time_s: Seconds by the clock.

    Raises:
        InvalidOption: If one is no number above the least.
    """

    memory_gb: float = MEMORY_GB
    time_s: float = TIME_S

    def __post_init__(self) -> None:
        if not _LEAST_MEMORY_GB <= self.memory_gb < math.inf:
            raise InvalidOption(
                f"`memory_limit_gb` {self.memory_gb}: a number from {_LEAST_MEMORY_GB} on is required",
                option="memory_limit_gb",
            )
        if not 0 < self.time_s < math.inf:
            raise InvalidOption(
                f"`time_limit_s` {self.time_s}: a positive number is required", option="time_limit_s"
            )

    @property
    def memory_bytes(self) -> int:
        """The limit on memory in bytes."""
        return int(self.memory_gb * 1e9)
