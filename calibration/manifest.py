"""What the manifest of a ranges file says."""

from __future__ import annotations

from collections.abc import Sequence

from ..artifact import Manifest, tool_versions
from .counting import why_slow
from .ranges import Ranges


def ranges_manifest(ranges: Ranges, stage: str, notes: Sequence[str] = (), **options: object) -> Manifest:
    """Return the manifest of ranges that a stage made, for `artifact.commit`; `notes` are of the data."""
    warnings = [*notes]
    warnings += [reason] if stage == "calibrate" and (reason := why_slow()) else []
    if not ranges.samples:
        warnings.append("no sample was observed: this part of the data is empty")
    return Manifest(
        kind="ranges",
        stage=stage,
        sources={"model": ranges.model, "data": ranges.data},
        tools=tool_versions("onnx", "onnxruntime", "numpy", "numba"),
        options={"method": str(ranges.method), **options},
        proof={
            "samples": ranges.samples,
            "tensors": len(ranges.histograms),
            "shared": len(ranges.shared),
            "skipped": dict(ranges.skipped),
        },
        warnings=warnings,
    )
