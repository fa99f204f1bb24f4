"""A TensorRT without a GPU: modules with a real version's names, whose builder makes engines of ONNX files.

    module = simulated_tensorrt("10.16", Circumstances(fallback={"conv1"}))
    monkeypatch.setitem(sys.modules, "tensorrt", module)

`Circumstances` are what a real build depends on beside its options. The engines compute the ONNX graph that
was parsed (`simulated_engine`, `simulated_context`).
"""

from __future__ import annotations

import hashlib
import types
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import onnx
import simulated_config
import simulated_context
import simulated_engine
import simulated_network
import simulated_parser
from onnx import numpy_helper
from recorded_tensorrt import recorded_module
from simulated_config import find_scales
from simulated_cuda import SimulatedGpu
from simulated_inspector import COMPUTES, engine_layers
from simulated_network import init_plugins, kind_of, registered_logger, registry_of, say
from simulated_plan import PlanTensor, pack

_STEPS = 6

# As in public logs of 8.6 and 10 (github.com/NVIDIA/TensorRT/issues/2643, 1413) and of TensorRT-RTX 1.7.1.
_OUT_OF_MEMORY = (
    "2: [virtualMemoryBuffer.cpp::resizePhysical::145] Error Code 2: OutOfMemory (no further information)"
)
_REQUESTED = (
    "Requested amount of GPU memory ({} bytes) could not be allocated. There may not be enough free memory "
    "for allocation to succeed."
)
_FEWER_TACTICS = (
    "Some tactics do not have sufficient workspace memory to run. Increasing workspace size will enable more "
    "tactics, please check verbose output for requested sizes."
)
_CANCELED = (
    "IBuilder::buildSerializedNetwork: Error Code 7: BuildCanceled (Build canceled by user In next at "
    "/_src/optimizer/common/scopedProgressReporter.cpp:92)"
)


@dataclass
class Circumstances:
    """What a build depends on beside its options; a test may change it between builds.

    Attributes:
        device: Compute capability of the GPU here; timing caches and plans of another one are foreign.
        fallback: Network layers that compute in FP32 although less was permitted.
        blocks: Network layers that the engine has as one block of its second compiler.
        refused: Builder flag, memory pool or attribute to the error that is logged when it is set; the
            call returns normally and nothing changes, as in TensorRT-RTX 1.7.1.
        out_of_memory: Whether the GPU's memory does not suffice.
        no_kernel_for: Network layer without any implementation.
        needed_workspace: Bytes of workspace without which there is no implementation.
        plugins: Library that a registry loads to the operators it adds.
        registering: Library that registers itself when it is loaded, to the same.
        reads_no_caches: Whether no timing cache can be read, as 8.5 without cuDNN reads none.
        dla_cores: Deep learning accelerators of this machine.
        measured: Tactics that builds measured, since no timing cache knew them; tests read it.

    Source: the tests' own: which faults a test puts in.
    """

    device: str = "8.6"
    fallback: set[str] = field(default_factory=set)
    blocks: set[str] = field(default_factory=set)
    refused: Mapping[str, str] = field(default_factory=dict)
    out_of_memory: bool = False
    no_kernel_for: str = ""
    needed_workspace: int = 0
    plugins: Mapping[str, set[str]] = field(default_factory=dict)
    registering: Mapping[str, set[str]] = field(default_factory=dict)
    reads_no_caches: bool = False
    dla_cores: int = 0
    measured: list[str] = field(default_factory=list)


def simulated_tensorrt(
    version: str, circumstances: Circumstances | None = None, gpu: SimulatedGpu | None = None
) -> types.ModuleType:
    """Return a module that can stand for `tensorrt` or `tensorrt_rtx` in `sys.modules`.

    Args:
        version: One of `recorded_tensorrt.VERSIONS`.
        circumstances: What builds meet; all goes well by default.
        gpu: Where engines run; by default one of its own, with a context that is always current.

    Source: the tests' own.
    """
    families = (
        simulated_network, simulated_parser, simulated_config, simulated_engine, simulated_context,
    )  # fmt: skip
    behaviours: dict[str, Any] = {"Builder": Builder}
    for family in families:
        behaviours |= family.BEHAVIOURS
    module: Any = recorded_module(version, behaviours)
    module._circumstances = circumstances or Circumstances()
    module._gpu = gpu or SimulatedGpu(current=0xBEEF)
    module.init_libnvinfer_plugins = init_plugins(module)
    return module  # type: ignore[no-any-return]


