"""`calibrate`: find the tensors that need a scale, observe them on samples, and write a ranges file."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING

from ...calibration import observe, parse_method, save_ranges
from ...calibration.calibrate import parse_shard
from ...calibration.ranges_file import ranges_manifest
from ...core.artifact import Artifact, commit
from ...core.files import check_output, writing
from ...core.progress import Progress, silent
from ...data.batches import Data
from ...data.memory import stored
from ...errors import CalibrationError
from ...model.graph.graph_edits import store_constants
from ...model.graph.graph_names import name_nodes
from ...model.graph.graph_rules import graph_rules
from ...model.graph.onnx_file import Graph, copy_model, read_weightless
from ...spec.decode import spec_from_call
from ...spec.models import CalibrateSpec
from ...spec.tensors import Dataset
from ...spec.words import GRAPH_TARGETS, GraphTarget
from ..opset.recurrent_products import recurrent_inputs
from .int8.placement import place_nodes, scaled_tensors
from .int8.rewrites import is_table
from .prepare import sum_to_add
from .request import hint_without_static

_RECURRENCES = {"LSTM", "GRU", "RNN", "Loop", "Scan"}

if TYPE_CHECKING:
    import onnx
    from typing_extensions import Unpack

    from ...spec.keywords import CalibrateKeywords


def calibrate(
    model: str | Path,
    data: Dataset | Data,
    output: str | Path,
    spec: CalibrateSpec | None = None,
    /,
    *,
    checkpoint: Path | None = None,
    progress: Progress = silent,
    **options: Unpack[CalibrateKeywords],
) -> Artifact:
    """Observe the tensors that get a scale for the targets, and write a ranges file.

    Samples run one by one; memory does not grow with their number. The histograms depend on the sample values
    only, not on batch size, order, shards or interruptions.

    Args:
        model: Float ONNX file.
        data: Spelling of the samples, such as "images/" or "data.py:calibration", or samples in memory.
        output: Ranges file to write.
        spec: Targets, method and amount of calibration.
        checkpoint: Checkpoint file of an interrupted calibration; by default a file beside the output.
        progress: Called after every sample.
        options: Fields of `CalibrateSpec` by name, in place of those of `spec`.

    Returns:
        The ranges file and its manifest.

    Raises:
        DataError: If samples do not fit or hold NaN or infinity.
        CalibrationError: If the model has no float activation, or one becomes NaN or infinite.
        ModelError: If ONNX Runtime refuses the model.
        InvalidOption: If the method or the shard is misspelled.
    """
    spec, output = spec_from_call(CalibrateSpec, spec, options), Path(output)
    weightless = read_weightless(Path(model))
    try:
        tensors = tensors_to_calibrate(weightless, spec.targets or GRAPH_TARGETS)
    except (IndexError, KeyError, TypeError, ValueError):
        weightless.check()  # raises the actual defect of a damaged file
        raise
    method, shard = parse_method(spec.method), parse_shard(spec.shard)
    check_output(output, is_model=False)
    if not isinstance(data, Data):
        inputs, limit = weightless.io.inputs, spec.samples or None
        data = Data(stored(data, inputs=inputs, limit=limit), inputs, batch_size=1, limit=limit)
    checkpoint = checkpoint or output.with_name(f".{output.name}.checkpoint")
    if not spec.resume:
        checkpoint.unlink(missing_ok=True)
    ranges = observe(
        weightless, data, tensors=tensors, shard=shard, threads=spec.threads, checkpoint=checkpoint,
        progress=progress,
    )  # fmt: skip
    ranges.method = method
    progress("choose thresholds")
    with writing(output) as path:
        save_ranges(ranges, path)
        manifest = commit(path, ranges_manifest(ranges, "calibrate", data.notes(), shard=spec.shard))
    checkpoint.unlink(missing_ok=True)
    return Artifact(output, manifest)


def tensors_to_calibrate(model: Graph, targets: Iterable[GraphTarget] = GRAPH_TARGETS) -> set[str]:
    """Return the tensors that get a scale when a float model (weights may be absent) is quantized."""
    ready = _prepare(model.model)
    tensors: set[str] = set()
    every = ["*"] if ready.graph.node else []
    for target in targets:
        tensors |= scaled_tensors(
            ready, place_nodes(ready, target, chosen=every)
        )  # users may force any layer
        if graph_rules(target).opens_recurrences:
            tensors |= recurrent_inputs(ready)
    if not tensors:
        operators = {node.op_type for node in ready.graph.node}
        by_onnxruntime = any(graph_rules(target).by_onnxruntime for target in targets)
        stored = {tensor.name: tensor for tensor in ready.graph.initializer}
        hint = "simplify first; qcompile inspect shows the operators"
        if operators & _RECURRENCES:
            hint = hint_without_static(operators, by_onnxruntime=by_onnxruntime)
        elif by_onnxruntime and any(is_table(node, stored) for node in ready.graph.node):
            hint = "`qcompile quantize` with `mode` dynamic stores its lookup tables in 8 bits"
        raise CalibrationError(
            f"{model.path}: no operator would be quantized; nothing to calibrate",
            hint=hint,
            file=model.path,
        )
    return tensors


def _prepare(model: onnx.ModelProto) -> onnx.ModelProto:
    """Return a copy with the steps of `prepare_graph` that placement depends on."""
    named = copy_model(model)
    name_nodes(named.graph)
    sum_to_add(named.graph)
    store_constants(named.graph)
    for node in named.graph.node:
        if node.op_type == "Gemm":
            del node.input[2:]  # `prepare_graph` gives the bias the required form; weights are absent here
    return named
