"""`qcompile quantize`: convert a float ONNX file to a lower precision, and verify the result."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING

from ...calibration import Ranges, load_ranges
from ...calibration.ranges import FEW, few_samples
from ...calibration.tensorrt_cache import is_cache, read_cache
from ...core.artifact import Artifact, Check, Manifest, commit, tool_versions
from ...core.files import writing
from ...core.processor import foreign_isa_warnings, resolve_isa
from ...core.progress import Progress, silent
from ...data.batches import Data
from ...errors import InvalidOption, QuantizationError
from ...model.graph.graph import count_operators, graph_precision
from ...model.graph.graph_rules import graph_rules
from ...model.graph.onnx_file import Graph, check_written, is_large, read_graph
from ...model.sessions.random_input import run_on
from ...model.sessions.session import make_session, run_session, session_options, slower_note
from ...spec.artifacts import QuantizeSpec
from ...spec.decode import non_default_options, spec_from_call
from ...spec.words import HALVES
from .judge import Judge
from .methods import quantize_graph
from .request import OutputQuality, QuantizeRequest, check_options, check_ranges

if TYPE_CHECKING:
    from typing_extensions import Unpack

    from ...spec.keywords import QuantizeKeywords


def quantize(
    model: str | Path,
    output: str | Path,
    spec: QuantizeSpec | None = None,
    /,
    *,
    ranges: str | Path | Ranges | None = None,
    in_float: Mapping[str, str] | None = None,
    progress: Progress = silent,
    **options: Unpack[QuantizeKeywords],
) -> Artifact:
    """Quantize an ONNX file for a target, or convert it to FP16 or BF16.

    Args:
        model: Float ONNX file; for static INT8 the very file that was calibrated.
        output: ONNX file to write.
        spec: Target, precision, mode and further options.
        ranges: Ranges file in place of the spec's, or ranges in memory. Static INT8 and FP8 require them; for
            FP16 they find activations that overflow.
        in_float: Maps nodes that the runtime computes in float to the reason; static INT8 skips them.
        progress: Called at every step.
        options: Fields of `QuantizeSpec` by name, in place of those of `spec`.

    Returns:
        The file and its manifest: quantized nodes, nodes left in float with the reason, precisions that the
        runtime executes, and the signal-to-noise ratio against the float model.

    Raises:
        CalibrationError: If ranges are missing, or belong to another model.
        QuantizationError: If planned nodes are not quantized, or the result computes NaN or loses too much.
        InvalidOption: If the options contradict each other.
    """
    path = Path(model)
    overrides: dict[str, object] = {**options}
    if isinstance(ranges, str | Path):
        overrides["ranges"], ranges = ranges, None
    spec = spec_from_call(QuantizeSpec, spec, overrides)
    spec = replace(spec, isa=resolve_isa(spec.isa, spec.target))
    check_options(spec)
    if ranges is None and spec.ranges is not None:
        ranges = read_cache(spec.ranges, path) if is_cache(spec.ranges) else load_ranges(spec.ranges)
    graph = read_graph(path)
    quantized, manifest = quantize_in_memory(
        graph, graph.digest(), spec, ranges=ranges, in_float=in_float or {}, progress=progress
    )
    if spec.precision == "int8":
        slower = _slower_warning(graph, quantized, spec, progress)
        manifest = replace(manifest, warnings=[*manifest.warnings, *slower])
    with writing(Path(output)) as file:
        quantized.save(file)
        check_written(file, path)
        return Artifact(Path(output), commit(file, manifest))


def quantize_in_memory(
    graph: Graph,
    digest: str,
    spec: QuantizeSpec,
    *,
    ranges: Ranges | None,
    in_float: Mapping[str, str] = MappingProxyType({}),
    is_plan: bool = False,
    progress: Progress = silent,
) -> tuple[Graph, Manifest]:
    """Return a graph quantized according to the spec, with its manifest; see `quantize`.

    Args:
        digest: Digest of the model's file; the ranges must have the same.
        spec: Options, with `isa` resolved (not "auto").
        is_plan: Whether the graph is provisional: a later graph, not this one, is compared on the data.
    """
    graph.load()
    request = QuantizeRequest(graph, digest, spec, ranges, in_float, progress)
    check_ranges(request)
    warnings = few_samples("calibrated on", ranges.samples) if ranges else []
    if spec.data is not None:  # read before the work
        first = Data(spec.data, graph.io.inputs, limit=FEW + 1)
        warnings = warnings or few_samples("the data has", sum(batch.samples for batch in first))
    present = graph_precision(graph.model)
    if present != "fp32":
        raise InvalidOption(
            f"{graph.path}: its graph is {present} already", hint="quantize the float model instead"
        )
    progress(f"quantize to {spec.precision}")
    method = {}  # threshold method of static quantization
    if ranges is not None and spec.mode == "static":
        method["method"] = "as in the cache" if ranges.fixed else spec.method or str(ranges.method)
    judge = Judge(request)
    outcome = quantize_graph(request, judge)
    warnings += outcome.warnings
    checks, flaw = [], ""
    if not is_plan:
        progress("compare with the float model")
        if "fp16" in {spec.precision, spec.floats}:
            # ONNX Runtime rejects mismatched types; the comparison, rounded in float32, does not find them.
            make_session(Graph(outcome.model, graph.path), session_options(optimize=False))
        check, flaw = _check_outputs(request, outcome.judged or judge(outcome), judge.place)
        checks = [check]
    if flaw and not (spec.allow_loss or spec.data is None or spec.precision in HALVES):
        refusal = outcome.proof.get("search_refusal")
        hint = "try another `method`, `exclude` or `layers`, or `qcompile tune`; `allow_loss` accepts it"
        if refusal:
            hint = (
                "INT8 does not suit this model: keep it in float (`precision` fp16 or bf16), exclude more "
                "layers (`exclude`), train it with `qcompile.qat`, or measure its task with `qcompile tune`; "
                "`allow_loss` accepts it"
            )
        raise QuantizationError(f"{graph.path}: {flaw}" + (f"; {refusal}" if refusal else ""), hint=hint)
    if flaw:
        advice = "; random input may lie outside the ranges: `data` gives samples"
        warnings.append(flaw if spec.data is not None else f"{flaw}{advice}")
    manifest = Manifest(
        kind="onnx",
        stage="quantize",
        target=spec.target,
        precision=spec.precision,
        io=graph.io,
        sources={"model": digest} | ({"calibration data": ranges.data} if ranges else {}),
        tools=tool_versions("onnx", "onnxruntime", "numpy"),
        options=non_default_options(spec, without=("target", "precision")),
        proof={**method, **outcome.proof, "operators": count_operators(outcome.model)},
        checks=checks,
        warnings=warnings,
    )
    return Graph(outcome.model, graph.path), manifest


def _slower_warning(graph: Graph, quantized: Graph, spec: QuantizeSpec, progress: Progress) -> list[str]:
    """Return a warning if ONNX Runtime runs the result slower than the float model on this processor."""
    if not graph_rules(spec.target).by_onnxruntime or foreign_isa_warnings(spec.isa) or is_large(graph.model):
        return []
    progress("compare speed with the float model")
    original, candidate = (make_session(one, session_options()) for one in (graph, quantized))
    sample = None if spec.data is None else next(iter(Data(spec.data, graph.io.inputs, batch_size=1))).feeds
    feeds, _ = run_on(graph.model, sample, lambda feeds: run_session(original, [], feeds, str(graph.path)))
    return slower_note(lambda: original.run([], feeds), lambda: candidate.run([], feeds))


def _check_outputs(request: QuantizeRequest, judged: OutputQuality, place: str) -> tuple[Check, str]:
    """Return the SNR check against the float model, and the outputs that `diff` would reject, as text.

    `place` is `Judge.place`: how many samples, and in front of which operators if not at the outputs.
    """
    is_half = request.spec.precision in HALVES
    is_guess = is_half and not request.spec.data  # random input does not show if real values fit a half
    if judged.broken and not is_guess:
        raise QuantizationError(
            f"{request.path}: output {judged.broken!r} became NaN or infinite",
            hint="exclude the layers concerned",
            tensor=judged.broken,
        )
    data = ("the data" if request.spec.data else "random input") + place
    failed = [f"output {one.output!r} has {one.measured} on {data}; {one.criterion} is required"
              for one in judged.failed]  # fmt: skip
    flaw = "" if is_guess else "; ".join(failed)
    if judged.broken:
        flaw = f"output {judged.broken!r} becomes NaN or infinite in {request.spec.precision} on random input"
    lowest = min(judged.outputs, key=lambda one: (one.is_labels, one.snr_db))
    figure = lowest.measured if lowest.is_labels else f"{lowest.snr_db:.1f} dB"
    detail = f"{figure} at output {lowest.output!r} on {data}" + (f", {lowest.masks}" if lowest.masks else "")
    return Check("signal-to-noise ratio", is_half or not (flaw and request.spec.data), detail), flaw