class Builder:
    """Builder.

    Source: NvInfer.h of release/10.13, `IBuilder`: a build that fails logs why and returns nullptr, which
    Python sees as None. TensorRT-RTX 1.7.1, tried: both.
    """

    def __init__(self, log: Any) -> None:
        self._given, self._circumstances = log, self._module._circumstances
        self._log = registered_logger(self, log, "Builder")

    @property
    def num_DLA_cores(self) -> int:  # noqa: N802
        return int(self._circumstances.dla_cores)

    def create_network(self, flags: int = 0) -> Any:
        return self._module.INetworkDefinition(self, flags)

    def create_builder_config(self) -> Any:
        return self._module.IBuilderConfig(self)

    def create_optimization_profile(self) -> Any:
        return self._module.IOptimizationProfile(self._log)

    def get_plugin_registry(self) -> Any:
        return registry_of(self)

    def build_serialized_network(self, network: Any, config: Any) -> Any:
        wrong = _wrong_profiles(network, config) or _wrong_flags(network, config)
        if wrong:
            say(self, "ERROR", f"IBuilder::buildSerializedNetwork: Error Code 4: API Usage Error ({wrong})")
            return None
        scales = find_scales(self, network, config)
        if scales is None or not _report_progress(self, config) or not _has_kernels(self, network, config):
            return None
        precisions = {
            layer._name: _chosen(layer, config, scales) for layer in network._layers if _computes(layer)
        }
        _measure(self, config, precisions)
        return self._module.IHostMemory(pack(_plan(self, network, config, precisions)))


def _computes(layer: Any) -> bool:
    return kind_of(layer) in COMPUTES


def _wrong_profiles(network: Any, config: Any) -> str:
    """What is wrong with the optimization profiles, in TensorRT-RTX 1.7.1's words.

    Source: TensorRT-RTX 1.7.1, tried.
    """
    for tensor in network._inputs:
        if tensor._holds_shape or min(tensor._shape, default=0) >= 0:
            continue
        if not config._profiles:
            return "Network has dynamic or shape inputs, but no optimization profile has been defined."
        for index, profile in enumerate(config._profiles):
            if tensor._name not in profile._shapes:
                return f"Missing dimensions in profile {index} for input {tensor._name}."
    return ""


def _wrong_flags(network: Any, config: Any) -> str:
    """Flags that permit precisions belong to weak types.

    Source: samples/common/sampleOptions.cpp of release/10.13, `stronglyTyped`: trtexec takes them away.
    """
    permitted = [name for name in ("FP16", "BF16", "INT8", "FP8") if network._strong and config._has(name)]
    return f"builder flag k{permitted[0]} is set, and the network is strongly typed." if permitted else ""


def _report_progress(builder: Any, config: Any) -> bool:
    """Tell the monitor of nested phases, by the names of TensorRT-RTX 1.7.1; False when it cancels.

    Source: TensorRT-RTX 1.7.1, tried.
    """
    outer, inner = "Building engine", "Cloning network graph"
    monitor = vars(config).get("_progress_monitor")
    if monitor is None:
        return True
    monitor.phase_start(outer, None, _STEPS)
    for step in range(_STEPS):
        monitor.phase_start(inner, outer, 2)
        go_on = monitor.step_complete(inner, 0) and monitor.step_complete(inner, 1)
        monitor.phase_finish(inner)
        if not go_on or not monitor.step_complete(outer, step):
            monitor.phase_finish(outer)
            say(builder, "ERROR", _CANCELED)
            return False
    monitor.phase_finish(outer)
    return True


def _has_kernels(builder: Any, network: Any, config: Any) -> bool:
    """Whether every layer has an implementation; the log says why not, in the words of 8.6 and 10.

    Source: NVIDIA/TensorRT issues 2643 and 1413.
    """
    circumstances, workspace = builder._circumstances, config._pools["WORKSPACE"]
    node = next((layer._name for layer in network._layers if _computes(layer)), "")
    if circumstances.out_of_memory:
        say(builder, "ERROR", _OUT_OF_MEMORY)
        say(builder, "WARNING", _REQUESTED.format(workspace))
        reason = "."
    elif workspace < circumstances.needed_workspace:
        say(builder, "WARNING", _FEWER_TACTICS)
        reason = " due to insufficient workspace. See verbose log for requested sizes."
    elif circumstances.no_kernel_for:
        node, reason = circumstances.no_kernel_for, "."
    else:
        return True
    text = f"Could not find any implementation for node {node}{reason}"
    say(builder, "ERROR", f"10: [optimizer.cpp::computeCosts::2033] Error Code 10: Internal Error ({text})")
    return False


def _chosen(layer: Any, config: Any, scales: set[str]) -> str:
    """What a layer computes in: as its types say where they are strong, else as permitted.

    Source: NvInfer.h of release/8.6, `ILayer::setPrecision`: OBEY and PREFER decide, else the fastest;
    fastest is here the lowest that is permitted.
    """
    network = layer._network
    made_by = {tensor._name: found for found in network._layers for tensor in found._outputs}
    sources = [made_by.get(tensor._name) for tensor in layer._inputs[:2]]
    quantized = bool(sources) and all(one is not None and kind_of(one) == "DEQUANTIZE" for one in sources)
    if layer._name in config._circumstances.fallback:
        return "FLOAT"
    if network._strong:
        return "INT8" if quantized else str(layer._inputs[0]._dtype)
    constrained = config._has("OBEY_PRECISION_CONSTRAINTS") or config._has("PREFER_PRECISION_CONSTRAINTS")
    if layer._precision and constrained:
        return str(layer._precision)
    if config._has("INT8") and (quantized or layer._inputs[0]._name in scales):
        return "INT8"
    return "HALF" if config._has("FP16") else "BF16" if config._has("BF16") else "FLOAT"


