"""INT8 graphs of tests."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import qcompile


def int8_graph(model: Path, data: Path, target: str, **options: Any) -> Path:
    """Quantize a model for a target, beside it, with its ranges on the data (`TARGET.ranges`)."""
    ranges = qcompile.calibrate(model, str(data), model.with_name(f"{target}.ranges"), targets=[target]).path
    output = model.with_name(f"{model.stem}.{target}.onnx")
    return qcompile.quantize(model, output, ranges=ranges, target=target, **options).path  # type: ignore[arg-type]
