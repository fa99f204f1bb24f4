"""The GPUs that an engine is built for ahead of time: those asked for against those that TensorRT knows."""

from __future__ import annotations

import re
from collections.abc import Sequence

from ...errors import InvalidOption
from .adapter import Adapter

_WHICH = (
    "RTX 30 and A10 are sm86, RTX 40 and L4 sm89, RTX 50 sm120; "
    "`qcompile doctor` tells it on the machine with the GPU"
)


def require_gpus(adapter: Adapter, gpus: Sequence[str]) -> None:
    """Check the compute capabilities that an engine is to be built for, before any work is done.

    Raises:
        InvalidOption: If this TensorRT does not build for one of them.
    """
    known = adapter.compute_capabilities()
    for gpu in gpus:
        if gpu.upper() in known:
            continue
        digits = "".join(re.findall("[0-9]", gpu))
        raise InvalidOption(
            f"`gpus` {gpu}: {adapter.name} builds for {', '.join(known).lower()}",
            hint=f"write sm{digits}" if f"SM{digits}" in known else _WHICH,
            option="gpus",
        )
