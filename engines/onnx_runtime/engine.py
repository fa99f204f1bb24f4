"""Build an offline-optimized ONNX model for a processor, and read the precision in which each layer runs."""

from __future__ import annotations

import functools
import json
import statistics
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from ...core.artifact import Check, read_manifest
from ...core.files import temporary_folder
from ...core.processor import (
    device_for,
    foreign_isa_warnings,
    is_arm,
    is_elsewhere,
    is_foreign,
    isa_here,
    missing_features,
    processor,
    why_emulated,
)
from ...errors import ArtifactError, BuildError, EngineUnavailable
from ...model import onnx
from ...model.graph.graph import count_operators, count_weighted, has_float16, model_io, weighted_nodes
from ...model.graph.onnx_file import Graph, is_large, read_graph, save_onnx
from ...model.graph.source_paths import strip_source_paths
from ...model.sessions.random_input import run_on
from ...model.sessions.session import (
    SIGNED_ACTIVATIONS,
    make_session,
    missed_nodes,
    optimize_file,
    session_options,
    usable_cores,
)
from ...spec.artifacts import BuildSpec
from ...spec.tensors import Feeds, ModelIO
from ...spec.words import ARM_ISAS, Precision
from ..base import BuildOutcome, BuildRequest, DeviceRun, Engine, Place, PlannedLayers, Runner
from ..gpu import why_not_gpu
from ..taps import with_others
from ..values import Execution, check_values
from ..words import FOUR_BITS, Verdict
from .runner import (
    KNOWN_FAULTS,
    OnnxRuntimeRunner,
    open_with_cuda,
    optimizers_to_leave_out,
    put_in_order,
    why_no_cuda_provider,
)
from .words import PACKAGES, PROPOSALS, RULES, SCRIPT, TRITON

_WARMUP_RUNS, _PROFILED_RUNS = 2, 10
_LAYOUTS = "com.microsoft.nchwc::"
_SLOW_FUSIONS = ("SkipLayerNormFusion",)
"""Fusions that make a model slower. SkipLayerNormalization takes 0.20 ms; Add and LayerNormalization together
take 0.03 ms (ONNX Runtime 1.31.1, 128 x 768 values, x86 with AVX-512)."""
_BLOCKS_OF_16 = "avx512f"
"""With this feature, ONNX Runtime's memory layouts of convolutions have blocks of 16 channels, else of 8."""


