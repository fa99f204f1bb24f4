"""Refit a built engine with new weights, without choosing or timing kernels again."""

from __future__ import annotations

import hashlib
from dataclasses import replace
from pathlib import Path
from typing import Any

from ....core.artifact import Artifact, commit, load_artifact, tool_versions
from ....core.files import writing
from ....core.progress import Progress
from ....errors import ArtifactError, BuildError, EngineUnavailable, ModelError
from ....model.graph.graph import tensor_values
from ....model.graph.onnx_checks import every_tensor
from ....model.graph.onnx_file import Graph, read_graph
from ....spec.tensors import ModelIO
from ...gpu import find_gpu, why_no_gpu
from ..adapter import Adapter
from ..plan import OpenPlan, check_version_and_gpu, needs_of, open_plan
from ..runner.cuda import current_device

_SHOWN = 5
_SAME_MODEL = "the model must be the one the engine was built from, with other weights"


def refit_plan(
    adapter: Adapter, engine_file: Path, graph: Path, output: Path, *, source: str, progress: Progress
) -> Artifact:
    """Give an engine the weights of a graph with the same structure, and write the engine with its manifest.
    The graph must already be quantized or converted, as for a build. `output` may be the engine's file."""
    artifact = load_artifact(engine_file)
    built_on: Any = artifact.manifest.options.get("device") or 0
    device = int(built_on) if find_gpu(int(built_on)) is not None else 0
    gpu = find_gpu(device)
    if gpu is None:
        problem = f"{engine_file}: cannot be refitted here: {why_no_gpu()}"
        raise EngineUnavailable(problem, hint="refit it on the machine it is for", engine=adapter.target)
    check_version_and_gpu(engine_file, artifact.manifest, adapter, gpu)
    parsed = read_graph(graph)
    if artifact.manifest.io is not None and _signature(parsed.io) != _signature(artifact.manifest.io):
        problem = f"{source}: its inputs and outputs are not those of {engine_file}"
        hint = "refit takes other weights of the same model; build it instead"
        raise ModelError(problem, hint=hint, file=source)
    built_with = artifact.manifest.proof.get("weights")
    if built_with and built_with != weights_digest(parsed):
        problem = f"{source}: its weights differ; {engine_file} accepts only the weights of its build"
        hint = "build the engine with both `refit` and `strip_weights` to change its weights"
        raise ModelError(problem, hint=hint, file=source)
    with current_device(device, str(engine_file)):
        progress("load the engine")
        needs = replace(needs_of(artifact.manifest), weights_on_gpu="")  # the engine does not run here
        opened = open_plan(adapter, engine_file.read_bytes(), needs, subject=str(engine_file))
        if not opened.engine.refittable:
            problem = f"{engine_file}: takes no new weights"
            raise ArtifactError(problem, hint="build it with `refit`", file=engine_file)
        progress("refit")
        _refit(adapter, opened, parsed, source)
        if hasattr(adapter.module, "SerializationFlag"):
            # Include all weights: from TensorRT 10 on, the plan of a stripped engine would omit them again.
            config = opened.engine.create_serialization_config()
            config.clear_flag(adapter.module.SerializationFlag.EXCLUDE_WEIGHTS)
            plan = opened.engine.serialize_with_config(config)
        else:
            plan = opened.engine.serialize()
        del opened
    manifest = artifact.manifest
    renewed = replace(
        manifest,
        stage="refit",
        sources={"model": read_graph(Path(source)).digest(), "graph": parsed.digest()},
        tools={**tool_versions(*manifest.tools), adapter.package: adapter.version},
        proof={**manifest.proof, "refitted_with": parsed.digest()},
    )
    with writing(output) as path:
        path.write_bytes(memoryview(plan))
        return Artifact(output, commit(path, renewed))


def _refit(adapter: Adapter, opened: OpenPlan, graph: Graph, source: str) -> None:
    logger = opened.log.logger
    refitter = adapter.module.Refitter(opened.engine, logger)
    weights: dict[str, Any] = {}  # must live until TensorRT reads them in the refit
    unknown: list[str] = []
    if hasattr(adapter.module, "OnnxParserRefitter"):  # from 10 on
        parser = adapter.module.OnnxParserRefitter(refitter, logger)
        if not parser.refit_from_file(str(graph.path)):
            errors = [" ".join(str(parser.get_error(i).desc()).split()) for i in range(parser.num_errors)]
            reasons = "; ".join(errors[:_SHOWN]) or opened.said()
            raise BuildError(f"{source}: {adapter.name} refuses its weights: {reasons}", hint=_SAME_MODEL)
    else:
        # Before TensorRT 10 no parser can refit, so weights are set by the initializers' names.
        weights = {tensor.name: tensor_values(tensor) for tensor in graph.load().graph.initializer}
        settable_names = [name for name in refitter.get_all_weights() if name in weights]
        unknown = [name for name in settable_names if not refitter.set_named_weights(name, weights[name])]
    missing = list(refitter.get_missing_weights()) + unknown
    if missing:
        more = f" and {len(missing) - _SHOWN} more" if len(missing) > _SHOWN else ""
        shown = f"{', '.join(missing[:_SHOWN])}{more}"
        raise BuildError(f"{source}: gives no weights for {shown}", hint=_SAME_MODEL)
    if not refitter.refit_cuda_engine():
        raise BuildError(f"{source}: {adapter.name} cannot refit: {opened.said()}")


def weights_digest(graph: Graph) -> str:
    """Return the digest of all tensors stored in a graph, independent of their order.

    An engine with REFIT_IDENTICAL takes only the weights of its build: "if the refit weights are not
    identical to the build-time weights, behavior is undefined" (NvInfer.h of 10.16, kREFIT_IDENTICAL).
    """
    tensors = []
    for tensor in every_tensor(graph.load()):
        values = hashlib.sha256(tensor_values(tensor).tobytes()).hexdigest()
        tensors.append(f"{tensor.name} {tensor.data_type} {list(tensor.dims)} {values}")
    return f"sha256:{hashlib.sha256(chr(10).join(sorted(tensors)).encode()).hexdigest()}"


def _signature(io: ModelIO) -> list[tuple[str, str, list[int]]]:
    """Return inputs and outputs with -1 for dynamic axes, because names of axes may differ."""
    return [
        (tensor.name, tensor.dtype, [-1 if isinstance(dim, str) else dim for dim in tensor.shape])
        for tensor in (*io.inputs, *io.outputs)
    ]
