"""Compare a built model of integer kernels with the graph that it was built from, computed as it is written.

The proof counts kernels. It does not see a kernel, or a rewrite of the optimizer, that computes something
else.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from ...artifact import Check
from ...errors import BuildError, ModelError
from ...model.graph import holds_half
from ...model.output_error import output_error, worst
from ...model.session import make_session, run_session, session_options
from ...tensors import Feeds

if TYPE_CHECKING:
    import onnx

LEAST_DB = 10.0
"""Integer kernels may round to the next integer, which costs as much as INT8 did in the first place: 20 dB to
60 dB are usual. Below this, less than two bits of an output are right."""

_SUBJECT = "computes what its graph says"


def compare_with_graph(
    graph: Path, before: onnx.ModelProto, artifact: Path, feeds: Feeds, threads: int
) -> tuple[list[Check], str]:
    """Return the check and, where it fails, why; nothing where the graph has no Q/DQ.

    Args:
        graph: The file before ONNX Runtime's optimizer.
        before: Its content.
        artifact: The file behind it. It is opened with the default options, as whoever gets it will.
        feeds: What both run on.
        threads: Thread count; 0 leaves the choice to ONNX Runtime.
    """
    if not any(node.op_type == "QuantizeLinear" for node in before.graph.node):
        return [], ""
    names = [value.name for value in before.graph.output]
    try:
        plain = make_session(graph, session_options(threads, optimize=False))
        expected = run_session(plain, names, feeds, str(graph))
        del plain  # the memory of one session at a time
    except ModelError as error:  # a type that only the optimizer's casts give a kernel
        return [Check(_SUBJECT, True, f"not compared: {error.message}")], ""
    options = session_options(threads, layouts=not holds_half(before))
    made = make_session(artifact, options, error=BuildError)
    found = run_session(made, names, feeds, str(artifact))
    errors = {
        name: output_error(one, other)
        for name, one, other in zip(names, expected, found, strict=True)
        if one.dtype.kind == "f" and one.size
    }
    if not errors:
        return [], ""
    name, largest = worst(errors)
    equal = largest.snr_db == float("inf")
    detail = f"output {name!r}: {'equal' if equal else f'{largest.snr_db:.1f} dB'}"
    failure = "" if largest.snr_db >= LEAST_DB else f"ONNX Runtime computes another {detail} of its own graph"
    return [Check(_SUBJECT, not failure, detail)], failure
