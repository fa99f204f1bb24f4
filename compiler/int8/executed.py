"""What ONNX Runtime makes of a graph: its optimizer is run, and the result is read."""

from __future__ import annotations

import re
import tempfile
from collections.abc import Collection, Sequence
from pathlib import Path

from ...errors import QuantizationError
from ...model.graph import count_weighted, weighted_nodes
from ...model.onnx_file import load_onnx
from ...model.session import optimize_file, session_options

_SIGNED_ACTIVATIONS = "session.qdqisint8allowed"  # on where the processor is ARM, off on x86


def require_executed(
    path: Path, planned: Sequence[str], *, signed: bool = False
) -> dict[str, dict[str, int]]:
    """Return precision to operator to number of the weighted nodes that ONNX Runtime will execute.

    Args:
        path: ONNX file with Q/DQ.
        planned: Names of the weighted nodes that are to be integer.
        signed: Whether activations are int8, for an ARM processor: on x86 ONNX Runtime fuses those only
            when it is told to.

    Raises:
        QuantizationError: If fewer integer kernels than planned are executed, with the names.
    """
    with tempfile.TemporaryDirectory(prefix="qcompile-executed-") as folder:
        optimized = Path(folder) / "optimized.onnx"
        options = session_options()
        if signed:
            options.add_session_config_entry(_SIGNED_ACTIVATIONS, "1")
        optimize_file(path, optimized, options)
        model = load_onnx(optimized)
    counts = count_weighted(model, as_executed=True)
    reached = sum(counts["int8"].values())
    if reached < len(planned):
        integer = {node.name for node in weighted_nodes(model, as_executed=True)["int8"]}
        missed = [name for name in planned if not integer & {name, *_renamed(name, integer)}]
        raise QuantizationError(
            f"ONNX Runtime executes {reached} of {len(planned)} planned nodes as integers; in float stay "
            f"{', '.join(map(repr, missed[:5]))}",
            hint="leave them in float with --exclude: as they are they only cost conversions",
            nodes=missed,
        )
    return counts


def _renamed(name: str, found: Collection[str]) -> set[str]:
    """Those that ONNX Runtime made of a node, as it numbers them: `conv1_token_4` of `conv1`."""
    return {other for other in found if re.fullmatch(re.escape(name) + r"_token_\d+", other)}