class OnnxRuntime(Engine):
    """Adapter of ONNX Runtime: builds for processors; runs on them, or on a GPU by the CUDA provider."""

    name = "onnxruntime"
    suffix = ".onnx"
    packages = PACKAGES
    extra = "cpu"
    rules = RULES
    faults = KNOWN_FAULTS
    triton = TRITON
    custom_proposals = PROPOSALS
    places: tuple[Place, ...] = ("cpu", "cuda")

    def why_not_run_on_gpu(self, device: int = 0) -> str:
        return self.why_not_run() or why_no_cuda_provider() or why_not_gpu(device)

    def verdict(self, precision: Precision) -> Verdict | None:
        if precision == "fp16" and is_arm() and not why_emulated("fp16"):
            return "runs", "it has fp16 kernels for some operators on ARM", "build and read the proof"
        if precision == "fp16":
            return "emulated", "its CPU provider computes fp16 in fp32", ""
        if precision == "bf16":
            return "no", "its CPU provider has no bf16 kernels for most operators", ""
        return FOUR_BITS if precision == "int4" else None

    def build(self, request: BuildRequest) -> BuildOutcome:
        import onnxruntime

        path, before = Path(request.model), request.onnx.load()
        label = request.source or request.model
        beside = bool(request.onnx.beside)  # data files with weights, to which the optimized model refers
        isa = request.spec.isa
        for_other_isa = is_elsewhere(isa)
        request.progress(f"optimize for {isa if for_other_isa else 'this processor'}")
        threads, half = request.spec.threads, has_float16(before)

        def optimize(graph: Path, output: Path) -> None:
            # The optimizer writes memory layouts for the processor on which it runs.
            options = session_options(threads, layouts=not (for_other_isa or half))
            if is_foreign(isa):
                options.add_session_config_entry(SIGNED_ACTIVATIONS, str(int(isa in ARM_ISAS)))
            large = is_large(before) or (beside and graph == path)
            optimize_file(graph, output, options, large=large, without=_SLOW_FUSIONS, error=BuildError)

        def open_file(file: Path) -> Runner:
            return OnnxRuntimeRunner(self._session(file, threads, optimized=True), label)

        def open_by_default(file: Path) -> Runner:
            return OnnxRuntimeRunner(
                make_session(file, session_options(threads, layouts=not half), error=BuildError), label
            )

        optimize(path, request.output)
        after = read_graph(request.output).load()
        numbered = not is_large(before) and put_in_order(after, before)
        if strip_source_paths(after) or numbered or (beside and not is_large(before)):
            save_onnx(after, request.output)
        with open_file(request.output) as runner:
            feeds, _ = run_on(before, request.sample, runner.infer, inputs=runner.io.inputs)
        ways = {"as it is": open_file, "with the default options": open_by_default}
        execution = Execution("ONNX Runtime", optimize, ways)
        values = check_values(request, before, request.output, execution, feeds)
        counts = count_weighted(after, as_executed=True)
        requested = weighted_nodes(before).get(request.precision, [])
        missed, unreported = missed_nodes(requested, before, after, request.precision)
        layers = PlannedLayers(
            [node.name for node in requested],
            {name: f"ONNX Runtime computes it in {kind}" for name, kind in missed.items()},
            dict.fromkeys(unreported, "ONNX Runtime's optimizer gave it another name"),
        )
        reached = len(requested) - len(missed) - len(unreported)
        return BuildOutcome(
            kind="onnx",
            io=model_io(before),
            planned=len(requested),
            reached=reached if counts.get(request.precision) else 0,
            proof={"layers_by_precision": counts, "operators": count_operators(after)},
            device=device_for(isa),
            versions={"onnxruntime": onnxruntime.__version__},  # of the distribution that provides it
            failure=values.failure,
            wrong_layer=values.wrong_layer,
            hint=values.hint,
            checks=[Check("runs after loading again", True, request.input_name), *values.checks],
            warnings=[*foreign_isa_warnings(isa), *values.warnings],
            layers=layers,
        )

    def scripts(self, spec: BuildSpec) -> Mapping[str, str]:
        return {"with the default options": SCRIPT.format(threads=spec.threads or usable_cores())}

    def open(self, artifact: str, *, threads: int = 0, io: ModelIO | None = None) -> Runner:
        return OnnxRuntimeRunner(self._session(Path(artifact), threads), artifact)

    def _session(self, path: Path, threads: int, *, optimized: bool = False, profile: str = "") -> Any:
        """Load an artifact; `profile` is the prefix of the profile file, "" disables profiling."""
        self.require_here()
        options = session_options(threads)
        without: tuple[str, ...] = ()
        manifest = read_manifest(path)
        if manifest and manifest.stage == "build":
            _require_same_device(path, manifest.device, dict(manifest.tools))
        if optimized or (manifest and manifest.stage == "build"):
            import onnxruntime

            # The file is already optimized for this processor; optimizing again would only slow the loading.
            level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
            options.graph_optimization_level = level
        else:
            without = optimizers_to_leave_out(path)
        if profile:
            options.enable_profiling, options.profile_file_prefix = True, profile
        return make_session(path, options, without=without, error=BuildError)

    def open_on_gpu(
        self, artifact: str, run: DeviceRun, *, threads: int = 0, io: ModelIO | None = None
    ) -> Runner:
        run.refuse_streams_and_graphs(self.name)
        lacks_cuda = not self.why_not_run() and why_no_cuda_provider()
        install = "pip uninstall -y onnxruntime && pip install onnxruntime-gpu" if lacks_cuda else ""
        self.require_gpu_here(artifact, run.device, install)
        return open_with_cuda(Path(artifact), run.device, threads)

    @contextmanager
    def open_tapped(
        self,
        weightless: Graph,
        model: onnx.ModelProto,
        outputs: Mapping[str, str],
        *,
        threads: int,
        folder: Path,
    ) -> Iterator[Callable[[Feeds], dict[str, Any]]]:
        manifest = read_manifest(weightless.path)
        built = manifest is not None and manifest.stage == "build"
        # Optimizing memory layouts crashes the process on some float16 graphs: see `session_options`.
        options = session_options(threads, layouts=not has_float16(weightless.model), optimize=not built)
        options.enable_cpu_mem_arena = False
        session = make_session(Graph(model, weightless.path), options)
        yield functools.partial(_infer_tapped, session, with_others(outputs, session.get_outputs()))

    def kernel_times(
        self, artifact: str, feeds: Feeds, *, threads: int = 0, device: int | None = None
    ) -> dict[str, float]:
        if device is not None:
            problem = f"{self.name} reports no layer times on a GPU: its profile has only host times"
            raise EngineUnavailable(problem, engine=self.name)
        times: dict[str, list[float]] = {}
        with temporary_folder("profile", artifact) as folder:
            session = self._session(Path(artifact), threads, profile=f"{folder}/profile")
            for _ in range(_WARMUP_RUNS + _PROFILED_RUNS):
                session.run(None, feeds)
            events = json.loads(Path(session.end_profiling()).read_text(encoding="utf-8"))
        for event in events:
            name = str(event.get("name", ""))
            if event.get("cat") == "Node" and name.endswith("_kernel_time"):
                times.setdefault(name.removesuffix("_kernel_time"), []).append(event["dur"] / 1e3)
        return {name: statistics.median(runs_ms[_WARMUP_RUNS:]) for name, runs_ms in times.items()}