def _measure(builder: Any, config: Any, precisions: dict[str, str]) -> None:
    """Measure every tactic that the timing cache does not know.

    Source: NvInfer.h of release/10.13, `ITimingCache`: what was timed is not timed again.
    """
    cache = config._cache
    for name, precision in precisions.items():
        key = f"{name}:{precision}"
        if cache is None or key not in cache._tactics:
            builder._circumstances.measured.append(key)
        if cache is not None:
            cache._tactics[key] = "0x0000000000000001"


def _plan(builder: Any, network: Any, config: Any, precisions: dict[str, str]) -> dict[str, Any]:
    """Source: the tests' own: what a plan must tell for `simulated_engine`."""
    module, circumstances = builder._module, builder._circumstances
    layers = engine_layers(network, precisions, circumstances.blocks)
    built_for = [capability.name.removeprefix("SM") for capability in config._capabilities]
    return {
        "module": module.__name__,
        "version": module.__version__,
        "devices": [f"{name[:-1]}.{name[-1]}" for name in built_for] or [circumstances.device],
        "version_compatible": config._has("VERSION_COMPATIBLE"),
        "lean_runtime": config._has("VERSION_COMPATIBLE") and not config._has("EXCLUDE_LEAN_RUNTIME"),
        "verbosity": config.profiling_verbosity.name,
        "refittable": any(config._has(name) for name in ("REFIT", "REFIT_IDENTICAL", "REFIT_INDIVIDUAL")),
        "stripped": config._has("STRIP_PLAN"),
        "streams_weights": config._has("WEIGHT_STREAMING"),
        "io": [_io(module, tensor)._asdict() for tensor in (*network._inputs, *network._outputs)],
        "profiles": [profile._shapes for profile in config._profiles] or [{}],
        "values": [profile._values for profile in config._profiles] or [{}],
        "layers": [vars(layer) for layer in layers],
        "plugins": _plugins(network),
        "weights": _weights(network),
        "data_dependent": _data_dependent(network._model),
        "model": network._model.SerializeToString(),
    }


def _io(module: Any, tensor: Any) -> PlanTensor:
    """Source: NvInfer.h of release/10.13, `ITensor::setAllowedFormats`: the builder chooses one of them."""
    formats = [
        name for name, bit in module.TensorFormat.__members__.items() if tensor._formats >> int(bit) & 1
    ]
    chosen = "LINEAR" if "LINEAR" in formats else formats[0]
    role, shape = tensor._role.upper(), list(tensor._shape)
    return PlanTensor(tensor._name, role, tensor._dtype, shape, tensor._holds_shape, chosen)


def _plugins(network: Any) -> list[str]:
    """The creators that a plan needs when it is loaded.

    Source: onnx-tensorrt 8.5-GA, builtin_op_importers.cpp, importer of InstanceNormalization; others are the
    test's own, with one creator of the operator's name.
    """
    operators = {layer._operator for layer in network._layers if kind_of(layer).startswith("PLUGIN")}
    return sorted(f"{name}_TRT" if name == "InstanceNormalization" else name for name in operators)


def _weights(network: Any) -> dict[str, dict[str, Any]]:
    """Each weight that can be refitted, to its type, shape, size and digest.

    Source: NvInferRuntime.h of release/10.13, `IRefitter::getAllWeights`, for the names; the rest is the
    tests' own.
    """
    arrays = {name: numpy_helper.to_array(item) for name, item in network._weights.items()}
    return {
        name: {
            "dtype": str(array.dtype), "shape": list(array.shape), "bytes": array.nbytes,
            "sha256": hashlib.sha256(array.tobytes()).hexdigest(),
        }
        for name, array in arrays.items()
        if array.dtype.kind not in "iu" or array.dtype.itemsize == 1  # shapes and indices are no weights
    }  # fmt: skip


def _data_dependent(model: onnx.ModelProto) -> list[str]:
    """Outputs with axes that no input has, of a graph with NonZero.

    Source: NvInferRuntime.h of release/10.16, `setOutputAllocator`.
    """
    sizes = {dim.dim_param for value in model.graph.input for dim in value.type.tensor_type.shape.dim}
    return [
        value.name
        for value in model.graph.output
        if any(not dim.HasField("dim_value") and dim.dim_param not in sizes
               for dim in value.type.tensor_type.shape.dim)
        and any(node.op_type == "NonZero" for node in model.graph.node)
    ]  # fmt: skip
