"""Compare the outputs of an ONNX file with those of its original, on real or random input."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import onnx
from numpy.typing import NDArray

from ..core.artifact import Check, Manifest, tool_versions
from ..data.batches import Data
from ..model.graph.graph import count_operators, graph_precision, model_io
from ..model.graph.onnx_file import Graph
from ..model.outputs.boxes import BoxAgreement
from ..model.outputs.judgement import output_error
from ..model.sessions.random_input import RandomInput
from ..model.sessions.session import SIGNED_ACTIVATIONS, make_session, run_session, session_options
from ..spec.tensors import Feeds, mismatch

Outputs = list[NDArray[Any]]
_DATA_SAMPLES = 16


def graph_manifest(
    stage: str, graph: onnx.ModelProto, tools: str, options: Mapping[str, object], **rest: Any
) -> Manifest:
    """Return the manifest of an ONNX file that a stage writes; `tools` names packages."""
    proof = {"operators": count_operators(graph), **rest.pop("proof", {})}
    return Manifest(
        kind="onnx", stage=stage, precision=graph_precision(graph), io=model_io(graph),
        tools=tool_versions(*tools.split()), options=options, proof=proof, **rest,
    )  # fmt: skip


class OnnxReference:
    """A plain ONNX Runtime session of a file or a graph, for comparing outputs.

    Args:
        integers: Whether it may make integer kernels of Q/DQ pairs, which say nothing of another runtime.
        layouts: Whether it may choose layouts of memory: INT8 of a ResNet-50 is 1.5 times as fast then.
        optimized: File to write what its optimizer makes of the graph.
        signed: Whether int8 activations become integers, as on ARM (`SIGNED_ACTIVATIONS`).
    """

    def __init__(
        self,
        model: Path | Graph,
        *,
        optimize: bool = True,
        integers: bool = True,
        layouts: bool = False,
        optimized: Path | None = None,
        signed: bool = False,
    ) -> None:
        options = session_options(layouts=layouts, optimize=optimize, integers=integers)
        if optimized is not None:
            options.optimized_model_filepath = str(optimized)
        if signed:
            options.add_session_config_entry(SIGNED_ACTIVATIONS, "1")
        # That optimizer rounds stored floats between Q/DQ pairs once more, and by tensor.
        without = [] if integers else ["WeightBiasQuantization"]
        self._session = make_session(model, options, without=without)
        self.path = model.path if isinstance(model, Graph) else model
        self.names = [value.name for value in self._session.get_outputs()]

    def __call__(self, feeds: Feeds) -> Outputs:
        """Return the outputs in order."""
        return run_session(self._session, self.names, feeds, str(self.path))


def sample_feeds(model: onnx.ModelProto, data: str | None, reference: OnnxReference) -> Iterator[Feeds]:
    """Yield samples that are spread over the data, or random input that a session of the model runs on.

    Random input is of two batch sizes, so that an axis that was folded to a constant is found out.
    """
    if data is None:
        random_input = RandomInput(model)
        yield random_input.run(reference)[0]
        if random_input.has_batch:
            yield random_input.run(reference, 3, seed=1)[0]
        return
    yield from Data(data, model_io(model).inputs).spread(_DATA_SAMPLES).batches


def compare_outputs(
    subject: str,
    names: Sequence[str],
    pairs: Iterable[tuple[Outputs, Outputs]],
    *,
    lowest_db: float | None = None,
) -> Check:
    """Return whether every pair (reference, outputs) is equal up to float32 rounding.

    Args:
        subject: Name of the check, such as "same outputs as PyTorch at batch 3".
        lowest_db: Require this signal-to-noise ratio instead: both sides round to integers, and a value
            between two of them may go either way.
    """
    compared, lowest, boxes = 0, ("", float("inf")), BoxAgreement()
    for reference, outputs in pairs:
        if len(reference) != len(outputs):
            return Check(subject, False, f"{len(outputs)} outputs; {len(reference)} are required")
        values = {}
        chosen = _reordered_boxes(names, reference, outputs)
        boxes.same, boxes.rows = boxes.same + chosen.same, boxes.rows + chosen.rows
        for name, expected, output in zip(names, reference, outputs, strict=True):
            if name in chosen.names:
                continue
            if differs := mismatch(expected, output, "fp16"):
                required, found = differs
                return Check(subject, False, f"output {name!r}: {found}; {required} is required")
            values[name] = output_error(expected, output)
        for name, value in values.items():
            if not (value.close if lowest_db is None else value.snr_db >= lowest_db):
                largest = f"(largest value {value.max_abs:.3g}, {value.snr_db:.1f} dB)"
                detail = f"output {name!r} differs by up to {value.max_abs_error:.3g} {largest}"
                detail += f", {value.masks}" if value.unmasked else ""
                return Check(subject, False, detail)
        all_db = [lowest, *((name, value.snr_db) for name, value in values.items())]
        lowest = min(all_db, key=lambda item: item[1])
        compared += 1
    quality = "equal" if lowest[1] == float("inf") else f"{lowest[1]:.1f} dB or better"
    if boxes.rows:
        found = f"{boxes.same} of {boxes.rows} boxes with a partner"
        quality = found if lowest[1] == float("inf") else f"{quality}, {found}"
    return Check(subject, True, f"{compared} input{'s' * (compared != 1)}, {quality}")


_SAME_BOXES = 0.99
"""Share of boxes with a partner: of nearly equal scores another may come first, or be one too many."""


def _reordered_boxes(names: Sequence[str], reference: Outputs, outputs: Outputs) -> BoxAgreement:
    """Return the boxes, labels and scores that are the same in another order; none where they are equal."""
    boxes = BoxAgreement()
    sides = [dict(zip(names, side, strict=True)) for side in (reference, outputs)]
    boxes.add(*sides)
    pairs = [[side[name] for side in sides] for name in boxes.names]
    if all(a.shape == b.shape and output_error(a, b).close for a, b in pairs):
        return BoxAgreement()
    return boxes if boxes.same >= _SAME_BOXES * boxes.rows else BoxAgreement()
