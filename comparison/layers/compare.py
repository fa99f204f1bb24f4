"""Compare an artifact with its reference tensor by tensor."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from ...errors import InvalidOption
from ...files import temporary_folder
from ...model.graph import consumers
from ...model.weightless import read_weightless
from ...progress import Progress, silent
from .forms import Form
from .outcome import LayerDiff
from .pairing import Pairs, pair_outputs, pair_tensors, restricted
from .rebuild import EngineRefinement, EngineRuns, EngineSource
from .search import Refinement
from .sides import Side, artifact_side, input_casts, reference_side
from .taps import LayerRuns, require_polygraphy, save_results, write_samples

if TYPE_CHECKING:
    import onnx


SAMPLES = 8
"""Enough to place a fault: a tensor has thousands of elements in each."""


def layer_diff(
    reference: str,
    artifact: str,
    *,
    data: str | None = None,
    samples: int = SAMPLES,
    taps: int | None = None,
    threshold_db: float | None = None,
    threads: int = 0,
    trust: bool = False,
    results: Path | None = None,
    source: EngineSource | None = None,
    max_builds: int | None = None,
    progress: Progress = silent,
) -> LayerDiff:
    """Compare an artifact with its reference tensor by tensor.

    Args:
        reference: ONNX file that is right by definition.
        artifact: Its quantized, FP16 or BF16 version, or an engine of TensorRT.
        data: Samples; made input otherwise.
        samples: Use at most this many.
        taps: Tensors read in one run; None takes as many as leave memory where it is without.
        threshold_db: Signal-to-noise ratio below which a tensor diverges; by the precision otherwise.
        threads: Threads of each run; 0 lets the runtime choose.
        trust: Take files that are not what their manifests say, and engines without one, all the same.
        results: Write the values around the first bad tensor here, as Polygraphy's `RunResults`.
        source: What an engine was built from: parts of it are built and run, to see inside the engine.
            Without it, the engine's outputs alone are compared.
        max_builds: Build at most so many engines; None takes 3 and the logarithm of the tensors to base 2.
        progress: Told of every run.

    Returns:
        The comparison; a tensor that diverges is a result, not an error.
    """
    if taps is not None and taps < 1:
        raise InvalidOption(f"`taps` {taps}: at least 1 is required", option="taps")
    if samples < 1:
        raise InvalidOption(f"`samples` {samples}: at least 1 is required", option="samples")
    if threshold_db is not None and math.isnan(threshold_db):
        raise InvalidOption("`threshold` nan: a number of decibels is required", option="threshold")
    if max_builds is not None and max_builds < 0:
        raise InvalidOption(f"`max_builds` {max_builds}: 0 or more is required", option="max_builds")
    if results is not None:
        require_polygraphy()
    left, right = reference_side(reference, trust=trust), artifact_side(artifact, trust=trust)
    casts = input_casts(left, right)
    progress("pair tensors")
    assert left.weightless is not None, "`reference_side` takes ONNX files alone"
    if right.weightless is not None or max_builds == 0:
        source = None
    pairs = _pairs(left, right, source)
    with temporary_folder("layers") as folder:
        written = write_samples(left.weightless, data, folder / "samples", limit=samples)
        most, keep = taps or len(pairs.pairs), results is not None
        runs: LayerRuns
        comparison: Refinement
        if source is None:
            runs = LayerRuns(left, right, pairs, written, threads=threads, casts=casts, progress=progress)
            comparison = Refinement(runs, most, threshold_db, keep=keep)
        else:
            runs = parts = EngineRuns(
                left, right, pairs, written, source, threads=threads, casts=casts, progress=progress
            )
            comparison = EngineRefinement(parts, most, threshold_db, keep=keep, max_builds=max_builds)
        comparison.run()
        if not comparison.errors:
            why = next(iter(runs.refused.values()), "nothing was measured")
            raise InvalidOption(f"{artifact}: no tensor can be compared with {reference}'s: {why}")
        if results is not None:
            save_results(runs, comparison.shown(), results)
        return comparison.outcome(reference, artifact, casts)


def _pairs(reference: Side, artifact: Side, source: EngineSource | None) -> Pairs:
    assert reference.weightless is not None
    if source is not None:
        graph = read_weightless(source.graph).model
        pairs = observable(pair_tensors(reference.weightless.model, graph), graph)
    elif artifact.weightless is None:
        pairs = pair_outputs(reference.weightless.model, [tensor.name for tensor in artifact.io.outputs])
        if not pairs.pairs:
            raise InvalidOption(f"{artifact.path}: no output pairs with a tensor of {reference.path}")
        return pairs
    else:
        pairs = pair_tensors(reference.weightless.model, artifact.weightless.model)
    if not pairs.pairs:
        raise InvalidOption(
            f"{artifact.path}: no tensor pairs with one of {reference.path}, by name or by structure",
            hint="compare an artifact with the ONNX file that it was made from",
        )
    return pairs


def observable(pairs: Pairs, graph: onnx.ModelProto) -> Pairs:
    """Return the pairs of a graph that can be outputs of an engine: of integers, what they are scaled to."""
    readers = consumers(graph.graph)
    found, kept = list(pairs.pairs), []
    for index, pair in enumerate(pairs.pairs):
        if not pair.form.is_integer:
            kept.append(index)
            continue
        scaled = [node for node in readers.get(pair.artifact, []) if node.op_type == "DequantizeLinear"]
        if scaled:
            form = Form(channels_last=pair.form.channels_last)
            found[index] = replace(pair, artifact=str(scaled[0].output[0]), form=form)
            kept.append(index)
    return restricted(replace(pairs, pairs=tuple(found)), kept)
