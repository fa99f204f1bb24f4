"""The one way from a plan (serialized bytes) to an engine (deserialized object).

The build's own inspection, its verification, the runner and a refit all come through here, so that what one
of them can load, all of them can, in this process or in a fresh one:

1. The logger is the process's own (`log`).
2. TensorRT's own plugins are registered before a plan is read: an engine of 8.5 holds InstanceNormalization,
   and so GroupNormalization, as the plugin InstanceNormalization_TRT (onnx-tensorrt 8.5-GA,
   builtin_op_importers.cpp), which a process that has not called `init_libnvinfer_plugins` cannot read
   ("Cannot deserialize plugin since corresponding IPluginCreator not found in Plugin Registry", onnx-tensorrt
   issue 597). Polygraphy's `EngineFromBytes` calls it each time, too.
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
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ...artifact import Manifest
from ...errors import ArtifactError, InvalidOption, MissingFile
from ...files import require_file
from ...spec.tensorrt import weights_on_gpu
from .adapter import Adapter
from .compatibility import carries_runtime
from .log import Log, last_error, make_log, setting

_ENTRY_POINTS = ("getCreators", "getPluginCreators")
"""Of libraries that TensorRT's registry loads: from 10 on, and of 8.6."""


@dataclass(frozen=True)
class PlanNeeds:
    """What a plan needs beside TensorRT.

    Attributes:
        plugins: Libraries of the user's plugins, as they were named for the build.
        host_code: Whether it holds host code that may run: of a file that is known to be what its manifest
            says, that was just built, or that the user trusts.
        dla_core: Core of a deep learning accelerator; -1 for none.
        weights_on_gpu: What of weights that can stream stays on the GPU, as `weight_streaming` spells it.
        allocation: What the memory of its execution contexts is for, as `allocation_strategy` spells it.
    """

    plugins: Sequence[str] = ()
    host_code: bool = False
    dla_core: int = -1
    weights_on_gpu: str = ""
    allocation: str = ""


@dataclass
class OpenPlan:
    """A plan that is loaded.

    Attributes:
        log: What TensorRT says as long as this lives.
        runtime: What deserialized it; must live longer than the engine.
        engine: The `ICudaEngine`.
    """

    log: Log
    runtime: Any
    engine: Any

    def said(self) -> str:
        """Return TensorRT's last error."""
        return last_error(self.log, "no reason given")


def needs_of(manifest: Manifest | None) -> PlanNeeds:
    """Return what a file's manifest says it needs.

    The caller has compared the file with its manifest, or the user trusts it (`engines.load`). A file without
    manifest is loaded only if the user trusts it, and may then hold host code.
    """
    return PlanNeeds(host_code=True) if manifest is None else needs_of_options(manifest.options)


def needs_of_options(options: Mapping[str, Any]) -> PlanNeeds:
    """Return what an engine needs that was built with options."""
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
        raise ArtifactError(
            f"{subject}: needs a library of plugins that cannot be loaded here: {error.message}",
            hint="put it where it was when the engine was built, or build the engine again",
        ) from error
    if needs.host_code and hasattr(adapter.module.Runtime, "engine_host_code_allowed"):
        runtime.engine_host_code_allowed = True
    if needs.dla_core >= 0:
        if needs.dla_core >= runtime.num_DLA_cores:
            raise ArtifactError(
                f"{subject}: is for DLA core {needs.dla_core}; this machine has {runtime.num_DLA_cores}",
                hint="run it on the machine it was built on, or build it without `dla_core`",
            )
        runtime.DLA_core = needs.dla_core
    engine = runtime.deserialize_cuda_engine(plan)
    if engine is None:
        raise ArtifactError(
            f"{subject}: {adapter.name} cannot load it: {last_error(log, 'no reason given')}",
            hint="build it again with this version, for this GPU",
        )
    opened = OpenPlan(log, runtime, engine)
    if needs.weights_on_gpu:
        _stream_weights(opened, needs.weights_on_gpu, subject)
    return opened


def _stream_weights(opened: OpenPlan, on_gpu: str, subject: str) -> None:
    """Say how many bytes of weights stay on the GPU, before there is an execution context.

    "The weights streaming budget cannot be modified while there are active IExecutionContexts"
    (NvInferRuntime.h of 10.16:3964; trtexec: sampleInference.cpp of 10.16:646, setUpStdInference). The Python
    attribute drops the bool that C++ returns (pyCore.cpp of 10.16:1595): it is read back.
    """
    engine = opened.engine
    budget = weights_on_gpu(on_gpu, engine.streamable_weights_size)
    engine.weight_streaming_budget_v2 = budget
    if engine.weight_streaming_budget_v2 != budget:
        raise ArtifactError(
            f"{subject}: {budget} bytes of weights cannot be kept on the GPU: {opened.said()}",
            hint="build it with a smaller `weight_streaming`",
        )


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
    """Load a library into the process, where it stays."""
    return ctypes.CDLL(path, mode=ctypes.RTLD_GLOBAL)
