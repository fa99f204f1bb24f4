"""The one way from a plan (serialized bytes) to an engine (deserialized object), and its refusals.

Engines are checked by their manifests, before TensorRT loads them and aborts. The build's own inspection, its
verification, the runner and a refit all come through `open_plan`: what one can load, all can:

1. The logger is the process's own (`log`).
2. TensorRT's own plugins are registered before a plan is read, as Polygraphy's `EngineFromBytes` does: an
   engine of 8.5 holds InstanceNormalization as a plugin (onnx-tensorrt 8.5-GA, builtin_op_importers.cpp),
   which a process that has not called `init_libnvinfer_plugins` cannot read (onnx-tensorrt issue 597).
3. The user's libraries of plugins are loaded, their creators into the runtime's registry where they are made
   for that (trtexec: samples/common/sampleEngines.cpp, `LazilyDeserializedEngine::get`).
4. Version-compatible plans carry TensorRT's lean runtime, which is host code: the runtime loads them only if
   `engine_host_code_allowed` says so (NvInferRuntime.h, default false; trtexec and Polygraphy set it). It
   refuses them in its own version, too; without the lean runtime inside they need no permission.
5. The DLA core is the runtime's before it reads a plan with layers on a DLA (`IRuntime::setDLACore`; trtexec:
   samples/common/sampleEngines.cpp of 10.16, line 150). Without it they would run on core 0.
"""

from __future__ import annotations

import ctypes
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ...core.artifact import Manifest
from ...core.files import require_file
from ...errors import ArtifactError, InvalidOption, MissingFile
from ...spec.tensorrt import TensorRTOptions, weights_on_gpu
from ..gpu import Gpu, find_gpu
from ..words import version_numbers
from .adapter import Adapter
from .log import Log, last_error, make_log, setting

_RTX_MAGIC = b"vtrt"
_AMPERE = 80
_FOUR_NUMBERS = (8, 6)


def check_loadable(path: Path, manifest: Manifest, adapter: Adapter, gpu: Gpu) -> None:
    """Refuse an engine of another TensorRT or another GPU, or without weights."""
    check_version_and_gpu(path, manifest, adapter, gpu)
    require_weights(path, manifest, "is stored without weights")


def require_weights(path: Path, manifest: Manifest, problem: str) -> None:
    """Refuse an engine that is stored without weights, and was given none since."""
    if manifest.options.get("strip_weights") and not manifest.proof.get("refitted_with"):
        hint = f"give it weights first: qcompile refit {path} MODEL.onnx -o full.engine"
        raise ArtifactError(f"{path}: {problem}", hint=hint, file=path)


def check_version_and_gpu(path: Path, manifest: Manifest, adapter: Adapter, gpu: Gpu) -> None:
    built_by = str(manifest.tools.get(adapter.package, ""))
    if not _same_version(built_by, adapter.version, carries_runtime(manifest.options)):
        builder = f"{adapter.package} {built_by or 'of unknown version'}"
        problem = f"{path}: was built by {builder}; here is {adapter.version}"
        hint = "build it here, install that version, or build with `version_compatible`"
        raise ArtifactError(problem, hint=hint, file=path)
    gpus = manifest.device.get("gpus", [])
    portable = manifest.options.get("hardware_compatible") == "ampere+"
    if gpu.architecture not in gpus and not (portable and _capability(gpu.architecture) >= _AMPERE):
        named = f" ({manifest.device['gpu']})" if manifest.device.get("gpu") else ""
        built_for = f"{', '.join(gpus) or 'an unknown GPU'}{named}"
        problem = f"{path}: was built for {built_for}; here is {gpu.name} ({gpu.architecture})"
        hint = "build it for this GPU, or with `hardware_compatible` ampere+"
        raise ArtifactError(problem, hint=hint, file=path)


def _capability(gpu: str) -> int:
    """86 of "sm86"; -1 of what is no such name."""
    number = re.fullmatch(r"sm(\d+)", gpu, re.IGNORECASE)
    return int(number[1]) if number else -1


def target_of(plan: bytes) -> str:
    return "tensorrt-rtx" if plan.startswith(_RTX_MAGIC) else "tensorrt"


def carries_runtime(options: Mapping[str, object]) -> bool:
    """Whether an engine holds the lean runtime, which newer versions run it with, as host code.

    Without it only its own version loads it, unless the lean library of that version is given to
    `IRuntime::loadRuntime` (NvInferRuntime.h).
    """
    return bool(options.get("version_compatible")) and not options.get("exclude_lean_runtime")


def _same_version(built_by: str, installed: str, compatible: bool) -> bool:
    """Plans are of one version; version-compatible ones of one major version.

    From 8.6 on a plan is of one version to its fourth number (NVIDIA/TensorRT issues 3069, 3793), before
    to its third (pytorch/TensorRT issue 1059).
    """
    built, present = version_numbers(built_by, 4), version_numbers(installed, 4)
    if compatible and built[:1] == present[:1] and present[:3] >= built[:3]:
        return bool(built)
    count = min(len(built), len(present), 4 if built >= _FOUR_NUMBERS else 3)
    return bool(built) and built[:count] == present[:count]


