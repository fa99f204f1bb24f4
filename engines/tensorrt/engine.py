"""The engines TensorRT, for the GPU of this machine, and TensorRT-RTX, which also builds for other GPUs."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from ...core.artifact import read_manifest
from ...core.installation import install_hint
from ...errors import EngineUnavailable, InvalidOption
from ...spec.artifacts import BuildSpec
from ...spec.tensors import Feeds, ModelIO
from ...spec.words import BLOCK_FORMATS, PRECISIONS, Precision
from ..base import BuildOutcome, BuildRequest, DeviceRun, Engine, Place, Runner
from ..gpu import find_gpu, why_no_gpu, why_not_gpu
from ..words import KnownFault, TritonBackend
from .adapter import load_adapter
from .known_faults import KNOWN_FAULTS
from .parser_operators import first_version
from .plan import (
    check_block_format,
    check_loadable,
    check_memory,
    dequantized_products,
    needs_of,
    needs_of_options,
    require_gpus,
)
from .runner.loaded_engine import EngineUse
from .runner.runner import TensorRTRunner
from .words import GPUS, PACKAGES, RTX_PACKAGES, RULES, SCRIPT, TRITON, proposals


class TensorRT(Engine):
    """TensorRT 8.5 to 11: builds and runs on the GPU of this machine."""

    name = "tensorrt"
    suffix = ".engine"
    packages = PACKAGES
    extra = "tensorrt"
    rules = RULES
    triton: TritonBackend | None = TRITON
    custom_proposals = proposals("trt")
    keeps_layers = True
    has_best = True
    needs_gpu_to_build = True
    keeps_rejected = True
    lacks = frozenset(["Col2Im", "DFT", "Einsum", "EyeLike", "ScatterND", "STFT"])  # with some attributes
    places: tuple[Place, ...] = ("cuda",)
    precisions = PRECISIONS

    def why_not_build(self) -> str:
        return super().why_not_build() or (why_no_gpu() if self.needs_gpu_to_build else "")

    def why_not_run(self) -> str:
        return super().why_not_build() or why_no_gpu()

    def why_not_run_on_gpu(self, device: int = 0) -> str:
        return self.why_not_run() or why_not_gpu(device)

    def fix(self) -> str:
        if super().why_not_build():
            install = install_hint(self.extra)
            if self.needs_gpu_to_build and why_no_gpu():
                install += " on a machine with an NVIDIA GPU; tensorrt-rtx builds without one"
            return install
        if why_no_gpu():
            ahead = ", or build ahead of time with `target` tensorrt-rtx" if self.needs_gpu_to_build else ""
            return f"run it on a machine with an NVIDIA GPU{ahead}"
        return ""

    def graph_precision(self, precision: Precision) -> Precision:
        return load_adapter(self.name).graph_precision(precision)

    def graph_precision_if_weak(self, precision: Precision) -> Precision | None:
        adapter = load_adapter(self.name)
        return adapter.typed("weak").graph_precision(precision) if adapter.has_weak_types else None

    def reader(self) -> str:
        return load_adapter(self.name).name

    def operators(self) -> Collection[str] | None:
        parser = load_adapter(self.name).parser()
        return parser.operators if parser else None

    def versions_that_read(self, operator: str) -> str:
        since = first_version(operator)
        return f"tensorrt, which reads it from version {since} on" if since else ""

    def known_faults(self) -> Sequence[KnownFault]:
        adapter, gpu = load_adapter(self.name), find_gpu()
        context = adapter.target, adapter.version, gpu.architecture if gpu else ""
        return [fault for fault in KNOWN_FAULTS if fault.affects(*context)]

    def check(self, spec: BuildSpec) -> None:
        adapter = load_adapter(self.name).typed(spec.tensorrt.typing)
        if spec.tensorrt.precision_constraints and adapter.strongly_typed and not spec.calibrator:
            hint = "give `typing` weak, or leave it out"
            raise adapter.lacks("`precision_constraints`", "constraints in strongly typed networks", hint)
        if spec.tensorrt.device and why_not_gpu(spec.tensorrt.device):
            raise InvalidOption(f"`device`: {why_not_gpu(spec.tensorrt.device)}", option="device")
        names = [fault.name for fault in KNOWN_FAULTS]
        for name in spec.tensorrt.ignore_faults:
            if name not in (*names, "all"):
                problem = f"`ignore_faults` {name}: unknown fault"
                raise InvalidOption(f"{problem}; known are {', '.join(names)}", option="ignore_faults")
        if spec.tensorrt.dla_core >= 0:
            adapter.require_dla()
        if spec.calibrator:
            adapter.require_calibrators()
        adapter.permitting_flags(spec.precision, spec.floats)
        check_memory(adapter, spec.tensorrt, calibrates=bool(spec.calibrator))
        if adapter.builds_ahead_of_time:
            require_gpus(adapter, spec.gpus)
        if spec.precision in BLOCK_FORMATS:
            check_block_format(adapter, spec.precision, spec.gpus, spec.tensorrt.device)

    def highest_opset(self) -> int | None:
        return load_adapter(self.name).highest_opset

    def build(self, request: BuildRequest) -> BuildOutcome:
        from .builder.builder import build_plan
        from .verify import verified

        request, options = self._resolve_gpus(request), request.spec.tensorrt
        adapter = load_adapter(self.name).typed(options.typing)
        outcome = build_plan(adapter, request)
        if not request.spec.gpus:  # else the GPUs may be those of other machines
            # No runtime cache, because it would be written beside the file and become a part of the build.
            profiles: Any = outcome.proof["profiles"]
            use = EngineUse(options.device, profiles=profiles, needs=needs_of_options(vars(options)))
            runner = partial(
                TensorRTRunner, load_adapter(self.name), request.output, use, declared=outcome.io
            )
            outcome = verified(outcome, request, runner)
        slow = dequantized_products(adapter, request.precision)
        return replace(outcome, warnings=(*outcome.warnings, *slow))

    def plan(self, request: BuildRequest) -> dict[str, object]:
        from .builder.builder import dry_run

        request = self._resolve_gpus(request)
        return dry_run(load_adapter(self.name).typed(request.spec.tensorrt.typing), request)

    def _resolve_gpus(self, request: BuildRequest) -> BuildRequest:
        """Clear `gpus` if TensorRT builds for this machine's GPU only, and `gpus` names just that GPU."""
        spec, gpu = request.spec, find_gpu(request.spec.tensorrt.device)
        if load_adapter(self.name).builds_ahead_of_time or not gpu or spec.gpus != (gpu.architecture,):
            return request
        return replace(request, spec=replace(spec, gpus=()))

    def scripts(self, spec: BuildSpec) -> Mapping[str, str]:
        adapter = load_adapter(self.name)
        if not adapter.strongly_typed:
            return {}  # the script sets no flags for weak types
        names = tuple(gpu.upper() for gpu in spec.gpus)
        gpus = GPUS.format(count=len(names), names=names) if names else ""
        return {
            "built": SCRIPT.format(module=adapter.module.__name__, flags=adapter.network_flags(), gpus=gpus)
        }

    def open(self, artifact: str, *, threads: int = 0, io: ModelIO | None = None) -> Runner:
        return self.open_on_gpu(artifact, DeviceRun())

    def open_on_gpu(
        self, artifact: str, run: DeviceRun, *, threads: int = 0, io: ModelIO | None = None
    ) -> TensorRTRunner:
        path = Path(artifact)
        reason, gpu = self.why_not_run_on_gpu(run.device), find_gpu(run.device)
        if reason or gpu is None:
            problem = f"{path}: cannot run here: {reason}"
            raise EngineUnavailable(problem, hint=self.fix(), engine=self.name, reason=reason)
        manifest = read_manifest(path)
        use = EngineUse(run.device, run.cuda_graph, runtime_cache=run.runtime_cache, needs=needs_of(manifest))
        if manifest is not None:
            check_loadable(path, manifest, load_adapter(self.name), gpu)
            use = replace(use, profiles=manifest.proof.get("profiles", ()), digest=manifest.digest)
        declared = manifest.io if manifest else None
        return TensorRTRunner(load_adapter(self.name), path, use, streams=run.streams, declared=declared)

    def kernel_times(
        self, artifact: str, feeds: Feeds, *, threads: int = 0, device: int | None = None
    ) -> dict[str, float]:
        with self.open_on_gpu(artifact, DeviceRun(device or 0)) as runner:
            return runner.layer_times(feeds)


class TensorRTRTX(TensorRT):
    """TensorRT-RTX: builds for GPUs of any machine, and runs on the GPU of this machine."""

    name = "tensorrt-rtx"
    needs_gpu_to_build = False
    packages = RTX_PACKAGES
    extra = "tensorrt-rtx"
    triton = None  # Triton's backend loads plans of TensorRT only
    custom_proposals = proposals("rtx")
    lacks = TensorRT.lacks | {"Ceil", "Elu", "Range", "ScatterElements"}  # with some attributes or types
    keeps_rejected = False  # a build takes only seconds

    def _resolve_gpus(self, request: BuildRequest) -> BuildRequest:
        if not request.spec.gpus and why_no_gpu():
            hint = "name the GPUs it is for, such as `gpus` sm86,sm89"
            raise InvalidOption(f"`gpus` is required here: {why_no_gpu()}", hint=hint, option="gpus")
        return super()._resolve_gpus(request)