def _infer_tapped(session: Any, output_of: Mapping[str, str], feeds: Feeds) -> dict[str, Any]:
    """Return the taps and the graph's outputs: as arrays if an input holds strings, else as OrtValues."""
    import onnxruntime

    if any(array.dtype.kind in "OSUT" for array in feeds.values()):
        fetched = session.run([*output_of.values()], feeds)
    else:
        make_value = onnxruntime.OrtValue.ortvalue_from_numpy
        values = {name: make_value(array) for name, array in feeds.items()}
        fetched = session.run_with_ort_values([*output_of.values()], values)
    return dict(zip(output_of, fetched, strict=True))


def _require_same_device(path: Path, device: Any, tools: dict[str, str]) -> None:
    import onnxruntime

    built_by, problem, hint = tools.get("onnxruntime", ""), "", "build it again on this machine"
    blocks, other = (_block_size(features) for features in (device.get("features"), processor()["features"]))
    if built_by != onnxruntime.__version__:
        problem = f"optimized by ONNX Runtime {built_by}; this is {onnxruntime.__version__}"
        hint = "build it again with this version"
    elif missing := missing_features(device):
        problem = f"optimized for a processor with {', '.join(missing)}, which this one lacks"
    elif blocks and other and blocks != other:
        operators = count_operators(read_graph(path).model)
        if any(name.startswith(_LAYOUTS) for name in operators):
            hint += "" if device.get("isa") == isa_here() else f", or there with `isa` {isa_here()}"
            problem = (
                f"holds convolutions in blocks of {blocks} channels, for the processor that built it; "
                f"ONNX Runtime would read them in blocks of {other} here, and compute other values"
            )
    if problem:
        raise ArtifactError(f"{path}: {problem}", hint=hint, file=path)


def _block_size(features: object) -> int:
    """Return the channels per block on a processor with these features; 0 if unknown or without AVX2."""
    if not isinstance(features, list) or "avx2" not in features:
        return 0
    return 16 if _BLOCKS_OF_16 in features else 8
