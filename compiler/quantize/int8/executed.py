"""Run ONNX Runtime's optimizer and count the nodes that it executes as integers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from ....errors import QuantizationError
from ....files import temporary_folder
from ....model.executed import missed_nodes
from ....model.graph import count_weighted, weighted_nodes
from ....model.multiply_adds import ALLOWED_SHARE, multiply_adds, named, shares
from ....model.onnx_file import load_onnx
from ....model.session import SIGNED_ACTIVATIONS, optimize_file, session_options


def executed(
    path: Path, planned: Sequence[str], *, signed: bool = False
) -> tuple[dict[str, dict[str, int]], dict[str, str]]:
    """Return precision to operator to number of the weighted nodes that ONNX Runtime will execute, and the
    planned ones that it computes in float, each with what it computes them in.

    Args:
        path: ONNX file with Q/DQ.
        planned: Names of the weighted nodes that are to be integer.
        signed: Whether activations are int8, for an ARM processor: on x86 ONNX Runtime fuses those only
            when it is told to.
    """
    with temporary_folder("executed") as folder:
        optimized = folder / "optimized.onnx"
        options = session_options()
        if signed:
            options.add_session_config_entry(SIGNED_ACTIVATIONS, "1")
        optimize_file(path, optimized, options)
        model = load_onnx(optimized)
    asked = [node for node in weighted_nodes(load_onnx(path))["int8"] if node.name in set(planned)]
    missed, unknown = missed_nodes(asked, model, "int8")
    reasons = {name: f"ONNX Runtime computes it in {kind}" for name, kind in missed.items()}
    reasons |= dict.fromkeys(unknown, "ONNX Runtime does not compute it as an integer")
    return count_weighted(model, as_executed=True), reasons


def require_executed(path: Path, planned: Sequence[str], missed: Mapping[str, str]) -> list[str]:
    """Weigh what missed; return what the user should know of it.

    Args:
        path: ONNX file with Q/DQ.
        planned: Names of the weighted nodes that are to be integer.
        missed: Those that are not, with the reason.

    Raises:
        QuantizationError: If they are more than 10% of the planned multiply-adds, with the names.
    """
    if not missed:
        return []
    share, counted = shares(planned, multiply_adds(load_onnx(path, external_data=False)))
    total = sum(share[name] for name in missed)
    text = (
        f"ONNX Runtime executes {len(planned) - len(missed)} of {len(planned)} planned nodes as integers; "
        f"{total:.1%} of the planned {counted} stay in float: {named(missed, share)}"
    )
    if total > ALLOWED_SHARE:
        raise QuantizationError(
            text,
            hint="leave them in float with `exclude`: as they are they only cost conversions",
            nodes=list(missed),
        )
    return [text]