_WHICH = (
    "RTX 30 and A10 are sm86, RTX 40 and L4 sm89, RTX 50 sm120; "
    "`qcompile doctor` tells it on the machine with the GPU"
)


def require_gpus(adapter: Adapter, gpus: Sequence[str]) -> None:
    """Check the compute capabilities that an engine is to be built for, before any work is done."""
    capabilities = adapter.compute_capabilities()
    for gpu in gpus:
        if gpu.upper() in capabilities:
            continue
        digits = "".join(re.findall("[0-9]", gpu))
        problem = f"`gpus` {gpu}: {adapter.name} builds for {', '.join(capabilities).lower()}"
        hint = f"write sm{digits}" if f"SM{digits}" in capabilities else _WHICH
        raise InvalidOption(problem, hint=hint, option="gpus")


ALLOCATIONS = {"static": "STATIC", "profile": "ON_PROFILE_CHANGE", "runtime": "USER_MANAGED"}
"""`allocation_strategy` to TensorRT's name (NvInferRuntime.h of 10.16:3106). For "profile", trtexec allocates
the size of the profile itself (sampleInference.cpp of 10.16:387), as TensorRT does with ON_PROFILE_CHANGE."""


def check_memory(adapter: Adapter, options: TensorRTOptions, *, calibrates: bool) -> None:
    """Refuse what this TensorRT cannot do to need less memory where an engine runs."""
    needed = {
        "`allocation_strategy`": (options.allocation_strategy, "get_device_memory_size_for_profile_v2"),
        "`weight_streaming`": (options.weight_streaming, "weight_streaming_budget_v2"),
    }
    for option, (value, name) in needed.items():
        if value and not hasattr(adapter.module.ICudaEngine, name):
            raise adapter.lacks(option, f"ICudaEngine.{name}", "leave it out, or use TensorRT 10.1 or newer")
    if options.weight_streaming and (calibrates or not adapter.strongly_typed):
        raise adapter.lacks(
            "`weight_streaming`",
            "weight streaming in weakly typed networks",  # trtexec: sampleOptions.cpp of 10.16:2799
            "leave `calibrator` and `typing` out, with INT8 as Q/DQ in the graph",
        )


_TYPES = {"nvfp4": ("FP4", "10.11"), "mxfp8": ("E8M0", "10.12")}
"""FP4 came with 10.8; its parser reads opset 23, in which ONNX has the type, from 10.11 on."""
_FIRST_CAPABILITY = 100


def check_block_format(adapter: Adapter, precision: str, gpus: Sequence[str], device: int = 0) -> None:
    """Refuse a block format that this TensorRT, or one of the GPUs (none for that of this machine), lacks.

    - Types: `DataType.FP4` came with 10.8, `E8M0` with 10.12. The module is asked, not its version.
    - GPUs: both begin with compute capability 10.0 (support matrices of TensorRT-RTX and TransformerEngine).
      TensorRT-RTX 1.7 refuses NVFP4 for sm89 itself; MXFP8 it would build, as dequantizations in front of a
      product of floats.
    """
    kind, since = _TYPES[precision]
    if not hasattr(adapter.module.DataType, kind):
        problem = f"`precision` {precision}: {adapter.name} has no type {kind}"
        hint = f"use TensorRT {since} or newer, or `precision` fp8 or int8"
        raise InvalidOption(problem, hint=hint, option="precision")
    gpu_here = None if gpus else find_gpu(device)
    for gpu in gpus or ([gpu_here.architecture] if gpu_here is not None else []):
        if 0 <= _capability(gpu) < _FIRST_CAPABILITY:
            problem = f"`precision` {precision}: {gpu} has no {precision.upper()}; it begins with sm100"
            hint = "name a GPU that has it, such as sm120, or choose `precision` fp8 (from sm89) or int8"
            raise InvalidOption(problem, hint=hint, option="precision")


def dequantized_products(adapter: Adapter, precision: str) -> list[str]:
    """Return the warning that TensorRT-RTX has no product of MXFP8; none for others.

    Found in engines of 1.7.1 for sm120: their generated programs make float16 of both operands.
    """
    text = (
        f"{adapter.name} stores MXFP8 and multiplies floats: engines of 1.7.1 dequantize both operands; "
        "`precision` nvfp4 and fp8 have products of their own"
    )
    return [text] if precision == "mxfp8" and adapter.is_rtx else []


_ENTRY_POINTS = ("getCreators", "getPluginCreators")
"""Of libraries that TensorRT's registry loads: from 10 on, and of 8.6."""


