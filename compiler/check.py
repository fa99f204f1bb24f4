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
    """Return the manifest of an ONNX file that a stage writes; `tools` lists packages, space-separated."""
    proof = {"operators": count_operators(graph), **rest.pop("proof", {})}
    return Manifest(
        kind="onnx", stage=stage, precision=graph_precision(graph), io=model_io(graph),
        tools=tool_versions(*tools.split()), options=options, proof=proof, **rest,
    )  # fmt: skip


class OnnxReference:
    """An ONNX Runtime session on the CPU, for comparing the outputs of a file or a graph.

    Args:
        integers: Whether Q/DQ pairs may become integer kernels, which differ from those of other runtimes.
        layouts: Whether it may change memory layouts, which makes INT8 of a ResNet-50 1.5 times as fast.
        optimized: File to write the optimized graph to.
        signed: Whether Q/DQ of int8 activations becomes integer kernels, as on ARM (`SIGNED_ACTIVATIONS`).
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
        # This optimizer rounds stored floats between Q/DQ pairs a second time, per tensor.
        disabled = [] if integers else ["WeightBiasQuantization"]
        self._session = make_session(model, options, without=disabled)
        self.path = model.path if isinstance(model, Graph) else model
        self.names = [value.name for value in self._session.get_outputs()]

    def __call__(self, feeds: Feeds) -> Outputs:
        """Return the outputs in order."""
        return run_session(self._session, self.names, feeds, str(self.path))


def sample_feeds(model: onnx.ModelProto, data: str | None, reference: OnnxReference) -> Iterator[Feeds]:
    """Yield samples spread over the data, or random input with which a session of the model runs.

    Random input has two batch sizes if the first axis is dynamic, to detect an axis folded to a constant.
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
    """Return whether the outputs of every pair (reference, outputs) are equal up to float32 rounding.

    Args:
        subject: Name of the check, e.g. "same outputs as PyTorch at batch 3".
        lowest_db: Required signal-to-noise ratio instead of equality, for graphs that round to integers: a
            value between two integers may round to either.
    """
    compared, lowest, boxes = 0, ("", float("inf")), BoxAgreement()
    for reference, outputs in pairs:
        if len(reference) != len(outputs):
            return Check(subject, False, f"{len(outputs)} outputs; {len(reference)} are required")
        values = {}
        reordered = _reordered_boxes(names, reference, outputs)
        boxes.same, boxes.rows = boxes.same + reordered.same, boxes.rows + reordered.rows
        for name, expected, output in zip(names, reference, outputs, strict=True):
            if name in reordered.names:
                continue
            if difference := mismatch(expected, output, "fp16"):
                required, actual = difference
                return Check(subject, False, f"output {name!r}: {actual}; {required} is required")
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
        agreement = f"{boxes.same} of {boxes.rows} boxes with a partner"
        quality = agreement if lowest[1] == float("inf") else f"{quality}, {agreement}"
    return Check(subject, True, f"{compared} input{'s' * (compared != 1)}, {quality}")


_SAME_BOXES = 0.99
"""Required share of boxes with a partner: boxes with nearly equal scores may change order or drop out."""


def _reordered_boxes(names: Sequence[str], reference: Outputs, outputs: Outputs) -> BoxAgreement:
    """Return the agreement of detections in another order; empty if the order is equal or the share low."""
    boxes = BoxAgreement()
    sides = [dict(zip(names, side, strict=True)) for side in (reference, outputs)]
    boxes.add(*sides)
    pairs = [[side[name] for side in sides] for name in boxes.names]
    if all(a.shape == b.shape and output_error(a, b).close for a, b in pairs):
        return BoxAgreement()
    return boxes if boxes.same >= _SAME_BOXES * boxes.rows else BoxAgreement()
