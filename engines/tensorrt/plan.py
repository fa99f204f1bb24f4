"""Load a plan (serialized bytes) as an engine (deserialized object), and refuse plans that cannot run here.

A stored plan's manifest is checked first, because TensorRT may abort while it loads an unsuitable plan. The
build's inspection and verification, the runner and a refit all load plans with `open_plan`, by these rules:

1. The process has one logger (`log`).
2. TensorRT's plugins are registered before a plan is read, as in Polygraphy's `EngineFromBytes`. An engine of
   TensorRT 8.5 holds InstanceNormalization as a plugin (onnx-tensorrt 8.5-GA, builtin_op_importers.cpp), and
   is unreadable before a call of `init_libnvinfer_plugins` (onnx-tensorrt issue 597).
3. The user's plugin libraries are loaded, those with an entry point into the runtime's registry (trtexec:
   samples/common/sampleEngines.cpp, `LazilyDeserializedEngine::get`).
4. Version-compatible plans contain TensorRT's lean runtime, which is host code. A runtime, even of the same
   version, loads such plans only with `engine_host_code_allowed` (NvInferRuntime.h, default false; trtexec
   and Polygraphy set it). Plans without the lean runtime need no permission.
5. The DLA core is set before the runtime reads a plan with layers on a DLA (`IRuntime::setDLACore`; trtexec:
   samples/common/sampleEngines.cpp of 10.16, line 150). Otherwise these layers would run on core 0.
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
    """Raise ArtifactError for an engine of another TensorRT or another GPU, or without weights."""
    check_version_and_gpu(path, manifest, adapter, gpu)
    require_weights(path, manifest, "is stored without weights")


def require_weights(path: Path, manifest: Manifest, problem: str) -> None:
    if manifest.options.get("strip_weights") and not manifest.proof.get("refitted_with"):
        hint = f"give it weights first: qcompile refit {path} MODEL.onnx -o full.engine"
        raise ArtifactError(f"{path}: {problem}", hint=hint, file=path)


def check_version_and_gpu(path: Path, manifest: Manifest, adapter: Adapter, gpu: Gpu) -> None:
    built_by = str(manifest.tools.get(adapter.package, ""))
    if not _can_load_version(built_by, adapter.version, carries_runtime(manifest.options)):
        builder = f"{adapter.package} {built_by or 'of unknown version'}"
        problem = f"{path}: was built by {builder}; here is {adapter.version}"
        hint = "build it here, install that version, or build with `version_compatible`"
        raise ArtifactError(problem, hint=hint, file=path)
    gpus = manifest.device.get("gpus", [])
    portable = manifest.options.get("hardware_compatible") == "ampere+"
    if gpu.architecture not in gpus and not (portable and _capability_number(gpu.architecture) >= _AMPERE):
        name_text = f" ({manifest.device['gpu']})" if manifest.device.get("gpu") else ""
        built_for = f"{', '.join(gpus) or 'an unknown GPU'}{name_text}"
        problem = f"{path}: was built for {built_for}; here is {gpu.name} ({gpu.architecture})"
        hint = "build it for this GPU, or with `hardware_compatible` ampere+"
        raise ArtifactError(problem, hint=hint, file=path)


def _capability_number(gpu: str) -> int:
    """Return 86 for "sm86", and -1 for any other text."""
    number = re.fullmatch(r"sm(\d+)", gpu, re.IGNORECASE)
    return int(number[1]) if number else -1


def target_of(plan: bytes) -> str:
    return "tensorrt-rtx" if plan.startswith(_RTX_MAGIC) else "tensorrt"


def carries_runtime(options: Mapping[str, object]) -> bool:
    """Return whether an engine holds the lean runtime: host code with which newer versions run the engine.
    Other engines are loaded only by their version, or by `IRuntime::loadRuntime` with the lean library of
    their version (NvInferRuntime.h)."""
    return bool(options.get("version_compatible")) and not options.get("exclude_lean_runtime")


def _can_load_version(built_by: str, installed: str, compatible: bool) -> bool:
    """Return whether a version loads a plan: the same version or, if `compatible`, a newer version with the
    same major number.

    From 8.6 on, the same version has the same four numbers (NVIDIA/TensorRT issues 3069, 3793). Before 8.6,
    three numbers count (pytorch/TensorRT issue 1059).
    """
    built, present = version_numbers(built_by, 4), version_numbers(installed, 4)
    if compatible and built[:1] == present[:1] and present[:3] >= built[:3]:
        return bool(built)
    count = min(len(built), len(present), 4 if built >= _FOUR_NUMBERS else 3)
    return bool(built) and built[:count] == present[:count]


_SM_HINT = (
    "RTX 30 and A10 are sm86, RTX 40 and L4 sm89, RTX 50 sm120; "
    "`qcompile doctor` shows it on the machine with the GPU"
)


def require_gpus(adapter: Adapter, gpus: Sequence[str]) -> None:
    """Raise InvalidOption early if TensorRT cannot build for a compute capability."""
    capabilities = adapter.compute_capabilities()
    for gpu in gpus:
        if gpu.upper() in capabilities:
            continue
        digits = "".join(re.findall("[0-9]", gpu))
        problem = f"`gpus` {gpu}: {adapter.name} builds for {', '.join(capabilities).lower()}"
        hint = f"write sm{digits}" if f"SM{digits}" in capabilities else _SM_HINT
        raise InvalidOption(problem, hint=hint, option="gpus")


ALLOCATIONS = {"static": "STATIC", "profile": "ON_PROFILE_CHANGE", "runtime": "USER_MANAGED"}
"""Maps `allocation_strategy` to TensorRT's name (NvInferRuntime.h of 10.16:3106). For "profile", trtexec
allocates the size of the profile itself (sampleInference.cpp of 10.16:387), as TensorRT does with
ON_PROFILE_CHANGE."""


def check_memory(adapter: Adapter, options: TensorRTOptions, *, calibrates: bool) -> None:
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


_FORMAT_TYPES = {"nvfp4": ("FP4", "10.11"), "mxfp8": ("E8M0", "10.12")}
"""The `DataType` of a block format, and the first version with a parser for it. FP4 came with 10.8, but the
parser reads opset 23, the first ONNX opset with FP4, only from 10.11 on; E8M0 came with 10.12."""
_FIRST_CAPABILITY = 100


def check_block_format(adapter: Adapter, precision: str, gpus: Sequence[str], device: int = 0) -> None:
    """Raise InvalidOption if TensorRT, or a GPU (by default this machine's), lacks a block format.

    NVFP4 and MXFP8 begin with compute capability 10.0 (support matrices of TensorRT-RTX and
    TransformerEngine). For sm89, TensorRT-RTX 1.7 refuses NVFP4 itself, but would build MXFP8 as
    dequantizations before a product of floats.
    """
    kind, since = _FORMAT_TYPES[precision]
    if not hasattr(adapter.module.DataType, kind):
        problem = f"`precision` {precision}: {adapter.name} has no type {kind}"
        hint = f"use TensorRT {since} or newer, or `precision` fp8 or int8"
        raise InvalidOption(problem, hint=hint, option="precision")
    gpu_here = None if gpus else find_gpu(device)
    for gpu in gpus or ([gpu_here.architecture] if gpu_here is not None else []):
        if 0 <= _capability_number(gpu) < _FIRST_CAPABILITY:
            problem = f"`precision` {precision}: {gpu} has no {precision.upper()}; it begins with sm100"
            hint = "name a GPU that has it, such as sm120, or choose `precision` fp8 (from sm89) or int8"
            raise InvalidOption(problem, hint=hint, option="precision")


def dequantized_products(adapter: Adapter, precision: str) -> list[str]:
    """Return a warning for MXFP8 on TensorRT-RTX, else []. In engines of TensorRT-RTX 1.7.1 for sm120, the
    generated programs convert both operands of a product to float16."""
    text = (
        f"{adapter.name} stores MXFP8 but multiplies floats: engines of 1.7.1 dequantize both operands; "
        "`precision` nvfp4 and fp8 do not"
    )
    return [text] if precision == "mxfp8" and adapter.is_rtx else []


_ENTRY_POINTS = ("getCreators", "getPluginCreators")
"""Entry points of plugin libraries for TensorRT's registry: of version 10 and newer, and of 8.6."""


@dataclass(frozen=True)
class PlanNeeds:
    """The requirements of a plan besides TensorRT, in the spelling of build options.

    `host_code` permits host code in the plan; the file must match its manifest, be just built, or have the
    user's trust. `weights_on_gpu` is `weight_streaming`, and `allocation` is `allocation_strategy`.
    """

    plugins: Sequence[str] = ()
    host_code: bool = False
    dla_core: int = -1
    weights_on_gpu: str = ""
    allocation: str = ""


@dataclass
class OpenPlan:
    """A loaded plan: its log, the runtime, which must outlive the engine, and the engine."""

    log: Log
    runtime: Any
    engine: Any

    def said(self) -> str:
        return last_error(self.log, "no reason given")


def needs_of(manifest: Manifest | None) -> PlanNeeds:
    """Return the requirements in a file's manifest. A file without a manifest is loaded only with the user's
    trust, and may hold host code."""
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
    loaded = OpenPlan(log, runtime, engine)
    if needs.weights_on_gpu:
        _stream_weights(loaded, needs.weights_on_gpu, subject)
    return loaded


def _stream_weights(loaded: OpenPlan, on_gpu: str, subject: str) -> None:
    """Set how many bytes of weights are on the GPU, which is fixed once an execution context exists
    (NvInferRuntime.h, `setWeightStreamingBudgetV2`). Python drops C++'s bool, so the value is read back."""
    engine = loaded.engine
    budget = weights_on_gpu(on_gpu, engine.streamable_weights_size)
    engine.weight_streaming_budget_v2 = budget
    if engine.weight_streaming_budget_v2 != budget:
        problem = f"{subject}: {budget} bytes of weights cannot be kept on the GPU: {loaded.said()}"
        raise ArtifactError(problem, hint="build it with a smaller `weight_streaming`")


def register_plugins(adapter: Adapter, owner: Any, log: Log, libraries: Sequence[str]) -> None:
    """Register TensorRT's plugins and load the user's libraries.

    Most libraries register their creators themselves when they are loaded (REGISTER_TENSORRT_PLUGIN,
    trtexec's `--staticPlugins`, Polygraphy's `--plugins`). `IPluginRegistry::loadLibrary`, from 8.6 on,
    refuses these libraries: "SymbolAddress for getCreators could not be loaded" (TensorRT-RTX 1.7.1). It
    loads only libraries with an entry point (trtexec's `--dynamicPlugins`, samples/trtexec/README.md).
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
