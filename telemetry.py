"""Runtimes that report their use to their makers are kept from it, before anything imports them.

The rows of the engines say how theirs is. huggingface_hub would send names of libraries and versions with
every download.
"""

from __future__ import annotations

import os
import sys

from .spec.engines import BUILT_IN


def switch_off() -> None:
    """Switch the telemetry of runtimes off, for this process and its children."""
    os.environ["HF_HUB_DISABLE_TELEMETRY"] = "1"
    for row in BUILT_IN:
        os.environ.update(row.environment)  # whatever it was: nothing of ours reports
        for module in row.blocked:
            sys.modules.setdefault(module, None)  # type: ignore[arg-type]  # importing it fails