@dataclass(frozen=True)
class PlanNeeds:
    """What a plan needs beside TensorRT, as the options of its build spell it.

    `host_code` that it holds may run: of a file that is known to be what its manifest says, that was just
    built, or that the user trusts. `weights_on_gpu` is `weight_streaming`, `allocation` its strategy.
    """

    plugins: Sequence[str] = ()
    host_code: bool = False
    dla_core: int = -1
    weights_on_gpu: str = ""
    allocation: str = ""


@dataclass
class OpenPlan:
    """A plan that is loaded: its log, the runtime, which must live longer than the engine, the engine."""

    log: Log
    runtime: Any
    engine: Any

    def said(self) -> str:
        return last_error(self.log, "no reason given")


def needs_of(manifest: Manifest | None) -> PlanNeeds:
    """Return what a file's manifest says it needs; one without is loaded only if the user trusts it, and
    may then hold host code."""
    return PlanNeeds(host_code=True) if manifest is None else needs_of_options(manifest.options)


def needs_of_options(options: Mapping[str, Any]) -> PlanNeeds:
    return PlanNeeds(
        tuple(str(path) for path in options.get("plugins") or ()),
        carries_runtime(options),
        int(options.get("dla_core", -1)),
        str(options.get("weight_streaming") or ""),
        str(options.get("allocation_strategy") or ""),
    )


def open_plan(adapter: Adapter, plan: Any, needs: PlanNeeds, *, subject: str) -> OpenPlan:
    """Deserialize a plan; on the device whose context is current."""
    log = make_log(adapter.module)
    runtime = adapter.module.Runtime(log.logger)
    try:
        register_plugins(adapter, runtime, log, needs.plugins)
    except (MissingFile, InvalidOption) as error:
        problem = f"{subject}: needs a library of plugins that cannot be loaded here: {error.message}"
        hint = "put it where it was when the engine was built, or build the engine again"
        raise ArtifactError(problem, hint=hint) from error
    if needs.host_code and hasattr(adapter.module.Runtime, "engine_host_code_allowed"):
        runtime.engine_host_code_allowed = True
    if needs.dla_core >= 0:
        if needs.dla_core >= runtime.num_DLA_cores:
            problem = f"{subject}: is for DLA core {needs.dla_core}; this machine has {runtime.num_DLA_cores}"
            hint = "run it on the machine it was built on, or build it without `dla_core`"
            raise ArtifactError(problem, hint=hint)
        runtime.DLA_core = needs.dla_core
    engine = runtime.deserialize_cuda_engine(plan)
    if engine is None:
        problem = f"{subject}: {adapter.name} cannot load it: {last_error(log, 'no reason given')}"
        raise ArtifactError(problem, hint="build it again with this version, for this GPU")
    opened = OpenPlan(log, runtime, engine)
    if needs.weights_on_gpu:
        _stream_weights(opened, needs.weights_on_gpu, subject)
    return opened


def _stream_weights(opened: OpenPlan, on_gpu: str, subject: str) -> None:
    """Say how many bytes of weights stay on the GPU, before there is an execution context.

    Later it cannot be changed (NvInferRuntime.h, `setWeightStreamingBudgetV2`). The Python attribute drops
    the bool that C++ returns: it is read back.
    """
    engine = opened.engine
    budget = weights_on_gpu(on_gpu, engine.streamable_weights_size)
    engine.weight_streaming_budget_v2 = budget
    if engine.weight_streaming_budget_v2 != budget:
        problem = f"{subject}: {budget} bytes of weights cannot be kept on the GPU: {opened.said()}"
        raise ArtifactError(problem, hint="build it with a smaller `weight_streaming`")


def register_plugins(adapter: Adapter, owner: Any, log: Log, libraries: Sequence[str]) -> None:
    """Register TensorRT's own plugins and load the user's libraries.

    Most libraries register their creators themselves when they are loaded (REGISTER_TENSORRT_PLUGIN,
    trtexec's `--staticPlugins`, Polygraphy's `--plugins`). `IPluginRegistry::loadLibrary`, from 8.6 on,
    refuses them: "SymbolAddress for getCreators could not be loaded" (TensorRT-RTX 1.7.1); it is for those of
    trtexec's `--dynamicPlugins` (samples/trtexec/README.md), which have an entry point.
    """
    if hasattr(adapter.module, "init_libnvinfer_plugins"):
        adapter.module.init_libnvinfer_plugins(log.logger, "")
    for path in libraries:
        require_file(Path(path), what="plugin")
        try:
            with setting(log, f"`plugins` {path}", adapter.name):
                library = open_library(path)
                has_entry_point = any(hasattr(library, name) for name in _ENTRY_POINTS)
                if has_entry_point and hasattr(adapter.module.Builder, "get_plugin_registry"):
                    owner.get_plugin_registry().load_library(path)
        except OSError as error:
            raise InvalidOption(f"`plugins` {path}: cannot be loaded ({error})", option="plugins") from error


def open_library(path: str) -> Any:
    return ctypes.CDLL(path, mode=ctypes.RTLD_GLOBAL)
