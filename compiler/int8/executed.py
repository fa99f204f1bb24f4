"""What ONNX Runtime makes of a graph: its optimizer is run, and the result is read."""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from pathlib import Path

from ...errors import QuantizationError
from ...model.graph import count_weighted, weighted_nodes
from ...model.onnx_file import load_onnx
from ...model.session import optimize_file, session_options


def require_executed(path: Path, planned: Sequence[str]) -> dict[str, dict[str, int]]:
    """Return precision to operator to number of the weighted nodes that ONNX Runtime will execute.

    Args:
        path: ONNX file with Q/DQ.
        planned: Names of the weighted nodes that are to be integer.

    Raises:
        QuantizationError: If fewer integer kernels than planned are executed, with the names.
    """
    with tempfile.TemporaryDirectory(prefix="qcompile-executed-") as folder:
        optimized = Path(folder) / "optimized.onnx"
        optimize_file(path, optimized, session_options())
        model = load_onnx(optimized)
    counts = count_weighted(model, as_executed=True)
    reached = sum(counts["int8"].values())
    if reached < len(planned):
        in_float = {node.name for node in weighted_nodes(model, as_executed=True)["fp32"]}
        missed = [name for name in planned if any(found.startswith(name) for found in in_float)]
        raise QuantizationError(
            f"ONNX Runtime executes {reached} of {len(planned)} planned nodes as integers; in float stay "
            f"{', '.join(map(repr, missed[:5])) or 'nodes that it renamed'}",
            hint="leave them in float with --exclude: as they are they only cost conversions",
            nodes=missed,
        )
    return counts
