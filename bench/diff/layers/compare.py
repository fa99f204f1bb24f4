"""Compare an artifact with its reference tensor by tensor."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

from ....core.files import temporary_folder
from ....core.progress import Progress, silent
from ....errors import InvalidOption
from ....model.graph.graph import consumers
from ....model.graph.onnx_file import read_weightless
from ....spec.decode import spec_from_call
from ....spec.measure import LayerDiffSpec
from .outcome import LayerDiff
from .pairing import Pairs, TensorPair, pair_outputs, pair_tensors, subset
from .rebuild import EngineLayerSearch, EngineRuns, EngineSource
from .search import LayerSearch
from .sides import Form, Side, artifact_side, input_casts, reference_side
from .taps import LayerRuns, require_polygraphy, save_results, write_samples

if TYPE_CHECKING:
    import onnx
    from typing_extensions import Unpack

    from ....spec.keywords import LayerDiffKeywords

SAMPLES = 8  # enough to locate a fault: each sample has thousands of elements per tensor


def layer_diff(
    reference: str,
    artifact: str,
    spec: LayerDiffSpec | None = None,
    /,
    *,
    source: EngineSource | None = None,
    progress: Progress = silent,
    **options: Unpack[LayerDiffKeywords],
) -> LayerDiff:
    """Compare an artifact with its reference tensor by tensor; a diverging tensor is a result, not an error.

    Args:
        reference: ONNX file with the correct values.
        artifact: Its quantized, FP16 or BF16 version, or a TensorRT engine.
        spec: Options of the comparison.
        source: Graph and options of an engine's build, to compare inner tensors; without it, outputs only.
        progress: Called at every run.
        options: Fields of `LayerDiffSpec` by name, in place of those of `spec`.
    """
    spec = spec_from_call(LayerDiffSpec, spec, options)
    if spec.save_results is not None:
        require_polygraphy()
    ours, theirs = reference_side(reference, trust=spec.trust), artifact_side(artifact, trust=spec.trust)
    casts = input_casts(ours, theirs)
    progress("pair tensors")
    assert ours.weightless is not None, "`reference_side` takes ONNX files alone"
    if theirs.weightless is not None or spec.max_builds == 0:
        source = None
    pairs = _pairs(ours, ours.weightless.model, theirs, source)
    with temporary_folder("layers") as folder:
        limit = spec.samples or SAMPLES
        samples = write_samples(
            ours.weightless, spec.data, folder / "samples", limit=limit, is_spread=spec.samples is None
        )
        most, keep = spec.taps or len(pairs.pairs), spec.save_results is not None
        settings: dict[str, Any] = {"threads": spec.threads, "casts": casts, "progress": progress}
        sides = (ours, theirs, pairs, samples)
        comparison: LayerSearch
        if source is None:
            comparison = LayerSearch(LayerRuns(*sides, **settings), most, spec.threshold, keep=keep)
        else:
            parts = EngineRuns(source, *sides, **settings)
            comparison = EngineLayerSearch(parts, most, spec.threshold, keep=keep, max_builds=spec.max_builds)
        comparison.run()
        runs = comparison.runs
        if not comparison.errors:
            why = next(iter(runs.refused.values()), "nothing was measured")
            raise InvalidOption(f"{artifact}: no tensor can be compared with {reference}'s: {why}")
        if spec.save_results is not None:
            save_results(runs, comparison.pairs_to_save(), spec.save_results)
        return comparison.outcome(reference, artifact, casts)


def _pairs(reference: Side, model: onnx.ModelProto, artifact: Side, source: EngineSource | None) -> Pairs:
    if source is not None:
        graph = read_weightless(source.graph).model
        pairs = engine_pairs(pair_tensors(model, graph), graph)
    elif artifact.weightless is not None:
        pairs = pair_tensors(model, artifact.weightless.model)
    else:
        pairs = pair_outputs(model, [tensor.name for tensor in artifact.io.outputs])
        if not pairs.pairs:
            raise InvalidOption(f"{artifact.path}: no output pairs with a tensor of {reference.path}")
    if not pairs.pairs:
        raise InvalidOption(
            f"{artifact.path}: no tensor pairs with one of {reference.path}, by name or by structure",
            hint="compare an artifact with the ONNX file that it was made from",
        )
    return pairs


def engine_pairs(pairs: Pairs, graph: onnx.ModelProto) -> Pairs:
    """Return the pairs that can be outputs of an engine; integers become their DequantizeLinear's output."""
    readers = consumers(graph.graph)
    visible: dict[int, TensorPair] = {}
    for index, pair in enumerate(pairs.pairs):
        dequantizers = [node for node in readers.get(pair.artifact, []) if node.op_type == "DequantizeLinear"]
        if not pair.form.is_integer:
            visible[index] = pair
        elif dequantizers:
            form = Form(channels_last=pair.form.channels_last)
            visible[index] = replace(pair, artifact=str(dequantizers[0].output[0]), form=form)
    new_pairs = tuple(visible.get(index, pair) for index, pair in enumerate(pairs.pairs))
    return subset(replace(pairs, pairs=new_pairs), list(visible))
